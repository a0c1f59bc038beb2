"""When a held pod is due: what it asks, the hint that remembers it, and the decision at release.

due = max(creation + delay, not-before) + share x jitter. All times are milliseconds; the time of
creation is the API server's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from webhook import values
from webhook.errors import ValueRefusedError

DOMAIN = "holdfast.dev"
GATE = f"{DOMAIN}/delay"
"""The scheduling gate that holds a delayed pod."""
OWN_PREFIX = f"{DOMAIN}/"
"""Gates and finalizers under this prefix are Holdfast's, whatever plugin wrote them."""
HELD = f"{DOMAIN}/held"
"""The annotation with the hint: what holds the pod, in canonical form."""
PROFILE = f"{DOMAIN}/profile"
"""The annotation that records which profile served the pod first."""
NOT_BEFORE = f"{DOMAIN}/not-before"
JITTER = f"{DOMAIN}/jitter"
DELAY_KEYS = (f"{DOMAIN}/delay", "delay")
"""The default keys of a delay; further ones are configured."""

NEVER_MS = 2**62
"""A due time for a pod that a plugin holds until something happens, and not until a time."""

PAST_TOLERANCE_MS = 10 * 60 * 1_000
"""A not-before further back than this holds nothing; nearer, the controller's clock decides."""

_HINT_NOT_BEFORE, _HINT_JITTER = "not-before", "jitter"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a pod asks for. `delay_key` is the annotation that the delay came from."""

    delay_ms: int = 0
    not_before_ms: int | None = None
    jitter_ms: int = 0
    delay_key: str = DELAY_KEYS[0]

    @property
    def longest_ms(self) -> int:
        """The longest that delay and jitter together can hold a pod."""
        return self.delay_ms + self.jitter_ms

    def longest_wait_ms(self, now_ms: int) -> int:
        """Give the longest that a pod which is created now can be held."""
        until = 0 if self.not_before_ms is None else max(0, self.not_before_ms - now_ms)
        return max(self.delay_ms, until) + self.jitter_ms

    def holds(self, now_ms: int, *, tolerance_ms: int = PAST_TOLERANCE_MS) -> bool:
        """Tell whether a pod that is created now has to be held at all."""
        if self.delay_ms or self.jitter_ms:
            return True
        return self.not_before_ms is not None and self.not_before_ms >= now_ms - tolerance_ms

    def due_ms(self, *, created_ms: int, uid: str) -> int:
        """Tell when the pod may be scheduled, by the API server's clock."""
        due = created_ms + self.delay_ms
        if self.not_before_ms is not None:
            due = max(due, self.not_before_ms)
        return due + jitter_share_ms(uid, self.jitter_ms)


NOTHING_ASKED = "no annotation says how long to hold it; released at once"
"""What a decision says of a pod whose annotations were all removed: no fault of anybody's."""


@dataclass(frozen=True, slots=True)
class Due:
    """The decision about one held pod: when it may go, and what was wrong with what it says."""

    at_ms: int
    problem: str = ""


def jitter_share_ms(uid: str, jitter_ms: int) -> int:
    """Give a pod's own share of the jitter: 0 to 1 times, the same whenever it is asked."""
    digest = hashlib.blake2b(uid.encode(), digest_size=8).digest()
    return jitter_ms * int.from_bytes(digest, "big") >> 64


def read_ask(annotations: Mapping[str, str], delay_keys: Iterable[str]) -> Ask:
    """Read what annotations ask for. Raises ValueRefusedError, which names the annotation."""
    delay_key, delay_ms = _read_delay(annotations, delay_keys)
    not_before = _read(annotations, NOT_BEFORE, values.parse_instant)
    jitter = _read(annotations, JITTER, values.parse_delay)
    return Ask(delay_ms or 0, not_before, jitter or 0, delay_key)


def _read_delay(annotations: Mapping[str, str], keys: Iterable[str]) -> tuple[str, int | None]:
    found: list[tuple[str, int]] = []
    for key in keys:
        value = _read(annotations, key, values.parse_delay)
        if value is None:
            continue
        if found and found[0][1] != value:
            first = found[0][0]
            raise ValueRefusedError(
                f"annotations {first}={values.shown(annotations[first])} and "
                f"{key}={values.shown(annotations[key])} disagree; keep one of them"
            )
        found.append((key, value))
    return found[0] if found else (DELAY_KEYS[0], None)


def _read(annotations: Mapping[str, str], key: str, parse: Callable[[str], int]) -> int | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return parse(text)
    except ValueRefusedError as exc:
        raise ValueRefusedError(f"annotation {key}: {exc}") from None


def hint(ask: Ask) -> str:
    """Write what holds a pod, for its annotation `holdfast.dev/held`."""
    parts = []
    if ask.delay_ms:
        parts.append(f"{ask.delay_key}={values.canonical_delay(ask.delay_ms)}")
    if ask.not_before_ms is not None:
        parts.append(f"{_HINT_NOT_BEFORE}={values.canonical_instant(ask.not_before_ms)}")
    if ask.jitter_ms:
        parts.append(f"{_HINT_JITTER}={values.canonical_delay(ask.jitter_ms)}")
    return ",".join(parts)


def read_hint(text: str) -> Ask:
    """Read a hint back. Raises ValueRefusedError on what cannot have come from `hint`."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not (key and equals and value) or key in fields or key in {NOT_BEFORE, JITTER}:
            raise ValueRefusedError(f"annotation {HELD}: {values.shown(text)} is no hint of ours")
        fields[key] = value
    not_before = fields.pop(_HINT_NOT_BEFORE, None)
    jitter = fields.pop(_HINT_JITTER, None)
    if len(fields) > 1:
        raise ValueRefusedError(f"annotation {HELD}: {values.shown(text)} names two delays")
    delay_key, delay = next(iter(fields.items()), (DELAY_KEYS[0], "0"))
    return Ask(
        values.parse_delay(delay),
        None if not_before is None else values.parse_instant(not_before),
        0 if jitter is None else values.parse_delay(jitter),
        delay_key,
    )


def decide(
    annotations: Mapping[str, str], *, created_ms: int, uid: str, delay_keys: Iterable[str]
) -> Due:
    """Decide when a pod that carries our gate is due.

    The annotations decide, under the keys that the configuration or the hint names. Where one is
    unreadable, the hint decides; where nothing is left that could, the pod is due at once.
    """
    hinted, hint_problem = _hinted(annotations)
    keys = list(delay_keys)
    if hinted is not None and hinted.delay_ms and hinted.delay_key not in keys:
        keys.append(hinted.delay_key)
    if not any(key in annotations for key in (*keys, NOT_BEFORE, JITTER)):
        return Due(created_ms, NOTHING_ASKED)
    try:
        ask = read_ask(annotations, keys)
    except ValueRefusedError as exc:
        if hinted is None:
            return Due(created_ms, f"{exc}; {hint_problem}; released at once")
        due = hinted.due_ms(created_ms=created_ms, uid=uid)
        return Due(due, f"{exc}; annotation {HELD} decides instead")
    return Due(ask.due_ms(created_ms=created_ms, uid=uid))


def _hinted(annotations: Mapping[str, str]) -> tuple[Ask | None, str]:
    text = annotations.get(HELD)
    if text is None:
        return None, f"annotation {HELD} is missing"
    try:
        return read_hint(text), ""
    except ValueRefusedError as exc:
        return None, str(exc)
