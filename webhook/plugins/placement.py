"""placement: put kinds of workloads on kinds of nodes, by rules.

The SpaceCloud scheduler plugin marked pods with `type: space` for nodes at the edge, and never
refused a node. Here its rule is configuration, and becomes node affinity while the pod is created:
kube-scheduler does the rest, and no node is ever read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec

from webhook import affinity, holds, rule_checks, rules, shapes, values
from webhook.framework import HELD_STATE, Args, Context, Handle, Result, refuse, skip, success
from webhook.objects import Pod
from webhook.review import Edit, RemoveAnnotation, Requirement, SetAnnotation
from webhook.rules import Rule, RuleBook
from webhook.workloads import Workload

_DAEMON = "DaemonSet pods have their node already"  # and stay Pending: kubernetes#61886
_BOUND = "spec.nodeName is set already"
_SHOWN_CHARACTERS = 60
"""Of a requirement; two of them, and what is around them, fit into a warning."""
_MOST_NAMED = 3


PLACED = f"{holds.DOMAIN}/placed"
"""The annotation that records which rules placed a pod, and which version of each."""


class PlacementArgs(Args, frozen=True):
    """Arguments of the placement plugin."""

    rules: tuple[Annotated[Rule, shapes.RULE], ...] = (rules.SPACE,)
    """All that match a pod apply, in this order."""


class Placement:
    """Adds what the rules that match a pod require and prefer of its node."""

    name: ClassVar[str] = "placement"
    args_type: ClassVar[type[Args]] = PlacementArgs
    may_block: ClassVar[bool] = False
    keys: Sequence[str] = ()
    """None: placement is decided at creation, and a later change of an annotation moves no pod."""
    judges_templates: ClassVar[bool] = True
    """What contradicts a rule can be anywhere in a template, as can what makes the rule match."""

    def __init__(self, args: PlacementArgs, _handle: Handle | None = None) -> None:
        rule_checks.check(args.rules)
        self._rules = args.rules
        self._book = RuleBook(args.rules)
        self._edits_of = {rule.name: rule.edits() for rule in args.rules}
        self._versions = {rule.name: _version(rule) for rule in args.rules}

    @property
    def leaves_for_release(self) -> bool:
        """Tell whether a rule is only applied at release where the pod is held."""
        return any(rule.resolve_at_release for rule in self._rules)

    def match(self, pod: str) -> str:
        """Match pods that a rule is for."""
        tests = dict.fromkeys(rule.when.expression(pod) for rule in self._rules)
        return " || ".join(f"({test})" for test in tests) or "false"

    def concerns(self, pod: Pod) -> bool:
        """Match pods that a rule is for; one that names no namespace may be in any."""
        return bool(self._for(pod, pod.metadata.namespace))

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Write what the rules say into the pod; what waits for its release is only judged."""
        found = self._for(pod, context.review.request.namespace)
        if not found:
            return skip()
        reason = _left_alone(pod)
        if reason:
            return success(warnings=[f"holdfast: not placed: {reason}"])
        held = _is_held(pod) or bool(context.state.get(HELD_STATE))
        now = [rule for rule in found if not (held and rule.resolve_at_release)]
        return _judged(pod, found, self._edits(now))

    def validate(self, pod: Pod, context: Context) -> Result:
        """Tell of contradictions in a template; refuse a new pod that lost what a rule requires."""
        review = context.review
        found = self._for(pod, review.request.namespace)
        if not found or (review.request.operation != "CREATE" and review.workload is None):
            return skip()
        reason = _left_alone(pod, review.workload)
        if review.workload is None:
            return skip() if reason else self._present(pod, found)
        if reason:
            return success(warnings=[f"holdfast: the pods will not be placed: {reason}"])
        return _judged(pod, found)

    def rechecks(self, pod: Pod) -> bool:
        """Ask to be heard at release only where a rule was left for then."""
        return any(rule.resolve_at_release for rule in self._for(pod, pod.metadata.namespace))

    def at_release(self, pod: Pod) -> Result:
        """Write what was left for the release, by the rules as they are now."""
        found = [rule for rule in self._for(pod, pod.metadata.namespace) if rule.resolve_at_release]
        if not found or _left_alone(pod):
            return skip()
        edits = self._edits(found, _recorded(pod))
        return success(*edits, warnings=[one.text for one in _conflicts(pod, found)])

    def _for(self, pod: Pod, namespace: str) -> list[Rule]:
        return self._book.matching(pod, namespace)

    def _edits(
        self, found: Sequence[Rule], recorded: Mapping[str, str] = MappingProxyType({})
    ) -> list[Edit]:
        """Give what the rules write, and the record of it beside what is recorded already."""
        edits = [edit for rule in found for edit in self._edits_of[rule.name]]
        record = {**recorded, **{rule.name: self._versions[rule.name] for rule in found}}
        text = ",".join(f"{name}@{version}" for name, version in record.items())
        return [*edits, SetAnnotation(PLACED, text) if found else RemoveAnnotation(PLACED)]

    def _present(self, pod: Pod, found: Iterable[Rule]) -> Result:
        """Check that nobody took away what the rules require.

        While a change of the rules is rolled out, a replica may have placed the pod that knows a
        rule in another version: that is no reason to refuse it.
        """
        recorded = _recorded(pod)
        warnings = []
        for rule in found:
            missing = [one for one in rule.required if not _has(pod, one)]
            if not missing or (rule.resolve_at_release and _is_held(pod)):
                continue
            if recorded.get(rule.name, self._versions[rule.name]) == self._versions[rule.name]:
                return refuse(
                    f"rule {rule.name}: the pod no longer requires {_shown(missing)} of its node; "
                    "another mutating webhook removed it, or made the rule match after Holdfast "
                    "had seen the pod"
                )
            warnings.append(
                f"holdfast: rule {rule.name} is being changed; the pod was placed by its other "
                "version"
            )
        return success(warnings=tuple(warnings))


