"""Build a module set with Go: count the packages to compile, compile them, explain failures."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from controlplane.errors import ControlPlaneError, disk_full
from controlplane.golang import Go
from controlplane.modules import ModuleSet
from controlplane.progress import Report, Step

COLD_BYTES = 4_500_000_000
"""Disk space for a build with nothing cached.

Measured: modules 0.6 GB, objects 3.1 GB, binaries 0.4 GB, Go itself 0.2 GB.
"""
WARM_BYTES = 600_000_000
"""Disk space for the binaries, and for changed objects in Go's cache."""
_WARM_PACKAGES = 100  # with fewer left to compile, Go's object cache is already filled
_TAIL_LINES = 40
_TICK = 1.0  # seconds
_STOP_TIMEOUT = 5.0  # seconds for an interrupted Go to remove its temporary files
_PACKAGE_LINE = re.compile(r"[\w.~+-]+(/[\w.~+-]+)*")
_NETWORK = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|proxyconnect|TLS handshake|"
    r"network is unreachable|module lookup disabled|50\d (?:Bad|Service|Gateway)"
)


class Compiler:
    """Builds one module set into one folder, and writes Go's messages to a log."""

    def __init__(self, go: Go, modules: ModuleSet, log: Path, report: Report) -> None:
        self._go = go
        self._modules = modules
        self._log = log
        self._report = report
        self._env = go.environment(cgo=modules.cgo)

    def build(self, folder: Path) -> None:
        """Fill `folder` with `bin/` and the set's files. Raises ControlPlaneError."""
        self._log.write_bytes(b"")
        caches = self._run(["env", "GOCACHE", "GOMODCACHE"]).splitlines()
        folders = [*map(Path, caches), folder.parent]
        if not self._downloaded(folders[1]):
            require_room(folders, COLD_BYTES)
        stale = self._stale()
        require_room(folders, WARM_BYTES if stale < _WARM_PACKAGES else COLD_BYTES)
        self._install(folder / "bin", stale)
        self._copy_files(folder)
        self._print_files(folder)

    def _downloaded(self, module_cache: Path) -> bool:
        return (module_cache / "cache" / "download" / self._modules.landmark).is_dir()

    def _stale(self) -> int:
        """Download missing modules, and return the number of packages not in Go's cache."""
        counter = _Counter(self._report, "modules downloaded", is_download)
        packages = sorted(self._modules.packages.values())
        listing = ["list", *self._modules.flags(), "-deps", "-f", "{{.Stale}}", *packages]
        return self._run(listing, counter).split().count("true")

    def _install(self, target: Path, stale: int) -> None:
        """Compile and link in one run, so that shared packages are compiled once."""
        packages = sorted(self._modules.packages.values())
        counter = _Counter(
            self._report,
            "packages and programs built",
            is_package,
            total=stale + len(packages),
            programs=target,
        )
        self._env["GOBIN"] = str(target)
        self._run(["install", "-v", *self._modules.flags(), *packages], counter)
        for name, package in self._modules.packages.items():
            built = target / installed_name(package)
            if built.name != name:
                built.rename(target / name)

    def _copy_files(self, folder: Path) -> None:
        """Copy the set's files out of the modules that ship them."""
        for path, (module, source) in self._modules.files.items():
            listing = ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]
            source_file = Path(self._run(listing).strip()) / source
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source_file, folder / path)

    def _print_files(self, folder: Path) -> None:
        """Write the files that the project's binaries print."""
        for path, name in self._modules.printed.items():
            result = subprocess.run([folder / "bin" / name], capture_output=True, check=False)
            if result.returncode != 0:
                message = result.stderr.decode(errors="replace").strip()
                raise ControlPlaneError(
                    f"{name} failed with exit code {result.returncode}: {message}"
                )
            (folder / path).write_bytes(result.stdout)

    def _run(self, arguments: Sequence[str], count: _Counter | None = None) -> str:
        """Run Go and return its standard output; standard error is logged and counted."""
        counter = count or _Counter(self._report, "querying Go")
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        with (
            tempfile.TemporaryFile("w+") as output,
            self._log.open("a") as log,
            subprocess.Popen(
                [self._go.binary, *arguments],
                cwd=self._modules.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
            ) as process,
        ):
            try:
                assert process.stderr is not None  # noqa: S101 - set by stderr=PIPE
                for line in _lines(process.stderr, counter.tell):
                    log.write(f"{line}\n")
                    tail.append(line)
                    counter.line(line)
            except BaseException:
                _stop(process)
                raise
            if process.wait() != 0:
                raise build_failure(tail, self._log, Path(self._env.get("TMPDIR", "/tmp")))  # noqa: S108
            output.seek(0)
            return output.read()


def _lines(stream: IO[bytes], tick: Callable[[], None]) -> Iterator[str]:
    """Yield lines as they arrive, and call `tick` after each second without output."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(_TICK):
                tick()
                continue
            chunk = os.read(stream.fileno(), 65536)
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
            if not chunk:
                if buffer:
                    yield buffer.decode(errors="replace")
                return


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()


class _Counter:
    """Reports the number of matching lines and of linked programs."""

    def __init__(
        self,
        report: Report,
        what: str,
        counts: Callable[[str], bool] = lambda _: False,
        *,
        total: int | None = None,
        programs: Path | None = None,
    ) -> None:
        self._report = report
        self._what = what
        self._counts = counts
        self._total = total
        self._programs = programs
        self._done = 0

    def line(self, line: str) -> None:
        """Count a line, and report, if it matches."""
        if self._counts(line):
            self._done += 1
            self.tell()

    def tell(self) -> None:
        """Report the count even if it is unchanged: the report decides what to show."""
        folder = self._programs
        linked = len(list(folder.iterdir())) if folder is not None and folder.is_dir() else 0
        self._report(Step(self._what, self._done + linked, self._total))


def is_download(line: str) -> bool:
    """Return whether the line is Go's message about a module download."""
    return line.startswith("go: downloading ")


def is_package(line: str) -> bool:
    """Return whether the line is a package that `go install -v` compiles."""
    return _PACKAGE_LINE.fullmatch(line) is not None


def installed_name(package: str) -> str:
    """Return the binary name that `go install` uses: the last path element without the version."""
    *parents, name = package.split("/")
    return parents[-1] if parents and re.fullmatch(r"v\d+", name) else name


def build_failure(tail: Sequence[str], log: Path, temporary: Path) -> ControlPlaneError:
    """Return an error that explains a Go failure, based on its last lines of output."""
    output = "\n".join(tail)
    if "no space left on device" in output.lower():
        paths = re.findall(r"(/\S+?):? (?:write|no space)", output) or re.findall(
            r"write (/\S+):", output
        )
        return disk_full(Path(paths[0]) if paths else temporary)
    reason = next((line for line in reversed(tail) if line.strip()), "no output")
    if _NETWORK.search(output):
        return ControlPlaneError(
            f"Go could not download the modules ({reason}); check the network and GOPROXY, and "
            f"start again: finished downloads are kept (log: {log})"
        )
    return ControlPlaneError(f"go build failed ({reason}); the whole output is in {log}")


def require_room(folders: Sequence[Path], needed: int) -> None:
    """Raise ControlPlaneError if a file system of `folders` has less than `needed` bytes free."""
    for folder in folders:
        free = shutil.disk_usage(_nearest_existing(folder)).free
        if free < needed:
            raise ControlPlaneError(
                f"building needs {needed / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB left; "
                "free some, or set XDG_CACHE_HOME, GOCACHE and GOMODCACHE to folders on a larger "
                "disk"
            )


def _nearest_existing(path: Path) -> Path:
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path
