"""How a user calls the command line here: `autotune`, `python cli.py` or `python -m autotune`.

Every command that is printed to be pasted begins with what this module says.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

AS_A_MODULE = "python -m autotune"
"""Works wherever the package can be imported: what a job, a notebook or a test is told."""
_PACKAGE = Path(__file__).parent


def command(*words: str) -> str:
    """A command line to paste, as this process was called: `command("show", "my-vit")`. The words are quoted."""
    return " ".join([called_as(sys.argv[0] if sys.argv else ""), *map(shlex.quote, words)])


def called_as(program: str) -> str:
    """How to call again what was called as `program` (`sys.argv[0]`)."""
    path = Path(program)
    if path.name == "cli.py" and _is_same(path, _PACKAGE.parent / "cli.py"):
        return f"python {shlex.quote(program)}"
    if path.name == "autotune" and not os.path.isdir(path):
        found = shutil.which(path.name)
        is_found = found is not None and _is_same(Path(found), path)
        return path.name if is_found or len(path.parts) == 1 else shlex.quote(program)
    return AS_A_MODULE


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False
