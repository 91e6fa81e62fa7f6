"""How a user calls the command line here: `autotune`, `python cli.py` or `python -m autotune`, and with which flags.

Every command that is printed to be pasted begins with what this module says. Code below the faces names no flag but a
field of the question, by `errors.marked`: the face that shows the text words it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.errors import SetupError

AS_A_MODULE = "python -m autotune"
"""Works wherever the package can be imported: what a job, a notebook or a test is told."""
_PACKAGE = Path(__file__).parent
_OF_TUNING = ("optuna", "rich", "scipy", "sqlalchemy", "typer")
"""Packages of the extra `tune`."""
_FLAGS = {
    "build": "model",
    "arguments": "model-arg",
    "constraints": "constraint",
    "knobs": "knob",
    "as_json": "json",
}
"""Field of the question -> its flag, where that is not the field's own name with dashes."""


def command(*words: str, **fields: Any) -> str:
    """A command line to paste, as this process was called: `command("tune", build="vit")`. The words are quoted."""
    return " ".join([called_as(sys.argv[0] if sys.argv else ""), *map(shlex.quote, words)]) + options(**fields)


def options(**fields: Any) -> str:
    """The flags that say this, each with a space before it; for None, False and no value there is none."""
    return "".join(f" {word}" for field, value in fields.items() for word in _words(flag(field), value))


def install(extra: str) -> str:
    """What installs an extra of this package: the distribution is on no index, so a checkout installs itself."""
    place = _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").is_file() else "autotune-compile"
    return f"pip install {'-e ' if isinstance(place, Path) else ''}'{place}[{extra}]'"


def without_tuning(error: ModuleNotFoundError) -> SetupError | None:
    """The sentence where a package is missing that a search and the command line need, and a job does not; None for
    any other package."""
    package = (error.name or "").partition(".")[0]
    if package not in _OF_TUNING:
        return None
    return SetupError(
        f"{package} is not installed: tuning needs more packages than a job that loads a config", tip=install("tune")
    )


def require_tuning() -> None:
    """Raises SetupError where one of them is missing. Imports none."""
    lacking = (ModuleNotFoundError(name=package) for package in _OF_TUNING if find_spec(package) is None)
    if (missing := next(map(without_tuning, lacking), None)) is not None:
        raise missing


def flag(field: str) -> str:
    """The flag by which a field of the question is given."""
    return "--" + _FLAGS.get(field, field.replace("_", "-"))


def as_flag(field: str, value: object) -> str:
    """How the command line says a field of the question, with what was given for it: `--tolerance 0.1`."""
    return flag(field) if value is None else options(**{field: value}).lstrip()


def _words(flag: str, value: Any) -> Iterator[str]:
    """A flag is repeated for each value of several. Of a mapping, each is NAME=VALUE."""
    if isinstance(value, Mapping):
        value = [f"{name}={one}" for name, one in value.items()]
    if value is True:
        yield flag
    elif value is not None and value is not False:
        for one in value if isinstance(value, (list, tuple)) else [value]:
            yield f"{flag} {shlex.quote(str(one))}"


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
