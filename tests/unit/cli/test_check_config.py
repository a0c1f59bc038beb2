import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.webhook import plugins
from holdfast.webhook.cli import main
from holdfast.webhook.config import config, schema
from tests.support.config_cases import HEAD
from tests.unit.cli.commands import written


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main.cli, ["check-config", *arguments])
    return result.exit_code, result.output or str(result.exception)


def test_valid_file_lists_its_profiles(tmp_path: Path) -> None:
    profiles = "profiles: [{schedulerName: a, plugins: {disabled: [{name: '*'}]}}, {}]"
    file = written(tmp_path, HEAD + profiles)
    names = ", ".join(config.DEFAULT_PLUGINS)

    assert run(file) == (0, f"{file}: profile a: no plugin\n{file}: profile *: {names}\n")


def test_all_problems_in_a_file_are_reported(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD + "profiles:\n- permitTimeout: soon\n- {x: 1}\n")
    result = CliRunner().invoke(main.cli, ["check-config", file])

    assert result.exit_code == 1
    assert f"{file}:4: profiles[0].permitTimeout: " in result.output
    assert f"{file}:5: profiles[1]: unknown field 'x'" in result.output
    assert str(result.exception) == f"{file}: 3 problems; correct the lines above"


def test_accepts_file_as_argument_option_or_stdin(tmp_path: Path) -> None:
    file = written(tmp_path, HEAD)
    assert run("-f", file) == run(file)
    for arguments in (["-"], ["-f", "-"]):
        result = CliRunner().invoke(main.cli, ["check-config", *arguments], input=HEAD)
        assert result.stdout.startswith("-: profile *: delay")


def test_helm_values_and_missing_header_are_reported(tmp_path: Path) -> None:
    text = run(written(tmp_path, "config: {}\n"))[1]
    assert "unknown field 'config': in Helm values, check the part under config: alone" in text
    assert f"apiVersion: is missing: add 'apiVersion: {config.API_VERSION}'" in text


def test_honours_disabled_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DISABLE_PLUGINS", "sticky")
    code, text = run(written(tmp_path, HEAD))
    assert (code, "sticky" in text) == (0, False)
    file = written(tmp_path, f"{HEAD}profiles: [{{pluginConfig: [{{name: sticky}}]}}]\n")
    assert "'sticky' is disabled by --disable-plugin" in run(file)[1]


def test_schema_covers_installed_plugins() -> None:
    code, text = run("--schema")

    assert code == 0
    assert text == json.dumps(schema.schema(plugins.registry()), indent=2) + "\n"


def test_requires_file_or_schema() -> None:
    code, text = run()

    assert code == 2
    assert "Missing argument 'FILE'" in text
