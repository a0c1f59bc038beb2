"""Every documented mistake gets a message that names the cause and the fix."""

import pytest

from tests.support.troubleshooting import MISTAKES, Mistake

ROWS = [pytest.param(one, id=one.mistake) for rows in MISTAKES.values() for one in rows]


@pytest.mark.parametrize("row", ROWS)
def test_message_names_the_cause_and_the_fix(row: Mistake) -> None:
    answer = row.answer()

    assert row.thing in answer
    assert row.fix in answer
    assert answer.isprintable()


def test_mistakes_are_numerous_and_unique() -> None:
    mistakes = [one for rows in MISTAKES.values() for one in rows]

    assert len({one.mistake for one in mistakes}) == len(mistakes)
    assert sum(one.is_on_page for one in mistakes) >= 60
