"""Draw terminals as SVG. `python -m docs.recording` records `make run` as docs/images/run.svg."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "run.svg"
LONGEST_PAUSE = 3.0
"""Seconds to which longer pauses, such as the wait for a pod, are shortened."""
_LINE, _MARGIN, _WIDTH = 20, 16, 860
_STYLE = """
    rect { fill: #0d1117; }
    text { fill: #e6edf3; font: 14px ui-monospace, Menlo, Consolas, monospace; white-space: pre; }
    .command { fill: #7ee787; }
    .line { opacity: 0; animation: appear 1ms linear forwards; }
    @keyframes appear { to { opacity: 1; } }
    @media (prefers-reduced-motion: reduce) { .line { opacity: 1; animation: none; } }"""


def record(command: Sequence[str]) -> list[tuple[float, str]]:
    """Run a command, and return each line of its output with the seconds since the start.

    Raises SystemExit with the output if the command fails.
    """
    began = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = [(time.monotonic() - began, line.rstrip()) for line in process.stdout or ()]
    if process.returncode:
        raise SystemExit("\n".join(line for _, line in lines))
    return lines


def animated(lines: Sequence[tuple[float, str]], title: str) -> str:
    """Return an SVG of a terminal in which each line appears at its time."""
    previous, delay, delays = 0.0, 0.5, list[str]()
    for seconds, _ in lines:
        delay += min(seconds - previous, LONGEST_PAUSE)
        previous = seconds
        delays.append(f' style="animation-delay: {delay:.2f}s"')
    return _drawn([line for _, line in lines], delays, "line", title)


def still(lines: Sequence[str], title: str) -> str:
    """Return an SVG of a terminal with these lines."""
    return _drawn(lines, [""] * len(lines), "still", title)


def _drawn(lines: Sequence[str], attributes: Sequence[str], kind: str, title: str) -> str:
    height = 2 * _MARGIN + _LINE * len(lines)
    elements = []
    for number, (line, attribute) in enumerate(zip(lines, attributes, strict=True)):
        classes = f"{kind} command" if line.lstrip().startswith("$ ") else kind
        y = _MARGIN + _LINE * number + 14
        elements.append(
            f'  <text class="{classes}"{attribute} x="{_MARGIN}" y="{y}">{escape(line)}</text>'
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            f"  <title>{escape(title)}</title>",
            f"  <style>{_STYLE}\n  </style>",
            f'  <rect width="{_WIDTH}" height="{height}" rx="8"/>',
            *elements,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    made = [(0.0, "$ make run"), *record([sys.executable, "-m", "demo", "run"])]
    title = "A recording of make run: a pod is held for 15 seconds, released, and runs"
    TARGET.write_text(animated(made, title), encoding="utf-8")
