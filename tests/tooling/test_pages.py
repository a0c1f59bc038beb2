"""Every command on a page is run somewhere, and the output that pages show is checked."""

import os
from pathlib import Path

import pytest

from docs import transcript
from docs.transcript import DisagreementError, Session, Step
from tests.support import pages
from tests.support.pages import ELSEWHERE, ROOT, RUN, Elsewhere

EVERY = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
EVERY += sorted(path.name for path in ROOT.glob("*.md"))
ROWS = [
    pytest.param(page, row, id=f"{page} {row.command}")
    for page, rows in ELSEWHERE.items()
    for row in rows
]


@pytest.mark.parametrize("page", EVERY)
def test_every_command_is_run(page: str) -> None:
    unassigned = [
        step.command
        for step in pages.steps(page)
        if len(pages.elsewhere(page, step)) != 1 and page not in RUN
    ]
    assert unassigned == [], "name in tests/support/pages.py what runs each command, once"


@pytest.mark.parametrize(("page", "row"), ROWS)
def test_named_commands_exist(page: str, row: Elsewhere) -> None:
    assert [step for step in pages.steps(page) if row in pages.elsewhere(page, step)]
    assert row.evidence in (ROOT / row.run_by).read_text(encoding="utf-8")


PAGE = """
```yaml
# a.yaml
at: 2026-11-21T18:00:00Z
```

1. In a list:

    ```console
    $ cat a.yaml
    # a.yaml
    at: 2026-11-20T18:00:00Z
    $ printf 'one
    two'
    one
    …
    ```
"""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    page_session = Session(tmp_path, os.environ, lambda: ["web-6d5bb4fc7f-4bhdd"], patience=0.2)
    page_session.write(PAGE)
    return page_session


def test_page_is_parsed_and_run(session: Session) -> None:
    first_step, second_step = transcript.steps(PAGE)
    assert session.run(first_step)[0] == "# a.yaml"
    assert second_step == Step("printf 'one\ntwo'", ("one", "…"))
    assert session.run(second_step) == ["one", "two"]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(Step("echo two", ("one",)), id="different line"),
        pytest.param(Step("echo one; echo two", ("one",)), id="extra line"),
        pytest.param(Step("echo one", ("one", "one")), id="missing line"),
        pytest.param(Step("echo one", ("two", "…")), id="line not found"),
        pytest.param(Step("false; echo delay=2h", ("delay=1h",)), id="different value"),
    ],
)
def test_wrong_output_is_reported(session: Session, step: Step) -> None:
    with pytest.raises(DisagreementError, match="the page shows"):
        session.run(step)
