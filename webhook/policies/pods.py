"""The guard: admission policies that protect holds and limit the controller's account. Pure.

Ten ValidatingAdmissionPolicies, each with its binding and independent of the others. The API
server evaluates them, so they also work while Holdfast is down:

- `holdfast-hold`: removing a Holdfast gate, or changing a hold, requires the verb `release`;
- `holdfast-pace`: changing the label or annotations by which a pace counts requires the same verb,
  even after the release, and so does creating a pod that counts without having waited;
- `holdfast-approval`: approving or denying requires the verb `approve` and the user's own name.
  Changing images or ephemeral containers of a held pod that needs or has an approval requires the
  same verb;
- `holdfast-own-fields`: nobody may add Holdfast's finalizers to an existing pod, or Holdfast's
  annotations and labels when a pod is bound to a node;
- `holdfast-freeze`: users who may freeze a namespace may not change anything else in it;
- `holdfast-freeze-roles`: nor may they grant that right to another account with a role;
- `holdfast-controller-pods`: the fields of a pod that the controller and the Helm chart's uninstall
  Job may change;
- `holdfast-controller-vms`: the same for VMs: only the record of the node;
- `holdfast-controller-webhooks`: the webhooks that the controller may register;
- `holdfast-controller-secrets`: the types and owners of the Secrets that the controller may write,
  and the owners of its Lease.
"""

from collections.abc import Sequence

from holdfast.webhook.framework.cel import string, strings
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.model import approvals, kubevirt
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    DELAY_KEYS,
    HELD_ANNOTATION,
    HELD_LABEL,
    JITTER,
    NOT_BEFORE,
    OWN_PREFIX,
    PROFILE_ANNOTATION,
    RELEASED_ANNOTATION,
)
from holdfast.webhook.model.limits import MAX_ENTRIES
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.sticky import Sticky
from holdfast.webhook.policies import expressions
from holdfast.webhook.policies.builder import (
    Check,
    InstallationNames,
    Object,
    annotation,
    entries_kept,
    fixed,
    make_binding,
    make_policy,
    make_rule,
    tolerations_kept,
)
from holdfast.webhook.policies.expressions import RELEASE_GROUP, RELEASE_RESOURCE
from holdfast.webhook.policies.namespaces import (
    FREEZE_POLICY,
    FREEZE_ROLES_POLICY,
    freeze_policy,
    freeze_roles_policy,
)
from holdfast.webhook.policies.secrets import CONTROLLER_SECRETS, secrets_policy
from holdfast.webhook.policies.vms import CONTROLLER_VMS, vms_policy
from holdfast.webhook.policies.webhooks import webhooks_policy
from holdfast.webhook.registration import configurations

HOLD = "holdfast-hold"
PACE = "holdfast-pace"
APPROVAL = "holdfast-approval"
OWN_FIELDS = "holdfast-own-fields"
CONTROLLER_PODS = "holdfast-controller-pods"
CONTROLLER_WEBHOOKS = "holdfast-controller-webhooks"
POLICIES = (
    *(HOLD, PACE, APPROVAL, OWN_FIELDS, FREEZE_POLICY, FREEZE_ROLES_POLICY),
    *(CONTROLLER_PODS, CONTROLLER_VMS, CONTROLLER_WEBHOOKS, CONTROLLER_SECRETS),
)
"""The names of all policies, and of their bindings."""

RELEASE_VERB = "release"
"""The RBAC verb for releasing pods."""
APPROVE_VERB = "approve"
"""The RBAC verb for approving and denying, on the same resource."""
APPROVER = "holdfast-approver"
"""The ClusterRole that grants APPROVE_VERB; messages mention it."""
RELEASER = "holdfast-releaser"
"""The ClusterRole that grants RELEASE_VERB; messages mention it."""

FIXED_FIELDS = (
    "metadata.ownerReferences",
    "metadata.generateName",
    "spec.containers",
    "spec.initContainers",
    "spec.ephemeralContainers",
    "spec.activeDeadlineSeconds",
    "spec.terminationGracePeriodSeconds",
)
"""Fields that an update can change, but the controller never does.

The API server itself protects the rest of a pod's spec (ValidatePodUpdate in its source).
"""

MOVED = f"change its controlling owner or labels ({', '.join(expressions.DECIDING_LABELS)})"
"""How the message of the policy `holdfast-hold` describes such a change."""
NEW_NAME = "request.?name.orValue('')"
"""The pod's name; empty for a new pod with `generateName`, whose request has no name."""
COUNTED = (pace_args.KEY, RELEASED_ANNOTATION)
"""The annotations by which a pace counts the pods that have its label."""


def policies(profiles: Profiles, installation: InstallationNames | None = None) -> list[Object]:
    """Build the ten policies, each followed by its binding."""
    names = installation or InstallationNames()
    built_policies = (
        _hold_policy(deciding_keys(profiles)),
        _pace_policy(),
        _approval_policy(),
        _own_fields_policy(profiles),
        freeze_policy(),
        freeze_roles_policy(),
        _pods_policy(names),
        vms_policy(recording_keys(profiles), names),
        webhooks_policy(
            CONTROLLER_WEBHOOKS,
            list(configurations.expressions(profiles)),
            names,
            profiles.selectors,
        ),
        secrets_policy(names),
    )
    return [
        resource
        for policy in built_policies
        for resource in (policy, make_binding(policy["metadata"]["name"]))
    ]


