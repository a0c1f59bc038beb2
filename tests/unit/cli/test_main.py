"""Behaviour of all commands; each command also has its own test module."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.webhook.cli import main, options

HEAVY = ("cryptography", "flask", "gunicorn", "kubernetes", "prometheus_client", "rich", "yaml")


def command(name: str) -> click.Command:
    found = main.cli.get_command(click.Context(main.cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says(name: str) -> None:
    documented = command(name).help or ""
    assert documented.partition("\n\n")[0] == main.COMMANDS[name]


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    assert f"holdfast {name}" in (command(name).epilog or "")


def test_the_help_needs_nothing_that_is_slow_to_import() -> None:
    script = (
        "import sys; from holdfast.webhook.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        pytest.param("lst", "No such command 'lst'. Did you mean 'list'?", id="near one"),
        pytest.param("hold", "No such command 'hold'.", id="near none"),
    ],
)
def test_an_unknown_command_is_a_usage_error(word: str, message: str) -> None:
    result = CliRunner().invoke(main.cli, [word])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["pre"], ["preview"], id="a command"),
        pytest.param(["list", "--wat"], ["--watch"], id="an option"),
        pytest.param(["list", "-o", ""], ["table", "wide", "json", "yaml"], id="a value"),
        pytest.param(["sticky", "s"], ["set", "show"], id="a command of a group"),
    ],
)
def test_kubectl_completes_a_line(
    words: list[str],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-holdfast", *words])
    main.complete()
    *found, directive = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in found] == expected
    assert directive == ":4"


def test_grouped_options_can_be_written_as_arguments_again() -> None:
    seen: list[list[str]] = []

    @click.command()
    @options.process
    @options.target
    def show(*, process: options.Process, target: options.Target) -> None:
        seen.append([*process.arguments(), *target.arguments()])

    given = [
        "--log-level",
        "debug",
        "--log-format",
        "json",
        "--config",
        "a b",
        "--kubeconfig",
        "k",
        "--context",
        "c",
    ]
    assert CliRunner().invoke(show, given).exit_code == 0
    assert seen == [given]


COMPLETIONS = re.findall(
    r"^\$ (.*_HOLDFAST_COMPLETE=.*)$",
    (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def run_here(script: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )


def test_bash_completes_as_the_page_says() -> None:
    line = COMPLETIONS[0]
    words = "COMP_WORDS=(holdfast pre); COMP_CWORD=1"
    ask = "_holdfast_completion holdfast; echo ${COMPREPLY[@]}"
    assert run_here(f"{line}; {words}; {ask}").stdout == "preview\n"


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        pytest.param(COMPLETIONS[1], "#compdef holdfast", id="zsh"),
        pytest.param(COMPLETIONS[2], "complete --no-files --command holdfast", id="fish"),
    ],
)
def test_other_shells_are_given_their_own_script(line: str, mark: str) -> None:
    assignment = re.findall(r"_HOLDFAST_COMPLETE=\w+ holdfast", line)
    assert mark in run_here(*assignment).stdout
