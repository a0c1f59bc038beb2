"""Behaviour common to all commands; most also have their own test module."""

import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from holdfast.webhook.cli import commands, main, options, server_options, stored_help
from holdfast.webhook.errors import ApiStatusError, CommandError, HoldfastError, UnreachableError
from tests.support.served import ServedApi
from tests.unit.cli.commands import command

HEAVY = [
    *("cryptography", "ctypes", "flask", "gunicorn", "kubernetes", "msgspec"),
    *("prometheus_client", "rich", "urllib3", "yaml"),
]


@pytest.mark.parametrize("name", main.COMMANDS)
def test_command_has_its_summary_and_an_example(name: str) -> None:
    summary = (command(name).help or "").partition("\n\n")[0]
    assert summary == main.COMMANDS["explain" if name == "describe" else name]
    assert f"holdfast {name}" in (command(name).epilog or "")


def test_version_option_and_command_print_the_same(cluster: ServedApi) -> None:
    assert cluster.run("--version").stdout == cluster.run("version", "--client").stdout
    stdout = cluster.run("version").stdout
    assert "\nnot installed in namespace holdfast-system\n" in stdout


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--help"], id="holdfast"),
        pytest.param(["options"], id="options"),
        pytest.param(["list", "-h"], id="list"),
        pytest.param(["help", "sticky", "set"], id="sticky set"),
    ],
)
def test_help_avoids_slow_imports(arguments: list[str]) -> None:
    script = (
        "import sys; from holdfast.webhook.cli.main import cli\n"
        f"try: cli.main({arguments!r})\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        pytest.param("lst", "No such command 'lst'. Did you mean 'list'?", id="with suggestion"),
        pytest.param("hold", "No such command 'hold'.", id="without suggestion"),
    ],
)
def test_unknown_command_is_a_usage_error(word: str, message: str) -> None:
    result = CliRunner().invoke(main.cli, [word])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        pytest.param([], "holdfast [options] COMMAND", id="no arguments"),
        pytest.param(["help"], "holdfast [options] COMMAND", id="help"),
        pytest.param(["help", "list"], "holdfast list [options]", id="command"),
        pytest.param(["help", "sticky", "set"], "holdfast sticky set [options]", id="subcommand"),
    ],
)
def test_help_works_without_dashes(arguments: list[str], usage: str) -> None:
    result = CliRunner().invoke(main.cli, arguments, prog_name="holdfast")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: {usage}")


@pytest.mark.parametrize("name", ["list", "describe", "sticky set"])
def test_stored_help_matches_generated_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*name.split(), "--help"]
    monkeypatch.setenv("COLUMNS", "80")
    main.cli.main(arguments, prog_name="kubectl holdfast", standalone_mode=False)
    stored = capsys.readouterr().out
    monkeypatch.setattr(stored_help, "WIDTH", 1_000)
    main.cli.main(arguments, prog_name="kubectl holdfast", standalone_mode=False)
    assert stored == capsys.readouterr().out
    assert stored.startswith(f"Usage: kubectl holdfast {name} [options]")


def test_help_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    main.cli.main(["list", "--help"], standalone_mode=False)
    description, _, examples = capsys.readouterr().out.partition("Examples:")
    assert max(map(len, description.splitlines())) <= 60
    assert "holdfast list -A" in examples


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CommandError("no pod"), "Error: no pod"),
        (
            ApiStatusError("HTTP 409: changed", status=409, reason="Conflict"),
            "Error from server (Conflict): changed",
        ),
        (ApiStatusError("HTTP 502: Bad Gateway", status=502), "Error: HTTP 502: Bad Gateway"),
        (
            ApiStatusError("HTTP 409: no\x1b[2K\x07\u202e", status=409, reason="\x1b[1m"),
            r"Error from server (\x1b[1m): no\x1b[2K\x07\u202e",
        ),
        (CommandError("a: \x1b[2K"), r"Error: a: \x1b[2K"),
        (
            ApiStatusError("HTTP 401: Unauthorized", status=401),
            "Error: HTTP 401: Unauthorized; log in again, or choose another --context",
        ),
        pytest.param(
            ApiStatusError("HTTP 403: no", status=403, reason="Forbidden"),
            "Error from server (Forbidden): no; ask an admin for this permission, or choose a "
            "namespace (-n) where you have it",
            id="403",
        ),
        pytest.param(
            UnreachableError("https://127.0.0.1:6443 does not answer: refused"),
            "Error: https://127.0.0.1:6443 does not answer: refused; check that the cluster is "
            "running, and check --kubeconfig, --context and KUBECONFIG",
            id="unreachable",
        ),
    ],
)
def test_errors_are_formatted_like_kubectl_with_advice(error: HoldfastError, line: str) -> None:
    assert main.error_line(error) == line


@pytest.mark.parametrize("command", ["list", "freeze --reason x", "thaw"])
def test_namespace_argument_suggests_the_flag(command: str) -> None:
    result = CliRunner().invoke(main.cli, [*command.split(), "fz"])
    assert "takes no names; choose a namespace with -n" in result.stderr


def test_option_groups_round_trip_to_arguments() -> None:
    parsed: list[list[str]] = []

    @commands.command()
    @server_options.process
    @options.target
    def show(*, process: server_options.Process, target: options.Target) -> None:
        parsed.append([*process.arguments(), *target.arguments()])

    arguments = shlex.split(
        "--log-level debug --log-format json --config 'a b' --kubeconfig k --context c "
        "--cluster d --user u --as a --as-group g"
    )
    assert CliRunner().invoke(show, arguments).exit_code == 0
    assert parsed == [arguments]


@pytest.mark.parametrize("name", [[], ["sticky"]], ids=["holdfast", "sticky"])
def test_command_list_is_not_truncated(name: list[str]) -> None:
    stdout = CliRunner().invoke(main.cli, [*name, "--help"]).stdout
    assert not [line for line in stdout.splitlines() if line.endswith("...")]
