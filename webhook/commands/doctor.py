"""`holdfast doctor`: what is wrong with an installation, and the cure."""

from __future__ import annotations

import sys

import click

from webhook import diagnosis, reading
from webhook.commands import examination, options, terminal
from webhook.diagnosis import Finding, Level

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
    """Examine the installation: webhooks, certificates, leader, clocks, overdue pods.

    Each finding has its cure. Exit status 1 where there is a problem. What you may not read is
    told as unknown.
    """
    time = reading.Time()
    cluster = target.connect(time.take)
    findings = diagnosis.diagnose(examination.examine(cluster, cluster.server, time))
    terminal.write(line for finding in findings for line in _lines(finding))
    if diagnosis.worst(findings) is Level.PROBLEM:
        sys.exit(1)


def _lines(finding: Finding) -> list[terminal.Styled]:
    told = f"{finding.level.upper():9}{finding.about}: {finding.text}"
    lines = [(told, _STYLES[finding.level])]
    return [*lines, (f"         {finding.cure}", "")] if finding.cure else lines
