"""Untrusted YAML, in each command that reads it: aliases are limited, and time is linear."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from holdfast.webhook import safe_yaml
from holdfast.webhook.cli import main
from holdfast.webhook.cli import preview as preview_command
from holdfast.webhook.config import config
from holdfast.webhook.errors import CommandError, ConfigurationError, HoldfastError
from tests.support.kubeconfigs import complaint

pytestmark = pytest.mark.usefixtures("own_logging")

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(20)
)
MERGED = "a: &a {x: 1}\nb: {<<: *a}\n"
ALIAS = "a: &a x\nb: *a\n"
HIDDEN = "kind: Service\n---\n"
LOOP = "a: &a [*a]\n"
LONG_TEXT = f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 9)}]\n"
NESTED = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 200))
ADVICE = "aliases are not supported; write the value out"

Reader = Callable[[Path], str]


def command(*arguments: str) -> Reader:
    """Make a reader that runs a command; `FILE` stands for the file."""
    return lambda file: _output_of(
        *(str(file) if argument == "FILE" else argument for argument in arguments)
    )


def preview_stdin(file: Path) -> str:
    return _output_of("preview", "-f", "-", given=file.read_bytes())


def preview_with_config(file: Path) -> str:
    manifest = file.with_name("pod.yaml")
    manifest.write_text("kind: Pod\n")
    return _output_of("preview", "-f", str(manifest), "--config", str(file))


def kubeconfig(file: Path) -> str:
    return complaint(file, file.read_bytes())


def _output_of(*arguments: str, given: bytes = b"") -> str:
    result = CliRunner().invoke(main.cli, arguments, input=given)
    assert isinstance(result.exception, HoldfastError), result.output
    return f"{result.output}{main.with_advice(result.exception)}"


def make_file(folder: Path, content: str) -> Path:
    file = folder / "given.yaml"
    file.write_text(content)
    return file


PREVIEWS = [
    pytest.param(command("preview", "-f", "FILE"), id="preview"),
    pytest.param(preview_stdin, id="preview_stdin"),
]
OTHER_READERS = [
    pytest.param(command("check-config", "FILE"), id="check_config"),
    pytest.param(preview_with_config, id="preview_with_config"),
    pytest.param(command("policies", "--config", "FILE"), id="policies"),
    pytest.param(
        command("serve", "--config", "FILE", "--cert", "FILE", "--key", "FILE"), id="serve"
    ),
    pytest.param(command("controller", "--config", "FILE"), id="controller"),
    pytest.param(kubeconfig, id="kubeconfig"),
    pytest.param(command("explain", "pod/x", "--kubeconfig", "FILE"), id="explain"),
    pytest.param(command("list", "--kubeconfig", "FILE"), id="list"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", OTHER_READERS)
@pytest.mark.parametrize(
    "text", [ALIAS, BOMB, MERGED], ids=["an alias", "aliases of aliases", "a merge"]
)
def test_aliases_are_rejected_with_advice(tmp_path: Path, read: Reader, text: str) -> None:
    assert ADVICE in " ".join(read(make_file(tmp_path, text)).split())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("read", "limit"),
    [
        pytest.param(*reader.values, limit, id=reader.id)
        for readers, limit in (
            (PREVIEWS, preview_command.SIZE_LIMIT),
            (OTHER_READERS, safe_yaml.SIZE_LIMIT),
        )
        for reader in readers
    ],
)
def test_file_over_the_size_limit_is_rejected(tmp_path: Path, read: Reader, limit: int) -> None:
    file = make_file(tmp_path, "kind: Service #" + "x" * limit)

    assert re.search(rf"is larger than {limit >> 20} MiB[:;] ", read(file))


def test_file_at_the_size_limit_is_read(tmp_path: Path) -> None:
    file = make_file(tmp_path, "kind: Service #".ljust(preview_command.SIZE_LIMIT, "x"))

    assert CliRunner().invoke(main.cli, ["preview", "-f", str(file)]).exit_code == 0


@pytest.mark.parametrize("read", [*PREVIEWS, *OTHER_READERS])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(f"0x{'F' * 5_000}", "the number is too large", id="a large number"),
        pytest.param('"\\ud800"', "an escape is half of a surrogate pair", id="a surrogate"),
    ],
)
def test_value_that_json_cannot_contain_is_rejected(
    tmp_path: Path, read: Reader, value: str, problem: str
) -> None:
    assert problem in " ".join(read(make_file(tmp_path, f"kind: {value}\n")).split())


def test_configuration_on_standard_input_is_limited() -> None:
    given = b"#" * (safe_yaml.SIZE_LIMIT + 1)
    assert "standard input is larger than 1 MiB" in _output_of("check-config", "-", given=given)


@pytest.mark.timeout(60)
def test_reading_stops_at_the_size_limit() -> None:
    with pytest.raises(CommandError, match=r"^/dev/zero: is larger than 4 MiB; split it$"):
        preview_command._documents("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("first", ["", HIDDEN], ids=["alone", "the second document"])
@pytest.mark.parametrize("read", PREVIEWS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(BOMB, safe_yaml.EXPANSION, id="aliases of aliases"),
        pytest.param(LONG_TEXT, safe_yaml.EXPANSION, id="a long string"),
        pytest.param(NESTED, safe_yaml.EXPANSION, id="many levels"),
        pytest.param(LOOP, "an alias contains itself", id="self-reference"),
    ],
)
def test_alias_expansion_in_manifests_is_limited(
    tmp_path: Path, read: Reader, text: str, message: str, first: str
) -> None:
    assert message in " ".join(read(make_file(tmp_path, f"{first}{text}")).split())


@pytest.mark.parametrize("text", [ALIAS, MERGED], ids=["an alias", "a merge"])
def test_aliases_in_manifests_are_expanded(text: str) -> None:
    (document,) = yaml.load_all(text, safe_yaml.ManifestLoader)
    assert document["b"] == document["a"]


def test_broken_file_is_named_and_the_others_are_previewed(tmp_path: Path) -> None:
    broken_file, pod = tmp_path / "a.yaml", tmp_path / "b.yaml"
    broken_file.write_text("a: [\n")
    labels = "labels: &l {delay: 1h}, annotations: *l"
    pod.write_text(f"{{apiVersion: v1, kind: Pod, metadata: {{name: p, {labels}}}}}")
    output = _output_of("preview", "-f", str(tmp_path))

    assert f"{pod}: Pod default/p: changed" in output
    assert "1 of 2 files cannot be read; the reasons are above" in output
    assert f'in "{broken_file}", line 2' in output
    assert output.count("+    holdfast.dev/held: delay=1h") == 1


def load(text: str) -> Any:
    return yaml.load(text, safe_yaml.Loader)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("&a x", "x", id="an anchor alone"),
        pytest.param("a*b & c", "a*b & c", id="alias characters in text"),
        pytest.param("1:30", "1:30", id="base 60"),
        pytest.param("1:30.5", "1:30.5", id="a fraction of base 60"),
        pytest.param("!!int 1:30", "1:30", id="base 60 with a tag"),
        pytest.param("15", 15, id="a number"),
        pytest.param("0x1f", 31, id="base 16"),
        pytest.param("1.5", 1.5, id="a fraction"),
        pytest.param("-.inf", float("-inf"), id="infinity"),
        pytest.param('"15"', "15", id="a string"),
        pytest.param("2026-12-24", "2026-12-24", id="a date"),
    ],
)
def test_scalars_are_read(text: str, expected: Any) -> None:
    assert load(text) == expected


LONG = ":1" * 400_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rest", ["", ".5"], ids=["whole", "fraction"])
@pytest.mark.parametrize("tag", ["", "!!int ", "!!float "], ids=["plain", "int", "float"])
def test_long_numbers_take_linear_time(tag: str, rest: str) -> None:
    assert load(f"{tag}1{LONG}{rest}") == f"1{LONG}{rest}"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(f"!!float 1{':1' * 200}.5", id="base 60"),
        pytest.param("!!bool x", id="not a boolean"),
        pytest.param("!!int x", id="not an integer"),
        pytest.param("!!timestamp x", id="not a timestamp"),
        pytest.param("!!float ''", id="an empty float"),
        pytest.param("9" * 5_000, id="a long number"),
    ],
)
def test_invalid_values_are_reported_in_one_line(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.parse(f"apiVersion: {value}".encode(), "h.yaml")
    file = make_file(tmp_path, f"kind: Service\na: {value}\n")
    result = CliRunner().invoke(main.cli, ["preview", "-f", str(file)])

    assert str(caught.value).isprintable()
    assert result.exception is None or isinstance(result.exception, HoldfastError)


@pytest.mark.parametrize(
    "text",
    ["a: \x1b[2J", "a: [\u202e\u2028", '"\u202e\n  x: ['],
    ids=["a terminal sequence", "a direction override", "an unterminated string"],
)
def test_error_for_a_broken_file_is_escaped(tmp_path: Path, text: str) -> None:
    assert _output_of("preview", "-f", str(make_file(tmp_path, text))).isprintable()
