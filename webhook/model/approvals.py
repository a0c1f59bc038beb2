"""Annotations of a pod that waits for an approval, and their values. Pure."""

from collections.abc import Mapping

from holdfast.webhook.model import reasons
from holdfast.webhook.model.annotations import DOMAIN, OWN_PREFIX, allowed_plugins

KEY = GATE = f"{DOMAIN}/approval"
"""The annotation that describes what needs approval, and the gate."""
APPROVED_BY = f"{DOMAIN}/approved-by"
DENIED_BY = f"{DOMAIN}/denied-by"
DENIED_REASON = f"{DOMAIN}/denied-reason"
NAMES = (APPROVED_BY, DENIED_BY)
"""Annotations with the name of the user who wrote them."""
MARKS = (*NAMES, DENIED_REASON)
"""The annotations that `holdfast approve` and `holdfast deny` write."""


def is_missing(annotations: Mapping[str, str]) -> bool:
    """Return whether a pod still waits for an approval, or was denied."""
    if KEY not in annotations or KEY.removeprefix(OWN_PREFIX) in allowed_plugins(annotations):
        return False
    return DENIED_BY in annotations or APPROVED_BY not in annotations


def approver(annotations: Mapping[str, str]) -> str:
    """Return the user who approved a pod that requires approval, for display; empty if none."""
    is_approved = KEY in annotations and annotations.get(APPROVED_BY)
    return reasons.shown(annotations[APPROVED_BY]) if is_approved else ""


def denial(annotations: Mapping[str, str]) -> str:
    """Return the user who denied a pod and the reason, for display; empty if it was not denied."""
    if not annotations.get(DENIED_BY):
        return ""
    reason = annotations.get(DENIED_REASON)
    suffix = f": {reasons.shown(reason)}" if reason else ""
    return f"denied by {reasons.shown(annotations[DENIED_BY])}{suffix}"
