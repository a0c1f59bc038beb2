"""Runs plugins: times each call, checks its result, and names the plugin in errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, get_args

from holdfast.webhook.errors import ClusterError, PluginFailedError, UndecidedError, described
from holdfast.webhook.framework.plugin import Code, Plugin, Result, skip
from holdfast.webhook.model.edits import Edit, SetSchedulerName
from holdfast.webhook.model.review import PodReview

_USUAL = frozenset({list, tuple})  # isinstance with an abstract class takes ten times as long
_EDITS = frozenset(get_args(Edit))
_USUAL_EDITS = _EDITS - {SetSchedulerName}
_SKIPPED = skip()
_UNSET = Result(Code.ERROR, reason="it returned nothing")


Observe = Callable[..., None]
"""Receives `plugin`, `extension_point`, `status`, `profile` and `seconds` of each call.

An empty plugin name stands for a whole extension point, with all its plugins.
"""

OnResult = Callable[[str, str, Result, Exception | None], None]
"""Receives the plugin, the extension point, the result and the exception, if any.

With an exception, the result's code is `Error`.
"""


def unobserved(**_measurement: str | float) -> None:
    """Discard a measurement."""


@dataclass(eq=False)
class Runner:
    """Times and checks calls of plugins. Safe to use from several threads."""

    timer: Callable[[], float]
    observe: Observe
    on_result: OnResult | None = None
    running: dict[int, str] = field(default_factory=dict)

    def running_plugin(self, review: PodReview) -> str | None:
        """Return the plugin that a review is waiting for, if it is a plugin that may block."""
        return self.running.get(id(review))

    def skip(self, plugin: Plugin, point: str) -> None:
        """Report that a plugin is not called, because `concerns` is false."""
        if self.on_result is not None:
            self.on_result(plugin.name, point, _SKIPPED, None)

    def measure(
        self, plugin: Plugin, point: str, profile: str, review: PodReview | None = None
    ) -> PluginCall:
        """Measure a call: `with runner.measure(...) as call: call.result = plugin.mutate(...)`.

        Raises PluginFailedError, which names the plugin, if the plugin raises or its result is
        invalid; UndecidedError if a lookup failed. `review` is the review that waits for the call.
        """
        return PluginCall(self, plugin, point, profile, review)

    def measure_point(self, point: str, profile: str) -> PointCall:
        """Measure a whole extension point; set `code` inside the `with` block."""
        return PointCall(self, point, profile)


class PointCall:
    """The measurement of an extension point with all its plugins."""

    __slots__ = ("_point", "_profile", "_runner", "_started", "code")

    def __init__(self, runner: Runner, point: str, profile: str) -> None:
        self._runner, self._point, self._profile = runner, point, profile
        self.code = Code.ERROR

    def __enter__(self) -> Self:
        self._started = self._runner.timer()
        return self

    def __exit__(self, _kind: object, _problem: BaseException | None, _trace: object) -> None:
        self._report("", self.code)

    def _report(self, plugin: str, code: Code) -> None:
        self._runner.observe(
            plugin=plugin,
            extension_point=self._point,
            status=code,
            profile=self._profile,
            seconds=self._runner.timer() - self._started,
        )


class PluginCall(PointCall):
    """The measurement of a plugin's call; set `result` inside the `with` block."""

    __slots__ = ("_plugin", "_review", "result")

    def __init__(
        self, runner: Runner, plugin: Plugin, point: str, profile: str, review: PodReview | None
    ) -> None:
        self._runner, self._point, self._profile = runner, point, profile
        self._plugin = plugin
        self._review = id(review) if review is not None and plugin.may_block else None
        self.result = _UNSET

    def __enter__(self) -> Self:
        if self._review is not None:
            self._runner.running[self._review] = self._plugin.name
        self._started = self._runner.timer()
        return self

    def __exit__(self, _kind: object, problem: BaseException | None, _trace: object) -> None:
        result = self.result
        # Skip is the most common result, and does not need a check.
        if problem is None and result is not _SKIPPED:
            problem = _problem(result, self._plugin)
        code = result.code if problem is None else Code.ERROR
        plugin, point = self._plugin.name, self._point
        if code is not Code.SKIP:  # most do; measuring these took an eighth of a decision
            self._report(plugin, code)
        if self._review is not None:
            self._runner.running.pop(self._review, None)
        if problem is None and code is not Code.ERROR and self._runner.on_result is None:
            return
        if problem is not None and not isinstance(problem, Exception):
            return  # KeyboardInterrupt and the like are not failures of the plugin
        if self._runner.on_result is not None:
            result = self.result if problem is None else Result(Code.ERROR)
            self._runner.on_result(plugin, point, result, problem)
        if isinstance(problem, ClusterError):
            raise UndecidedError(
                f"plugin {plugin!r} could not look up what it needs: {problem}"
            ) from problem
        if problem is not None:
            raise PluginFailedError(
                f"plugin {plugin!r} failed in {point}: {described(problem)}"
            ) from problem
        if code is Code.ERROR:
            raise PluginFailedError(f"plugin {plugin!r} failed in {point}: {self.result.reason}")


def _problem(result: object, plugin: Plugin) -> Exception | None:
    """Return the error in a result, or None; checked here, where the plugin is still known."""
    try:
        _check(result, plugin)
    except Exception as exc:  # noqa: BLE001 - a hostile result may raise anything
        return exc
    return None


def _check(result: object, plugin: Plugin) -> None:
    if not isinstance(result, Result) or not isinstance(result.code, Code):
        raise TypeError(f"it returned {type(result).__name__}, not a Result")
    if result.code is Code.SKIP and result.edits:
        raise TypeError("it returned edits with Skip; use success")
    if result.reason != "" and result.code is not Code.ERROR:
        _check_text(result.reason, "reason")
    if result.edits == () == result.warnings:
        return
    parts: tuple[object, ...] = (result.edits, result.warnings)
    for part in parts:
        if type(part) not in _USUAL and (not isinstance(part, Sequence) or isinstance(part, str)):
            raise TypeError(f"it returned {type(part).__name__}, not a list of edits or warnings")
    if not _USUAL_EDITS.issuperset(map(type, result.edits)):
        for edit in result.edits:
            _check_edit(edit, plugin)
    for warning in result.warnings:
        _check_text(warning, "warning")


def _check_edit(edit: Edit, plugin: Plugin) -> None:
    if type(edit) not in _EDITS:
        raise TypeError(f"it returned the edit {type(edit).__name__}; use holdfast.edits")
    if type(edit) is SetSchedulerName and edit.name not in plugin.scheduler_names:
        raise TypeError(
            f"it set the schedulerName {edit.name!r:.60}, which its scheduler_names do not list"
        )


def _check_text(text: object, kind: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"it returned the {kind} {type(text).__name__}; use text")
    text.encode()  # raises on a lone surrogate, which a JSON response cannot contain
