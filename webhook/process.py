"""Signals, readiness and memory of a process."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

END_SECONDS = 2.0
"""Seconds that a command may take to exit after a signal. A hanging DNS lookup, for example, delays
it: Python handles signals only between its own instructions."""
TRIM_SECONDS = 30.0
"""Seconds between returns of free memory; each takes a few milliseconds of one thread."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` in a new thread, without a time limit, on SIGINT and SIGTERM."""
    stop_in_time(None)

    def handle(_number: int, _frame: object) -> None:
        # in a thread: the interrupted code may hold a lock that `stop` needs
        threading.Thread(target=stop, name="stop").start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def exit_on_signals() -> None:
    """Exit normally on signals, which removes temporary files with client keys."""

    def handle(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, handle)


def stop_in_time(seconds: float | None) -> None:
    """End the process `seconds` after a signal if it is still running; None for no limit."""
    signal.set_wakeup_fd(-1)
    if seconds is None:
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def wait() -> None:
        number = 0
        while number not in _ENDING:
            number = os.read(read_end, 1)[0]
        time.sleep(seconds)
        atexit._run_exitfuncs()  # removes temporary files with client keys
        os._exit(128 + number)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def on_end_of_stdin(stop: Callable[[], None]) -> None:
    """Call `stop` when standard input is closed, such as when the parent is killed."""

    def wait() -> None:
        with suppress(OSError):  # treat unreadable input as closed
            while os.read(0, 1 << 10):
                pass
        stop()

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def give_back() -> None:
    """Return free memory to the system with malloc_trim(3), if the C library has it."""
    # By itself, glibc only returns memory from the end of a heap. When all threads reconnect,
    # OpenSSL leaves free memory in many heaps: 97.7 MB in fault tests instead of 80.8 MB.
    # MALLOC_ARENA_MAX=2 does not help.
    import ctypes  # noqa: PLC0415 - slow to import, and commands do not need it

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def give_back_regularly(
    stop: threading.Event,
    *,
    seconds: float = TRIM_SECONDS,
    give_back: Callable[[], None] = give_back,
) -> None:
    """Return free memory to the system every `seconds`, in a thread, until the event is set."""

    def run() -> None:
        while not stop.wait(seconds):
            give_back()

    threading.Thread(target=run, name="memory", daemon=True).start()
