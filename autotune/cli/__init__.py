"""The command line: parse, one call, print. Exit status: 0 done, 1 nothing usable, 2 a mistake with a tip, 130 Ctrl-C.

What people read goes to stdout, progress and errors to stderr; with `--json` stdout holds one document and no more.
Imports `api` and the rows above it, in functions: only typer stands at the top of these modules, so that `--help` is
quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from autotune.cli.app import app, at_begin, explained, program_begun, say_error
from autotune.command_line import command
from autotune.errors import OUTPUT, naming

# In the order in which `--help` shows them.
for _commands in ("tune", "show", "studies", "report", "compare", "studies_folder", "listings"):
    importlib.import_module(f"autotune.cli.{_commands}")


def run(begin: Callable[[], None] | None = None, begun: float | None = None) -> None:
    """Run the command that was typed, and exit. `begin` is called when it begins, after flags and files are read;
    `begun`: when the program did, on the monotonic clock."""
    if sys.stdout is None:  # Started with it closed.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as we run)
    if begin is not None:
        at_begin.append(begin)
    if begun is not None:
        program_begun.append(begun)
    try:
        with naming(OUTPUT):
            app(prog_name=command())
    except OSError as error:  # In what is printed outside of a command, such as its help.
        sys.exit(say_error(explained(error)))
