"""Any input gets a valid response or a clean 400 with one line in the log, and never a 500."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.webhook.config.config import DEFAULT_PLUGINS
from holdfast.webhook.model import kubevirt
from tests.support.builders import body, make_pod, make_review
from tests.support.hostile import EVIL, PATHS, Server, check, check_document
from tests.support.matching import required_affinity
from tests.support.mistakes import with_mistakes
from tests.support.vm_builders import make_launcher

FEW = settings(max_examples=10)
"""For examples that each start a server."""


# --- fuzzed ------------------------------------------------------------------------------------

VALUES = [
    "15",
    "0",
    "soon",
    "-1",
    "1_5",
    "\uff11\uff15",
    " 15 ",
    "space",
    "2026-12-24T18:00:00Z",
    "",
    EVIL,
]
annotated = st.dictionaries(
    st.sampled_from(
        [
            "delay",
            "holdfast.dev/delay",
            "holdfast.dev/not-before",
            "holdfast.dev/jitter",
            "holdfast.dev/held",
            "holdfast.dev/profile",
            "holdfast.dev/placed",
            "type",
            EVIL,
        ]
    ),
    st.sampled_from(VALUES) | st.text(max_size=20),
    max_size=4,
)
OWNERS = [
    {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "../x", "uid": "u"},
    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": EVIL, "uid": "", "controller": True},
]
TERMS = [
    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
    {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["x", "y"]}]},
    {},
]


@st.composite
def pods(draw: st.DrawFn) -> Any:
    pod = make_pod(
        draw(annotated),
        gates=draw(st.lists(st.sampled_from(["holdfast.dev/delay", "a.io/b", EVIL]), max_size=2)),
        finalizers=draw(st.lists(st.sampled_from(["holdfast.dev/sticky", "a.io/b"]), max_size=1)),
        labels=draw(st.none() | st.just({"type": "x"})),
        scheduler=draw(st.sampled_from(["", "other", "default-scheduler", EVIL])),
        node=draw(st.sampled_from(["", "n1"])),
    )
    pod["metadata"]["ownerReferences"] = draw(st.lists(st.sampled_from(OWNERS), max_size=2))
    terms = draw(st.none() | st.lists(st.sampled_from(TERMS), max_size=3))
    if terms is not None:
        pod["spec"]["affinity"] = required_affinity(*terms)
    return pod


KINDS = {
    "Pod": "",
    "Deployment": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "Job": "batch",
    "CronJob": "batch",
    "VirtualMachine": "kubevirt.io",
}


@st.composite
def valid_reviews(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(list(KINDS)))

    def whole() -> Any:
        pod = draw(pods())
        if kind == "Pod":
            return pod
        template = {"metadata": pod["metadata"], "spec": pod["spec"]}
        spec: Any = {"template": template, "replicas": 3, "activeDeadlineSeconds": 5}
        if kind == "CronJob":
            spec = {"jobTemplate": {"spec": spec}}
        return {"metadata": {"name": "w"}, "spec": spec}

    update = draw(st.booleans())
    return make_review(
        whole(),
        operation="UPDATE" if update else "CREATE",
        old=whole() if update else None,
        kind={"group": KINDS[kind], "version": "v1", "kind": kind},
        namespace=draw(st.sampled_from(["default", "", "../../etc", EVIL])),
        name=draw(st.sampled_from(["", "x", "../../etc/passwd", EVIL])),
        uid=draw(st.sampled_from(["u-1", EVIL])),
    )


JUNK: list[Any] = [
    *(None, True, 0, -1, 2**63, 2**64, 1e308, "", "x", EVIL, "15" * 2_000, "../../etc/passwd"),
    *([], {}, [None], {"a": None}, [[[[[]]]]], ["x"], [{}], "2026-13-45T99:99:99Z"),
]
KEYS = ["x", "annotations", "request", "object", "metadata", "spec", "schedulingGates", EVIL]


@pytest.mark.parametrize("path", PATHS)
@given(review=valid_reviews())
def test_valid_reviews_are_answered(path: str, review: Any) -> None:
    request = review["request"]
    kinds = ("Pod", "VirtualMachine") if request["operation"] == "UPDATE" else ("Pod",)
    misplaced = path == "/mutate" and request["kind"]["kind"] not in kinds

    assert (check_document(path, review) is None) == misplaced


@pytest.mark.parametrize("path", PATHS)
@given(review=with_mistakes(valid_reviews(), junk=JUNK, keys=KEYS, most=3))
def test_reviews_with_mistakes_are_answered_or_rejected(path: str, review: Any) -> None:
    check(path, json.dumps(review).encode())


@pytest.mark.parametrize("path", PATHS)
@given(content=st.binary(max_size=60))
@example(content=b"\xff\xfe")
def test_random_bytes_are_rejected(path: str, content: bytes) -> None:
    assert check(path, content) is None


@pytest.mark.parametrize("path", PATHS)
@given(review=valid_reviews(), cut=st.integers(0, 200), byte=st.integers(0, 255))
def test_corrupted_json_is_answered_or_rejected(
    path: str, review: Any, cut: int, byte: int
) -> None:
    content = bytearray(json.dumps(review, ensure_ascii=False).encode())
    content[len(content) * cut // 201] = byte
    check(path, bytes(content))


@pytest.mark.parametrize("path", PATHS)
@FEW
@given(reviews=st.lists(valid_reviews(), min_size=2, max_size=4))
def test_response_does_not_depend_on_earlier_requests(path: str, reviews: list[Any]) -> None:
    shared_server = Server()
    results = [check_document(path, review, shared_server) for review in reviews]

    assert results[-1] == check_document(path, reviews[-1], Server())


@FEW
@given(reviews=st.lists(valid_reviews(), min_size=5, max_size=5))
def test_number_of_metric_series_is_bounded(reviews: list[Any]) -> None:
    server = Server()
    for review in reviews:
        for path in PATHS:
            check_document(path, review, server)
    allowed_values = {
        "path": {"mutate", "validate"},
        "outcome": {"allowed", "patched", "refused", "bad", "failed"},
        "profile": {"other", "*", ""},
        "plugin": {*DEFAULT_PLUGINS, "unknown"},
        "status": {"Success", "Skip", "Reject", "Error"},
        "extension_point": {"mutate", "validate"},
    }
    labels = {label for label in server.labels() if label[0] not in {"le", "version"}}

    assert {name for name, _ in labels} >= {"path", "outcome", "profile", "plugin"}
    assert [label for label in labels if label[1] not in allowed_values[label[0]]] == []


@FEW
@pytest.mark.parametrize("path", PATHS)
@given(review=with_mistakes(valid_reviews(), junk=JUNK, keys=KEYS, most=1))
def test_flask_responds_like_the_production_worker(path: str, review: Any) -> None:
    content = json.dumps(review).encode()

    assert Server().ask_flask(path, content) == Server().ask(path, content)


@pytest.mark.parametrize("path", PATHS)
def test_blocking_review_is_answered_from_the_pool(path: str) -> None:
    """The review of a VM's pod takes a different path from all others."""
    server = Server()
    server.annotate_vm({kubevirt.STICKY_NODE: "node-1"})
    account = {"username": kubevirt.CONTROLLER_ACCOUNT}
    review = make_review(make_launcher(), userInfo=account)
    response = check_document(path, review, server)

    assert response["allowed"] == (path == "/mutate")
    assert server.lookup.asked
    assert server.log.threads == {"holdfast-review"}


