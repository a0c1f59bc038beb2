"""The guard: admission policies over who may release a pod, and over Holdfast itself. Pure.

Four ValidatingAdmissionPolicies, each with its binding, each of use without the others. They run
within the API server, so they hold while no process of Holdfast does:

- `holdfast-hold`: only who may `release` a hold takes our gate off, or changes what decides;
- `holdfast-controller-pods`: what the controller may change of a pod, which RBAC cannot say;
- `holdfast-controller-vms`: what the controller may change of a VM: the record of its node;
- `holdfast-controller-webhooks`: whom the controller may register, for what, and where.
"""

from __future__ import annotations

from collections.abc import Sequence

from webhook import holds, registration, vms
from webhook.conditions import string, strings
from webhook.pipeline import Pipeline
from webhook.plugins.sticky import Sticky
from webhook.policy import (
    Check,
    Installation,
    Object,
    annotation,
    annotations_kept,
    by_controller,
    fixed,
    make_binding,
    make_policy,
    make_rule,
    tolerations_kept,
)
from webhook.registration_guard import webhooks_policy
from webhook.vm_guard import vms_policy

HOLD = "holdfast-hold"
CONTROLLER_PODS = "holdfast-controller-pods"
CONTROLLER_WEBHOOKS = "holdfast-controller-webhooks"

RELEASE_VERB, RELEASE_GROUP, RELEASE_RESOURCE = "release", holds.DOMAIN, "holds"
"""What RBAC grants to those who may release: a verb on a resource that exists in rules alone."""
RELEASER = "holdfast-releaser"
"""The ClusterRole that grants it, named in refusals."""

FIXED_FIELDS = (
    "metadata.labels",
    "metadata.ownerReferences",
    "metadata.generateName",
    "spec.containers",
    "spec.initContainers",
    "spec.ephemeralContainers",
    "spec.activeDeadlineSeconds",
    "spec.terminationGracePeriodSeconds",
)
"""All that the API server lets an update change, beyond what the controller is there to change.

It keeps the rest of a pod's spec as it is itself (ValidatePodUpdate in its source).
"""

_HINT_PARTS = ("not-before", "jitter")
"""What a hint names beside the key of a delay; these are no keys of annotations."""


def policies(pipeline: Pipeline, installation: Installation | None = None) -> list[Object]:
    """Make the four policies, each followed by its binding."""
    where = installation or Installation()
    made = (
        hold_policy(deciding_keys(pipeline)),
        pods_policy(where),
        vms_policy(recording_keys(pipeline), where),
        webhooks_policy(CONTROLLER_WEBHOOKS, registration.names(pipeline), where),
    )
    return [each for policy in made for each in (policy, make_binding(policy["metadata"]["name"]))]


def deciding_keys(pipeline: Pipeline) -> list[str]:
    """Name the annotations that decide about a held pod: the plugins', the hint, the profile.

    Those by which the controller releases a pod whose plugin runs no more are always among them.
    """
    plugins = (plugin for profile in pipeline.profiles.values() for plugin in profile.plugins)
    configured = (key for plugin in plugins for key in plugin.keys)
    lasting = (*holds.DELAY_KEYS, holds.NOT_BEFORE, holds.JITTER, holds.HELD, holds.PROFILE)
    return list(dict.fromkeys((*configured, *lasting)))


def recording_keys(pipeline: Pipeline) -> list[str]:
    """Name the annotations by which the controller records a VM's node."""
    plugins = (plugin for profile in pipeline.profiles.values() for plugin in profile.plugins)
    keys = [plugin.args.node_annotation for plugin in plugins if isinstance(plugin, Sticky)]
    return list(dict.fromkeys((*(keys or [vms.STICKY_NODE]), vms.STICKY_NODE_UID)))