def deciding_keys(profiles: Profiles) -> list[str]:
    """Return the annotations that decide about a held pod: the plugins', the hint, the profile.

    The default keys are always included: the controller uses them to release a pod whose plugin is
    no longer enabled.
    """
    plugin_keys = (key for plugin in profiles.plugins for key in plugin.keys)
    own_keys = (NOT_BEFORE, JITTER, HELD_ANNOTATION, PROFILE_ANNOTATION, ALLOWED_ANNOTATION)
    return list(dict.fromkeys((*plugin_keys, *DELAY_KEYS, *own_keys)))


def recording_keys(profiles: Profiles) -> list[str]:
    """Return the annotations in which the controller records a VM's node."""
    plugins = (plugin for plugin in profiles.plugins if isinstance(plugin, Sticky))
    keys = [plugin.args.node_annotation for plugin in plugins]
    return list(dict.fromkeys((*(keys or [kubevirt.STICKY_NODE]), kubevirt.STICKY_NODE_UID)))


def _hold_policy(keys: Sequence[str]) -> Object:
    """Build the policy that protects held pods.

    It also covers `pods/status`, through which annotations can be changed. The right to release is
    checked in the match condition: a request that does not match costs the API server a quarter of
    a matching one, and in a burst all requests are releases.
    """
    actions = (
        "((variables.taken ? ['release it'] : [])\n"
        f"  + (variables.grown ? ['give it more than {MAX_ENTRIES} annotations or labels'] : [])\n"
        f"  + (variables.moved ? ['{MOVED}'] : [])\n"
        "  + (variables.changed.size() > 0 ? ['change ' + variables.changed.join(', ')] : []))\n"
        "  .join(' or ')"
    )
    return make_policy(
        HOLD,
        rule=make_rule("", ["pods", "pods/status"], ["UPDATE"]),
        condition=(
            "changes-a-hold-forbidden",
            f"{expressions.changes_a_hold(keys)}\n&& !{expressions.may(RELEASE_VERB)}",
        ),
        variables={
            "gates": f"{expressions.gates('oldObject')}\n"
            f"  .filter(gate, {expressions.is_own('gate.name')}).map(gate, gate.name)",
            "taken": expressions.taken(),
            "grown": expressions.grown(),
            "moved": expressions.moved(),
            "changed": expressions.changed(keys),
            "what": actions,
        },
        checks=[
            Check(
                "false",
                "the pod is held by Holdfast: to release it or change its hold, you need the verb "
                f"{RELEASE_VERB!r} on {RELEASE_RESOURCE}.{RELEASE_GROUP} in its namespace (role "
                f"{RELEASER})",
                "'pod ' + request.namespace + '/' + request.name + ' is held by '\n"
                "  + variables.gates.join(', ') + ': ' + request.userInfo.username\n"
                "  + ' may not ' + variables.what + ': this needs the verb \\'release\\' on '\n"
                f"  + '{RELEASE_RESOURCE}.{RELEASE_GROUP} in namespace ' + request.namespace\n"
                f"  + ' (role {RELEASER})'",
            )
        ],
    )


def _pace_policy() -> Object:
    """Build the policy that protects the label and annotations by which a pace counts pods.

    It applies before and after the release. Otherwise users could give their pods slots that others
    wait for, or keep slots occupied. The webhook removes the label from a new pod without the gate,
    but is not called in all namespaces.
    """
    label = f"metadata.?labels[?{string(pace_args.KEY)}]"
    is_changed = f"{annotation('object', 'key')} != {annotation('oldObject', 'key')}"
    has_gate = f"{expressions.gates('object')}.exists(gate, gate.name == {string(pace_args.KEY)})"
    counts = (
        f"(request.operation == 'CREATE'\n  ? object.{label}.hasValue() && !{has_gate}\n"
        f"  : (object.{label} != oldObject.{label}\n"
        f"    || (oldObject.{label}.hasValue()\n"
        f"      && {strings(COUNTED)}.exists(key, {is_changed}))))"
    )
    fields = f"label {pace_args.KEY} and the annotations {' and '.join(COUNTED)}"
    permission = f"the verb {RELEASE_VERB!r} on {RELEASE_RESOURCE}.{RELEASE_GROUP}"
    return make_policy(
        PACE,
        rule=make_rule("", ["pods", "pods/status"], ["CREATE", "UPDATE"]),
        condition=(
            "changes-a-pace-forbidden",
            f"{counts}\n&& !{expressions.may(RELEASE_VERB, name=NEW_NAME)}",
        ),
        checks=[
            Check(
                "false",
                f"a pace counts pods by the {fields}: to change them, or to create a pod with the "
                f"label and without the gate, you need {permission} in the pod's namespace (role "
                f"{RELEASER})",
            )
        ],
    )