# --- single cases ------------------------------------------------------------------------------

DELAYED = make_pod({"delay": "15"})


def text(review: Any = None) -> str:
    return json.dumps(review or make_review(DELAYED))


INVALID = [
    pytest.param(b"null", id="null"),
    pytest.param(b'{"a":' * 200_000, id="deep mappings"),
    pytest.param(
        text()
        .replace('"object": {', '"object": {"x": ' + "[" * 200_000 + "]" * 200_000 + ", ")
        .encode(),
        id="deep lists within the object",
    ),
    pytest.param(text().replace('"15"', "Infinity").encode(), id="Infinity"),
    pytest.param(text().replace("15", "\\ud800").encode(), id="a lone surrogate, escaped"),
    pytest.param(text().encode().replace(b"15", b"\xed\xa0\x80"), id="a lone surrogate"),
    pytest.param(b"\xef\xbb\xbf" + text().encode(), id="a byte order mark"),
    pytest.param(text().replace("AdmissionReview", "Pod").encode(), id="another kind"),
    pytest.param(body(DELAYED, operation="DELETE", object=None), id="a deletion"),
    pytest.param(body(DELAYED, operation="create"), id="an unknown operation"),
    pytest.param(
        body(DELAYED, kind={"group": "x", "version": "v1", "kind": EVIL}), id="an unknown kind"
    ),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content", INVALID)
def test_invalid_review_is_rejected(path: str, content: bytes) -> None:
    assert check(path, content) is None


@pytest.mark.parametrize("path", PATHS)
def test_last_duplicate_key_wins(path: str) -> None:
    """The API server never sends a key twice; a client that does gets one answer, not a mixture."""
    request = text(make_review(make_pod({"delay": "soon"}), uid="first")).partition('"request": ')
    doubled = request[0] + request[1] + request[2][:-1] + ", " + text()[1:]

    assert check(path, doubled.encode()) == check(path, text().encode())


NOT_THERE = {"operator": "NotIn", "values": ["a", "b"]}
HUGE = [
    pytest.param({"delay": "9" * 2**20}, False, id="a number of a million digits"),
    pytest.param({"delay": "0." + "0" * 2**20 + "1s"}, False, id="a long fraction"),
    pytest.param({"holdfast.dev/not-before": "2" * 2**20}, False, id="a long time"),
    pytest.param({"holdfast.dev/jitter": "é" * 2**19}, False, id="non-ASCII letters"),
    pytest.param({"other": "x" * 2**20, "delay": "5"}, True, id="a long unrelated value"),
    pytest.param(
        {f"k{n}": "v" for n in range(4_000)} | {"delay": "5"}, True, id="4,000 annotations"
    ),
    pytest.param({"delay": "5", "holdfast.dev/held": "x=1," * 2**18}, True, id="a long hint"),
    pytest.param({"type": "x", "holdfast.dev/placed": "x@1," * 2**18}, True, id="a long record"),
    pytest.param({"delay": "5", "holdfast.dev/profile": "x" * 2**20}, True, id="a long profile"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("annotations", "allowed"), HUGE)
def test_huge_values_are_answered_with_short_messages(
    path: str, annotations: dict[str, str], allowed: bool
) -> None:
    pod = make_pod(annotations)
    if path == "/validate":
        pod["spec"] |= {"schedulingGates": [{"name": "holdfast.dev/delay"}]}
        pod["spec"]["nodeSelector"] = {"role": "edge"}
        requirements = [{"key": "disk", "operator": "Exists"}, {"key": "rack", **NOT_THERE}]
        pod["spec"]["affinity"] = required_affinity({"matchExpressions": requirements})
    response = check(path, body(pod))

    assert response is not None
    assert response["allowed"] == allowed


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_log_truncates_names(field: str) -> None:
    for path in PATHS:
        check(path, body(make_pod({"delay": "soon"}), **{field: "n" * 2**20}))


@pytest.mark.parametrize("character", ["\x00", "\U0001f600", "\\", '"', "\u202e"], ids=ascii)
def test_log_truncates_names_that_grow_when_escaped(character: str) -> None:
    """Found by fuzzing with long inputs: escaped twice, such a line had 18,000 characters."""
    name = character * 253
    for path in PATHS:
        check(path, body(make_pod({"delay": "15"}), name=name, namespace=name, uid=name))
        check(path, body(make_pod({"delay": "soon"}), name=name, namespace=name, uid=name))


@pytest.mark.parametrize("namespace", ["n" * 2**20, EVIL, "../../etc"], ids=["long", "odd", "path"])
def test_namespace_of_a_forged_vm_pod_is_truncated(namespace: str) -> None:
    """Found by fuzzing with long inputs: the rejection and the log had the whole namespace."""
    user = {"username": kubevirt.CONTROLLER_ACCOUNT}
    review = make_review(make_launcher(), namespace=namespace, userInfo=user)
    response = check_document("/mutate", review)

    assert not response["allowed"]
    assert response["status"]["message"].isprintable()
    assert len(response["status"]["message"]) < 300
