"""The wall clocks of Holdfast's processes are wrong, or jump while pods are held."""

from tests.e2e.certificate_secrets import LEAF
from tests.e2e.namespace import created
from tests.faults.rows.certificates import check_no_x509_errors, issue_time, renew
from tests.faults.scenario import Scenario, Table

FAULTS = Table()

HOUR, DAY = 3_600, 86_400
MAX_DIFFERENCE = 300.0
"""Seconds by which a leaf's issue time may differ from the API server's time."""


@FAULTS.row("clock-wrong", minutes=3.0, broken="wall-clock", caught_by="early")
def wrong(scenario: Scenario) -> None:
    """Start controllers with clocks that are wrong by an hour or 400 days, and renew a leaf."""
    for seconds in (400 * DAY, -HOUR) if scenario.short else (HOUR, -HOUR, 400 * DAY, -400 * DAY):
        scenario.testbed.shift_clocks(seconds)
        for controller in scenario.testbed.controllers:
            controller.stop()
            controller.start()
        scenario.wait(20, 5)
        scenario.testbed.leader()
        renew(scenario)
        installation = scenario.testbed.installed
        difference = abs(issue_time(installation) - created(installation.get("secret", LEAF)))
        scenario.check(
            "seconds between a leaf's issue time and the API server's time",
            difference,
            MAX_DIFFERENCE,
        )
    scenario.testbed.shift_clocks(0)
    check_no_x509_errors(scenario)


@FAULTS.row("clock-stepping", tested=True, broken="wall-clock", caught_by="early")
def stepping(scenario: Scenario) -> None:
    """Move the clocks back and forth while pods are held."""
    for _ in range(1 if scenario.short else 5):
        for seconds in (HOUR, -HOUR, 400 * DAY, -400 * DAY, 0):
            scenario.testbed.shift_clocks(seconds)
            scenario.wait(2)
