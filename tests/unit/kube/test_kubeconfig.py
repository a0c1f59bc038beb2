"""Any kubeconfig gives a connection, or one line that says what is wrong with the file."""

import base64
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
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
from kubernetes.config import incluster_config

from holdfast.certs import authority
from holdfast.webhook.cli import main
from holdfast.webhook.errors import CredentialsError, KubeconfigError, StartError
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.kube.kubeconfig import Kubeconfig
from tests.support.kubeconfigs import RIGHT, check, complaint, write_kubeconfig
from tests.support.mistakes import with_mistakes

EXEC_API = "client.authentication.k8s.io/v1"
EMPTY = f'{{"apiVersion":"{EXEC_API}","kind":"ExecCredential","status":{{}}}}'
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
    logging.disable()  # the client also logs the errors that it raises
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubeconfig") / "config"


@given(document=with_mistakes(st.just(RIGHT), junk=JUNK, keys=KEYS, most=3))
def test_kubeconfig_with_mistakes_works_or_is_reported(file: Path, document: Any) -> None:
    message = complaint(file, json.dumps(document).encode())
    if message:
        check(message, file)


@given(
    content=st.binary(max_size=40) | st.text("{}[]&*!|>-:,'\" \n#ab0", max_size=40).map(str.encode)
)
def test_nonsense_is_reported(file: Path, content: bytes) -> None:
    check(complaint(file, content), file)


def test_invalid_proxy_url_is_reported(file: Path) -> None:
    cluster = {"server": "https://192.0.2.1:6443", "proxy-url": "https://[::1"}
    document = RIGHT | {"clusters": [{"name": "c", "cluster": cluster}]}

    check(complaint(file, json.dumps(document).encode()), file)


def token(file: Path | None, context: str | None = None) -> str:
    with closing(Cluster.connect(file, context)) as cluster:
        return str(cluster._client.configuration.api_key["BearerToken"])


