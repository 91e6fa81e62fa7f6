"""A benchmark in pieces: each case leaves its record in a folder, so that a run that was stopped goes on where it was.

The pieces hold for one code and one machine: others are refused, not mixed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from autotune import environment
from autotune.errors import InputError
from autotune.files import write_whole
from autotune.trial.command import code_sha256
from benchmarks.record import REPOSITORY


class Pieces:
    """The records of one benchmark's cases so far. `made_by` is all that they depend on, besides code and machine.

    `anew`: what is in the folder is removed before the first piece. `code`: a digest of the code that they depend on,
    where it is not the package.
    """

    def __init__(
        self,
        folder: Path,
        made_by: dict[str, Any],
        stop_after_min: float | None,
        *,
        anew: bool = False,
        code: str | None = None,
    ) -> None:
        self.folder = folder
        self._made_by = {"code": code or code_sha256(), **_machine(), **made_by}
        self._anew = anew
        self._begun = False
        self._ends = None if stop_after_min is None else time.monotonic() + 60 * stop_after_min

    def record(self, name: str) -> Any:
        """What the piece left, as JSON; None where it was not run yet."""
        file = self._file(name)
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def run(self, name: str, adapter: TypeAdapter[Any], make: Callable[[], Any]) -> Any:
        """The piece's record: the one that is kept, or a new one, which is kept. Ends the program when time is up."""
        self._begin()
        kept = self.record(name)
        if kept is not None:
            return adapter.validate_python(kept)
        if self._ends is not None and time.monotonic() > self._ends:
            print(f"stopped before {name}: the same command goes on from {self.folder}", flush=True)
            raise SystemExit(0)
        made = make()
        write_whole(self._file(name), json.dumps(adapter.dump_python(made, mode="json")))
        return made

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.piece.json"

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if self._anew:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._made_by, sort_keys=True)
        file = self.folder / "made_by.json"
        if not file.exists():
            write_whole(file, text)
        elif file.read_text(encoding="utf-8") != text:
            raise InputError(
                f"{self.folder} holds pieces of other code, another machine or other flags",
                tip="remove it to begin anew, or name another folder with --folder",
            )


def options(parser: argparse.ArgumentParser, name: str) -> None:
    """The flags of a benchmark in pieces."""
    folder = REPOSITORY / "build" / name
    parser.add_argument("--folder", type=Path, default=folder, help="of the pieces (default: build/NAME)")
    parser.add_argument(
        "--stop-after", type=float, metavar="MINUTES", help="begin no piece after that; the same command goes on"
    )


def _machine() -> dict[str, Any]:
    return {"processor": environment.processor(), "num_cores": environment.num_usable_cores()}
