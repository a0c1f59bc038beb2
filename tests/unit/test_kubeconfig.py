"""Whatever a kubeconfig holds: a connection, or one line that says what is wrong with the file.

Seen to fail with the kubernetes client's own loader of files: it took minutes for a number of base
60, read files of any size, and each twice, and forgot the namespace of a context that is named
where none is current. And with the last of several files let choose; with paths left relative; with
renewed tokens not written back, and with all of a file's paths written back with them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from certs import authority
from tests.unit.kubeconfigs import RIGHT, check, complaint
from tests.unit.mistakes import with_mistakes
from webhook import yaml_text
from webhook.cluster import Cluster
from webhook.errors import StartError
from webhook.kubeconfig import Kubeconfig

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


LONG = "1" + ":1" * 400_000


@pytest.mark.timeout(30)
@pytest.mark.parametrize("tag", ["", "!!int ", "!!float "], ids=["plain", "int", "float"])
def test_long_base_60_is_cheap(file: Path, tag: str) -> None:
    text = json.dumps(RIGHT).replace('"abc"', f"{tag}{LONG}").replace("{", "{ ")

    assert complaint(file, text.encode()) == ""
    assert f"Bearer {LONG}" == token(file)


def token(file: Path | None, context: str | None = None) -> str:
    """Give the token that goes out with a request."""
    with closing(Cluster.connect(file, context)) as cluster:
        return str(cluster._client.configuration.api_key["BearerToken"])


@pytest.mark.timeout(30)
def test_huge_file(file: Path) -> None:
    text = json.dumps(RIGHT).encode()
    largest = text + b" " * (yaml_text.SIZE_LIMIT - len(text))

    assert complaint(file, largest) == ""
    assert f"({file}: is larger than 1 MiB; take out what you do not use)" in complaint(
        file, largest + b" "
    )


@pytest.mark.timeout(30)
def test_file_without_end() -> None:
    with pytest.raises(StartError, match="/dev/zero: is larger than 1 MiB"):
        Cluster.connect(Path("/dev/zero"))


@pytest.mark.timeout(30)
def test_file_is_read_once(tmp_path: Path) -> None:
    """As it has to be where a shell gives one that is no file, by `<(...)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(RIGHT),), daemon=True)
    writer.start()

    assert token(pipe) == "Bearer abc"
    writer.join()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"", "is no kubeconfig; write one by 'kubectl config view --raw'", id="empty"),
        pytest.param(b"a: [", "is no YAML: while parsing", id="broken"),
        pytest.param(b"users: {name: x}", "users: is no list; begin", id="a mapping"),
        pytest.param(b"users: [{user: {}}]", "users[0]: has no name; give it one", id="no name"),
        pytest.param(b"clusters: [1]", "clusters[0]: has no name; give it one", id="a number"),
    ],
)
def test_complaint_names_file_and_place(file: Path, content: bytes, told: str) -> None:
    said = complaint(file, content)

    check(said, file)
    assert f"({file}: {told}" in said


def test_no_complaint_quotes_the_file(file: Path) -> None:
    assert "secret" not in complaint(file, b"users: [{name: u, user: {token: secret}")


def test_missing_and_unreadable_files_are_told(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "x", "no such file"), (tmp_path, "cannot be read (Is a dir")):
        with pytest.raises(StartError) as refused:
            Cluster.connect(path)
        check(str(refused.value), path)
        assert told in str(refused.value)


def written(path: Path, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(RIGHT | changes))
    return path


def test_paths_are_found_from_the_files_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = authority.new_ca("test CA", now=datetime.now(UTC))
    cluster = {"server": "https://192.0.2.1:6443", "certificate-authority": "pki/ca.crt"}
    written(
        tmp_path / "here" / "config",
        clusters=[{"name": "c", "cluster": cluster}],
        users=[{"name": "u", "user": {"tokenFile": "./token"}}],
    )
    (tmp_path / "here" / "token").write_text("of the file")
    (tmp_path / "here" / "pki").mkdir()
    (tmp_path / "here" / "pki" / "ca.crt").write_bytes(ca.certificate)
    monkeypatch.chdir(tmp_path)

    with closing(Cluster.connect(Path("here/config"))) as connected:
        configuration = connected._client.configuration
    assert configuration.ssl_ca_cert == str(tmp_path / "here" / "pki" / "ca.crt")
    assert configuration.api_key["BearerToken"] == "Bearer of the file"


def test_program_is_found_from_the_files_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": api, "kind": "ExecCredential", "status": {"token": "made"}}
    program = tmp_path / "here" / "bin" / "give"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": api, "command": "bin/give"}}
    file = written(tmp_path / "here" / "config", users=[{"name": "u", "user": user}])
    monkeypatch.chdir("/")

    assert token(file) == "Bearer made"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ca.crt", "/here/ca.crt"), ("/ca.crt", "/ca.crt"), ("../ca.crt", "/here/../ca.crt")],
)
def test_every_path_becomes_absolute(tmp_path: Path, name: str, expected: str) -> None:
    paths = {"client-certificate": name, "client-key": name, "tokenFile": name}
    file = written(
        tmp_path / "here" / "config",
        clusters=[{"name": "c", "cluster": {"certificate-authority": name, "server": name}}],
        users=[{"name": "u", "user": paths}, {"name": "v", "user": {"exec": {"command": "aws"}}}],
    )
    made = Kubeconfig([file]).merged()
    found = expected if name.startswith("/") else f"{tmp_path}{expected}"

    assert made["clusters"][0]["cluster"] == {"certificate-authority": found, "server": name}
    assert made["users"][0]["user"] == dict.fromkeys(paths, found)
    assert made["users"][1]["user"]["exec"]["command"] == "aws", "it is on the PATH"


def test_several_files_are_merged_and_the_first_to_say_something_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path / "a" / "config", users=[{"name": "u", "user": {"tokenFile": "t"}}])
    other = {"name": "there", "context": {"cluster": "c", "user": "v", "namespace": "m"}}
    second = written(
        tmp_path / "b" / "config",
        users=[*RIGHT["users"], {"name": "v", "user": {"tokenFile": "t"}}],
        contexts=[other],
        **{"current-context": "there"},
    )
    for file in (first, second):
        (file.parent / "t").write_text(f"of {file.parent.name}")
    files = [str(first), "", str(tmp_path / "missing"), str(second)]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))

    assert token(None) == "Bearer of a"
    assert token(None, "there") == "Bearer of b"
    with closing(Cluster.connect(None, "there")) as connected:
        assert connected.namespace == "m"


def test_without_an_environment_it_is_that_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / ".kube" / "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")

    assert token(None) == "Bearer abc"


def test_context_that_is_named_has_its_namespace_where_none_is_current(file: Path) -> None:
    file.write_text(json.dumps(RIGHT | {"current-context": None}))

    with closing(Cluster.connect(file, "here")) as connected:
        assert connected.namespace == "n"


def test_renewed_token_is_written_back_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command would have to renew it by what may serve once only."""
    given = {"credential": {"access_token": "new", "token_expiry": "2099-01-01T00:00:00Z"}}
    program = tmp_path / "renew"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(given)}'\n")
    program.chmod(0o755)
    provider = {
        "name": "gcp",
        "config": {"cmd-path": str(program), "expiry": "2001-01-01T00:00:00Z"},
    }
    user = {"name": "u", "user": {"auth-provider": provider, "tokenFile": "t"}}
    file, other = written(tmp_path / "a", users=[user]), written(tmp_path / "b")
    before = other.read_text()
    monkeypatch.setenv("KUBECONFIG", f"{file}{os.pathsep}{other}")

    assert token(None) == "Bearer new"
    kept = yaml.safe_load(file.read_text())["users"][0]["user"]
    assert kept["auth-provider"]["config"]["access-token"] == "new"
    assert kept["tokenFile"] == "t", "paths stay as they were written"
    assert other.read_text() == before
