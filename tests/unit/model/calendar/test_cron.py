import pytest

from holdfast.webhook.model.calendar.cron import shortest_period

MINUTE, HOUR, DAY = 60, 3_600, 86_400


@pytest.mark.parametrize(
    ("schedule", "period"),
    [
        ("* * * * *", MINUTE),
        ("*/5 * * * *", 5 * MINUTE),
        ("*/40 * * * *", 20 * MINUTE),
        ("7/20 * * * *", 20 * MINUTE),
        ("0,10,40 3 * * *", 10 * MINUTE),
        ("0 8-18/2 * * *", 2 * HOUR),
        ("0 22,2 * * *", 4 * HOUR),
        ("30 4 * * 1-5", DAY),
        ("30 4 * * Mon,THU", 3 * DAY),
        ("30 4 ? * sun", 7 * DAY),
        ("0 0 1,15 * *", 14 * DAY),
        ("0 0 31,1 * *", DAY),
        ("0 0 1 * 1", DAY),
        ("@hourly", HOUR),
        ("@daily", DAY),
        ("@weekly", 7 * DAY),
        ("@midnight", DAY),
        ("@monthly", 28 * DAY),
        ("@yearly", 28 * DAY),
        ("@annually", 28 * DAY),
        ("@every 5m", 5 * MINUTE),
        ("@every 1h30m1.9s", HOUR + 30 * MINUTE + 1),
        ("@every 10ms", 1),
        ("@every now", None),
        ("@every", None),
        ("TZ=UTC 0 0 * * *", DAY),
        ("CRON_TZ=Europe/Berlin  */5 * * * *", 5 * MINUTE),
        ("TZ=UTC @every 5m", 5 * MINUTE),
        ("TZ=UTC", None),
        ("60 * * * *", None),
        ("*/0 * * * *", None),
        ("5-1 * * * *", None),
        ("x * * * *", None),
        ("0 0 0 * *", None),
        ("-1 * * * *", None),
        ("", None),
        (f"{','.join(map(str, range(60)))} * * * *", MINUTE),
        (f"{'*,' * 1_000_000}* * * * *", None),  # parsing it would take seconds
    ],
    ids=lambda value: str(value)[:20],
)
def test_shortest_period(schedule: str, period: int | None) -> None:
    assert shortest_period(schedule) == period
