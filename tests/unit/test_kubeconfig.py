"""Whatever a kubeconfig holds: a connection, or one line that says what is wrong with the file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kubeconfigs import RIGHT, check, complaint
from tests.unit.mistakes import with_mistakes

EVIL = "\u202e\x1b[2J\r\nerror: forged\x00"
JUNK: list[Any] = [
    *(None, True, 0, -1, 1.5, "", "x", EVIL, "/nowhere", "AAAA", "https://[::1", "x" * 5_000),
    *([], {}, [None], [{}], {"name": "here"}, "../../etc/passwd"),
]
KEYS = [
    *("name", "context", "certificate-authority-data", "client-certificate-data", "token"),
    *("client-key-data", "certificate-authority", "tls-server-name", "proxy-url", "auth-provider"),
]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()  # the client logs what it cannot read, beside raising it
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubeconfig") / "config"


def test_a_good_one(file: Path) -> None:
    assert complaint(file, json.dumps(RIGHT).encode()) == ""


def test_an_anchor_alone_does_no_harm(file: Path) -> None:
    text = json.dumps(RIGHT).replace('"abc"', '&token "a*c"')

    assert complaint(file, text.encode()) == ""


@given(document=with_mistakes(st.just(RIGHT), junk=JUNK, keys=KEYS, most=3))
def test_mistakes(file: Path, document: Any) -> None:
    said = complaint(file, json.dumps(document).encode())
    if said:
        check(said, file)


@given(
    content=st.binary(max_size=40) | st.text("{}[]&*!|>-:,'\" \n#ab0", max_size=40).map(str.encode)
)
def test_nonsense(file: Path, content: bytes) -> None:
    check(complaint(file, content), file)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(20)
)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("- a", id="a list"),
        pytest.param("a: [", id="broken"),
        pytest.param("\x00", id="NUL"),
        pytest.param("[" * 2_000, id="deep lists"),
        pytest.param("!!python/object/apply:os.system [x]", id="a tag of Python"),
        pytest.param(BOMB, id="aliases of aliases"),
        pytest.param(BOMB + "current-context: *u\ncontexts: *u\n", id="aliases that are used"),
    ],
)
def test_what_is_no_kubeconfig(file: Path, content: str) -> None:
    check(complaint(file, content.encode()), file)


def test_proxy_that_is_no_address_is_named(file: Path) -> None:
    cluster = {"server": "https://192.0.2.1:6443", "proxy-url": "https://[::1"}
    document = RIGHT | {"clusters": [{"name": "c", "cluster": cluster}]}

    check(complaint(file, json.dumps(document).encode()), file)


def test_aliases_are_named(file: Path) -> None:
    said = complaint(file, b"a: &a x\nb: *a\n")

    assert f"({file}: aliases are not supported; write the value out)" in said
