"""Responses of the API server, converted to times and errors."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.transport import Response
from holdfast.webhook.model import messages

MESSAGE_CHARACTERS = 1_000
"""Length of an error message: another webhook's may be arbitrarily long, and is logged at each
retry. The list of what is wrong with an invalid pod takes some hundreds."""


def read_date(headers: Mapping[str, str]) -> float | None:
    """Return a response's `Date` in seconds since 1970, or None."""
    text = headers.get("date")
    return None if text is None else _parsed_date(text)


@lru_cache(maxsize=8)  # whole seconds: in a burst, hundreds of responses have the same
def _parsed_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


class _StatusBody(msgspec.Struct):
    message: str = ""
    reason: str = ""


def status_error(response: Response) -> ApiStatusError:
    """Convert an error response to an exception."""
    try:
        status = msgspec.json.decode(response.data, type=_StatusBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _StatusBody(response.data[:200].decode(errors="replace"))
    asked = response.headers.get("retry-after", "")
    said = " ".join(status.message.split()) or response.reason
    return ApiStatusError(
        f"HTTP {response.status}: {messages.shorten(said, MESSAGE_CHARACTERS)}",
        status=response.status,
        reason=status.reason,
        retry_after=float(asked) if asked.isascii() and asked.isdigit() else None,
    )
