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
    node_selector = [Requirement(key, "In", (value,)) for key, value in pod.node_selector.items()]
    terms = [term for term in node_affinity.terms(pod) or [()] if term or node_selector]
    clashes = [node_affinity.impossible([*node_selector, *term]) for term in terms]
    if not clashes or not all(clashes):
        return ""
    by_rule = dict(_rules(pod, profile))
    requirements = [
        f"{messages.quote(str(requirement))} ({_origin(requirement, node_selector, by_rule, pod)})"
        for requirement in clashes[0]
    ]
    return f"no node can meet {' and '.join(dict.fromkeys(requirements))}"


def _rules(pod: Pod, profile: Profile | None) -> Iterator[tuple[Requirement, str]]:
    rule_names = {entry.partition("@")[0] for entry in pod.annotations.get(PLACED, "").split(",")}
    for plugin in profile.plugins if profile else ():
        for rule in plugin.args.rules if isinstance(plugin, Placement) else ():
            if rule.name in rule_names:
                yield from ((requirement, rule.name) for requirement in rule.required)


def _origin(
    requirement: Requirement,
    node_selector: Sequence[Requirement],
    by_rule: Mapping[Requirement, str],
    pod: Pod,
) -> str:
    if requirement in by_rule:
        return f"placement rule {by_rule[requirement]}"
    if requirement.is_field and requirement.key == NAME_FIELD and kubevirt.STICKY in pod.finalizers:
        return "the recorded node of the VM"
    return "nodeSelector" if requirement in node_selector else "node affinity"


def differences(pod: Pod, template: Template, profile: Profile | None) -> list[str]:
    """Return the plugins' annotations whose value in the template now differs from the pod's."""
    keys = dict.fromkeys(
        key for plugin in (profile.plugins if profile else ()) for key in plugin.keys
    )
    new, old = template.annotations, pod.annotations
    return [
        f"{key} {messages.quote(new[key]) if key in new else '(none)'}"
        for key in keys
        if new.get(key) != old.get(key)
    ]