def _approval_policy() -> Object:
    """Build the policy that protects the names of users who approve and deny.

    It protects them even after the release, when they are a record. The webhook removes copied
    names from new pods; an admin may restore pods that have them and are not sent to it. An
    approval also covers the images and ephemeral containers, until the pod has no gates.
    """
    user = "request.userInfo.username"
    is_new = "request.operation == 'CREATE'"
    is_same = f"{annotation('object', 'key')} == {annotation('oldObject', 'key')}"
    has_marks = f"{strings(approvals.MARKS)}.exists(key, {annotation('object', 'key')}.hasValue())"
    is_changed = f"!{strings(approvals.MARKS)}.all(key, {is_same})"
    is_marked = f"{is_new} ? {has_marks}\n: {is_changed}"
    containers = expressions.changes_containers(approvals.GATE, approvals.APPROVED_BY)
    resources = ["pods", "pods/status", "pods/ephemeralcontainers"]
    permission = f"the verb {APPROVE_VERB!r} on {RELEASE_RESOURCE}.{RELEASE_GROUP}"
    return make_policy(
        APPROVAL,
        rule=make_rule("", resources, ["CREATE", "UPDATE"]),
        condition=("changes-an-approval", f"{is_marked}\n|| ({containers})"),
        variables={"marked": is_marked},
        checks=[
            Check(
                f"{is_new} || {strings(approvals.NAMES)}.all(key, {is_same}\n"
                f"  || {annotation('object', 'key')}.orValue({user}) == {user})",
                f"{' and '.join(approvals.NAMES)} must be the name of the user who writes them: "
                "use holdfast approve or holdfast deny",
            ),
            Check(
                expressions.may(APPROVE_VERB, name=NEW_NAME),
                "to approve or deny a pod, or change its containers while it waits for an approval "
                f"or has one, you need {permission} in its namespace (role {APPROVER})",
                f"{user} + ' may not '\n"
                "  + (variables.marked ? 'approve or deny' : 'change the containers of')\n"
                f"  + ' pod ' + request.namespace + '/' + {NEW_NAME}\n"
                f"  + ': this needs the verb \\'{APPROVE_VERB}\\' on '\n"
                f"  + '{RELEASE_RESOURCE}.{RELEASE_GROUP} in namespace ' + request.namespace\n"
                f"  + ' (role {APPROVER})'",
            ),
        ],
    )


def _own_fields_policy(profiles: Profiles) -> Object:
    """Build the policy that protects fields for which the webhook is not called.

    The status subresource can add finalizers, and the API server copies the annotations and labels
    of a Binding to the pod.
    """
    plugin_finalizers = (plugin.finalizer for plugin in profiles.plugins)
    finalizers = list(dict.fromkeys(filter(None, (kubevirt.STICKY, *plugin_finalizers))))
    subresource = "request.?subResource.orValue('')"
    is_binding = f"request.resource.resource == 'bindings' || {subresource} == 'binding'"
    old_names, new_names = (
        f"{version}.metadata.?finalizers.orValue([])" for version in ("oldObject", "object")
    )
    adds = f"{strings(finalizers)}.exists(name, name in {new_names} && !(name in {old_names}))"
    sets = (
        "[object.metadata.?annotations, object.metadata.?labels]\n"
        f"  .exists(entries, entries.orValue({{}}).exists(key, {expressions.is_own('key')}))"
    )
    return make_policy(
        OWN_FIELDS,
        rule=make_rule("", ["pods", "pods/status"], ["UPDATE"]),
        also=[make_rule("", ["bindings", "pods/binding"], ["CREATE"])],
        condition=("adds-own-fields", f"({is_binding})\n? {sets}\n: {adds}"),
        checks=[
            Check(
                "false",
                f"only Holdfast adds finalizers, annotations and labels under {OWN_PREFIX} to a "
                "pod: remove them from the request",
            )
        ],
    )


def _pods_policy(installation: InstallationNames) -> Object:
    may_not = f"{installation.controller} may not change"
    return make_policy(
        CONTROLLER_PODS,
        rule=make_rule("", ["pods", "pods/*"], ["UPDATE"]),
        condition=(
            "by-the-controller",
            (
                "request.userInfo.username in "
                f"{strings([installation.controller, installation.uninstaller])}"
            ),
        ),
        checks=[
            Check(
                "!has(request.subResource) || request.subResource == ''",
                f"{may_not} a subresource of a pod",
            ),
            Check(
                expressions.only_own_removed("spec.?schedulingGates", ".map(gate, gate.name)"),
                f"{may_not} spec.schedulingGates, except by removing gates under {OWN_PREFIX}",
            ),
            Check(
                expressions.only_own_removed("metadata.?finalizers"),
                f"{may_not} metadata.finalizers, except by removing finalizers under {OWN_PREFIX}",
            ),
            Check(
                entries_kept("annotations", expressions.is_own("key")),
                f"{may_not} annotations outside {OWN_PREFIX}",
            ),
            Check(
                entries_kept("labels", expressions.label_removed()),
                f"{may_not} metadata.labels, except by removing {HELD_LABEL}",
            ),
            Check(tolerations_kept(), f"{may_not} spec.tolerations"),
            *fixed(FIXED_FIELDS, may_not),
        ],
    )
