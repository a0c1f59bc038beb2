import json
from pathlib import Path

from click.testing import CliRunner

from holdfast.webhook import plugins
from holdfast.webhook.cli import main
from holdfast.webhook.config import config, schema
from tests.support.config_cases import HEAD


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main.cli, ["check-config", *arguments])
    return result.exit_code, result.output or str(result.exception)


def test_profiles_of_a_good_file_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD + "profiles: [{schedulerName: a, plugins: {disabled: [{name: '*'}]}}, {}]")
    names = ", ".join(config.DEFAULT_PLUGINS)

    assert run(str(file)) == (0, f"{file}: profile a: no plugin\n{file}: profile *: {names}\n")


def test_all_problems_of_a_file_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD + "profiles:\n- permitTimeout: soon\n- {x: 1}\n")
    result = CliRunner().invoke(main.cli, ["check-config", str(file)])

    assert result.exit_code == 1
    assert f"{file}:4: profiles[0].permitTimeout: " in result.output
    assert f"{file}:5: profiles[1]: unknown field 'x'" in result.output
    assert str(result.exception) == f"{file}: 3 problems; correct the lines above"


def test_file_is_also_an_option_and_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD)
    assert run("-f", str(file)) == run(str(file))
    for arguments in (["-"], ["-f", "-"]):
        done = CliRunner().invoke(main.cli, ["check-config", *arguments], input=HEAD)
        assert done.stdout.startswith("-: profile *: delay")


def test_only_fields_of_the_part_are_suggested(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    args = "rules: [{name: a, when: {annotation: b, equal: c}, require: {d: e}}]"
    plugins = f"pluginConfig: [{{name: placement, args: {{{args}}}}}]"
    file.write_text(f"{HEAD}profiles: [{{{plugins}}}]\n")
    assert "unknown field 'equal': did you mean equals?" in run(str(file))[1]


def test_schema_names_the_plugins_that_are_installed() -> None:
    code, text = run("--schema")

    assert code == 0
    assert text == json.dumps(schema.schema(plugins.registry()), indent=2) + "\n"


def test_one_of_file_and_schema_is_needed() -> None:
    code, text = run()

    assert code == 2
    assert "Missing argument 'FILE'" in text
