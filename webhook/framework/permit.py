"""Plugin decisions about held pods: when they may start, and edits at release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from holdfast.webhook.errors import PluginFailedError, described
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import (
    Allow,
    Code,
    Plugin,
    Reject,
    Result,
    Wait,
    overrides,
)
from holdfast.webhook.framework.profiles import Profile, Profiles, Verdict
from holdfast.webhook.framework.runner import Runner
from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import (
    DELAY_GATE,
    DELAY_KEYS,
    NEVER_MS,
    Due,
    allowed_plugins,
    decide_due,
)
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod

_TEXT_CHARACTERS = 1_000
"""Maximum characters of a reason or problem; an Event shows no more."""
_ROUNDS = 100
"""Maximum rounds to find a time that all plugins allow, in case windows never overlap."""

_log = logging.getLogger("holdfast.plugins")


class ReleaseDecider:
    """Decides about held pods by asking their profiles' plugins. Safe to use from any thread."""

    def __init__(self, profiles: Profiles, runner: Runner, handle: Handle | None = None) -> None:
        self.profiles = profiles
        self._runner = runner
        self._handle = handle or Handle()
        self._term = self._handle.term()
        self._failing: dict[str, dict[str, int]] = {}
        """Time of each plugin's first failure to decide about a pod, by pod UID and plugin name.
        Dropped when plugins are no longer asked, such as in a freeze, and in a new term."""
        self._forgetting = [plugin for plugin in profiles.plugins if overrides(plugin, "forget")]

    def due(self, pod: Pod, now_ms: int = 0) -> Due:
        """Return when a held pod may start, as far as it is known in advance.

        The annotations and the hint decide if no plugin of the profile has one of the pod's gates.
        They also determine the delay of a pod whose profile no longer enables the delay plugin.
        Plugins that fail are assumed to allow the pod until `permit` asks them.
        """
        return self._decide(pod, now_ms, self._foresee)

    def earliest(self, pod: Pod) -> tuple[int, str]:
        """Return the latest known due time of a held pod, and the plugin that sets it; 0 if none.

        A pod that another plugin holds until an event is not released before this time.
        """
        times = [
            (self._foresee(plugin, pod, pod.created_ms).at_ms, plugin.name)
            for plugin in self._holders(pod)
        ]
        return max(
            (entry for entry in times if pod.created_ms < entry[0] < NEVER_MS), default=(0, "")
        )

    def permit(self, pod: Pod, now_ms: int) -> Due:
        """Return whether all plugins that hold a pod allow it to start now, or until when it waits.

        Called when the due time that `due` returned has come. Raises PluginFailedError.
        """
        waiting_plugins: set[Plugin] = set()

        def ask(plugin: Plugin, pod: Pod, at_ms: int) -> Due:
            due = self._ask(plugin, pod, at_ms, now_ms)
            if due.at_ms > at_ms:
                waiting_plugins.add(plugin)
            return due

        try:
            due = self._decide(pod, now_ms, ask)
        except PluginFailedError:
            _unreserve(self._reserving(pod), pod)
            raise
        if due.at_ms > now_ms:
            # The pod waits, so it does not need what the plugins that allow it have reserved.
            _unreserve(
                [plugin for plugin in self._reserving(pod) if plugin not in waiting_plugins], pod
            )
        return due

    def reserve(self, pod: Pod, now_ms: int) -> Due | None:
        """Reserve what a pod needs; return None on success, otherwise how long it must wait.

        Without success, all reservations are undone. Raises PluginFailedError.
        """
        reserved_plugins: list[Plugin] = []
        for plugin in self._reserving(pod):
            try:
                due = _as_due(plugin, plugin.reserve(pod, now_ms), pod)
            except Exception as exc:
                _unreserve(reserved_plugins, pod)
                raise PluginFailedError(
                    f"plugin {plugin.name!r} failed in reserve: {described(exc)}"
                ) from exc
            if due.at_ms > now_ms:
                _unreserve(reserved_plugins, pod)
                return due
            reserved_plugins.append(plugin)
        return None

    def unreserve(self, pod: Pod) -> None:
        """Undo `reserve`."""
        _unreserve(self._reserving(pod), pod)

    def withdraw(self, pod: Pod) -> None:
        """Undo all reservations for a pod that cannot start now, regardless of its profile."""
        self._failing.pop(pod.metadata.uid, None)
        gates = pod.gates
        plugins = [plugin for plugin in self.profiles.plugins if overrides(plugin, "reserve")]
        _unreserve([plugin for plugin in plugins if plugin.gate in gates], pod)

    def forget(self, uid: str) -> None:
        """Drop the plugins' state of a pod that is no longer held."""
        self._failing.pop(uid, None)
        for plugin in self._forgetting:
            try:
                plugin.forget(uid)
            except Exception as exc:  # noqa: BLE001 - one plugin must not stop all releases
                _log.error("plugin %r failed in forget: %s", plugin.name, described(exc))

    def _reserving(self, pod: Pod) -> list[Plugin]:
        return [plugin for plugin in self._holders(pod) if overrides(plugin, "reserve")]

    def _holders(self, pod: Pod) -> list[Plugin]:
        profile = self.profiles.select(pod)
        gates = pod.gates
        return [plugin for plugin in profile.holding if plugin.gate in gates] if profile else []

    def _decide(self, pod: Pod, now_ms: int, ask: Callable[[Plugin, Pod, int], Due]) -> Due:
        holders, created_ms = self._holders(pod), pod.created_ms
        decisions = [ask(plugin, pod, created_ms) for plugin in holders if plugin.permit_is_final]
        no_holder = DELAY_GATE in pod.gates and all(plugin.gate != DELAY_GATE for plugin in holders)
        if no_holder or not holders:
            decisions.append(_by_annotations(pod))
        due = _latest(decisions) if decisions else Due(created_ms)
        other_holders = [plugin for plugin in holders if not plugin.permit_is_final]
        at_ms = max(due.at_ms, now_ms)
        for _ in range(_ROUNDS if other_holders else 0):
            later_due = _latest(ask(plugin, pod, at_ms) for plugin in other_holders)
            if later_due.at_ms <= at_ms:
                problem = "; ".join(filter(None, (due.problem, later_due.problem)))
                due = due._replace(problem=problem)
                break
            due, at_ms = later_due, later_due.at_ms
            # A plugin allows the time that it returned. An open-ended time is checked once due.
            if at_ms >= NEVER_MS or len(other_holders) == 1 or later_due.open_ended:
                break
        if due.at_ms < NEVER_MS:
            return due._replace(recheck=True) if other_holders else due
        earliest_ms = max(
            (decision.at_ms for decision in decisions if decision.at_ms < NEVER_MS), default=0
        )
        return due._replace(recheck=bool(other_holders), earliest_ms=earliest_ms)

    def _foresee(self, plugin: Plugin, pod: Pod, at_ms: int) -> Due:
        if plugin.name in allowed_plugins(pod.annotations):
            return Due(pod.created_ms)
        try:
            return _as_due(plugin, plugin.permit(pod, at_ms), pod)
        except Exception as exc:  # noqa: BLE001 - it fails again when the pod is due, and is reported
            _log.error("%s/%s: %s", *pod.key, _failed(plugin, exc))
            return Due(pod.created_ms, recheck=True)

    def _ask(self, plugin: Plugin, pod: Pod, at_ms: int, now_ms: int) -> Due:
        if plugin.name in allowed_plugins(pod.annotations):
            return Due(pod.created_ms)
        profile = self.profiles.select(pod)
        start, status = self._runner.timer(), str(Code.ERROR)
        try:
            answer = plugin.permit(pod, at_ms)
            due, status = _as_due(plugin, answer, pod), type(answer).__name__
        except Exception as exc:
            if not self._has_failed_too_long(profile, plugin, pod, now_ms):
                raise PluginFailedError(_failed(plugin, exc)) from exc
            due = Due(pod.created_ms, f"{_failed(plugin, exc)}: released after permitTimeout")
        else:
            self._failing.get(pod.metadata.uid, {}).pop(plugin.name, None)
        finally:
            self._runner.observe(
                plugin=plugin.name,
                extension_point="permit",
                status=status,
                profile=profile.name if profile else "",
                seconds=self._runner.timer() - start,
            )
        return due

    def _has_failed_too_long(
        self, profile: Profile | None, plugin: Plugin, pod: Pod, now_ms: int
    ) -> bool:
        if profile is None or profile.permit_timeout_ms is None:
            return False
        if (term := self._handle.term()) != self._term:
            self._term = term
            self._failing.clear()
        failing = self._failing.setdefault(pod.metadata.uid, {})
        return now_ms - failing.setdefault(plugin.name, now_ms) >= profile.permit_timeout_ms

    # --- at release ----------------------------------------------------------------------------

    def concerns_at_release(self, pod: Pod) -> bool:
        """Return whether `at_release` has to be called for a pod."""
        profile = self.profiles.select(pod)
        return profile is not None and any(_concerns(plugin, pod) for plugin in profile.releasing)

    def at_release(self, pod: Pod) -> Verdict:
        """Run `at_release` of each plugin that has it, and return the combined verdict.

        The code is the worst of the plugins' codes. The pod is released in any case.
        """
        profile = self.profiles.select(pod)
        if profile is None:
            return Verdict(Code.SKIP)
        with self._runner.measure_point("release", profile.name) as point:
            verdict = self._at_release(profile, pod)
            point.code = verdict.code
        return verdict

    def _at_release(self, profile: Profile, pod: Pod) -> Verdict:
        codes: set[Code] = set()
        edits: list[Edit] = []
        warnings: list[str] = []
        for plugin in profile.releasing:
            if not _concerns(plugin, pod):
                continue
            try:
                with self._runner.measure(plugin, "release", profile.name) as call:
                    call.result = plugin.at_release(pod)
                result = call.result
            except PluginFailedError as exc:
                _log.error("%s/%s: %s", *pod.key, exc)
                result = Result(Code.ERROR, reason=str(exc))
            codes.add(result.code)
            edits.extend(result.edits)
            warnings.extend([*result.warnings, *([result.reason] if result.reason else [])])
        worst_code = next(
            (code for code in (Code.ERROR, Code.REJECT) if code in codes), Code.SUCCESS
        )
        return Verdict(worst_code, edits, (), warnings)


