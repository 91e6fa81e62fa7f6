"""The command line: parse, one call, print. Exit status: 0 done, 1 nothing usable, 2 a mistake with a tip, 130 Ctrl-C.

What people read goes to stdout, progress and errors to stderr; with `--json` stdout holds one document and no more.
Imports `api` and the rows above it, in functions: only typer stands at the top of these modules, so that `--help` is
quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from autotune.cli.app import app
from autotune.command_line import command

# In the order in which `--help` shows them.
for _commands in ("tune", "show", "studies", "report", "compare", "diagnose", "studies_folder", "listings"):
    importlib.import_module(f"autotune.cli.{_commands}")


def main() -> None:
    """Entry point of `python cli.py` and of the installed command."""
    if sys.stdout is None:  # Started with it closed.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as we run)
    app(prog_name=command())
