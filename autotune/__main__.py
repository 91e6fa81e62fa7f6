"""The program: `python -m autotune`, `cli.py` of a checkout, and the installed command."""

import os
import signal
import time


def main() -> None:
    """Run the command line. An interrupt before a command has begun, while modules are imported, or after it has ended
    leaves the process at once: nothing is under way that would have to be undone."""
    begun = time.monotonic()  # A time budget is that of the whole command, imports included.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # A shell's background job ignores it.
    if handled:
        signal.signal(signal.SIGINT, _leave)
    from autotune.cli import run

    try:
        run(_interrupt if handled else None, begun)
    finally:
        if handled:
            signal.signal(signal.SIGINT, _leave)


def _interrupt() -> None:
    """From now on Ctrl-C is an exception, which the command answers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
