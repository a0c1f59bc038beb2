import json
from typing import Any

import msgspec
import pytest

from holdfast.webhook.errors import ReviewError
from holdfast.webhook.model import review
from holdfast.webhook.model.objects import Pod
from tests.support.builders import body, make_pod, make_review, read_review

DEEP = "[" * 200_000
CLOSED = DEEP + "]" * 200_000


def text(**replaced: Any) -> str:
    return json.dumps(make_review(**replaced))


def corrupted(old: str, new: str) -> bytes:
    content = text(pod=make_pod({"delay": "15"}))
    assert old in content
    return content.replace(old, new, 1).encode(errors="surrogatepass")


# --- parsing -----------------------------------------------------------------------------------


def test_parse_reads_pod_and_request() -> None:
    pod = make_pod({"delay": "15"}, gates=["a.io/b"], labels={"run": "x"}, scheduler="mine")
    pod_review = review.parse(body(pod, uid="u-1", dryRun=True))

    assert pod_review.request.uid == "u-1"
    assert pod_review.request.operation == "CREATE"
    assert pod_review.request.dry_run
    assert pod_review.request.user_info.username == "jane"
    assert pod_review.pod.annotations == {"delay": "15"}
    assert pod_review.pod.labels == {"run": "x"}
    assert pod_review.pod.gates == ["a.io/b"]
    assert pod_review.pod.spec.scheduler_name == "mine"
    assert pod_review.old is None
    assert pod == msgspec.json.decode(pod_review.request.object)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="an empty object"),
        pytest.param(b"{", id="truncated"),
        pytest.param(text().encode() + b"{}", id="two documents"),
        pytest.param(b"\xff\xfe\x00", id="invalid UTF-8"),
        pytest.param(text().encode("utf-16"), id="UTF-16"),
        pytest.param(DEEP.encode(), id="nested: the body"),
        pytest.param(text(pod="X").replace('"X"', CLOSED).encode(), id="nested: the pod"),
        pytest.param(
            text(pod={"metadata": {"x": "X"}, "spec": {}}).replace('"X"', CLOSED).encode(),
            id="nested: an unknown field",
        ),
        pytest.param(
            text(pod={"metadata": {"annotations": "X"}, "spec": {}})
            .replace('"X"', CLOSED)
            .encode(),
            id="nested: the annotations",
        ),
        pytest.param(text(old="X").replace('"X"', CLOSED).encode(), id="nested: the old pod"),
        pytest.param(text(extra="X").replace('"X"', CLOSED).encode(), id="nested: next to the pod"),
        pytest.param(corrupted("admission.k8s.io/v1", "admission.k8s.io/v1beta1"), id="v1beta1"),
        pytest.param(corrupted('"AdmissionReview"', '"a\\nb\\u001b[31m"'), id="control characters"),
        pytest.param(text().replace('"request"', '"r"').encode(), id="no request"),
        pytest.param(corrupted('"CREATE"', '"PATCH"'), id="an unknown operation"),
        pytest.param(body(kind={"kind": "Node"}), id="an unsupported kind"),
        pytest.param(body(kind={"group": "x.io", "kind": "Pod"}), id="a Pod of another group"),
        pytest.param(text(object=None).encode(), id="a null pod"),
        pytest.param(body(pod=[]), id="a list for the pod"),
        pytest.param(body(old=[]), id="a list for the old pod"),
        pytest.param(corrupted('"15"', "15"), id="a number for an annotation"),
        pytest.param(corrupted('"15"', "1" * 5_000), id="a huge number for an annotation"),
        pytest.param(corrupted('"15"', "null"), id="null for an annotation"),
        pytest.param(corrupted('"15"', '"\\ud800"'), id="a lone surrogate"),
        pytest.param(corrupted('"15"', '"\\udc00\\ud800"'), id="surrogates the wrong way round"),
        pytest.param(corrupted('"15"', '"\ud800"'), id="a lone surrogate in UTF-8"),
        pytest.param(corrupted('"15"', '"\x01"'), id="a raw control character"),
        pytest.param(corrupted('"15"', "NaN"), id="NaN"),
        pytest.param(corrupted("2026-03-01T12", "yesterday"), id="an invalid time"),
        pytest.param(corrupted('"jane"', '"\\ud800"'), id="a lone surrogate for a user"),
        pytest.param(
            text(uid="X").encode().replace(b'"X"', b'"\xff"'), id="invalid UTF-8 in the uid"
        ),
    ],
)
def test_parse_rejects_invalid_reviews(content: bytes) -> None:
    with pytest.raises(ReviewError) as caught:
        review.parse(content)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            corrupted('"delay": "15"', '"delay": "15", "delay": "16"'), {"delay": "16"}, id="keys"
        ),
        pytest.param(
            corrupted('{"delay": "15"}', '{"delay": "15"}, "annotations": null'), {}, id="objects"
        ),
    ],
)
def test_last_duplicate_key_wins_as_in_go(content: bytes, expected: dict[str, str]) -> None:
    assert expected == review.parse(content).pod.annotations


@pytest.mark.parametrize(
    "field", ["annotations", "labels", "finalizers", "ownerReferences", "creationTimestamp"]
)
def test_null_means_absent(field: str) -> None:
    absent, null = make_pod(), make_pod()
    absent["metadata"].pop(field, None)
    null["metadata"][field] = None

    assert Pod.of(absent) == read_review(null).pod


@pytest.mark.parametrize(
    ("metadata", "request_name", "expected"),
    [
        pytest.param({"name": "web-0"}, "web-0", "default/web-0", id="named"),
        pytest.param({"name": "web-0"}, "", "default/web-0", id="name from the pod"),
        pytest.param({"generateName": "web-"}, "", "default/web-*", id="generateName"),
    ],
)
def test_display_name(metadata: dict[str, str], request_name: str, expected: str) -> None:
    pod = {"metadata": metadata, "spec": {}}

    assert expected == read_review(pod, name=request_name).display_name


# --- responses ---------------------------------------------------------------------------------


def test_rejected() -> None:
    response = json.loads(review.rejected(read_review().request, "no: " + "x" * 5_000))["response"]

    assert not response["allowed"]
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    assert response["status"]["message"] == "no: " + "x" * 1_996
    assert "patch" not in response


@pytest.mark.parametrize(
    "warning",
    ["x" * 240, "x" * 241, "é" * 121, "€" * 200, "x" + "😀" * 100, "", "x" * 100_000],
    ids=["just fits", "a byte too long", "2 bytes each", "3 bytes", "4 bytes", "empty", "huge"],
)
def test_warnings_are_truncated_at_character_boundaries(warning: str) -> None:
    response = review.allowed(read_review().request, (), [warning])
    (truncated,) = json.loads(response)["response"]["warnings"]

    assert len(truncated.encode()) <= 240
    if len(warning.encode()) <= 240:
        assert warning == truncated
    else:
        assert truncated.endswith("…")
        assert warning.startswith(truncated[:-1])
        assert len(truncated.encode()) > 230
