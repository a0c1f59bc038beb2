"""Hold requests of pods, the hint that records them, and the due time.

due = max(creation + delay, not-before) + share x jitter. All times are milliseconds; the creation
time is the API server's.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations, messages

DOMAIN = "holdfast.dev"
DELAY_GATE = f"{DOMAIN}/delay"
"""The scheduling gate that holds a delayed pod."""
OWN_PREFIX = f"{DOMAIN}/"
"""The prefix of all gates and finalizers of Holdfast, for every plugin."""
HELD_ANNOTATION = f"{DOMAIN}/held"
"""The annotation with the hint: the hold request in canonical form."""
HELD_LABEL = f"{DOMAIN}/held"
"""The label of held pods, for `kubectl get pods -l holdfast.dev/held`; the release removes it."""
PROFILE_ANNOTATION = f"{DOMAIN}/profile"
"""The annotation that records the pod's first profile."""
RELEASED_ANNOTATION = f"{DOMAIN}/released"
"""The annotation with the time at which Holdfast removed its gates."""
ALLOWED_ANNOTATION = f"{DOMAIN}/allowed"
"""The annotation with the plugins whose holds have ended permanently."""
NOT_BEFORE = f"{DOMAIN}/not-before"
JITTER = f"{DOMAIN}/jitter"
DELAY_KEYS = (f"{DOMAIN}/delay", "delay")
"""The default annotations for a delay."""
OWN_KEYS = frozenset(
    f"{OWN_PREFIX}{name}"
    for name in (
        *("delay", "not-before", "jitter", "delay-from", "after", "window", "pace", "approval"),
        *("held", "profile", "placed", "released", "allowed", "freeze", "freeze-until"),
        *("approved-by", "denied-by", "denied-reason", "sticky", "sticky-node", "sticky-node-uid"),
    )
)
"""All annotations of Holdfast, regardless of the enabled plugins: those for users come first."""

NEVER_MS = 2**62
"""The due time of a pod that a plugin holds until an event."""

PAST_TOLERANCE_MS = 10 * 60 * 1_000
"""A not-before further in the past, by the webhook's clock, has no effect. Otherwise the pod is
held, and the API server's clock decides."""

_ROUNDED_MS = 1_000
"""Maximum error of a creation time and of a command's clock, in milliseconds."""
_LONGEST_HINT = 1_000
"""Maximum characters of a hint: a key has up to 317, and the rest fewer than 100."""
_MOST_ALLOWED = 100
"""Maximum number of plugins read from a pod's list. Users can write 100,000 on an unguarded
pod, and each plugin searches the list whenever the pod changes."""
_HINT_NOT_BEFORE, _HINT_JITTER = "not-before", "jitter"


class HoldRequest(msgspec.Struct, frozen=True):
    """The hold that a pod requests; `delay_key` is the annotation with the delay."""

    delay_ms: int = 0
    not_before_ms: int | None = None
    jitter_ms: int = 0
    delay_key: str = DELAY_KEYS[0]

    @property
    def longest_ms(self) -> int:
        """The longest hold due to delay and jitter, in milliseconds."""
        return self.delay_ms + self.jitter_ms

    def longest_wait_ms(self, now_ms: int) -> int:
        """Return the longest hold of a pod that is created now, in milliseconds."""
        remaining_ms = 0 if self.not_before_ms is None else max(0, self.not_before_ms - now_ms)
        return max(self.delay_ms, remaining_ms) + self.jitter_ms

    def holds(self, now_ms: int, *, tolerance_ms: int = PAST_TOLERANCE_MS) -> bool:
        """Return whether a pod that is created now must be held."""
        if self.delay_ms or self.jitter_ms:
            return True
        return self.not_before_ms is not None and self.not_before_ms >= now_ms - tolerance_ms

    def due_ms(self, *, created_ms: int, jitter_key: str) -> int:
        """Return the pod's due time, by the API server's clock."""
        due = created_ms + self.delay_ms
        if self.not_before_ms is not None:
            due = max(due, self.not_before_ms)
        return due + jitter_share_ms(jitter_key, self.jitter_ms)


NOTHING_ASKED = "no annotation asks for a hold: released at once"
"""The remark about a pod whose annotations were all removed, which is not an error."""
HOLD_REMOVED = "was removed: released without"
"""Part of the remark about a pod that lost one annotation, which is not an error either."""


def is_remark(problem: str) -> bool:
    """Return whether a problem only states that the pod no longer requests a hold."""
    return all(part == NOTHING_ASKED or f" {HOLD_REMOVED} " in part for part in problem.split("; "))


class Due(NamedTuple):
    """The due time of a held pod, the problems of its annotations, and the reason it waits.

    `recheck` is true if the plugins must be asked again at the due time. `open_ended` is true if an
    event that no plugin can foresee may make the pod due earlier. Before `earliest_ms`, no event
    matters.
    """

    at_ms: int
    problem: str = ""
    reason: str = ""
    recheck: bool = False
    open_ended: bool = False
    earliest_ms: int = 0


def allowed_plugins(annotations: Mapping[str, str]) -> Sequence[str]:
    """Return the plugins that no longer hold a pod, according to its annotation."""
    text = annotations.get(ALLOWED_ANNOTATION)
    return text.split(",", _MOST_ALLOWED)[:_MOST_ALLOWED] if text else ()