@pytest.mark.timeout(30)
def test_file_is_read_once(tmp_path: Path) -> None:
    """A shell passes a pipe for `<(...)`, which can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(RIGHT),), daemon=True)
    writer.start()

    assert token(pipe) == "Bearer abc"
    writer.join()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            b"", "not a kubeconfig; create one with 'kubectl config view --raw'", id="empty"
        ),
        pytest.param(b"- a", "not a kubeconfig; ", id="a list"),
        pytest.param(b"a: [", "invalid YAML: while parsing", id="broken"),
        pytest.param(b"\x00", "invalid YAML: ", id="NUL"),
        pytest.param(b"[" * 2_000, "invalid YAML: ", id="deep lists"),
        pytest.param(b"!!python/object/apply:os.system [x]", "invalid YAML: ", id="a Python tag"),
        pytest.param(b"users: {name: x}", "users: not a list; start", id="a mapping"),
        pytest.param(b"users: [{user: {}}]", "users[0]: no name; add one", id="no name"),
        pytest.param(b"clusters: [1]", "clusters[0]: no name; add one", id="a number"),
    ],
)
def test_error_names_file_and_field(file: Path, content: bytes, expected: str) -> None:
    message = complaint(file, content)

    check(message, file)
    assert f"({file}: {expected}" in message


def test_error_does_not_quote_the_file(file: Path) -> None:
    assert "secret" not in complaint(file, b"users: [{name: u, user: {token: secret}")


@pytest.mark.timeout(30)
def test_missing_unreadable_and_endless_files_are_reported(tmp_path: Path) -> None:
    for path, expected in (
        (Path("/dev/zero"), "/dev/zero: is larger than 1 MiB"),
        (tmp_path / "x", "no such file"),
        (tmp_path, "cannot be read (Is a dir"),
    ):
        with pytest.raises(StartError) as caught:
            Cluster.connect(path)
        check(str(caught.value), path)
        assert expected in str(caught.value)


def kubeconfig_for(folder: Path, user: dict[str, Any]) -> Path:
    return write_kubeconfig(folder / "a", users=[{"name": "u", "user": user}])


def test_exec_command_is_relative_to_the_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = EMPTY.replace("{}", '{"token": "made"}')
    program = tmp_path / "here" / "bin" / "give"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{credential}'\n")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": EXEC_API, "command": "bin/give"}}
    file = write_kubeconfig(tmp_path / "here" / "config", users=[{"name": "u", "user": user}])
    monkeypatch.chdir("/")

    assert token(file) == "Bearer made"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ca.crt", "/here/ca.crt"), ("/ca.crt", "/ca.crt"), ("../ca.crt", "/here/../ca.crt")],
)
def test_relative_paths_become_absolute(tmp_path: Path, name: str, expected: str) -> None:
    paths = {"client-certificate": name, "client-key": name, "tokenFile": name}
    file = write_kubeconfig(
        tmp_path / "here" / "config",
        clusters=[{"name": "c", "cluster": {"certificate-authority": name, "server": name}}],
        users=[{"name": "u", "user": paths}, {"name": "v", "user": {"exec": {"command": "aws"}}}],
    )
    merged = Kubeconfig([file]).merged()
    absolute = expected if name.startswith("/") else f"{tmp_path}{expected}"

    assert merged["clusters"][0]["cluster"] == {"certificate-authority": absolute, "server": name}
    assert merged["users"][0]["user"] == dict.fromkeys(paths, absolute)
    assert merged["users"][1]["user"]["exec"]["command"] == "aws", "found on the PATH"


def test_files_are_merged_and_the_first_value_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_kubeconfig(
        tmp_path / "a" / "config", users=[{"name": "u", "user": {"tokenFile": "t"}}]
    )
    other_context = {"name": "there", "context": {"cluster": "c", "user": "v", "namespace": "m"}}
    second = write_kubeconfig(
        tmp_path / "b" / "config",
        users=[*RIGHT["users"], {"name": "v", "user": {"tokenFile": "t"}}],
        contexts=[other_context],
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


def test_named_context_sets_the_namespace_without_a_current_context(file: Path) -> None:
    file.write_text(json.dumps(RIGHT | {"current-context": None}))

    with closing(Cluster.connect(file, "here")) as connected:
        assert connected.namespace == "n"


def test_renewed_token_is_written_back_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next command would renew it with a refresh token that is valid only once."""
    output = {"credential": {"access_token": "new", "token_expiry": "2099-01-01T00:00:00Z"}}
    program = tmp_path / "renew"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(output)}'\n")
    program.chmod(0o755)
    provider = {
        "name": "gcp",
        "config": {"cmd-path": str(program), "expiry": "2001-01-01T00:00:00Z"},
    }
    file = kubeconfig_for(tmp_path, {"auth-provider": provider, "tokenFile": "t"})
    other_file = write_kubeconfig(tmp_path / "b")
    before = other_file.read_text()
    monkeypatch.setenv("KUBECONFIG", f"{file}{os.pathsep}{other_file}")

    assert token(None) == "Bearer new"
    stored_user = yaml.safe_load(file.read_text())["users"][0]["user"]
    assert stored_user["auth-provider"]["config"]["access-token"] == "new"
    assert stored_user["tokenFile"] == "t", "paths stay as they were written"
    assert other_file.read_text() == before


def test_kubeconfig_variable_and_home_directory_take_precedence_over_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `holdfast uninstall` in a CI pod would change the cluster that the pod runs in."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("of-the-pod")
    (folder / "ca.crt").write_text("x")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "a")))
    assert token(None) == "Bearer abc"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    advice = "give one with --kubeconfig or KUBECONFIG, or run in a pod with a ServiceAccount"
    with pytest.raises(
        StartError, match=rf"^no usable kubeconfig .*/missing \(no such file\); {advice}$"
    ):
        token(None)
    write_kubeconfig(tmp_path / ".kube" / "config")
    monkeypatch.setenv("KUBECONFIG", "")
    assert token(None) == "Bearer abc"
    monkeypatch.delenv("KUBECONFIG")
    assert token(None) == "Bearer abc"


