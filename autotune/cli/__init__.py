"""The command line: parse, one call, print. Exit status: 0 done, 1 nothing usable, 2 a mistake with a tip, 130 Ctrl-C.

What people read goes to stdout, progress and errors to stderr; with `--json` stdout holds one document and no more.
Imports `api` and the rows above it, in functions: only typer stands at the top of these modules, so that `--help` is
quick.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from autotune.cli.app import app, at_begin, explained, program_begun, say_error
from autotune.command_line import command
from autotune.errors import OUTPUT, InputError, naming

# In the order in which `--help` shows them.
for _commands in ("tune", "studies", "compare", "studies_folder", "listings"):
    importlib.import_module(f"autotune.cli.{_commands}")


def run(begin: Callable[[], None] | None = None, begun: float | None = None) -> None:
    """Run the command that was typed, and exit. `begin` is called when it begins, after flags and files are read;
    `begun`: when the program did, on the monotonic clock."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # Started with it closed: its number would be that of the next file.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (for as long as we run)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # A name that the terminal's encoding lacks is no traceback.
    try:
        os.getcwd()
    except OSError:
        sys.exit(say_error(InputError("the current folder is not there any more", tip="go to another one, or back")))
    if begin is not None:
        at_begin.append(begin)
    if begun is not None:
        program_begun.append(begun)
    try:
        with naming(OUTPUT):
            app(prog_name=command())
    except OSError as error:  # In what is printed outside of a command, such as its help.
        sys.exit(say_error(explained(error)))