def jitter_share_ms(key: str, jitter_ms: int) -> int:
    """Return the share of the jitter for a pod's `jitter_key`, from 0 to `jitter_ms`.

    It never changes for the same key.
    """
    digest = hashlib.sha256(key.encode()).digest()[:8]
    return jitter_ms * int.from_bytes(digest, "big") >> 64


def released_ms(annotations: Mapping[str, str], *, created_ms: int) -> int | None:
    """Return when Holdfast released a pod, or None.

    A time before the creation is ignored: it was copied from another pod.
    """
    try:
        at_ms = durations.parse_instant(annotations.get(RELEASED_ANNOTATION, ""))
    except InvalidValueError:
        return None
    return at_ms if at_ms >= created_ms - _ROUNDED_MS else None


def was_released(annotations: Mapping[str, str], *, created_ms: int) -> bool:
    """Return whether Holdfast released a pod."""
    return released_ms(annotations, created_ms=created_ms) is not None


def read_hold_request(annotations: Mapping[str, str], delay_keys: Iterable[str]) -> HoldRequest:
    """Return the hold request. Raises InvalidValueError, which names the annotation."""
    delay_key, delay_ms = _read_delay(annotations, delay_keys)
    not_before = _read(annotations, NOT_BEFORE, durations.parse_instant)
    jitter = _read(annotations, JITTER, durations.parse_delay)
    return HoldRequest(delay_ms or 0, not_before, jitter or 0, delay_key)


def _read_delay(annotations: Mapping[str, str], keys: Iterable[str]) -> tuple[str, int | None]:
    delays: list[tuple[str, int]] = []
    for key in keys:
        value = _read(annotations, key, durations.parse_delay)
        if value is None:
            continue
        if delays and delays[0][1] != value:
            first_key = delays[0][0]
            raise InvalidValueError(
                f"annotations {first_key}={messages.quote(annotations[first_key])} and "
                f"{key}={messages.quote(annotations[key])} disagree: remove one of them"
            )
        delays.append((key, value))
    return delays[0] if delays else (DELAY_KEYS[0], None)


def _read(annotations: Mapping[str, str], key: str, parse: Callable[[str], int]) -> int | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return parse(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"annotation {key}: {exc}") from None


def format_hint(request: HoldRequest) -> str:
    """Format a hold request for the annotation `holdfast.dev/held`."""
    parts = []
    if request.delay_ms:
        parts.append(f"{request.delay_key}={durations.canonical_delay(request.delay_ms)}")
    if request.not_before_ms is not None:
        parts.append(f"{_HINT_NOT_BEFORE}={durations.canonical_instant(request.not_before_ms)}")
    if request.jitter_ms:
        parts.append(f"{_HINT_JITTER}={durations.canonical_delay(request.jitter_ms)}")
    return ",".join(parts)


def read_hint(text: str) -> HoldRequest:
    """Parse a hint. Raises InvalidValueError if `format_hint` cannot have written it."""
    if len(text) > _LONGEST_HINT:
        raise InvalidValueError(
            f"annotation {HELD_ANNOTATION}: invalid value {messages.quote(text)}"
        )
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not (key and equals and value) or key in fields or key in {NOT_BEFORE, JITTER}:
            raise InvalidValueError(
                f"annotation {HELD_ANNOTATION}: invalid value {messages.quote(text)}"
            )
        fields[key] = value
    not_before = fields.pop(_HINT_NOT_BEFORE, None)
    jitter = fields.pop(_HINT_JITTER, None)
    if len(fields) > 1:
        raise InvalidValueError(
            f"annotation {HELD_ANNOTATION}: invalid value {messages.quote(text)}: two delays"
        )
    delay_key, delay = next(iter(fields.items()), (DELAY_KEYS[0], "0"))
    return HoldRequest(
        durations.parse_delay(delay),
        None if not_before is None else durations.parse_instant(not_before),
        0 if jitter is None else durations.parse_delay(jitter),
        delay_key,
    )


def decide_due(
    annotations: Mapping[str, str], *, created_ms: int, jitter_key: str, delay_keys: Iterable[str]
) -> Due:
    """Return when a pod with our gate is due.

    The annotations with the configured keys and the hint's key decide. If one is invalid, the hint
    decides; if the hint is invalid as well, the pod is due at once.
    """
    hint, hint_problem = _hinted(annotations)
    keys = list(delay_keys)
    if hint is not None and hint.delay_ms and hint.delay_key not in keys:
        keys.append(hint.delay_key)
    if not any(key in annotations for key in (*keys, NOT_BEFORE, JITTER)):
        return Due(created_ms, NOTHING_ASKED)
    try:
        request = read_hold_request(annotations, keys)
    except InvalidValueError as exc:
        if hint is None:
            return Due(created_ms, f"{exc}; {hint_problem}: released at once")
        due = hint.due_ms(created_ms=created_ms, jitter_key=jitter_key)
        return Due(due, f"{exc}; using annotation {HELD_ANNOTATION} instead")
    return Due(request.due_ms(created_ms=created_ms, jitter_key=jitter_key))


def _hinted(annotations: Mapping[str, str]) -> tuple[HoldRequest | None, str]:
    text = annotations.get(HELD_ANNOTATION)
    if text is None:
        return None, f"annotation {HELD_ANNOTATION} is missing"
    try:
        return read_hint(text), ""
    except InvalidValueError as exc:
        return None, str(exc)
