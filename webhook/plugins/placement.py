"""placement: place workloads on nodes by configured rules.

The SpaceCloud scheduler plugin marked pods with `type: space` for edge nodes, but never rejected a
node. Here, its rule is part of the configuration, and becomes node affinity when a pod is created.
kube-scheduler does the rest: the plugin never reads nodes.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec

from holdfast.webhook.framework import arg_types, json_patch, node_affinity
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Args, Context, Plugin, Result, reject, skip, success
from holdfast.webhook.model import kubevirt, messages
from holdfast.webhook.model.annotations import DOMAIN, OWN_PREFIX
from holdfast.webhook.model.edits import (
    Edit,
    Requirement,
    SetAnnotation,
    Tolerate,
)
from holdfast.webhook.model.limits import MAX_REQUIREMENTS
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.workloads import Workload
from holdfast.webhook.plugins import placement_checks, placement_rules
from holdfast.webhook.plugins.placement_rules import Rule, RuleBook

# A DaemonSet's pod with two requirements on its node's name stays Pending (kubernetes#61886).
_DAEMON = (
    "the DaemonSet controller assigns its pods to nodes: set node affinity in its template instead"
)
_BOUND = "spec.nodeName is already set: use a nodeSelector instead"
_PINNED = "its node affinity already names its node"
_QUOTED_CHARACTERS = 60
"""Maximum length of a quoted requirement: two of them fit into a warning."""
_MAX_NAMED = 3

PLACED = f"{DOMAIN}/placed"
"""The annotation that records which rules placed a pod, and their versions."""


class PlacementArgs(Args, frozen=True):
    """Arguments of the placement plugin."""

    rules: tuple[Annotated[Rule, arg_types.RULE], ...] = (placement_rules.SPACE,)
    """All rules that match a pod apply, in this order."""


class Placement(Plugin):
    """Adds the node affinity and tolerations of the rules that match a pod."""

    name = "placement"
    args_type = PlacementArgs
    may_block = False
    # Any part of a template can make a rule match, or contradict it. `keys` stays empty: pods are
    # placed at creation, and changing an annotation later does not move them.
    validates_templates = True
    reserved_annotations = (PLACED,)

    def __init__(self, args: PlacementArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        placement_checks.check(args.rules)
        self._rules = args.rules
        self.defers_to_release = any(rule.resolve_at_release for rule in args.rules)
        self.scheduler_names = {rule.scheduler_name for rule in args.rules} - {""}
        self._book = RuleBook(args.rules)
        self._edits_of = {rule.name: rule.edits() for rule in args.rules}
        self._versions = {
            rule.name: hashlib.sha256(msgspec.json.encode(rule)).hexdigest()[:8]
            for rule in args.rules
        }

    def match(self, pod: str) -> str:
        """Match pods that a rule selects."""
        return placement_rules.expression((rule.when for rule in self._rules), pod)

    def concerns(self, pod: Pod) -> bool:
        """Return whether a rule selects a pod; without a namespace, a pod may be in any of them."""
        return bool(self._for(pod, pod.metadata.namespace))

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Apply the rules; for held pods, only check those with resolveAtRelease for conflicts."""
        rules = self._for(pod, context.review.request.namespace)
        if not rules:
            return skip()
        reason = _left_alone(pod)
        if reason:
            return success(warnings=[f"holdfast: not placed: {reason}"])
        held = context.held or _is_held(pod)
        applied = [rule for rule in rules if not (held and rule.resolve_at_release)]
        return _resolved(pod, rules, self._edits(applied))

    def validate(self, pod: Pod, context: Context) -> Result:
        """Report conflicts in a template; reject a new pod that lacks what a rule requires."""
        review = context.review
        rules = self._for(pod, review.request.namespace)
        if not rules or (review.request.operation != "CREATE" and review.workload is None):
            return skip()
        reason = _left_alone(pod, review.workload)
        if review.workload is None:
            return skip() if reason else self._present(pod, rules)
        if reason:
            return success(warnings=[f"holdfast: the pods will not be placed: {reason}"])
        return _resolved(pod, rules)

    def concerns_at_release(self, pod: Pod) -> bool:
        """Return whether a rule with resolveAtRelease selects a pod."""
        return any(rule.resolve_at_release for rule in self._for(pod, pod.metadata.namespace))

    def at_release(self, pod: Pod) -> Result:
        """Apply the rules with resolveAtRelease, as currently configured."""
        rules = [rule for rule in self._for(pod, pod.metadata.namespace) if rule.resolve_at_release]
        if not rules or _left_alone(pod):
            return skip()
        excess = _excess(pod, rules)
        if excess:
            return reject(excess)
        edits, conflict = self._edits(rules, _recorded(pod)), _conflict(pod, rules)
        return success(*edits, warnings=[conflict[1]] if conflict else [])

    def _for(self, pod: Pod, namespace: str) -> list[Rule]:
        return self._book.matching(pod, namespace)

    def _edits(
        self, rules: Sequence[Rule], recorded_versions: Mapping[str, str] = MappingProxyType({})
    ) -> list[Edit]:
        """Return the rules' edits, and the edit that adds the rules to the pod's record."""
        edits = [edit for rule in rules for edit in self._edits_of[rule.name]]
        record = {**recorded_versions, **{rule.name: self._versions[rule.name] for rule in rules}}
        text = ",".join(f"{name}@{version}" for name, version in record.items())
        return [*edits, SetAnnotation(PLACED, text)] if rules else []

    def _present(self, pod: Pod, rules: Sequence[Rule]) -> Result:
        """Reject a pod that lacks what the rules require.

        During a rollout of changed rules, another replica may have placed the pod by another
        version of a rule. Such a pod is admitted with a warning.
        """
        recorded_versions, absent = _recorded(pod), _lacking(pod, _all_required(rules))
        warnings = []
        for rule in rules:
            missing = [requirement for requirement in rule.required if requirement in absent]
            if not missing or (rule.resolve_at_release and _is_held(pod)):
                continue
            if (
                recorded_versions.get(rule.name, self._versions[rule.name])
                == self._versions[rule.name]
            ):
                return reject(
                    f"rule {rule.name}: the pod lacks the node requirement {_quoted(missing)}: "
                    "another mutating webhook removed it, or made the rule match after Holdfast "
                    f"ran: {messages.CALL_LAST}"
                )
            warnings.append(
                f"holdfast: rule {rule.name} is being changed: the pod was placed by another "
                "version of it"
            )
        return success(warnings=tuple(warnings))


