import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.telemetry import logs


def formatted(message: str, *args: object, exc_info: bool = False) -> str:
    info = sys.exc_info() if exc_info else None
    record = logging.LogRecord("holdfast", logging.INFO, "x.py", 1, message, args, info)
    return logs.OneLine("%(levelname)s %(message)s").format(record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("grüße", "grüße", id="non-ASCII letters"),
        pytest.param("a\nINFO b", "a\\nINFO b", id="line break"),
        pytest.param("a\r\nb", "a\\r\\nb", id="Windows line break"),
        pytest.param("a\\nb", "a\\\\nb", id="backslash"),
        pytest.param("\x1b[31m", "\\x1b[31m", id="terminal control"),
        pytest.param("a\u2028b\x85c", "a\\u2028b\\x85c", id="Unicode line breaks"),
        pytest.param("\u202e", "\\u202e", id="right-to-left override"),
        pytest.param("\ud800", "\\ud800", id="lone surrogate"),
    ],
)
def test_message_is_escaped(text: str, expected: str) -> None:
    assert f"INFO {expected}" == formatted("%s", text)


@given(st.text())
def test_any_text_stays_on_one_line(text: str) -> None:
    line = formatted("%s", text)

    assert [line] == line.splitlines()
    assert line.isprintable()


def test_traceback_is_folded_into_the_line() -> None:
    try:
        int("a\nb")
    except ValueError:
        line = formatted("failed", exc_info=True)

    assert len(line.splitlines()) == 1
    assert "\\nValueError: invalid literal for int()" in line


def record(message: str, *args: object, **values: logs.Value) -> logging.LogRecord:
    entry = logging.LogRecord("holdfast.x", logging.INFO, "x.py", 1, message, args, None)
    entry.created = 1_772_366_400.5
    entry.__dict__.update(logs.fields(**values))
    return entry


def test_json_line_has_its_fields_and_message() -> None:
    line = logs.Json().format(record("released %s", "a\nb", name="a\nb", lateness=0.5, level="no"))

    assert json.loads(line) == {
        "time": "2026-03-01T12:00:00.500Z",
        "level": "info",
        "logger": "holdfast.x",
        "message": "released a\nb",
        "name": "a\nb",
        "lateness": 0.5,
    }


@given(st.text())
def test_any_text_stays_on_one_json_line(text: str) -> None:
    line = logs.Json().format(record("%s", text, value=text))

    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["value"] == text


def test_json_line_has_the_traceback() -> None:
    try:
        int("x")
    except ValueError:
        info = sys.exc_info()
    entry = logging.LogRecord("holdfast", logging.ERROR, "x.py", 1, "failed", (), info)

    assert "ValueError" in json.loads(logs.Json().format(entry))["traceback"]


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(("level", "count"), [("info", 1), ("debug", 2), ("error", 0)])
def test_set_up(level: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(level)
    logging.getLogger("holdfast.x").info("loud\n")
    logging.getLogger("holdfast.x").debug("whispered")
    logging.getLogger("library").info("noise")
    output = capsys.readouterr()

    assert output.out == ""
    assert count == len(output.err.splitlines())
    assert level == "error" or " INFO holdfast.x: loud\\n\n" in output.err
