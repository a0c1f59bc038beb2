"""window: hold a pod until a time window is open.

`holdfast.dev/window: Mon-Fri 22:00-06:00 Europe/Berlin`, or the name of a configured window.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Annotated

from holdfast.webhook.errors import ConfigurationError, InvalidValueError
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import (
    Allow,
    Args,
    Context,
    Permit,
    Wait,
)
from holdfast.webhook.model import durations, messages
from holdfast.webhook.model.annotations import (
    DOMAIN,
    HOLD_REMOVED,
    JITTER,
    NEVER_MS,
    jitter_share_ms,
)
from holdfast.webhook.model.calendar import windows
from holdfast.webhook.model.calendar.window_calendar import HORIZON_MS, Windows
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.holding import HoldingPlugin, is_new
from holdfast.webhook.plugins.named_windows import NamedWindow

KEY = f"{DOMAIN}/window"
GATE = KEY
_NEVER = "no window opens within 400 days"
_MINUTE_MS = 60_000

_parse = lru_cache(maxsize=1_024)(windows.parse)


class WindowArgs(Args, frozen=True):
    """Arguments of the window plugin."""

    windows: Annotated[tuple[NamedWindow, ...], arg_types.ONCE] = ()
    """The windows that pods may name."""
    max_delay: arg_types.Delay = "168h"
    """The longest time until the window opens, from the creation of the pod."""


class Window(HoldingPlugin):
    """Adds the gate at creation, and allows the pod while a window is open."""

    name = "window"
    args_type = WindowArgs
    gate = GATE
    keys = (KEY,)

    args: WindowArgs

    def __init__(self, args: WindowArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        self._named: dict[str, Windows] = {}
        for index, window in enumerate(args.windows):
            if window.name in self._named:
                raise ConfigurationError(
                    f"windows[{index}].name: {window.name!r:.60} names two windows: rename one "
                    "of them"
                )
            self._named[window.name] = window.windows(f"windows[{index}]")
        self._max_ms = arg_types.parsed(durations.parse_delay, args.max_delay, "maxDelay")

    # --- admission -----------------------------------------------------------------------------

    def read(self, pod: Pod, context: Context) -> Iterable[Edit]:
        """Parse the windows, and check that a new pod does not wait longer than `maxDelay`.

        A pod is held even while the window is open, because it may close during another hold.
        Raises InvalidValueError.
        """
        window = self._read(pod)
        if not is_new(context):
            return ()
        now_ms = context.now_ms
        opens_ms = window.next_open_ms(now_ms)
        annotation = f"annotation {KEY}: {messages.quote(pod.annotations[KEY])}"
        if opens_ms is None:
            raise InvalidValueError(
                f"{annotation}: {_NEVER}: use other days, or correct the closed dates"
            )
        if opens_ms - now_ms > self._max_ms:
            raise InvalidValueError(
                f"{annotation}: the window opens at {durations.canonical_instant(opens_ms)}, more "
                f"than maxDelay={self.args.max_delay} after the pod's creation: use a window that "
                "opens earlier, or ask an admin to raise maxDelay"
            )
        return ()

    def _read(self, pod: Pod) -> Windows:
        """Return a pod's windows. Raises InvalidValueError, which names the annotation."""
        text = pod.annotations.get(KEY, "")
        window = self._named.get(text)
        if window is not None:
            return window
        if windows.is_name(text):
            names = messages.shorten(", ".join(self._named) or "none")
            raise InvalidValueError(
                f"annotation {KEY}: there is no window {messages.quote(text)}; "
                f"configured: {names}; or {windows.WINDOW_ACCEPTED}"
            )
        try:
            return _parse(text)
        except InvalidValueError as exc:
            names = f"; or name one of: {', '.join(self._named)}" if self._named else ""
            raise InvalidValueError(f"annotation {KEY}: {exc}{messages.shorten(names)}") from None

    def wait_ms(self, pod: Pod, context: Context) -> int | None:
        """Return how long pods created now wait, in milliseconds, rounded up to whole minutes.

        None for a CronJob, whose pods are created later, and if no window opens.
        """
        workload, now_ms = context.review.workload, context.now_ms
        opens_ms = self._read(pod).next_open_ms(now_ms)
        is_cron_job = workload is not None and workload.kind == "CronJob"
        if is_cron_job or opens_ms is None:
            return None
        return -(-(opens_ms - now_ms) // _MINUTE_MS) * _MINUTE_MS

    # --- held pods -----------------------------------------------------------------------------

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        """Allow the pod while a window is open, after its share of the jitter."""
        if KEY not in pod.annotations:
            return Allow(f"annotation {KEY} {HOLD_REMOVED} a window")
        try:
            windows = self._read(pod)
        except InvalidValueError as exc:
            return Wait(problem=f"{exc}: held until the annotation is corrected")
        is_held_by_event = now_ms >= NEVER_MS  # by another plugin, until an unknown time
        opens_ms = windows.next_open_ms(pod.created_ms if is_held_by_event else now_ms)
        if opens_ms is None:
            return Wait(problem=_NEVER)
        if is_held_by_event:
            return Allow()
        starts_ms = _with_jitter(pod, windows, opens_ms)
        if starts_ms <= now_ms:
            return Allow()
        opens = f"opens at {durations.canonical_instant(opens_ms)}"
        return Wait(starts_ms, opens if opens_ms > now_ms else "is open; the jitter has to pass")

    def opening(self, pod: Pod, now_ms: int) -> str:
        """Describe when a pod's windows open next, or when they close if they are open.

        The time is in UTC, and in the time zones of the windows. Raises InvalidValueError.
        """
        windows = self._read(pod)
        at_ms = windows.next_open_ms(now_ms)
        if at_ms == now_ms:
            at_ms = windows.closes_ms(now_ms)
        zones = dict.fromkeys(hours.zone for hours in windows.hours if hours.zone is not UTC)
        local_times = [] if at_ms is None else [_local(at_ms, zone) for zone in zones]
        return _state(windows, now_ms) + (f" ({', '.join(local_times)})" if local_times else "")

    def states(self, now_ms: int) -> dict[str, str]:
        """Return a description of the state of each configured window, by name."""
        return {name: _state(window, now_ms) for name, window in self._named.items()}


def _state(window: Windows, now_ms: int) -> str:
    opens_ms = window.next_open_ms(now_ms)
    if opens_ms is None:
        return _NEVER
    if opens_ms > now_ms:
        return f"opens at {durations.canonical_instant(opens_ms)}"
    closes_ms = window.closes_ms(now_ms)
    return "open" if closes_ms is None else f"open until {durations.canonical_instant(closes_ms)}"


def _local(at_ms: int, zone: tzinfo) -> str:
    return f"{durations.to_datetime(at_ms).astimezone(zone):%a %H:%M} {zone}"


def _with_jitter(pod: Pod, windows: Windows, open_ms: int) -> int:
    """Return when a pod may start in the window that is open at `open_ms`.

    For pods that waited for the window, the jitter counts from its opening, and does not exceed its
    end. Pods that were created while the window was open get no further jitter: the delay plugin
    has already applied it.
    """
    jitter = pod.annotations.get(JITTER)
    if jitter is None:
        return open_ms
    try:
        jitter_ms = min(durations.parse_delay(jitter), HORIZON_MS)
    except InvalidValueError:
        return open_ms  # the delay plugin reports it
    since_ms = max(pod.created_ms, open_ms - jitter_ms)
    opened_ms = windows.opened_ms(open_ms, since_ms)
    if opened_ms == since_ms:
        return open_ms
    closes_ms = windows.closes_ms(open_ms, jitter_ms + 1)
    if closes_ms is not None:
        jitter_ms = min(jitter_ms, closes_ms - opened_ms - 1)
    return max(open_ms, opened_ms + jitter_share_ms(pod.jitter_key, jitter_ms))