def test_user_may_impersonate_another(tmp_path: Path) -> None:
    impersonation = {
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"acme.com/team": ["a", "b"]},
    }
    file = kubeconfig_for(tmp_path, {"token": "abc", **impersonation})
    with closing(Cluster.connect(file)) as cluster:
        assert [*cluster.impersonation] == [
            ("Impersonate-User", "jane"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Extra-acme.com%2Fteam", "a"),
            ("Impersonate-Extra-acme.com%2Fteam", "b"),
        ]


@pytest.mark.parametrize(
    ("impersonation", "problem"),
    [
        pytest.param({"as-groups": ["admins"]}, "need 'as'", id="groups without user"),
        pytest.param({"as-uid": "7"}, "need 'as'", id="uid without user"),
        pytest.param({"as": "jane", "as-groups": "admins"}, "need lists", id="groups not a list"),
        pytest.param(
            {"as": "jane", "as-user-extra": {"a": "b"}}, "need lists", id="extra values not lists"
        ),
        pytest.param({"as": "jane", "as-user-extra": ["a"]}, "need lists", id="extra not a map"),
    ],
)
def test_invalid_impersonation_is_rejected(
    tmp_path: Path, impersonation: dict[str, Any], problem: str
) -> None:
    file = kubeconfig_for(tmp_path, {"token": "abc"} | impersonation)
    with pytest.raises(StartError, match=problem):
        token(file)


def test_token_file_is_required_and_reread_without_its_line_break(tmp_path: Path) -> None:
    file = kubeconfig_for(tmp_path, {"tokenFile": "t", "token": "old"})
    with pytest.raises(StartError, match=f"tokenFile {tmp_path / 't'}: cannot be read"):
        token(file)
    (tmp_path / "t").write_text("first\n")
    with closing(Cluster.connect(file)) as cluster:
        configuration = cluster._client.configuration
        assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"
        (tmp_path / "t").write_text("second\n")
        assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer second"


def certificate() -> dict[str, str]:
    """Make the kubeconfig fields of a user with a client certificate."""
    ca = authority.new_ca("ca", now=datetime.now(UTC))
    pair = authority.issue(ca, common_name="u", now=datetime.now(UTC))
    return {
        "client-certificate-data": base64.b64encode(pair.certificate).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }


def plugin(folder: Path, script: str) -> Path:
    program = folder / "plugin"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    command = {"apiVersion": EXEC_API, "command": str(program), "interactiveMode": "Never"}
    return kubeconfig_for(folder, {"exec": command})


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        pytest.param("exit 3", "failed with exit code 3: its message is above", id="fails"),
        pytest.param("echo no", "did not print an ExecCredential", id="invalid output"),
        pytest.param(
            'echo \'{"apiVersion":"v2","status":{}}\'', "of client.auth", id="unknown version"
        ),
        pytest.param(
            f"echo '{EMPTY}'", "gave neither a token nor a certificate", id="empty status"
        ),
    ],
)
def test_failing_credential_plugin_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, problem: str
) -> None:
    file = plugin(tmp_path, f"echo log in first >&2; {script}")
    with pytest.raises(KubeconfigError, match=rf"^credential plugin .*/plugin .*{problem}"):
        Cluster.connect(file)

    assert capfd.readouterr().err == "log in first\n"


def test_missing_credential_plugin_is_an_error(tmp_path: Path) -> None:
    command = {"apiVersion": EXEC_API, "command": "no-such-program"}
    command["installHint"] = "see example.com"
    with pytest.raises(KubeconfigError) as caught:
        Cluster.connect(kubeconfig_for(tmp_path, {"exec": command}))

    assert str(caught.value) == (
        "credential plugin no-such-program cannot be run (No such file or directory): "
        "see example.com"
    )


def test_messages_of_a_successful_credential_plugin_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    credential = EMPTY.replace("{}", '{"token": "t"}')
    assert token(plugin(tmp_path, f"echo open a page >&2; echo '{credential}'")) == "Bearer t"
    assert "open a page\n" in capfd.readouterr().err


def test_unknown_context_error_lists_the_contexts(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r'^no context "nope"; there are: "here"$'):
        Cluster.connect(write_kubeconfig(tmp_path / "a"), "nope")


