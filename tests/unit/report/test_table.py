import pytest

from holdfast.webhook.report import table


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        pytest.param(0, "0s", id="nothing"),
        pytest.param(-5, "0s", id="the past"),
        pytest.param(1, "1s", id="a second that has begun"),
        pytest.param(45_000, "45s", id="seconds"),
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


def test_the_widest_columns_are_cut_to_fit() -> None:
    rows = [("p" * 40, "short", "q" * 30)]
    lines = table.lines(("HELD BY", "B", "OWNER"), rows, width=40)
    assert max(map(len, lines)) <= 40
    assert lines[1].count("…") == 2
    assert "short" in lines[1]


@pytest.mark.parametrize("width", [60, 30, 5])
def test_names_are_never_cut(width: int) -> None:
    name = "a-pod-of-a-long-name-" + "x" * 20
    head = ("NAMESPACE", "NAME", "HELD BY", "AGE", "LEFT", "OWNER")
    row = ("shop", name, "after=job/migrate, deployment/db", "2m", "unknown", "ReplicaSet/web")
    first, line = table.lines(head, [row], width=width)
    assert name in line
    assert first.startswith("NAMESPACE   NAME")
    assert len(line) <= max(width, len("NAMESPACE   ") + len(name))


def test_columns_that_do_not_fit_are_left_out_from_the_right() -> None:
    head = ("NAME", "HELD BY", "AGE", "LEFT")
    first, line = table.lines(head, [("n" * 20, "d" * 30, "2m", "3m")], width=34)
    assert (first.split(), line) == (["NAME", "HELD", "BY"], f"{'n' * 20}   {'d' * 10}…")
