"""The program: `python -m autotune`, `cli.py` of a checkout, and the installed command."""

import os
import signal
import sys
import time


def main() -> None:
    """Run the command line. An interrupt before a command has begun, while modules are imported, or after it has ended
    leaves the process at once: nothing is under way that would have to be undone."""
    begun = time.monotonic()  # A time budget is that of the whole command, imports included.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # A shell's background job ignores it.
    if handled:
        signal.signal(signal.SIGINT, _leave)
    try:
        from autotune.cli import run
    except ModuleNotFoundError as error:
        sys.exit(_say_missing(error))

    try:
        run(_interrupt if handled else None, begun)
    finally:
        if handled:
            signal.signal(signal.SIGINT, _leave)


def _say_missing(error: ModuleNotFoundError) -> int:
    """What to install, on stderr. Returns the exit status. Raises the error where it may be a bug."""
    from autotune.command_line import without_tuning

    missing = without_tuning(error)
    if missing is None:
        raise error
    sys.stderr.write(f"error: {missing}\ntip: {missing.tip}\n")
    return missing.exit_code


def _interrupt() -> None:
    """From now on Ctrl-C is an exception, which the command answers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
