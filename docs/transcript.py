"""Read the terminal sessions on pages, run them again, and compare the output.

A `console` block contains commands, each after a `$ ` prompt, and their output. A YAML block that
begins with `# NAME.yaml` is a file that the commands can read. Generated names, times, durations
and nodes differ from run to run; `normalized` replaces them with placeholders.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

PATIENCE = 60.0
"""Seconds within which a command must print the output that the page shows."""
REST = "…"
"""A line that matches any number of lines."""

_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.-]+\.(?:yaml|json))\n")
_READS = re.compile(
    r"kubectl (-n \S+ )?(get|wait|rollout|auth|diff|events)\b|\S+=\S+ "
    r"|holdfast (list|explain|doctor|preview|version|check-config|sticky (list|show))\b"
)
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"  # the alphabet of generated names in Kubernetes
_MADE_UP = re.compile(rf"([a-z][a-z0-9-]*?)-({_SAFE}{{8,10}}-{_SAFE}{{5}}|{_SAFE}{{5}})\b")
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d(?=T)")

_DIFFERS: Sequence[tuple[str, str]] = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?( UTC|Z|[+-]\d\d:\d\d)", "TIME"),
    (rf"-({_SAFE}{{8,10}}-{_SAFE}{{5}}|{_SAFE}{{8,10}}|{_SAFE}{{5}})\b", "-NAME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b\d+\.\d+ s\b", "N s"),
    (r"(?<![=\w\"-])\d+(\.\d+)?(ms|s|m|h|d)(\d+(s|m|h|ms))*\b", "LONG"),
    (r"\bnode-\d\b", "node-N"),
    (r"Kubernetes v1\.\d+\.\d+", "Kubernetes VERSION"),
    (r"[ \t]+", " "),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A command on a page, and the output that the page shows."""

    command: str
    output: tuple[str, ...]


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each code block that has a language."""
    for _, kind, text in _BLOCK.findall(page):
        yield kind, textwrap.dedent(text)


def files(page: str) -> dict[str, str]:
    """Return the files that a page shows, by name."""
    texts = {}
    for _, text in blocks(page):
        match = _FILE.match(text)
        if match:
            texts[match[1]] = text
    return texts


def steps(page: str) -> list[Step]:
    """Return the commands of a page, in order."""
    return [step for kind, text in blocks(page) if kind == "console" for step in _steps(text)]


def _steps(block: str) -> Iterator[Step]:
    command, output = "", list[str]()
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield Step(command, tuple(output))
            command, output = line.removeprefix("$ "), []
        elif command.endswith("\\") or command.count("'") % 2:
            command += f"\n{line}"
        else:
            output.append(line)
    if command:
        yield Step(command, tuple(output))


def normalized(line: str) -> str:
    """Return a line with placeholders for the parts that differ from run to run."""
    for pattern, name in _DIFFERS:
        line = re.sub(pattern, name, line)
    return line.strip()


def agrees(page_lines: Iterable[str], printed_lines: Iterable[str]) -> bool:
    """Return whether a command printed the lines that the page shows, in any order."""
    expected = Counter(normalized(line) for line in page_lines if line.strip())
    printed = Counter(normalized(line) for line in printed_lines if line.strip())
    if REST in expected:
        del expected[REST]
        return expected <= printed
    return expected == printed


class DisagreementError(Exception):
    """The output of a command differs from its page."""


@dataclass
class Session:
    """A terminal session that runs a page's commands in order.

    `names` returns the names of the existing pods. `replaced` maps texts of this run to those on
    the page.
    """

    folder: Path
    environment: Mapping[str, str]
    names: Callable[[], Iterable[str]]
    replaced: Mapping[str, str] = field(default_factory=dict)
    patience: float = PATIENCE
    _known: dict[str, str] = field(default_factory=dict)

    def write(self, page: str) -> None:
        """Write the files that a page shows."""
        for name, text in files(page).items():
            (self.folder / name).write_text(_tomorrow(text))

    def run(self, step: Step) -> list[str]:
        """Run a command, and return its output.

        A read-only command is repeated until its output matches the page, for up to `patience`
        seconds. Raises DisagreementError if the output does not match.
        """
        deadline = time.monotonic() + self.patience
        command = self._present(_tomorrow(step.command))
        while True:
            lines = self._printed(command)
            if agrees(step.output, lines):
                return lines
            if not _READS.match(command) or time.monotonic() > deadline:
                expected, printed = "\n".join(step.output), "\n".join(lines)
                raise DisagreementError(f"$ {command}\n{printed}\n--- the page shows:\n{expected}")
            time.sleep(0.5)

    def _printed(self, command: str) -> list[str]:
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=dict(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=600,
        )
        text = result.stdout
        for run_text, page_text in self.replaced.items():
            text = text.replace(run_text, page_text)
        return text.splitlines()

    def _present(self, command: str) -> str:
        """Return a command with the page's pod names replaced by those of this run."""
        for match in _MADE_UP.finditer(command):
            name, prefix = match[0], match[1]
            if name not in self._known:
                pods = sorted(pod for pod in self.names() if pod.startswith(f"{prefix}-"))
                unused = [pod for pod in pods if pod not in self._known.values()]
                if not unused:
                    continue
                self._known[name] = unused[0]
            command = command.replace(name, self._known[name])
        return command


def _tomorrow(text: str) -> str:
    """Return a text with its dates set to tomorrow, as times must be in the near future."""
    return _DAY.sub((datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%d"), text)