def _left_alone(pod: Pod, workload: Workload | None = None) -> str:
    """Say why a pod cannot be placed; empty where it can be."""
    owners = pod.metadata.owner_references or ()
    if (workload is not None and workload.kind == "DaemonSet") or any(
        owner.controller and owner.kind == "DaemonSet" and owner.api_version.startswith("apps/")
        for owner in owners
    ):
        return _DAEMON
    return _BOUND if pod.spec.node_name else ""


def _is_held(pod: Pod) -> bool:
    return any(gate.startswith(holds.OWN_PREFIX) for gate in pod.gates)


def _version(rule: Rule) -> str:
    return hashlib.blake2b(msgspec.json.encode(rule), digest_size=4).hexdigest()


def _recorded(pod: Pod) -> dict[str, str]:
    """Read by which rules, and which version of each, a pod was placed."""
    parts = pod.annotations.get(PLACED, "").split(",")
    return {name: version for part in parts for name, _, version in [part.partition("@")] if name}


def _has(pod: Pod, wanted: Requirement) -> bool:
    if wanted.operator == "In" and pod.node_selector.get(wanted.key) in wanted.values:
        return True
    terms = affinity.terms(pod)
    return terms is not None and all(wanted in term for term in terms if term)


# --- contradictions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Claim:
    """A requirement, and who makes it."""

    by: str
    requirement: Requirement


@dataclass(frozen=True, slots=True)
class _Conflict:
    """A rule, and why no node can meet it together with what else the pod requires."""

    rule: Rule
    text: str


def _judged(pod: Pod, found: Sequence[Rule], edits: Iterable[Edit] = ()) -> Result:
    conflicts = _conflicts(pod, found)
    refusals = [one.text for one in conflicts if one.rule.on_conflict == "refuse"]
    if refusals:
        return refuse("; ".join(refusals))
    return success(*edits, warnings=[f"holdfast: {one.text}" for one in conflicts])


def _conflicts(pod: Pod, found: Sequence[Rule]) -> list[_Conflict]:
    """Find the rules that contradict the pod's own requirements, or an earlier rule's.

    Such a rule closes the last way in which the pod could be placed.
    """
    if len(found) < 2 and not pod.node_selector and affinity.terms(pod) is None:
        return []  # no rule contradicts itself: `rule_checks` has seen to that
    ways = _ways(pod, dict.fromkeys(one.key for rule in found for one in rule.required))
    conflicts: list[_Conflict] = []
    for rule in found:
        tightened = [[*way, *_claims(f"rule {rule.name}", rule.required)] for way in ways]
        still = [way for way in tightened if not affinity.impossible(_required(way))]
        if ways and not still:
            conflicts.append(_Conflict(rule, _explained(rule, ways[0])))
        ways = still
    return conflicts


def _ways(pod: Pod, keys: Collection[str]) -> list[list[_Claim]]:
    """List in which ways the pod can be placed, each with what it requires of these labels."""
    selector = pod.node_selector
    selected = [Requirement(key, "In", (selector[key],)) for key in keys if key in selector]
    common = _claims("nodeSelector", selected)
    terms = affinity.terms(pod)
    if terms is None:
        return [common]
    parts = {
        tuple(one for one in term if one.key in keys and not one.is_field): None
        for term in terms
        if term
    }
    ways = [[*common, *_claims("node affinity", part)] for part in parts]
    return [way for way in ways if not affinity.impossible(_required(way))]


def _claims(by: str, requirements: Iterable[Requirement]) -> list[_Claim]:
    return [_Claim(by, requirement) for requirement in requirements]


def _required(way: Iterable[_Claim]) -> list[Requirement]:
    return [claim.requirement for claim in way]


def _explained(rule: Rule, way: Sequence[_Claim]) -> str:
    """Name what contradicts what, on the first label where that is so."""
    clash = set(affinity.impossible([*_required(way), *rule.required]))
    wanted = [one for one in rule.required if one in clash]
    others = [claim for claim in way if claim.requirement in clash]
    alone = (one for one in others if affinity.impossible([one.requirement, *wanted]))
    first = next(alone, None)
    named = others[:_MOST_NAMED] if first is None else [first]
    by = " and ".join(dict.fromkeys(claim.by for claim in named))
    verb = "contradict" if len(wanted) > 1 else "contradicts"
    return f"rule {rule.name}: {_shown(wanted)} {verb} {by} {_shown(_required(named))}"


def _shown(requirements: Iterable[Requirement]) -> str:
    return " and ".join(values.shown(str(one), _SHOWN_CHARACTERS) for one in requirements)
