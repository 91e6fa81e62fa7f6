"""The command line and the import path of a program of this package that runs in a process of its own."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

PRELOAD_ONLY_VARIABLE = "AUTOTUNE_PRELOAD_ONLY"
"""Names of variables that hold for a supervisor's import alone and are taken away from the trials, comma-separated."""

_PACKAGE = Path(__file__).resolve().parent.parent


def module_command(name: str, *arguments: str) -> list[str]:
    """The command line that runs a module of the package (`trial.worker.main`) as a program.

    It is started as a file, not with `-m`: MindSpore's capture `trace` reads the source line of every frame on the
    stack, and `-m` adds a frame without one. Without `-P` modules of the package would hide Python's own.
    """
    return [sys.executable, "-P", str(_PACKAGE.joinpath(*name.split(".")).with_suffix(".py")), *arguments]


def package_path(declared: str | None = None) -> str:
    """PYTHONPATH for a child: this package first, then the declared value or the current one."""
    home = str(_PACKAGE.parent)
    return os.pathsep.join(filter(None, [home, declared or os.environ.get("PYTHONPATH")]))


def code_sha256() -> str:
    """A digest of this package's sources: two hosts with the same one measure in the same way."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
