"""What a plugin is made of: its arguments, its extension points, and what it may answer.

This is the module that a plugin imports. The model is the scheduling framework's: a plugin says
whom it concerns, returns edits for a pod (`mutate`) or refuses it (`validate`), and, where it
holds pods, decides when each is due. Plugins know no metrics and no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from webhook import holds
from webhook.errors import HandleError
from webhook.objects import Names, Pod
from webhook.review import Edit, PodReview
from webhook.workloads import Workload

HELD_STATE = "held"
"""The key in a review's shared state that is true once a plugin has added a gate."""


class Args(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of a plugin's arguments: immutable, checked strictly, camelCase in the file."""


class Code(enum.StrEnum):
    """How an extension point ended; the values are labels of metrics."""

    SUCCESS = "Success"
    SKIP = "Skip"
    REFUSE = "Refuse"
    ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Result:
    """What a plugin answers at one extension point."""

    code: Code = Code.SUCCESS
    edits: Sequence[Edit] = ()
    reason: str = ""
    warnings: Sequence[str] = ()


def success(*edits: Edit, warnings: Sequence[str] = ()) -> Result:
    """Carry on, with these edits."""
    return Result(Code.SUCCESS, edits, "", warnings)


def skip() -> Result:
    """Leave the pod alone, and spare this plugin the later extension points of this review.

    A review has a later one where another plugin refuses the pod in `mutate`: `validate` is then
    asked for what else is wrong with it. The two webhooks, and the controller, are asked about a
    pod at different times; what was skipped in one review is not skipped in the next.
    """
    return _SKIPPED


_SKIPPED = Result(Code.SKIP)


def refuse(reason: str) -> Result:
    """Refuse the pod; the reason is for the person who wrote it."""
    return Result(Code.REFUSE, (), reason)


def error(reason: str) -> Result:
    """Say that this plugin could not decide, as raising does: the review fails, and names it."""
    return Result(Code.ERROR, (), reason)


@dataclass(frozen=True, slots=True)
class Context:
    """What a plugin is told beside the pod.

    `now_ms` is this process's time; `state` is shared between the plugins of one review.
    """

    review: PodReview
    profile: str
    now_ms: int
    state: dict[str, Any] = field(default_factory=dict)


class Plugin(Protocol):
    """What every plugin has. One is made for each profile that enables it."""

    name: ClassVar[str]
    may_block: ClassVar[bool]
    """True where a call may wait for something: it then runs in a thread, under a deadline.

    Such a plugin is asked about what concerns it alone, and at UPDATE where one of `keys` changes;
    `validate_workload` about a workload that has one of `workload_keys`, or had one. `concerns` and
    `may_carry` are asked of every plugin where a review arrives, and must not wait.
    """

    @property
    def keys(self) -> Sequence[str]:
        """Name the annotations that decide; a change of one on a stored pod is validated."""
        ...

    def match(self, pod: str) -> str:
        """Give the CEL expression that is true for the pods this plugin concerns.

        `pod` is the pod in CEL: `object`, or the path of a template in it.
        """
        ...

    def concerns(self, pod: Pod) -> bool:
        """Tell the same as `match`, in Python."""
        ...

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Decide about a pod that is being created."""
        ...

    def validate(self, pod: Pod, context: Context) -> Result:
        """Check a pod as it would be stored, or the template of a workload.

        At UPDATE it is asked where one of `keys` changes. A plugin that has an attribute
        `judges_templates`, and it is true, is asked about every change of a template that it
        concerns: so one that looks at more than annotations tells of a mistake where it is made.
        """
        ...


def judges_templates(plugin: Plugin) -> bool:
    """Tell whether any change of a template is for a plugin to judge, not its keys' alone."""
    return bool(getattr(plugin, "judges_templates", False))


@runtime_checkable
class Holder(Protocol):
    """What a plugin that holds pods has as well; its gate is `holdfast.dev/<plugin>`."""

    gate: ClassVar[str]

    def due(self, pod: Pod) -> holds.Due:
        """Decide when a pod that carries the gate is due.

        It is asked again and again. A later answer than before counts only where the pod has
        changed: followed each time, it could hold the pod for ever.
        """
        ...


@runtime_checkable
class Releasing(Protocol):
    """What a plugin that has a say when a held pod is released has as well.

    It is asked about the pods that it concerns, which are read again for that; a further method
    `rechecks(pod)` may say of which it wants to be asked. One that at creation leaves held pods for
    their release, and so has to run behind whatever holds them, says so by an attribute
    `leaves_for_release` that is true.
    """

    def at_release(self, pod: Pod) -> Result:
        """Decide again about a pod that is due, as the cluster and the configuration now are.

        Edits are written in the patch that takes off the gate, as far as the API server lets a
        gated pod be tightened; warnings become an Event. A refusal, like an exception, is told
        too, and keeps no pod: it is overdue.
        """
        ...


@runtime_checkable
class Settling(Protocol):
    """What a plugin has as well that can let the API server check a new pod in its place.

    A pod that only such plugins concern, and that they have all seen to, is stored without a call
    of the validating webhook.
    """

    def settled(self, pod: str) -> str:
        """Give a CEL expression that is true only where `validate` would say nothing of a new pod.

        It is evaluated where `match` is true; true for too few pods costs calls, and no more.
        """
        ...


@runtime_checkable
class Finalizing(Protocol):
    """What a plugin that puts a finalizer of ours on pods has as well.

    Whoever else adds one is refused.
    """

    finalizer: ClassVar[str]

    def may_carry(self, review: PodReview) -> bool:
        """Tell whether the pod may come with the finalizer: `mutate` may have seen it before."""
        ...


@runtime_checkable
class Marking(Protocol):
    """What a plugin whose annotations stand on a workload itself, not its template, has as well."""

    @property
    def workload_keys(self) -> Mapping[str, Sequence[str]]:
        """Name the annotations, by the workload's kind."""
        ...

    def validate_workload(self, workload: Workload, old: Workload | None) -> Result:
        """Check them as they are written; `old` is the workload as it was before an update."""
        ...


@runtime_checkable
class Starting(Protocol):
    """What a plugin that looks around when the admission server starts has as well."""

    def started(self) -> None:
        """Look around, once and in a thread; what is raised is logged, and stops nothing."""
        ...


class Lookup(Protocol):
    """Reads objects of the cluster, and can do nothing else."""

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Read the object at an API path, afresh; None when there is none.

        Raises ClusterError when the API server cannot be asked, or serves no objects of this kind.
        """
        ...


class HeldPods(Protocol):
    """The pods that are held now: the framework's waiting pods."""

    def __iter__(self) -> Iterator[Names]:
        """Go through their namespaces and names."""
        ...

    def get(self, key: Names) -> holds.Due | None:
        """Tell when a pod is due, or None when it is not held."""
        ...

    def release(self, key: Names, plugin: str) -> None:
        """Say that this plugin holds the pod no longer; it goes when no other plugin does."""
        ...


class Tell(Protocol):
    """Tells an Event about a pod."""

    def __call__(self, pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        """Never blocks, never raises."""
        ...


class Handle:
    """What a plugin may reach besides the pod, given to its factory.

    In the admission server that is `lookup` alone, in the controller also `held` and `tell`. They
    are there once the process has started: a factory keeps the handle and asks it when needed.
    """

    def __init__(self) -> None:
        self._lookup: Lookup | None = None
        self._held: HeldPods | None = None
        self._tell: Tell | None = None

    def connect(
        self,
        *,
        lookup: Lookup | None = None,
        held: HeldPods | None = None,
        tell: Tell | None = None,
    ) -> None:
        """Give what the process has; for the process itself to call, once."""
        self._lookup, self._held, self._tell = lookup, held, tell

    @property
    def lookup(self) -> Lookup:
        """Read-only lookups. Raises HandleError where there are none."""
        if self._lookup is None:
            raise HandleError("there are no lookups here; only a process that has a cluster has")
        return self._lookup

    @property
    def held(self) -> HeldPods:
        """The held pods. Raises HandleError outside the controller."""
        if self._held is None:
            raise HandleError("held pods are known to the controller alone, not to the server")
        return self._held

    @property
    def tell(self) -> Tell:
        """The Event recorder. Raises HandleError outside the controller."""
        if self._tell is None:
            raise HandleError("Events are told by the controller alone, not by the server")
        return self._tell


class PluginClass(Protocol):
    """A plugin's factory: its class, with the class of its arguments."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def args_type(self) -> type[Args]:
        """The class of its arguments."""
        ...

    def __call__(self, args: Any, handle: Handle, /) -> Plugin:
        """Make the plugin. Raises ConfigurationError on arguments that make no sense."""
        ...
