"""The rules of `make prose` report text that reads as translated, and accept plain English."""

import re
from pathlib import Path

import pytest
import yaml

STYLE = Path(__file__).resolve().parents[2] / "styles" / "Holdfast"
PHRASES = yaml.safe_load((STYLE / "Phrases.yml").read_text("utf-8"))["swap"]
CLAUSES = yaml.safe_load((STYLE / "HeadlessClauses.yml").read_text("utf-8"))["tokens"]
CASES = yaml.safe_load(Path(__file__).with_name("prose_cases.yaml").read_text("utf-8"))


def findings(text: str) -> list[str]:
    """Return the matches that vale would report: phrases ignore case, clauses do not."""
    phrases = [phrase for phrase in PHRASES if re.search(phrase, text, re.IGNORECASE)]
    return phrases + [clause for clause in CLAUSES if re.search(clause, text)]


@pytest.mark.parametrize("text", CASES)
def test_translated_phrases_are_reported(text: str) -> None:
    assert findings(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "Who may release a pod?",
        "What to do",
        "The line tells it to stop",
        "It waits for at most ten seconds. There is no retry, and it is no longer held.",
        'annotation delay: invalid value "soon": use whole seconds ("15")',
        "delay: adds scheduling gate holdfast.dev/delay (delay=15s)",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert findings(text) == []
