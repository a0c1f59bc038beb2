"""Annotations of a pod that waits for an approval, and their values. Pure."""

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import DOMAIN

KEY = GATE = f"{DOMAIN}/approval"
"""The annotation with what has to be approved, and the gate."""
APPROVED_BY = f"{DOMAIN}/approved-by"
DENIED_BY = f"{DOMAIN}/denied-by"
DENIED_REASON = f"{DOMAIN}/denied-reason"
NAMES = (APPROVED_BY, DENIED_BY)
"""Annotations with the name of the user who wrote them."""
MARKS = (*NAMES, DENIED_REASON)
"""What `holdfast approve` and `holdfast deny` write."""
LONGEST = 200
"""Characters of a reason, which is shown in Events and tables."""


def parse_reason(text: str) -> str:
    """Return a reason without spaces around it. Raises InvalidValueError."""
    reason = text[: LONGEST + 1].strip(" ")
    if len(text) > LONGEST:
        problem = f"it has {len(text)} characters: use at most {LONGEST}"
    elif not reason:
        problem = "it is empty: say what has to be approved"
    elif not reason.isprintable():
        problem = "use printable characters on one line"
    else:
        return reason
    raise InvalidValueError(f"invalid value {messages.quote(text)}: {problem}")


def shown(text: str) -> str:
    """Return a stored text for people; it is quoted and cut if nobody has checked it."""
    try:
        return parse_reason(text)
    except InvalidValueError:
        return messages.quote(text)
