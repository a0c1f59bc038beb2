"""Inline paces: how many pods may be starting, and how many may be released in a period."""

import re
from dataclasses import dataclass
from functools import lru_cache

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations
from holdfast.webhook.model.messages import quote

LONGEST = 100
"""Maximum characters of a value. Parsed values are cached, and blanks may follow the comma."""
MAX_COUNT = 10_000
MAX_PERIOD_MS = 24 * 60 * 60 * 1_000
ACCEPTED = (
    'use a number of starting pods ("4"), of releases in a period ("10/1m"), or both ("4,10/1m")'
)
_INLINE = re.compile(r"(?:([0-9]{1,9})(?:, *|$))?(?:([0-9]{1,9})/([0-9a-z.]{1,20}))?")


@dataclass(frozen=True, slots=True)
class Limits:
    """At most `starting` pods that are released but not ready; at most `releases` per period."""

    starting: int | None = None
    releases: int | None = None
    period_ms: int = 0

    def __str__(self) -> str:
        parts = [] if self.starting is None else [str(self.starting)]
        if self.releases is not None:
            parts.append(f"{self.releases}/{durations.canonical_delay(self.period_ms)}")
        return ",".join(parts)

    @property
    def words(self) -> str:
        """The limits in words."""
        parts = [] if self.starting is None else [f"at most {self.starting} starting"]
        if self.releases is not None:
            period = durations.canonical_delay(self.period_ms)
            parts.append(f"at most {self.releases} in {period}")
        return ", ".join(parts)


def is_name(text: str) -> bool:
    """Return whether a value names a configured pace: other values are numbers."""
    return text[:1].isalpha()


def _period_ms(text: str, period: str) -> int:
    try:
        period_ms = durations.parse_delay(period)
    except InvalidValueError:
        period_ms = 0
    if not 1 <= period_ms <= MAX_PERIOD_MS:
        raise InvalidValueError(
            f"invalid value {quote(text)}: the period {quote(period)} must be a duration of 1ms to "
            '24h, such as "10s" or "1m"'
        )
    return period_ms


@lru_cache(1_024)  # most pods of a template have the same value
def parse(text: str) -> Limits:
    """Parse an inline pace. Raises InvalidValueError, which names the accepted forms."""
    match = _INLINE.fullmatch(text) if len(text) <= LONGEST else None
    if not match or not text or text.rstrip(" ").endswith(","):
        raise InvalidValueError(f"invalid value {quote(text)}: {ACCEPTED}")
    starting, releases, period = match.groups()
    period_ms = _period_ms(text, period) if period else 0
    counts = [int(count) for count in (starting, releases) if count]
    if any(not 1 <= count <= MAX_COUNT for count in counts):
        raise InvalidValueError(f"invalid value {quote(text)}: numbers must be 1 to {MAX_COUNT}")
    return Limits(
        int(starting) if starting else None, int(releases) if releases else None, period_ms
    )