def hold_policy(keys: Sequence[str]) -> Object:
    """Make the policy that keeps held pods held.

    It takes in `pods/status`, by which annotations can be changed as well. Who may release is part
    of the condition: whom a policy does not match costs the API server a quarter of what one costs
    it that is met (it makes the pod anew for each of four steps), and a burst is all releases.
    """
    what = (
        "((variables.taken.size() > 0 ? ['release it'] : [])\n"
        "  + (variables.changed.size() > 0 ? ['change ' + variables.changed.join(', ')] : []))\n"
        "  .join(' or ')"
    )
    return make_policy(
        HOLD,
        rule=make_rule("", ["pods", "pods/status"], ["UPDATE"]),
        condition=("changes-a-hold-forbidden", f"{_changes_a_hold(keys)}\n&& !{_may_release()}"),
        variables={
            "gates": f"{_gates('oldObject')}\n"
            f"  .filter(gate, {_is_own('gate.name')}).map(gate, gate.name)",
            "taken": _taken(),
            "changed": _changed(keys),
            "what": what,
        },
        checks=[
            Check(
                "false",
                "the pod is held by Holdfast; only who may "
                f"{RELEASE_VERB!r} {RELEASE_RESOURCE}.{RELEASE_GROUP} in its namespace may release "
                f"it or change what decides: ask for the role {RELEASER}",
                "'pod ' + request.namespace + '/' + request.name + ' is held by '\n"
                "  + variables.gates.join(', ') + ': ' + request.userInfo.username\n"
                "  + ' may not ' + variables.what + '; only who may \\'release\\' '\n"
                f"  + '{RELEASE_RESOURCE}.{RELEASE_GROUP} in namespace ' + request.namespace\n"
                f"  + ' may: ask for the role {RELEASER}'",
            )
        ],
    )


def pods_policy(where: Installation) -> Object:
    """Make the policy that bounds what the controller changes of a pod."""
    may_not = f"{where.controller} may not change"
    return make_policy(
        CONTROLLER_PODS,
        rule=make_rule("", ["pods", "pods/*"], ["UPDATE"]),
        condition=by_controller(where),
        checks=[
            Check(
                "!has(request.subResource) || request.subResource == ''",
                f"{may_not} a subresource of a pod",
            ),
            Check(
                _only_own_removed("spec.?schedulingGates.orValue([]).map(gate, gate.name)"),
                f"{may_not} spec.schedulingGates but by taking gates under {holds.OWN_PREFIX} off",
            ),
            Check(
                _only_own_removed("metadata.?finalizers.orValue([])"),
                f"{may_not} metadata.finalizers but by taking finalizers under "
                f"{holds.OWN_PREFIX} off",
            ),
            Check(
                annotations_kept(_is_own("key")),
                f"{may_not} annotations outside {holds.OWN_PREFIX}",
            ),
            Check(tolerations_kept(), f"{may_not} spec.tolerations"),
            *fixed(FIXED_FIELDS, may_not),
        ],
    )


def _gates(pod: str) -> str:
    return f"{pod}.spec.?schedulingGates.orValue([])"


def _may_release() -> str:
    """Ask the authorizer; last of all, for it costs a third of what an expression may."""
    return (
        f"authorizer.group({string(RELEASE_GROUP)}).resource({string(RELEASE_RESOURCE)})\n"
        "  .namespace(request.namespace).name(request.name)\n"
        f"  .check({string(RELEASE_VERB)}).allowed()"
    )


def _changes_a_hold(keys: Sequence[str]) -> str:
    """Test, cheapest first, since this is asked about every update of a pod.

    An unchanged list of gates is not looked through: that costs its length squared, which could
    be too much, and then nobody could change anything of the pod.
    """
    before, after = _gates("oldObject"), _gates("object")
    held = f"{before}.exists(gate, {_is_own('gate.name')})"
    taken = f"({before} != {after}\n  && {_taken()}.size() > 0)"
    return f"{held}\n&& ({taken}\n|| {_changed(keys)}.size() > 0)"


def _taken() -> str:
    """List our gates that the update takes off."""
    return (
        f"{_gates('oldObject')}.map(gate, gate.name)\n"
        f"  .filter(name, {_is_own('name')}\n"
        f"    && !{_gates('object')}.exists(gate, gate.name == name))"
    )


def _changed(keys: Sequence[str]) -> str:
    """List the deciding annotations that the update changes.

    The controller follows the key that the hint names, also when the configuration no longer does.
    """
    others = strings((*_HINT_PARTS, *keys))
    return (
        f"(\n  {strings(keys)}\n"
        f"  + {annotation('oldObject', string(holds.HELD))}.orValue('').split(',')\n"
        "    .map(part, part.split('=')[0])\n"
        f"    .filter(key, !(key in {others}))\n"
        f").filter(key, {annotation('object', 'key')} != {annotation('oldObject', 'key')})"
    )


def _only_own_removed(path: str) -> str:
    """Test a list of names: others' are as they were, and none of ours is new."""
    old, new, own = f"oldObject.{path}", f"object.{path}", _is_own("name")
    return (
        f"{new}.filter(name, !{own})\n  == {old}.filter(name, !{own})\n"
        f"&& {new}.filter(name, {own})\n  .all(name, name in {old})"
    )


def _is_own(name: str) -> str:
    return f"{name}.startsWith({string(holds.OWN_PREFIX)})"
