import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.webhook.errors import ReviewError
from holdfast.webhook.model.kubevirt import LauncherPod
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import parse
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.report.pod_status import PodWithStatus
from tests.support.builders import CREATED, CREATED_MS, HOUR, body, make_pod

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_000


def test_empty_pod_has_defaults() -> None:
    pod = Pod.of({})

    assert {} == pod.annotations == pod.labels
    assert [] == list(pod.gates) == list(pod.finalizers)
    assert pod.key == ("", "")
    assert pod.created_ms == 0


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        (CREATED, CREATED_MS),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), -1_000),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000),
    ],
    ids=["today", "the epoch", "before the epoch", "year 1"],
)
def test_creation_time(created: datetime, expected: int) -> None:
    source = make_pod()
    source["metadata"]["creationTimestamp"] = created.isoformat()

    assert expected == Pod.of(source).created_ms


@pytest.mark.parametrize("kind", [LauncherPod, PacedPod, PodWithStatus])
@pytest.mark.parametrize("written", ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", None])
def test_pod_with_invalid_time_in_status_is_decoded(kind: type[Pod], written: str | None) -> None:
    """The API server stores these: if the controller skipped a VM's pod, it would never end."""
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": written}
    source = {**make_pod(), "status": {"conditions": [condition]}}
    pod = msgspec.json.decode(json.dumps(source), type=kind)
    assert pod.metadata.name == "web-0"


FIRST, LAST = "0001-01-01T00:00:00", "9999-12-31T23:59:59"


@pytest.mark.parametrize("field", ["creationTimestamp", "deletionTimestamp"])
@pytest.mark.parametrize("written", [FIRST, LAST, "2026-03-01T12:00:00", "2026-03-01"])
def test_time_without_offset_is_rejected(written: str, field: str) -> None:
    source = make_pod()
    source["metadata"][field] = written

    with pytest.raises(ReviewError, match=r"not an AdmissionReview .*`\$.metadata"):
        parse(body(source))


@pytest.mark.parametrize("time", [FIRST, LAST])
@pytest.mark.parametrize("offset", ["Z", "+23:59", "-23:59"])
def test_time_at_calendar_bounds_is_read_or_rejected(offset: str, time: str) -> None:
    source = make_pod()
    source["metadata"]["creationTimestamp"] = time + offset
    is_outside = (time, offset[0]) in {(FIRST, "+"), (LAST, "-")}

    try:
        created_ms = parse(body(source)).pod.created_ms
    except ReviewError:
        assert is_outside
    else:
        assert abs(created_ms - (FIRST_MS if time == FIRST else LAST_MS)) <= 24 * HOUR


JOB = {"kind": "Job", "name": "work", "uid": "j-1", "controller": True, "apiVersion": "batch/v1"}


@pytest.mark.parametrize(
    ("fields", "group", "expected"),
    [
        ({}, None, "u-1"),
        ({"owners": [JOB]}, None, "j-1"),
        ({"owners": [{**JOB, "controller": False}]}, None, "u-1"),
        ({"owners": [{**JOB, "kind": "ReplicaSet"}]}, None, "u-1"),
        ({"labels": {"kueue.x-k8s.io/pod-group-name": "ranks"}}, None, "default/ranks"),
        ({"owners": [JOB]}, {"podGroupName": "gang"}, "default/gang"),
        ({}, {}, "u-1"),
    ],
    ids=[
        "alone",
        "Job",
        "owner that is not the controller",
        "ReplicaSet",
        "Kueue",
        "PodGroup",
        "no PodGroup",
    ],
)
def test_members_of_a_group_share_their_jitter(
    fields: dict[str, Any], group: dict[str, str] | None, expected: str
) -> None:
    source = make_pod(uid="u-1", **fields)
    if group is not None:
        source["spec"]["schedulingGroup"] = group

    assert Pod.of(source).jitter_key == expected
