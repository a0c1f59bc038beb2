"""Reviews with scripted plugins."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.webhook.framework.json_patch import applied, patch
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview
from tests.support.builders import make_pod, read_review


def relevant_review(annotations: Mapping[str, str] | None = None, **fields: Any) -> PodReview:
    """Make a review that scripted plugins handle, including those that may block."""
    return read_review(make_pod({"scripted": "", **(annotations or {})}), **fields)


def edited(review: PodReview, edits: Iterable[Edit]) -> PodReview:
    """Return the review with these edits applied to its pod."""
    pod = applied(msgspec.json.decode(review.request.object), patch(review.pod, edits))
    request = msgspec.structs.replace(review.request, object=msgspec.Raw(msgspec.json.encode(pod)))
    return msgspec.structs.replace(review, request=request, pod=Pod.of(pod))


NEVER_HELD = "is not a profile with gate holdfast.dev/approval: call Holdfast last"
PROFILES = """
profiles:
- schedulerName: "*"
- schedulerName: mine
- schedulerName: spacecloud
  plugins: {disabled: [{name: '*'}]}
"""
