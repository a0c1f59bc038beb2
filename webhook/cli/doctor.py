"""`holdfast doctor`: find out what is wrong with an installation."""

import sys

import click

from holdfast.webhook.cli import examination, options, terminal
from holdfast.webhook.kube import listing
from holdfast.webhook.report import diagnosis
from holdfast.webhook.report.diagnosis import Finding, Level

EXAMPLES = """\b
Examples:
  holdfast doctor
  holdfast doctor --context production"""

_STYLES = {
    Level.OK: "green",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
    Level.UNKNOWN: "dim",
}


@click.command(epilog=EXAMPLES)
@options.target
def doctor(*, target: options.Target) -> None:
    """Check the installation: webhooks, certificates, leader, clocks, overdue pods.

    Each finding says what to do. The exit status is 1 if there is a problem. Anything that you
    have no permission to read is reported as unknown.
    """
    time = listing.Time()
    cluster = target.connect(time.observe)
    findings = [*examination.examine(cluster, cluster.server, time)]
    terminal.write(line for finding in findings for line in _lines(finding))
    if diagnosis.worst(findings) is Level.PROBLEM:
        sys.exit(1)


def _lines(finding: Finding) -> list[terminal.Styled]:
    text = f"{finding.level.upper():9}{finding.about}: {finding.text}"
    lines = [(text, _STYLES[finding.level])]
    return [*lines, (f"         {finding.cure}", "")] if finding.cure else lines