def _left_alone(pod: Pod, workload: Workload | None = None) -> str:
    """Return why a pod cannot be placed; empty if it can."""
    owners = pod.metadata.owner_references or ()
    if (workload is not None and workload.kind == "DaemonSet") or any(
        owner.controller and owner.kind == "DaemonSet" and owner.api_version.startswith("apps/")
        for owner in owners
    ):
        return _DAEMON
    if pod.spec.node_name:
        return _BOUND
    return _PINNED if _is_pinned(pod) else ""


def _is_pinned(pod: Pod) -> bool:
    """Return whether the creator of a pod has chosen its node, as all kinds of DaemonSets do.

    False for the pod of a VM: the sticky plugin chooses its node, and rules still apply.
    """
    if kubevirt.controller_of(pod.metadata, kubevirt.VMI) is not None:
        return False
    terms = [term for term in node_affinity.terms(pod) or () if term]
    return bool(terms) and all(
        any(requirement.is_field and requirement.operator == "In" for requirement in term)
        for term in terms
    )


def _is_held(pod: Pod) -> bool:
    return any(gate.startswith(OWN_PREFIX) for gate in pod.gates)


def _recorded(pod: Pod) -> dict[str, str]:
    """Return the rules that placed a pod, with their versions."""
    parts = pod.annotations.get(PLACED, "").split(",")
    return {name: version for part in parts for name, _, version in [part.partition("@")] if name}


def _all_required(rules: Iterable[Rule]) -> dict[Requirement, None]:
    """Return the requirements of rules, in order and without duplicates."""
    return dict.fromkeys(requirement for rule in rules for requirement in rule.required)


def _lacking(pod: Pod, requirements: Iterable[Requirement]) -> set[Requirement]:
    """Return the requirements that are neither in the nodeSelector nor in all terms."""
    selector = pod.node_selector
    unselected = {
        requirement
        for requirement in requirements
        if requirement.operator != "In" or selector.get(requirement.key) not in requirement.values
    }
    terms = node_affinity.terms(pod)
    if terms is None:
        return unselected
    present = unselected
    for term in filter(None, terms):
        present = present.intersection(term)
    return unselected - present


# --- conflicts ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Claim:
    """A requirement and its source."""

    by: str
    requirement: Requirement


def _resolved(pod: Pod, rules: Sequence[Rule], edits: Iterable[Edit] = ()) -> Result:
    excess = _excess(pod, rules)
    if excess:
        return reject(excess)
    conflict = _conflict(pod, rules)
    if conflict and conflict[0].on_conflict == "reject":
        return reject(conflict[1])
    texts = [*(conflict or ())[1:], *_shorter_tolerations(pod, rules)]
    return success(*edits, warnings=[f"holdfast: {text}" for text in texts])


def _excess(pod: Pod, rules: Sequence[Rule]) -> str:
    """Return why a pod has too many terms for the rules; empty if it does not.

    Each requirement takes one patch operation per term. The API server accepts 10,000 operations.
    """
    terms = sum(map(bool, node_affinity.terms(pod) or ()))
    added = terms * len(_all_required(rules))
    if added <= MAX_REQUIREMENTS:
        return ""
    return (
        f"the placement rules add {added:,} requirements to the {terms:,} terms of "
        f"spec.affinity.nodeAffinity, more than the limit of {MAX_REQUIREMENTS:,}: remove terms"
    )


