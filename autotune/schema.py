"""`Record`: the base of everything that is written to a file or a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Record(BaseModel):
    """Immutable data with a JSON form; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, which adds whatever `update` names: here an unknown name raises TypeError."""
        unknown = set(update or ()) - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        copied = super().model_copy(update=update, deep=deep)
        # What a `cached_property` has kept in this one need not hold for the copy.
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class SparseRecord(Record):
    """A record that is written without those fields of `ABSENT` that are None or empty."""

    ABSENT: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if value or name not in self.ABSENT}
