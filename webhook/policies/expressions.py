"""CEL expressions about pods for the policies. Pure.

The API server limits the cost of an expression. Tenants may create pods of the maximum size, so an
expression compares whole fields first, and never two lists entry by entry.
"""

from collections.abc import Sequence

from holdfast.webhook.framework.cel import string, strings
from holdfast.webhook.model.annotations import DOMAIN, HELD_ANNOTATION, HELD_LABEL, OWN_PREFIX
from holdfast.webhook.model.limits import MAX_ENTRIES
from holdfast.webhook.model.objects import KUEUE_GROUP, REVISION_LABEL
from holdfast.webhook.policies.builder import annotation, equal

RELEASE_GROUP, RELEASE_RESOURCE = DOMAIN, "holds"
"""The resource for the verbs `release` and `approve`, which exists in RBAC rules only."""

DECIDING_LABELS = (KUEUE_GROUP, REVISION_LABEL, "pod-template-hash")
"""Labels that affect jitter and `delay-from`; the last lets another ReplicaSet adopt a pod."""
_ADOPTERS = "system:kube-controller-manager", "system:serviceaccount:kube-system:"
"""The user name, or user name prefix, of the Kubernetes controllers that adopt pods."""

_HINT_PARTS = ("not-before", "jitter")
"""Parts of a hint that are not annotation keys."""
_MAX_HINT_PARTS = 50
"""More parts than a real hint has; a hint of 100,000 would exceed the budget of every update."""


def gates(pod: str) -> str:
    """Return the expression for a pod's scheduling gates."""
    return f"{pod}.spec.?schedulingGates.orValue([])"


def may(verb: str, namespace: str = "request.namespace", name: str = "request.name") -> str:
    """Test a verb on holds. Put it last, because it costs a third of an expression's budget."""
    return (
        f"authorizer.group({string(RELEASE_GROUP)}).resource({string(RELEASE_RESOURCE)})\n"
        f"  .namespace({namespace}).name({name})\n"
        f"  .check({string(verb)}).allowed()"
    )


def changes_a_hold(keys: Sequence[str]) -> str:
    """Test whether an update changes a hold, cheapest test first: it runs on every update."""
    is_held = f"{gates('oldObject')}.exists(gate, {is_own('gate.name')})"
    return f"{is_held}\n&& ({taken()}\n|| {grown()}\n|| {moved()}\n|| {changed(keys)}.size() > 0)"


def taken() -> str:
    """Test whether Holdfast gates are removed; counting suffices, as updates cannot add gates."""
    # Comparing names has quadratic cost, and beyond the budget, nobody could update the pod.
    old_count, new_count = (
        f"{gates(version)}.filter(gate, {is_own('gate.name')}).size()"
        for version in ("oldObject", "object")
    )
    return f"({gates('oldObject')} != {gates('object')}\n  && {old_count}\n  > {new_count})"


def grown() -> str:
    """Test whether a pod gets too many annotations or labels for its release to change them.

    Its release would not be recorded, and a pace would not count it.
    """
    sizes = [
        [f"{version}.metadata.?{field}.orValue({{}}).size()" for version in ("object", "oldObject")]
        for field in ("annotations", "labels")
    ]
    tests = (
        f"({new_size} > {MAX_ENTRIES}\n  && {new_size} > {old_size})"
        for new_size, old_size in sizes
    )
    return "(" + "\n  || ".join(tests) + ")"


def moved() -> str:
    """Test whether a pod gets another controlling owner, or another value of a deciding label.

    Kubernetes' own controllers may do both.
    """
    user, (name, prefix) = "request.userInfo.username", map(string, _ADOPTERS)
    new_owners, old_owners = (
        f"{version}.metadata.?ownerReferences.orValue([])\n"
        "        .filter(one, one.?controller.orValue(false))"
        for version in ("object", "oldObject")
    )
    is_same = "object.metadata.?labels[?key] == oldObject.metadata.?labels[?key]"
    return (
        f"({user} != {name} && !{user}.startsWith({prefix})\n"
        f"  && (!{strings(DECIDING_LABELS)}.all(key, {is_same})\n"
        f"    || (!({equal('metadata.?ownerReferences')})\n"
        f"      && {new_owners}\n        != {old_owners})))"
    )


def changes_containers(gate: str, approved_by: str) -> str:
    """Test whether containers change in a held pod that needs or has an approval.

    The API server only lets an update change images and add ephemeral containers.
    """
    old_gates = gates("oldObject")
    return (
        f"{old_gates}.size() > 0\n"
        f"&& ({annotation('oldObject', string(approved_by))}.hasValue()\n"
        f"  || {old_gates}.exists(gate, gate.name == {string(gate)}))\n"
        f"&& !({equal('spec.containers')}\n"
        f"  && {equal('spec.?initContainers')}\n"
        f"  && {equal('spec.?ephemeralContainers')})"
    )


def changed(keys: Sequence[str]) -> str:
    """List the deciding annotations that change, including unconfigured keys in the old hint."""
    known_keys = strings((*_HINT_PARTS, *keys))
    return (
        f"(\n  {strings(keys)}\n"
        f"  + {annotation('oldObject', string(HELD_ANNOTATION))}.orValue('')\n"
        f"    .split(',', {_MAX_HINT_PARTS}).map(part, part.split('=', 2)[0])\n"
        f"    .filter(key, !(key in {known_keys}))\n"
        f").filter(key, {annotation('object', 'key')} != {annotation('oldObject', 'key')})"
    )


def only_own_removed(path: str, name: str = "") -> str:
    """Test that a list changes only by the removal of names under our prefix.

    `name` maps a list of objects to their names.
    """
    old_names, new_names, own_test = (
        *(f"{version}.{path}.orValue([])" + name for version in ("oldObject", "object")),
        is_own("name"),
    )
    return (
        f"{equal(path)} || (\n"
        f"{new_names}.filter(name, !{own_test})\n  == {old_names}.filter(name, !{own_test})\n"
        f"&& {new_names}.filter(name, {own_test})\n  .all(name, name in {old_names}))"
    )


def label_removed() -> str:
    """Test that `key` is the label of held pods and is removed."""
    return f"(key == {string(HELD_LABEL)}\n    && !(key in object.metadata.?labels.orValue({{}})))"


def is_own(name: str) -> str:
    """Test that a name is under our prefix."""
    return f"{name}.startsWith({string(OWN_PREFIX)})"
