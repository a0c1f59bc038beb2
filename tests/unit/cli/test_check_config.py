import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.webhook import plugins
from holdfast.webhook.cli import main
from holdfast.webhook.config import config, schema
from tests.support.config_cases import HEAD


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main.cli, ["check-config", *arguments])
    return result.exit_code, result.output or str(result.exception)


def test_valid_file_lists_its_profiles(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD + "profiles: [{schedulerName: a, plugins: {disabled: [{name: '*'}]}}, {}]")
    names = ", ".join(config.DEFAULT_PLUGINS)

    assert run(str(file)) == (0, f"{file}: profile a: no plugin\n{file}: profile *: {names}\n")


def test_all_problems_in_a_file_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD + "profiles:\n- permitTimeout: soon\n- {x: 1}\n")
    result = CliRunner().invoke(main.cli, ["check-config", str(file)])

    assert result.exit_code == 1
    assert f"{file}:4: profiles[0].permitTimeout: " in result.output
    assert f"{file}:5: profiles[1]: unknown field 'x'" in result.output
    assert str(result.exception) == f"{file}: 3 problems; correct the lines above"


def test_accepts_file_as_argument_option_or_stdin(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD)
    assert run("-f", str(file)) == run(str(file))
    for arguments in (["-"], ["-f", "-"]):
        result = CliRunner().invoke(main.cli, ["check-config", *arguments], input=HEAD)
        assert result.stdout.startswith("-: profile *: delay")


def test_helm_values_and_missing_header_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("config: {}\n")
    text = run(str(file))[1]
    assert "unknown field 'config': in Helm values, check the part under config: alone" in text
    assert f"apiVersion: is missing: add 'apiVersion: {config.API_VERSION}'" in text


def test_honours_disabled_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DISABLE_PLUGINS", "sticky")
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD)
    code, text = run(str(file))
    assert (code, "sticky" in text) == (0, False)
    file.write_text(f"{HEAD}profiles: [{{pluginConfig: [{{name: sticky}}]}}]\n")
    assert "'sticky' is disabled by --disable-plugin" in run(str(file))[1]


def test_schema_covers_installed_plugins() -> None:
    code, text = run("--schema")

    assert code == 0
    assert text == json.dumps(schema.schema(plugins.registry()), indent=2) + "\n"


def test_requires_file_or_schema() -> None:
    code, text = run()

    assert code == 2
    assert "Missing argument 'FILE'" in text
