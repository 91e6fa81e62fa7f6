"""`StudyHome`: the machine and folder where a shared study's trials run, and the file by which that folder is known.

Records are shared, measurements are not: trials of two machines are not comparable, and the files of a trial (logs,
caches, reference outputs) stay where it ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from autotune import environment
from autotune.errors import StoreError
from autotune.files import write_whole
from autotune.schema import Record

MARKER = "shared_study.json"
"""In the folder of a shared study's evidence, where a study of one machine has its manifest and database."""


class StudyHome(Record):
    """Where the files of a study's trials are."""

    host: str
    folder: str

    @classmethod
    def here(cls, folder: Path) -> StudyHome:
        return cls(host=environment.hostname(), folder=str(folder.resolve()))

    @property
    def as_path(self) -> Path:
        """As people write a folder of another machine. There is none of that name here, so nothing is read from it."""
        return Path(f"{self.host}:{self.folder}")


class StudyMarker(Record):
    """What the folder belongs to."""

    id: str
    """The manifest's."""
    study: str
    storage: str
    """The storage's URL without secrets."""

    def write(self, folder: Path) -> None:
        """Raises StoreError."""
        try:
            write_whole(folder / MARKER, self.model_dump_json(indent=2))
        except OSError as error:
            raise StoreError(f"cannot write in {folder}: {error.strerror}") from None


def read_marker(folder: Path) -> StudyMarker | None:
    """None where the folder is no shared study's."""
    try:
        return StudyMarker.model_validate_json((folder / MARKER).read_bytes())
    except (OSError, ValidationError):
        return None


def folder_here(study_id: str, candidates: Iterable[Path]) -> Path | None:
    """The first of the folders that holds this study's evidence. The host's name does not count: it changes with each
    container, and a volume can move to another machine with what was measured."""
    for folder in candidates:
        marker = read_marker(folder)
        if marker is not None and marker.id == study_id:
            return folder
    return None
