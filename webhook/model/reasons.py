"""Reasons that users write, for Events and tables. Pure."""

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import messages

LONGEST = 200
"""Maximum characters of a reason."""


def parse(text: str) -> str:
    """Return a reason without surrounding spaces. Raises InvalidValueError."""
    reason = text[: LONGEST + 1].strip(" ")
    if len(text) > LONGEST:
        problem = f"it has {len(text)} characters: use at most {LONGEST}"
    elif not reason:
        problem = "it is empty: write a reason"
    elif not reason.isprintable():
        problem = "use printable characters on one line"
    else:
        return reason
    raise InvalidValueError(f"invalid value {messages.quote(text)}: {problem}")


def shown(text: str) -> str:
    """Return a stored text for display; it is quoted and truncated if it is invalid."""
    try:
        return parse(text)
    except InvalidValueError:
        return messages.quote(text)
