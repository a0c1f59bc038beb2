"""The plugin API: the base class `Plugin`, its arguments, its context and its results.

Modeled on the scheduling framework. Third-party plugins import these names from package `holdfast`,
which documents the stable API.
"""
# ruff: noqa: ARG002 - the default extension points do not use their arguments

import enum
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from holdfast.webhook.framework import cel
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload

_HELD = "held"


class Args(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of a plugin's arguments: immutable, strictly checked, camelCase in the file."""


class Code(enum.StrEnum):
    """Outcome of an extension point; the values are metric labels."""

    SUCCESS = "Success"
    SKIP = "Skip"
    REJECT = "Reject"
    ERROR = "Error"


class Result(msgspec.Struct, frozen=True):
    """The result of an extension point of a plugin."""

    code: Code = Code.SUCCESS
    edits: Sequence[Edit] = ()
    reason: str = ""
    warnings: Sequence[str] = ()


_SKIPPED = Result(Code.SKIP)


def success(*edits: Edit, warnings: Sequence[str] = ()) -> Result:
    """Return a result that lets the review continue, with these edits."""
    return Result(Code.SUCCESS, edits, "", warnings)


def skip() -> Result:
    """Return a result that ignores the pod."""
    return _SKIPPED


def reject(reason: str) -> Result:
    """Return a result that rejects the pod; the reason is shown to the user."""
    return Result(Code.REJECT, (), reason)


def error(reason: str) -> Result:
    """Return a result that reports a failure to decide; the same as raising an exception."""
    return Result(Code.ERROR, (), reason)


class Allow(msgspec.Struct, frozen=True):
    """The plugin does not hold the pod; a `problem` is reported with the release."""

    problem: str = ""


class Wait(msgspec.Struct, frozen=True):
    """The plugin holds the pod.

    `until_ms` is the time of the next `permit` call, in milliseconds since 1970; None if the plugin
    will call `handle.waiting.recheck`. `reason` describes what the pod waits for. `problem`
    describes what is wrong with the pod, and becomes a Warning Event. `open_ended` means that an
    event may bring the next call forward, so `until_ms` is not shown to users.
    """

    until_ms: int | None = None
    reason: str = ""
    problem: str = ""
    open_ended: bool = False


class Reject(msgspec.Struct, frozen=True):
    """The plugin holds the pod until it is changed; the reason becomes a Warning Event."""

    reason: str


Permit = Allow | Wait | Reject
"""The decision whether a held pod may start."""


class Context(msgspec.Struct, frozen=True):
    """The context of a review: request, profile name, this process's time, and shared state.

    `state` is shared by all plugins of the review.
    """

    review: PodReview
    profile: str
    now_ms: int
    state: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether a plugin has added a scheduling gate in this review."""
        return _HELD in self.state

    def mark_held(self) -> None:
        """Record that a plugin has added a scheduling gate; called by the pipeline."""
        self.state[_HELD] = True


class Plugin:
    """Base class of all plugins. Override the methods that the plugin needs.

    Each profile that enables the plugin has an instance. Instances are called from several
    threads. A plugin returns edits, never a patch.
    """

    name: ClassVar[str]
    """The plugin's name in the configuration."""
    args_type: ClassVar[type[Args]] = Args
    """The class of its arguments."""
    may_block: ClassVar[bool] = True
    """Whether a call may wait for I/O. If so, calls run in a thread pool, with a timeout.
    `concerns` must never wait, and neither must `may_have_finalizer` for other pods.
    """
    gate: ClassVar[str] = ""
    """The scheduling gate `holdfast.dev/<name>`, if the plugin holds pods; see `permit`."""
    permit_is_final: ClassVar[bool] = False
    """Whether `permit` depends only on the pod and the time, and never revokes an `Allow`. It is
    then not called again when the pod is due."""
    finalizer: ClassVar[str] = ""
    """The finalizer that the plugin adds to pods, if any; see `may_have_finalizer`."""
    validates_templates: ClassVar[bool] = False
    """Whether `validate` sees every change of a template, not only changes of `keys`."""

    keys: Sequence[str] = ()
    """Annotations that affect decisions. An update that changes one is validated and guarded."""
    reserved_annotations: Sequence[str] = ()
    """Annotations that only the plugin sets. A new pod that has them was copied, or they are
    forged: they are removed, unless the plugin sets them again."""
    reserved_labels: Sequence[str] = ()
    """Labels that only the plugin sets; removed from new pods like `reserved_annotations`."""
    workload_keys: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Annotations of a workload itself, by its kind; see `validate_workload`."""
    scheduler_names: Collection[str] = ()
    """All schedulerNames that the plugin may set; an edit that sets another one fails."""
    defers_to_release: bool = False
    """Whether held pods are edited in `at_release` only. The plugin must then be enabled after all
    plugins that hold pods."""

    def __init__(self, args: Any, handle: Handle | None = None) -> None:
        """Store arguments and handle. Overrides raise ConfigurationError if arguments conflict."""
        self.args = args
        self.handle = handle or Handle()

    # --- which pods ---------------------------------------------------------------------------

    def match(self, pod: str) -> str:
        """Return the CEL expression that is true for the pods that concern the plugin.

        `pod` is the pod in CEL: `object`, or the path of a template. By default, a pod matches if
        it has any of `keys`.
        """
        return cel.has_annotation(self.keys, pod)

    def concerns(self, pod: Pod) -> bool:
        """Return whether a pod concerns the plugin: the same as `match`, in Python.

        The plugin is not called to `mutate` other pods, nor to `validate` them, unless an update
        changes one of `keys`.
        """
        return not pod.annotations.keys().isdisjoint(self.keys)

    def blocks(self, review: PodReview) -> bool:
        """Return whether a plugin without `may_block` may wait for I/O in this review.

        Called only for reviews for which the plugin is called.
        """
        return False

    # --- admission ----------------------------------------------------------------------------

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Return the decision about a pod that is being created."""
        return skip()

    def validate(self, pod: Pod, context: Context) -> Result:
        """Check a pod as it will be stored, or a template if `context.review.workload` is set."""
        return skip()

    def skip_match(self, pod: str) -> str:
        """Return a CEL expression that is true only if `validate` would accept a new pod.

        The API server then skips the call. It is evaluated only where `match` is true.
        """
        return "false"

    def validate_workload(self, workload: Workload, old: Workload | None) -> Result:
        """Check a workload that has, or had, `workload_keys`; `old` is as before an update."""
        return skip()

    def restore_match(self) -> str:
        """Return the CEL expression that is true for the VM updates that `restore` must handle."""
        return "false"

    def restore(self, workload: Workload, old: Workload) -> Result:
        """Return edits that restore annotations that an update of a VM must not drop."""
        return skip()

    def may_have_finalizer(self, review: PodReview) -> bool:
        """Return whether a pod may be created with `finalizer`; other pods with it are rejected."""
        return False

    # --- held pods ----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        """Decide whether a pod with `gate` may start at `now_ms`, by the API server's clock.

        Called for each new or changed held pod, to compute its due time in advance. `now_ms` is
        then arbitrary: far in the future if another plugin holds the pod until an event. Called
        again before the release, with the current time. If the pod has changed by then, the release
        fails, and the plugin is called for the new version. If this raises an exception, the pod
        stays held, and the call is retried after a back-off.
        """
        return Allow()

    def reserve(self, pod: Pod, now_ms: int) -> Permit:
        """Reserve what a pod needs to start, such as a slot.

        Called after all plugins have allowed the pod. `unreserve` follows if the pod is not
        released after all. May be called again for a pod whose release had an unknown outcome. Must
        not wait for I/O.
        """
        return Allow()

    def unreserve(self, pod: Pod) -> None:
        """Undo `reserve`, if it reserved anything.

        A pod that is due in a frozen namespace is passed with name, namespace, UID and gates only.
        """

    def forget(self, uid: str) -> None:
        """Drop the state of a pod that is no longer held, because it was released or deleted."""

    def concerns_at_release(self, pod: Pod) -> bool:
        """Return whether to call `at_release` for a pod. The default is `concerns`."""
        return self.concerns(pod)

    def at_release(self, pod: Pod) -> Result:
        """Return the decision about a pod that is being released.

        The edits are part of the release's patch, as far as the API server allows tightening a
        gated pod. Warnings, rejections and exceptions become an Event; the pod is released anyway.
        """
        return skip()

    # --- the process --------------------------------------------------------------------------

    def start(self) -> None:
        """Run once in a thread when the admission server starts; exceptions are only logged."""


def overrides(plugin: Plugin, point: str) -> bool:
    """Return whether a plugin overrides an extension point of the base class."""
    return getattr(type(plugin), point) is not getattr(Plugin, point)
