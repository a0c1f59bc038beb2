"""Every documented mistake gets a message that names the cause and the fix."""

import pytest

from tests.support.troubleshooting import MISTAKES, Mistake

ROWS = [pytest.param(mistake, id=mistake.mistake) for rows in MISTAKES.values() for mistake in rows]


@pytest.mark.parametrize("row", ROWS)
def test_message_names_the_cause_and_the_fix(row: Mistake) -> None:
    message = row.answer()

    assert row.thing in message
    assert row.fix in message
    assert message.isprintable()
