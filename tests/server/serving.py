"""Run `holdfast serve` as a process, and check that it stays healthy after any request."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from demo.command import Command
from holdfast.certs.authority import KeyPair
from tests.server.harness import HttpsServer, write_pair

CONFIGURATION = """
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles: [{plugins: {disabled: [{name: sticky}]}}]
"""
"""Needs no cluster, because nothing is looked up."""
JSON = {"Content-Type": "application/json"}
PATHS = ["/mutate", "/validate"]
TEXT = re.compile(r"\d{4}-\d\d-\d\d [\d:]{8},\d{3} (DEBUG|INFO|WARNING) holdfast\.[a-z]+: .*")
LONGEST_LINE = 5_000


class Serving(HttpsServer):
    timeout = 60.0

    def __init__(self, command: Command, log_format: str = "text") -> None:
        super().__init__()
        self.command = command
        self.log_format = log_format
        self.worker = self.workers()[0]

    @property
    def port(self) -> int:
        return int(self.command.address.rpartition(":")[2])

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.command.pid).children()

    def log_lines(self) -> list[str]:
        """Return the log lines as the kubelet splits them: only at line feeds."""
        return self.command.log.read_bytes().decode().removesuffix("\n").split("\n")

    @contextmanager
    def cpu_time_within(self, seconds: float) -> Iterator[None]:
        """Check that the worker uses at most this many seconds of CPU time in the block."""
        start_seconds = _cpu_time(self.worker)
        yield
        assert _cpu_time(self.worker) - start_seconds <= seconds

    def check_healthy(self, *, errors: bool = False) -> None:
        """Check that no review failed, no worker died, and each log line has our format.

        `errors` permits lines of level ERROR.
        """
        assert self.workers() == [self.worker], "the worker was killed and restarted"
        metrics = self.ask("GET", "/metrics").body.decode()
        assert "holdfast_reviews_total" in metrics
        failed_counts = re.findall(
            r'^holdfast_reviews_total\{outcome="failed".* (\S+)$', metrics, re.M
        )
        assert failed_counts
        assert set(failed_counts) == {"0.0"}
        for line in self.log_lines():
            assert line.isprintable(), ascii(line)
            assert len(line) < LONGEST_LINE
            assert "Traceback" not in line
            if self.log_format == "text":
                assert TEXT.fullmatch(line.replace(" ERROR ", " INFO ") if errors else line), line
            else:
                record = json.loads(line)
                permitted_levels = {"debug", "info", "warning"} | ({"error"} if errors else set())
                assert record["level"] in permitted_levels, line
                assert record["message"] != "forged"


@contextmanager
def serve_holdfast(
    folder: Path,
    pair: KeyPair,
    *more: str,
    configuration: str = CONFIGURATION,
    log_format: str = "text",
) -> Iterator[Serving]:
    """Run the server with these options in addition to the required ones."""
    files = write_pair(folder, "it", pair)
    config = folder / "holdfast.yaml"
    config.write_text(configuration)
    options = ["--config", str(config), "--log-format", log_format]
    options += ["--cert", str(files.certfile), "--key", str(files.keyfile)]
    options += ["--host", "127.0.0.1", "--port", "0", *more]
    with Command("serve", *options, log=folder / "log") as command:
        yield Serving(command, log_format)


def in_chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


def _cpu_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
