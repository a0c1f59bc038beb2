"""Global flags in any position, kubectl's flag syntax, and its wording in help."""

import re
from itertools import chain

import click
import pytest
from click.testing import CliRunner

from holdfast.webhook.cli import commands, main
from holdfast.webhook.errors import StartError
from tests.support.builders import held
from tests.support.served import ServedApi
from tests.unit.cli.commands import command

JARGON = re.compile(r"--[\w-]+ (?:TEXT|INTEGER|FLOAT|PATH|FILE|DURATION|\[)|\[(?:default|env|req)")
LEAVES = [
    *((name,) for name in main.COMMANDS),
    *(("sticky", name) for name in ("clear", "list", "move", "set", "show")),
]


def list_headers(cluster: ServedApi, *arguments: str) -> list[tuple[str, str]]:
    cluster.run(*arguments)
    return cluster.headers[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("-n shop list", id="before"),
        pytest.param("list -n shop", id="after"),
        pytest.param("-n other list -n shop", id="last one wins"),
        pytest.param("list -n=shop", id="with an equals sign"),
        pytest.param("--context there list", id="from context"),
        pytest.param("-A list", id="all, before"),
        pytest.param("list --all-namespaces=true --watch=false", id="true and false"),
        pytest.param("-A=true list", id="short and true"),
    ],
)
def test_global_flags_work_before_and_after_the_command(arguments: str, cluster: ServedApi) -> None:
    cluster.api.put_pod(held({"delay": "1h"}, name="web-0", namespace="shop"))
    assert "web-0" in cluster.run(*arguments.split()).stdout


def test_user_and_impersonation_headers_are_sent(cluster: ServedApi) -> None:
    headers = list_headers(
        cluster, "--as", "ann", "list", "--as-group", "dev", "--as-group=ops", "--as-uid", "7"
    )
    impersonation = [pair for pair in headers if pair[0].startswith("Impersonate")]
    assert impersonation == [
        ("Impersonate-User", "ann"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
    ]
    headers = list_headers(cluster, "list", "--user", "joe")
    assert {("authorization", "Bearer joe"), ("Impersonate-User", "ops")} <= {*headers}
    result = cluster.run("list", "--user", "jo", code=1)
    assert 'no user "jo"; there are: "jane", "joe"' in result.stderr
    headers = list_headers(cluster, "list", "--user", "joe", "--as", "ann")
    assert [value for name, value in headers if name == "Impersonate-User"] == ["ann"]
    assert "need --as" in cluster.run("list", "--as-group", "dev", code=2).stderr


def test_requests_are_logged_at_verbosity_6(cluster: ServedApi) -> None:
    assert "GET http" not in cluster.run("list", "-v=5").stderr
    logged = cluster.run("-v6", "list").stderr
    assert re.search(r"^GET /api/v1/namespaces/default/pods\?.*: OK in \d+ ms$", logged, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("preview", "give a file with -f, or - for standard input"),
        pytest.param(
            "list -o jsn",
            "Invalid value for '-o' / '--output': use one of json, yaml, name, wide, jsonpath=, "
            "custom-columns=",
            id="unknown format",
        ),
        pytest.param(
            "list -o jsonpath={.items[}",
            "Invalid value for '-o' / '--output': invalid JSONPath \".items[\": use a path such as "
            '"{.items[*].metadata.name}", with [N], [A:B], [?(@.x=="y")] or range',
            id="invalid path",
        ),
        ("-A version --client", "-A is not supported by version; give a namespace with -n"),
    ],
)
def test_usage_error_explains_valid_usage(arguments: str, message: str) -> None:
    result = CliRunner().invoke(main.cli, arguments.split())
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "controller --certificates self",
            "--certificates=self is for one controller at a time; add --leader-elect",
        ),
        pytest.param(
            "serve --cert tls.crt --key tls.key --client-ca ca.crt",
            "--client-ca keeps probes and metrics off the main port; give them another port with "
            "--health-port",
            id="serve",
        ),
    ],
)
def test_option_requires_another_option(arguments: str, message: str) -> None:
    with pytest.raises(StartError) as caught:
        main.cli.main(arguments.split(), standalone_mode=False)

    assert str(caught.value) == message


@pytest.mark.parametrize("path", LEAVES, ids="-".join)
def test_command_has_every_global_flag_and_help_in_kubectl_wording(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main.cli, [*path, "--help"])
    assert result.exit_code == 0
    assert JARGON.findall(result.stdout) == []
    assert 'Use "holdfast options"' in result.stdout
    assert "--exit-with-stdin" not in result.stdout
    cmd = command(path[0])
    if isinstance(cmd, click.Group):
        cmd = cmd.commands[path[1]] if len(path) > 1 else cmd
    names = {*chain.from_iterable(option.opts for option in cmd.get_params(click.Context(cmd)))}
    assert {*chain.from_iterable(option.opts for option in commands.GLOBALS)} <= names


def test_global_flags_are_described_once() -> None:
    text = CliRunner().invoke(main.cli, ["options"]).stdout
    assert all(option.opts[-1] in text for option in commands.GLOBALS)
    assert "--kubeconfig" not in CliRunner().invoke(main.cli, ["list", "--help"]).stdout


def test_durations_are_converted_to_milliseconds() -> None:
    assert commands.DURATION.convert("2m", None, None) == 120_000
    assert commands.DURATION.convert("15", None, None) == 15_000
