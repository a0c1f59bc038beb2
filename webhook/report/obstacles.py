"""Reasons other than holds why a pod does not run as expected. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.framework.profiles import Profile
from holdfast.webhook.model import kubevirt, messages
from holdfast.webhook.model.edits import Requirement
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.placement import PLACED, Placement

NAME_FIELD = "metadata.name"


@dataclass(frozen=True, slots=True)
class Template:
    """The current pod template of a pod's controller: its kind, name and annotations."""

    kind: str
    name: str
    annotations: Mapping[str, str]


def contradiction(pod: Pod, profile: Profile | None) -> str:
    """Return the requirements that no node can meet together, with their origins; else empty."""
    selected = [Requirement(key, "In", (value,)) for key, value in pod.node_selector.items()]
    terms = [term for term in node_affinity.terms(pod) or [()] if term or selected]
    clashes = [node_affinity.impossible([*selected, *term]) for term in terms]
    if not clashes or not all(clashes):
        return ""
    by_rule = dict(_rules(pod, profile))
    named = [
        f"{messages.quote(str(one))} ({_origin(one, selected, by_rule, pod)})" for one in clashes[0]
    ]
    return f"no node can meet {' and '.join(dict.fromkeys(named))}"


def _rules(pod: Pod, profile: Profile | None) -> Iterator[tuple[Requirement, str]]:
    placed = {one.partition("@")[0] for one in pod.annotations.get(PLACED, "").split(",")}
    for plugin in profile.plugins if profile else ():
        for rule in plugin.args.rules if isinstance(plugin, Placement) else ():
            if rule.name in placed:
                yield from ((one, rule.name) for one in rule.required)


def _origin(
    one: Requirement, selected: Sequence[Requirement], by_rule: Mapping[Requirement, str], pod: Pod
) -> str:
    if one in by_rule:
        return f"placement rule {by_rule[one]}"
    if one.is_field and one.key == NAME_FIELD and kubevirt.STICKY in pod.finalizers:
        return "the recorded node of the VM"
    return "nodeSelector" if one in selected else "node affinity"


def differences(pod: Pod, template: Template, profile: Profile | None) -> list[str]:
    """Return the plugins' annotations whose value in the template now differs from the pod's."""
    keys = dict.fromkeys(key for one in (profile.plugins if profile else ()) for key in one.keys)
    new, old = template.annotations, pod.annotations
    return [
        f"{key} {messages.quote(new[key]) if key in new else '(none)'}"
        for key in keys
        if new.get(key) != old.get(key)
    ]