def test_missing_temporary_folder_is_reported(tmp_path: Path) -> None:
    file = kubeconfig_for(tmp_path, certificate())
    program = "import sys; from holdfast.webhook.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "list", "--kubeconfig", str(file)],
        env={**os.environ, "TMPDIR": str(tmp_path / "none")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert "set TMPDIR to a folder with free space" in result.stderr


def test_certificates_are_rewritten_after_temporary_folder_cleanup(tmp_path: Path) -> None:
    file = kubeconfig_for(tmp_path, certificate())
    with closing(Cluster.connect(file)) as cluster:
        configuration = cluster._client.configuration
        before = Path(str(configuration.key_file)).read_bytes()
        for path in (configuration.cert_file, configuration.key_file):
            Path(str(path)).unlink()
        cluster._authorization()
        assert Path(str(configuration.key_file)).read_bytes() == before
        assert cluster._manager.connection_pool_kw["key_file"] == configuration.key_file


def test_missing_certificate_file_is_not_reported_as_an_outage(tmp_path: Path) -> None:
    for name, data in certificate().items():
        (tmp_path / name).write_bytes(base64.b64decode(data))
    user = {key.removesuffix("-data"): key for key in certificate()}
    with closing(Cluster.connect(kubeconfig_for(tmp_path, user))) as cluster:
        (tmp_path / "client-key-data").unlink()
        with pytest.raises(
            CredentialsError, match=r"no credentials: File does not exist: .*key"
        ) as caught:
            cluster.request("GET", "/version")

    assert "check that the cluster is running" not in main.with_advice(caught.value)


def test_credential_plugin_runs_again_on_renewal(tmp_path: Path) -> None:
    count = tmp_path / "count"
    output = EMPTY.replace("{}", f'{{"token": "\'$(cat {count})\'"}}')
    count.write_text("1")
    with closing(Cluster.connect(plugin(tmp_path, f"echo '{output}'"))) as cluster:
        configuration = cluster._client.configuration
        assert configuration.api_key["BearerToken"] == "Bearer 1"
        count.write_text("2")
        cluster._renew()
        assert configuration.api_key["BearerToken"] == "Bearer 2"


def test_certificate_of_a_credential_plugin_is_renewed_when_it_expires(tmp_path: Path) -> None:
    ca = authority.new_ca("ca", now=datetime.now(UTC))
    output_file = tmp_path / "answer"

    def give(common_name: str, until: str) -> str:
        pair = authority.issue(ca, common_name=common_name, now=datetime.now(UTC))
        status = {
            "clientCertificateData": pair.certificate.decode(),
            "clientKeyData": pair.key.decode(),
            "expirationTimestamp": until,
        }
        output_file.write_text(EMPTY.replace("{}", json.dumps(status)))
        return pair.certificate.decode()

    first = give("a", "2001-01-01T00:00:00Z")
    with closing(Cluster.connect(plugin(tmp_path, f"cat {output_file}"))) as cluster:
        configuration = cluster._client.configuration
        assert Path(str(configuration.cert_file)).read_text() == first
        second = give("b", "2099-01-01T00:00:00Z")
        cluster._authorization()
        assert Path(str(configuration.cert_file)).read_text() == second
        assert cluster._manager.connection_pool_kw["cert_file"] == configuration.cert_file
        output_file.unlink()
        cluster._token = float("-inf"), {}
        cluster._authorization()  # still valid, so the plugin does not run
        with pytest.raises(StartError, match="credential plugin"):
            cluster._renew_credentials()


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT],
    ids=lambda number: number.name,
)
def test_terminated_command_removes_its_temporary_keys(
    number: signal.Signals, tmp_path: Path
) -> None:
    users = [{"name": "u", "user": certificate()}]
    keys = tmp_path / "keys"
    keys.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        file = write_kubeconfig(tmp_path / "a", server, users=users)
        command = [sys.executable, "-m", "holdfast.webhook", "list", "--kubeconfig", str(file)]
        environment = os.environ | {"TMPDIR": str(keys)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            silent.settimeout(20)
            connection, _ = silent.accept()
            with connection:
                assert len(list(keys.iterdir())) == 2
                process.send_signal(number)
                process.wait(20)
    assert list(keys.iterdir()) == []
