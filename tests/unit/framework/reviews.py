"""Reviews with scripted plugins."""

from collections.abc import Mapping
from typing import Any

from holdfast.webhook.model.review import PodReview
from tests.support.builders import (
    make_pod,
    read_review,
)


def relevant_review(annotations: Mapping[str, str] | None = None, **fields: Any) -> PodReview:
    """Make a review that scripted plugins handle, including those that may block."""
    return read_review(make_pod({"scripted": "", **(annotations or {})}), **fields)


NEVER_HELD = "is not a profile with gate holdfast.dev/approval: call Holdfast last"
PROFILES = """
profiles:
- schedulerName: "*"
- schedulerName: mine
- schedulerName: spacecloud
  plugins: {disabled: [{name: '*'}]}
"""
