"""The `holdfast` command, `python -m holdfast.webhook`. Signals end it even during its imports."""

import signal
import sys

from holdfast.webhook import process


def main() -> None:
    """Run the command. A signal during its imports ends it without a traceback."""
    process.exit_on_signals()
    if "serve" not in sys.argv:  # it forks, and may drain for longer
        process.stop_in_time(process.END_SECONDS)
    # as PID 1, a process without a handler ignores the signal
    signal.signal(signal.SIGINT, lambda number, _frame: sys.exit(128 + number))
    from holdfast.webhook.cli.main import main as command  # noqa: PLC0415 - slow to import

    signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
