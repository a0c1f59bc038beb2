"""The plugin API: the base class `Plugin`, its arguments, its context and its results.

Modeled on the scheduling framework. Plugins outside this distribution import these names from
package `holdfast`, which documents what is stable.
"""
# ruff: noqa: ARG002 - a default of an extension point uses no argument

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an extension point of a plugin."""

    code: Code = Code.SUCCESS
    edits: Sequence[Edit] = ()
    reason: str = ""
    warnings: Sequence[str] = ()


_SKIPPED = Result(Code.SKIP)


def success(*edits: Edit, warnings: Sequence[str] = ()) -> Result:
    """Continue, with these edits."""
    return Result(Code.SUCCESS, edits, "", warnings)


def skip() -> Result:
    """Ignore the pod: if another plugin rejects it, this plugin's `validate` is not called."""
    return _SKIPPED


def reject(reason: str) -> Result:
    """Reject the pod; the reason is shown to the user."""
    return Result(Code.REJECT, (), reason)


def error(reason: str) -> Result:
    """Report that the plugin could not decide; the same as raising an exception."""
    return Result(Code.ERROR, (), reason)


@dataclass(frozen=True, slots=True)
class Allow:
    """The plugin does not hold the pod; a `problem` is reported with the release."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """The plugin holds the pod.

    `until_ms` is the time, in milliseconds since 1970, at which it is asked again; None if it will
    call `handle.waiting.recheck`. The reason says what the pod waits for. A `problem` is something
    that is wrong with the pod, and becomes a Warning Event. `open_ended` says that the time is only
    that of the next question, which an event may bring forward: users are not shown it.
    """

    until_ms: int | None = None
    reason: str = ""
    problem: str = ""
    open_ended: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """The plugin holds the pod until somebody changes it; the reason becomes a Warning Event."""

    reason: str


Permit = Allow | Wait | Reject
"""The answer to whether a held pod may start."""


@dataclass(frozen=True, slots=True)
class Context:
    """One review: the request, the profile's name, this process's time, and shared state.

    `state` is shared by all plugins of the review.
    """

    review: PodReview
    profile: str
    now_ms: int
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """True once a plugin has added a scheduling gate in this review."""
        return _HELD in self.state

    def mark_held(self) -> None:
        """Record that a plugin has added a scheduling gate; called by the pipeline."""
        self.state[_HELD] = True


class Plugin:
    """Base class of all plugins: override what the plugin needs.

    One instance is made for each profile that enables the plugin. Instances are called from
    several threads. A plugin returns edits; it never writes a patch.
    """

    name: ClassVar[str]
    """The plugin's name in the configuration."""
    args_type: ClassVar[type[Args]] = Args
    """The class of its arguments."""
    may_block: ClassVar[bool] = True
    """Whether a call may wait for I/O. If so, calls run in a thread pool, under a deadline, and
    only for pods that the plugin `concerns`. `concerns` must never wait, and neither must
    `may_have_finalizer` for other pods.
    """
    gate: ClassVar[str] = ""
    """The scheduling gate `holdfast.dev/<name>`, if the plugin holds pods; see `permit`."""
    permit_is_final: ClassVar[bool] = False
    """Whether `permit` depends on nothing but the pod and the time, and never takes an `Allow`
    back. It is then not asked again when the pod is due."""
    permit_may_block: ClassVar[bool] = False
    """Whether `permit` may wait for I/O. It is then asked only when the pod is otherwise due."""
    finalizer: ClassVar[str] = ""
    """The finalizer that the plugin adds to pods, if any; see `may_have_finalizer`."""
    validates_templates: ClassVar[bool] = False
    """Whether `validate` sees every change of a template, not only changes of `keys`."""

    keys: Sequence[str] = ()
    """Annotations that decide. An update that changes one is validated, and guarded."""
    workload_keys: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Annotations of a workload itself, by its kind; see `validate_workload`."""
    scheduler_names: Collection[str] = ()
    """Every schedulerName that the plugin may give a pod; other edits of it are refused."""
    defers_to_release: bool = False
    """Whether held pods are edited in `at_release` only. The plugin then has to be enabled behind
    all plugins that hold pods."""

    def __init__(self, args: Any, handle: Handle | None = None) -> None:
        """Keep the arguments and the handle. Raise ConfigurationError if the arguments conflict."""
        self.args = args
        self.handle = handle or Handle()

    # --- which pods ---------------------------------------------------------------------------

    def match(self, pod: str) -> str:
        """Return the CEL expression that is true for the pods that the plugin concerns.

        `pod` is the pod in CEL: `object`, or the path of a template. The default is any of `keys`.
        """
        return cel.has_annotation(self.keys, pod)

    def concerns(self, pod: Pod) -> bool:
        """Return the same as `match`, in Python."""
        annotations = pod.annotations
        return any(key in annotations for key in self.keys)

    def blocks(self, review: PodReview) -> bool:
        """Return whether a plugin that does not block otherwise may wait for I/O in a review."""
        return False

    # --- admission ----------------------------------------------------------------------------

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Decide about a pod that is being created."""
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
        """Check `workload_keys` on a workload; `old` is the workload before an update."""
        return skip()

    def restore_match(self) -> str:
        """Return the CEL expression that is true for an update of a VM to be sent to `restore`."""
        return "false"

    def restore(self, workload: Workload, old: Workload) -> Result:
        """Set annotations that an update of a VM must not lose."""
        return skip()

    def may_have_finalizer(self, review: PodReview) -> bool:
        """Return whether a pod may be created with `finalizer`; all others are rejected."""
        return False

    # --- held pods ----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        """Decide whether a pod that has `gate` may start at a time of the API server's clock.

        Called for each held pod that is new or has changed, with any time, to know in advance when
        it may start: far in the future if another plugin holds it until an event; and again, with
        the time that it is, before it is released. The release fails if the pod has another version
        by then, about which the plugin is asked as well. If this raises, the pod stays held, and
        the plugin is asked again after a back-off.
        """
        return Allow()

    def reserve(self, pod: Pod, now_ms: int) -> Permit:
        """Reserve what a pod needs to start, such as a slot; all plugins have allowed the pod.

        `unreserve` follows if the pod is not released after all. May be called again for a pod
        whose release had no clear outcome. Must not wait for I/O.
        """
        return Allow()

    def unreserve(self, pod: Pod) -> None:
        """Return what `reserve` has reserved, if anything.

        Of a pod that is due in a frozen namespace, only name, namespace, UID and gates are given.
        """

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod that is no longer held: it was released, or is gone."""

    def concerns_at_release(self, pod: Pod) -> bool:
        """Return whether `at_release` is called for a pod. The default is `concerns`."""
        return self.concerns(pod)

    def at_release(self, pod: Pod) -> Result:
        """Decide again about a pod that is due.

        The edits are part of the release's patch, as far as the API server lets a gated pod be
        tightened. Warnings, a rejection and exceptions become an Event; the pod is released anyway.
        """
        return skip()

    # --- the process --------------------------------------------------------------------------

    def start(self) -> None:
        """Run once in a thread when the admission server starts; exceptions are only logged."""


def overrides(plugin: Plugin, point: str) -> bool:
    """Return whether a plugin overrides an extension point of the base class."""
    return getattr(type(plugin), point) is not getattr(Plugin, point)
