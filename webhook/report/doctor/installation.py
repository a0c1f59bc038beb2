"""Findings about Holdfast's objects, and about pods that its finalizer keeps. Pure."""

import enum
import json
from collections.abc import Collection, Iterator, Sequence

from holdfast.webhook.model.kubevirt import STICKY
from holdfast.webhook.report import table
from holdfast.webhook.report.doctor.diagnosis import Finding, Level
from holdfast.webhook.report.doctor.rollouts import WEBHOOK

CONTROLLER = "holdfast-controller"
"""The Deployment of the controller."""
MAX_BYTES = 1 << 20
"""Maximum size of a ConfigMap, in bytes."""
_NEAR = 0.8
"""Share of a limit from which a warning is reported."""
_MOST_NAMED = 20
_ABOUT = "installation"
_PARTS = frozenset(
    ("webhooks", "caBundle", "server", "certificate", "Deployment", "leader", "guard")
)
_DEV = "mutatingwebhookconfiguration,validatingwebhookconfiguration holdfast-dev"


class Runs(enum.Enum):
    """The process that runs the controller."""

    DEPLOYMENT = enum.auto()
    DEV = enum.auto()
    NOTHING = enum.auto()


def start(runs: Runs, namespace: str) -> str:
    """Return the advice on starting the controller."""
    if runs is Runs.DEV:
        return f"start holdfast dev again, or end it: kubectl delete {_DEV}"
    if runs is Runs.DEPLOYMENT:
        return (
            f"start the controller: kubectl -n {namespace} rollout restart deployment/{CONTROLLER}"
        )
    return (
        f"start the controller: there is no Deployment {CONTROLLER} in namespace {namespace}, so "
        "install Holdfast, or name its namespace with --namespace"
    )


def size(length: int, limit: int, unit: str) -> Iterator[Finding]:
    """Yield the finding on a length and its limit; nothing if the length is 0."""
    if length:
        text = f"{length:,} of at most {limit:,} {unit}"
        if length < limit * _NEAR:
            yield Finding(Level.OK, "configuration", text)
        else:
            cure = "use fewer placement rules, values and namespaces before the limit is reached"
            yield Finding(Level.WARNING, "configuration", text, cure)


def invalid(reason: str) -> Finding:
    """Return the finding on an installed configuration that this command cannot use."""
    if "unknown plugin" in reason:
        # the image may have plugins that are not installed on this machine
        text = f"it cannot be checked here: {reason}"
        return Finding(Level.UNKNOWN, "configuration", text, "install the plugin on this machine")
    return Finding(
        Level.PROBLEM,
        "configuration",
        f"it is invalid, so new pods of Holdfast do not start: {reason}",
        "correct the file, check it with holdfast check-config, and apply it again",
    )


def registered(source: str, *, same: bool) -> Finding:
    """Return the finding on whether registered webhooks match the installed configuration."""
    if same:
        return Finding(Level.OK, "configuration", f"the webhooks are registered as in {source}")
    return Finding(
        Level.WARNING,
        "configuration",
        f"not yet registered: the webhooks differ from {source}",
        "wait half a minute after the rollout; then check the log of the leading controller, and "
        "compare the versions with holdfast version",
    )


def incomplete(
    namespace: str, deployments: Collection[str], *, registered: bool
) -> Iterator[Finding]:
    """Yield a problem if all or part of the installation is missing."""
    missing = [] if registered else ["webhook configurations"]
    missing += [] if WEBHOOK in deployments else [f"Deployment {WEBHOOK}"]
    text = (
        f"incomplete in namespace {namespace}, as during its removal: no {' and no '.join(missing)}"
    )
    cure = "wait, or run holdfast uninstall --release now --yes; to keep Holdfast, install it again"
    if not (registered or deployments):
        text = f"nothing is installed in namespace {namespace}"
        cure = "install Holdfast, or name its namespace with --namespace"
    if missing:
        yield Finding(Level.PROBLEM, _ABOUT, text, cure)


def without_repair(finding: Finding, findings: Sequence[Finding]) -> Finding:
    """Return the finding, without advice on repairing a part if other parts are missing."""
    is_incomplete = any(earlier.about == _ABOUT for earlier in findings)
    is_part = finding.about in _PARTS and finding.level is not Level.UNKNOWN
    return finding._replace(cure="") if is_incomplete and is_part else finding


def elsewhere(namespace: str, namespaces: Sequence[str]) -> Finding:
    """Return the problem that Holdfast is not installed in the checked namespace but elsewhere."""
    return Finding(
        Level.PROBLEM,
        _ABOUT,
        f"nothing is installed in namespace {namespace}; the webhooks call {', '.join(namespaces)}",
        f"run holdfast doctor --namespace {namespaces[0]}",
    )


def may_not_follow(user: str, verb: str, resource: str, consequence: str) -> Finding:
    """Return the problem that the controller may not watch objects, with the consequence."""
    cure = (
        "apply manifests/rbac and the output of holdfast rbac, with --namespace and --config of "
        "this installation; with Helm, add the rules to after.rules"
    )
    return Finding(
        Level.PROBLEM, "permissions", f"{user} may not {verb} {resource}: {consequence}", cure
    )


def virt_controllers(
    accounts: Sequence[tuple[str, bool]], configured: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield the findings on virt-controller's account for each KubeVirt object.

    Each account comes with whether it exists. `configured` are the accounts in the configuration.
    """
    about, cure = "KubeVirt", "set the argument account of plugin sticky to virt-controller's"
    for account, exists in accounts:
        if exists:
            yield Finding(Level.OK, about, f"{account} creates the pods of VMs")
        else:
            text = f"there is no account {account}, so VMs may not return to their nodes"
            yield Finding(Level.PROBLEM, about, text, cure)
    if len(accounts) > 1:
        text = f"there are {len(accounts)} KubeVirt objects; the oldest counts"
        yield Finding(Level.WARNING, about, text, f"{cure}, or delete the others")
    expected = [account for account, exists in accounts if exists]
    for other in sorted(set(configured) - set(expected)) if expected else ():
        text = f"plugin sticky is configured with account {other}, not {' or '.join(expected)}"
        yield Finding(Level.PROBLEM, about, text, "set its argument account to auto")


def kept(namespace: str, names: Sequence[str], *, terminating: bool) -> Finding:
    """Return the problem of deleted pods in a namespace that Holdfast's finalizer keeps."""
    patch = json.dumps({"metadata": {"$deleteFromPrimitiveList/finalizers": [STICKY]}})
    state = "terminating namespace" if terminating else "namespace"
    return Finding(
        Level.PROBLEM,
        "deleted pods",
        f"{table.counted(len(names), 'deleted pod')} in {state} {namespace} kept by finalizer "
        f"{STICKY}: {table.some(names, _MOST_NAMED)}",
        f"without a controller, run: kubectl -n {namespace} patch pod "
        f"{' '.join(names[:_MOST_NAMED])} -p '{patch}'",
    )
