import pytest

from holdfast.webhook.report import table


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        pytest.param(0, "0s", id="zero"),
        pytest.param(-5, "0s", id="negative"),
        pytest.param(1, "1s", id="rounded up to a second"),
        pytest.param(60_000, "1m", id="a whole minute"),
        pytest.param(150_000, "2m30s", id="minutes and seconds"),
        pytest.param(3_600_000, "1h", id="an hour"),
        pytest.param(3_661_000, "1h1m", id="at most two units"),
        pytest.param(273_600_000, "3d4h", id="days and hours"),
    ],
)
def test_duration(milliseconds: int, text: str) -> None:
    assert table.duration(milliseconds) == text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table.lines(("A", "LONG"), [("xxx", "y"), ("z", "")]) == ["A     LONG", "xxx   y", "z"]
