"""The wall clocks of Holdfast's machines are wrong, and step while pods wait."""

from tests.e2e.certificate_secrets import LEAF
from tests.e2e.namespace import created
from tests.faults.rows.certificates import by_certificates, issue_time, renew
from tests.faults.scenario import Scenario, Table

FAULTS = Table(6)

HOUR, DAY = 3_600, 86_400
ISSUED = 300.0
"""Seconds by which a leaf's time of issue may differ from the API server's."""


@FAULTS.row("clock-wrong", minutes=3.0, broken="wall-clock", caught_by="early")
def wrong(scenario: Scenario) -> None:
    """Start controllers on wrong clocks, by an hour and by 400 days, and have a leaf renewed."""
    for seconds in (400 * DAY, -HOUR) if scenario.short else (HOUR, -HOUR, 400 * DAY, -400 * DAY):
        scenario.testbed.shift_clocks(seconds)
        for each in scenario.testbed.controllers:
            each.stop()
            each.start()
        scenario.go_on(20, 5)
        scenario.testbed.leader()
        renew(scenario)
        made = scenario.testbed.installed
        apart = abs(issue_time(made) - created(made.get("secret", LEAF)))
        scenario.check("seconds between a leaf's time and the API server's", apart, ISSUED)
    scenario.testbed.shift_clocks(0)
    by_certificates(scenario)


@FAULTS.row("clock-stepping", tested=True, broken="wall-clock", caught_by="early")
def stepping(scenario: Scenario) -> None:
    """Step the clocks to and fro while pods wait."""
    for _ in range(1 if scenario.short else 5):
        for seconds in (HOUR, -HOUR, 400 * DAY, -400 * DAY, 0):
            scenario.testbed.shift_clocks(seconds)
            scenario.go_on(2)
