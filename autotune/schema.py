"""`Record`: the base of everything that is written to a file or a database."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable data with a JSON form; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
