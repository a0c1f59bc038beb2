import json
from typing import Any

import msgspec
import pytest

from holdfast.webhook import safe_json
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.safe_json import DEPTH_LIMIT
from tests.support.counting import counted

ACCEPTED = 10_000
"""Levels that the API server accepts."""
WIDE = '{"name":"a","value":"x"}'


def nested(levels: int, *, open_: str = '{"f:a":', inner: str = "{}", close: str = "}") -> str:
    return open_ * levels + inner + close * levels


def object_with(extra: str) -> bytes:
    fields = f'"managedFields":[{extra},{{"manager":"kubelet"}}],"uid":"u"'
    return f'{{"metadata":{{"name":"p",{fields}}},"spec":{{"nodeName":"n"}}}}'.encode()


@pytest.mark.parametrize(
    "extra",
    [
        nested(ACCEPTED),
        nested(ACCEPTED, open_="[", inner="", close="]"),
        nested(ACCEPTED, open_=r'{"\"}]":', inner=r'"\\"'),
        nested(ACCEPTED, open_='{"}]é":[1,', close=',{"a":[]}]}'),
        f"{nested(ACCEPTED)},{nested(3)},{nested(ACCEPTED)}",
    ],
    ids=["objects", "lists", "brackets in strings", "mixed", "twice"],
)
def test_fields_around_a_deep_field_are_decoded(extra: str) -> None:
    body = object_with(extra)
    decoder = msgspec.json.Decoder(Pod)
    with pytest.raises(RecursionError):
        decoder.decode(body)

    for source in (body, msgspec.Raw(body)):
        pod = safe_json.decode(decoder, source)
        fields = pod.metadata.name, pod.metadata.uid, pod.spec.node_name
        assert fields == ("p", "u", "n")


def test_only_values_beyond_the_depth_limit_are_dropped() -> None:
    document: Any = safe_json.decode(safe_json.ANY, object_with(nested(ACCEPTED)))

    assert document["metadata"]["managedFields"][1] == {"manager": "kubelet"}
    depth, value = 3, document["metadata"]["managedFields"][0]
    while value is not None:
        depth, value = depth + 1, value["f:a"]
    assert depth == DEPTH_LIMIT


def test_shallow_json_is_unchanged() -> None:
    shallow = nested(DEPTH_LIMIT + 1)
    assert safe_json.decode(safe_json.ANY, shallow.encode()) == msgspec.json.decode(shallow)


def test_unterminated_string_takes_linear_time() -> None:
    deep = b'{"a":' * ACCEPTED
    for end in (rb"\"" * 200_000, b"\\" * 200_001):
        with pytest.raises(msgspec.DecodeError):
            safe_json.decode(safe_json.ANY, deep + b'"' + end)


@pytest.mark.parametrize(
    "extra",
    [
        nested(ACCEPTED),
        ",".join([nested(5_000)] * 5),
        nested(ACCEPTED, open_='{"f:[":'),
        f"{nested(5_000)},{','.join(['[[[1]]]'] * 20_000)}",
        f"{nested(5_000)},{','.join([WIDE] * 5_000)}",
        nested(5_000, inner=f"[{','.join([WIDE] * 5_000)}]"),
        nested(80, inner=f"[{nested(ACCEPTED - 90)},{','.join([WIDE] * 5_000)}]"),
    ],
    ids=[
        "one",
        "several",
        "brackets in keys",
        "lists",
        "wide after it",
        "wide inside it",
        "wide above it",
    ],
)
def test_brackets_are_scanned_one_by_one_only_at_the_limit(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_json, "DEPTH_LIMIT", 150)
    body = object_with(extra)
    with counted() as lines:
        safe_json.decode(safe_json.ANY, body)
    assert lines[0] < len(body) / 10


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (1, {'["\\': None, "é": None, "x": None}),
        (2, {'["\\': ["\\", None, '{}"'], "é": {"}": None}, "x": {"f:a": None}}),
        (3, {'["\\': ["\\", ["]"], '{}"'], "é": {"}": []}, "x": {"f:a": {"f:a": None}}}),
    ],
)
def test_result_does_not_depend_on_the_chunk_size(
    limit: int, kept: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_json, "DEPTH_LIMIT", limit)
    monkeypatch.setattr(safe_json, "_SMALLEST", chunk)
    text = json.dumps({'["\\': ["\\", ["]"], '{}"'], "é": {"}": []}, "x": 0}, ensure_ascii=False)
    body = text.replace("0", nested(ACCEPTED)).encode()
    assert safe_json.decode(safe_json.ANY, body) == kept


@pytest.mark.parametrize("cut", [1, 2 * ACCEPTED, 7 * ACCEPTED])
def test_truncated_text_is_invalid(cut: int) -> None:
    with pytest.raises(msgspec.DecodeError):
        safe_json.decode(safe_json.ANY, nested(ACCEPTED).encode()[:-cut])
