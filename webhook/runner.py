"""Running one plugin: timed, checked, and named in what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar, get_args

from webhook.errors import ClusterError, PluginFailedError, UndecidedError
from webhook.framework import Code, Context, Plugin, Result
from webhook.objects import Pod
from webhook.review import Edit, PodReview


class Verdict(Protocol):
    """What an extension point as a whole came to."""

    @property
    def code(self) -> Code:
        """How it ended."""
        ...


V = TypeVar("V", bound=Verdict)
P = ParamSpec("P")

_USUAL = frozenset({list, tuple})  # spares two lookups of an abstract class for each plugin
_EDITS = frozenset(get_args(Edit))


class Observe(Protocol):
    """Where the runner reports how long a plugin took, in seconds.

    An empty plugin name stands for a whole extension point, with all its plugins.
    """

    def __call__(
        self, *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
    ) -> None:
        """Take one measurement."""
        ...


class Runner:
    """Calls plugins, and knows which of those that may block is at work on a review."""

    def __init__(self, timer: Callable[[], float], observe: Observe) -> None:
        self._timer = timer
        self._observe = observe
        self._at_work: dict[int, str] = {}

    def at_work(self, review: PodReview) -> str | None:
        """Name the plugin that a review waits for now, of those that may block."""
        return self._at_work.get(id(review))

    def run(
        self,
        plugin: Plugin,
        point: str,
        call: Callable[[Pod, Context], Result],
        context: Context,
        asked: PodReview | None = None,
    ) -> Result:
        """Call a plugin about a review. Raises PluginFailedError.

        `asked` is the review as it came, where the context's is another.
        """
        pod, waiting = context.review.pod, id(asked or context.review)
        if not may_block(plugin):
            return self.measured(plugin, point, context.profile, call, pod, context)
        self._at_work[waiting] = plugin.name
        try:
            return self.measured(plugin, point, context.profile, call, pod, context)
        finally:
            self._at_work.pop(waiting, None)

    def measured(
        self,
        plugin: Plugin,
        point: str,
        profile: str,
        call: Callable[P, Result],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Call a plugin and report how long it took. Raises PluginFailedError, which names it.

        UndecidedError, of that kind, where the plugin itself has failed at nothing.
        """
        started = self._timer()
        code = Code.ERROR
        try:
            result = call(*args, **kwargs)
            _check(result)
            code = result.code
        except ClusterError as exc:
            raise UndecidedError(
                f"plugin {plugin.name!r} could not look up what decides: {exc}"
            ) from exc
        except Exception as exc:
            raise PluginFailedError(
                f"plugin {plugin.name!r} failed in {point}: {described(exc)}"
            ) from exc
        finally:
            self._report(plugin.name, point, code, profile, started)
        if code is Code.ERROR:
            raise PluginFailedError(f"plugin {plugin.name!r} failed in {point}: {result.reason}")
        return result

    def timed(
        self,
        point: str,
        profile: str,
        call: Callable[P, V],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> V:
        """Run an extension point as a whole and report how long it took."""
        started = self._timer()
        code = Code.ERROR
        try:
            verdict = call(*args, **kwargs)
            code = verdict.code
        finally:
            self._report("", point, code, profile, started)
        return verdict

    def _report(self, plugin: str, point: str, code: Code, profile: str, started: float) -> None:
        self._observe(
            plugin=plugin,
            extension_point=point,
            status=code,
            profile=profile,
            seconds=self._timer() - started,
        )


def may_block(plugin: object) -> bool:
    """Tell whether a plugin may wait for something; one that does not say so is taken to."""
    return getattr(plugin, "may_block", True)


def described(exc: Exception) -> str:
    """Name an exception and what it says."""
    return f"{type(exc).__name__}: {exc}"


def _check(result: object) -> None:
    """Refuse rubbish from a plugin where its name is still known."""
    if not isinstance(result, Result) or not isinstance(result.code, Code):
        raise TypeError(f"it returned {type(result).__name__}, not a Result")
    if result.code is Code.SKIP and result.edits:
        raise TypeError("it returned edits with Skip; use success")
    if result.reason != "" and result.code is not Code.ERROR:
        _check_text(result.reason, "reason")
    if result.edits == () == result.warnings:
        return
    parts: tuple[object, ...] = (result.edits, result.warnings)
    for found in parts:
        if type(found) not in _USUAL:
            _check_list(found)
    for edit in result.edits:
        if type(edit) not in _EDITS:
            raise TypeError(f"it returned the edit {type(edit).__name__}; use those of review")
    for warning in result.warnings:
        _check_text(warning, "warning")


def _check_list(found: object) -> None:
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TypeError(f"it returned {type(found).__name__}, not a list of edits or warnings")


def _check_text(found: object, what: str) -> None:
    """Refuse what nobody could be told: where it is joined with others, or sent, it has no name."""
    if not isinstance(found, str):
        raise TypeError(f"it returned the {what} {type(found).__name__}; use text")
    found.encode()  # raises where it has half a character
