"""The table of the latest complete fault run."""

from __future__ import annotations

from docs.tables import table
from tests.faults import summary

HEAD = (
    "date",
    "faults",
    "failed",
    "pods created",
    "VM restarts",
    "released early",
    "stuck",
    "VMs on a wrong node",
    "latest release",
)


def latest() -> str:
    """Return the table of the latest run of all faults."""
    run = summary.read()
    row = (
        run.began[:10],
        str(run.rows),
        ", ".join(f"`{name}`" for name in run.failed) or "none",
        f"{run.pods:,}",
        f"{run.restarts:,}",
        str(run.early),
        str(run.stuck),
        str(run.astray),
        f"{run.latest:.1f} s late",
    )
    return table(HEAD, [row])