def _as_due(plugin: Plugin, answer: object, pod: Pod) -> Due:
    """Return a plugin's answer as a Due, with its time clamped to the pod's creation and NEVER_MS.

    Raises TypeError if it is not an answer.
    """
    match answer:
        case Allow(problem):
            return Due(pod.created_ms, _kept(problem))
        case Wait(until, reason, problem, open_ended):
            at_ms = NEVER_MS if until is None else int(until)
            at_ms = min(max(at_ms, pod.created_ms), NEVER_MS)
            wait_reason = _kept(f"{plugin.name}: {reason}") if reason else ""
            return Due(at_ms, _kept(problem), wait_reason, open_ended=bool(open_ended))
        case Reject(reason):
            return Due(NEVER_MS, _kept(f"{plugin.name}: {reason}"))
    raise TypeError(f"it returned {type(answer).__name__}, not Allow, Wait or Reject")


def _kept(text: object) -> str:
    """Shorten a plugin's text, which is kept for each pod and may quote user input."""
    return messages.shorten(str(text), _TEXT_CHARACTERS)


def _latest(decisions: Iterable[Due]) -> Due:
    """Return the latest decision, with the problems and reasons of all decisions for that time."""
    decisions = list(decisions)
    if len(decisions) == 1:
        return decisions[0]
    at_ms = max(decision.at_ms for decision in decisions)
    latest_decisions = [decision for decision in decisions if decision.at_ms == at_ms]
    problems = "; ".join(decision.problem for decision in latest_decisions if decision.problem)
    reasons = "; ".join(decision.reason for decision in latest_decisions if decision.reason)
    return Due(
        at_ms,
        problems,
        reasons,
        recheck=any(decision.recheck for decision in decisions),
        open_ended=any(decision.open_ended for decision in latest_decisions),
    )


def _unreserve(plugins: Iterable[Plugin], pod: Pod) -> None:
    for plugin in reversed(list(plugins)):
        try:
            plugin.unreserve(pod)
        except Exception as exc:  # noqa: BLE001 - the others still have to be called
            _log.error("%s/%s: plugin %r failed: %s", *pod.key, plugin.name, described(exc))


def _failed(plugin: Plugin, exc: Exception) -> str:
    return f"plugin {plugin.name!r} failed in permit: {described(exc)}"


def _concerns(plugin: Plugin, pod: Pod) -> bool:
    """Return whether to call a plugin. If the check fails, call it to report the failure."""
    try:
        return bool(plugin.concerns_at_release(pod))
    except Exception as exc:  # noqa: BLE001 - one plugin must not stop all releases
        _log.error("%s/%s: plugin %r failed: %s", *pod.key, plugin.name, described(exc))
        return True


def _by_annotations(pod: Pod) -> Due:
    return decide_due(
        pod.annotations,
        created_ms=pod.created_ms,
        jitter_key=pod.jitter_key,
        delay_keys=DELAY_KEYS,
    )
