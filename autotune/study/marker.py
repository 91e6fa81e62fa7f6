"""`Home`: the machine and folder where a study's trials run, if its records are elsewhere; and the file by which that
folder is known.

Records may be shared, measurements are not: trials of two machines are not comparable, and the files of a trial (logs,
caches, reference outputs) stay where it ran.
"""

from __future__ import annotations

from pathlib import Path

from pydantic_core import from_json

from autotune import environment
from autotune.errors import StoreError
from autotune.files import write_whole
from autotune.own_folders import absolute
from autotune.schema import Record, read

MARKER = "shared_study.json"
"""In the folder of the trials, where a study of one machine has its manifest and database."""


class Home(Record):
    """Where the files of a study's trials are."""

    host: str
    folder: str

    @classmethod
    def here(cls, folder: Path) -> Home:
        return cls(host=environment.hostname(), folder=str(absolute(folder)))

    @property
    def as_path(self) -> Path:
        """As people write a folder of another machine. There is none of that name here, so nothing is read from it."""
        return Path(f"{self.host}:{self.folder}")


class Marker(Record):
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


def read_marker(folder: Path) -> Marker | None:
    """None where the folder holds no trials of a study whose records are elsewhere; a link says nothing of it."""
    if (folder / MARKER).is_symlink():
        return None
    try:
        return read(Marker.model_validate, from_json((folder / MARKER).read_bytes()))
    except (OSError, ValueError):
        return None