def _shorter_tolerations(pod: Pod, rules: Iterable[Rule]) -> Iterator[str]:
    """Yield warnings about tolerations of a pod that precede a rule's, and are shorter."""
    tolerating = [rule for rule in rules if rule.tolerations]
    added = {
        edit: rule for rule in tolerating for edit in rule.edits() if isinstance(edit, Tolerate)
    }
    if not added:
        return
    tolerations = [
        json_patch.read_toleration(toleration) for toleration in pod.spec.tolerations or ()
    ]
    limited = [
        toleration
        for toleration in tolerations
        if toleration.seconds is not None and toleration not in added
    ]
    limited = [
        toleration for toleration in limited if toleration not in json_patch.DEFAULT_TOLERATIONS
    ]
    for toleration, rule in added.items():
        if toleration.effect not in {"", "NoExecute"}:
            continue
        first = next(
            (
                candidate
                for candidate in limited
                if json_patch.tolerates(candidate, toleration.key, toleration.value)
            ),
            None,
        )
        seconds = math.inf if toleration.seconds is None else toleration.seconds
        if first is not None and first.seconds is not None and first.seconds < seconds:
            limit = "no limit" if toleration.seconds is None else f"{toleration.seconds} s"
            yield (
                f"rule {rule.name}: the pod's own toleration of {messages.quote(toleration.key)} "
                f"lasts {first.seconds} s and comes first: it counts instead of the rule's "
                f"({limit})"
            )


def _conflict(pod: Pod, rules: Sequence[Rule]) -> tuple[Rule, str] | None:
    """Return the first rule that contradicts the pod or an earlier rule, and why; None if none.

    That rule excludes the last alternative of the pod's node affinity. Later rules cannot add any,
    so the rule is found by bisection.
    """
    if len(rules) < 2 and not pod.node_selector and node_affinity.terms(pod) is None:
        return None  # no rule contradicts itself: `placement_checks` rejects that
    alternatives = _ways(
        pod, dict.fromkeys(requirement.key for requirement in _all_required(rules))
    )
    claims = [_claims(f"rule {rule.name}", rule.required) for rule in rules]

    def left_by(count: int) -> list[_Claim] | None:
        return _first_possible(
            alternatives, [claim for rule_claims in claims[:count] for claim in rule_claims]
        )

    if not alternatives or left_by(len(rules)) is not None:
        return None
    counts = range(1, len(rules))
    index = bisect.bisect_left(counts, 1, key=lambda count: int(left_by(count) is None))
    return rules[index], _described(rules[index], left_by(index) or ())


def _first_possible(
    alternatives: Iterable[list[_Claim]], claims: Sequence[_Claim]
) -> list[_Claim] | None:
    """Return the first alternative that the rules' claims allow, plus the claims; None if none."""
    by_key: dict[str, dict[Requirement, None]] = {}
    for claimed in _required(claims):
        by_key.setdefault(claimed.key, {})[claimed] = None
    if any(map(node_affinity.impossible, by_key.values())):
        return None
    for alternative in alternatives:
        requirements = _required(alternative)
        # Skip claims on other labels: they are checked above, and there may be many alternatives.
        keys = dict.fromkeys(requirement.key for requirement in requirements)
        if not node_affinity.impossible(
            [*requirements, *(requirement for key in keys for requirement in by_key.get(key, ()))]
        ):
            return [*alternative, *claims]
    return None


def _ways(pod: Pod, keys: Collection[str]) -> list[list[_Claim]]:
    """Return the alternatives of a pod's node affinity, reduced to requirements on these labels."""
    selector = pod.node_selector
    selected = [Requirement(key, "In", (selector[key],)) for key in keys if key in selector]
    common = _claims("nodeSelector", selected)
    terms = node_affinity.terms(pod)
    if terms is None:
        return [common]
    parts = {
        tuple(
            requirement
            for requirement in term
            if requirement.key in keys and not requirement.is_field
        ): None
        for term in terms
        if term
    }
    alternatives = [[*common, *_claims("node affinity", part)] for part in parts]
    return [
        alternative
        for alternative in alternatives
        if not node_affinity.impossible(_required(alternative))
    ]


def _claims(source: str, requirements: Iterable[Requirement]) -> list[_Claim]:
    return [_Claim(source, requirement) for requirement in requirements]


def _required(claims: Iterable[_Claim]) -> list[Requirement]:
    return [claim.requirement for claim in claims]


def _described(rule: Rule, claims: Sequence[_Claim]) -> str:
    """Describe the first contradiction."""
    clash = set(node_affinity.impossible([*_required(claims), *rule.required]))
    requirements = [requirement for requirement in rule.required if requirement in clash]
    opposing = [claim for claim in claims if claim.requirement in clash]
    alone = (
        claim for claim in opposing if node_affinity.impossible([claim.requirement, *requirements])
    )
    first = next(alone, None)
    named = opposing[:_MAX_NAMED] if first is None else [first]
    sources = " and ".join(dict.fromkeys(claim.by for claim in named))
    verb = "contradict" if len(requirements) > 1 else "contradicts"
    return f"rule {rule.name}: {_quoted(requirements)} {verb} {sources} {_quoted(_required(named))}"


def _quoted(requirements: Iterable[Requirement]) -> str:
    return " and ".join(
        messages.quote(str(requirement), _QUOTED_CHARACTERS) for requirement in requirements
    )
