"""`TierSpec`: one quality level of a model, declared by its author: what is built, and how accurate it must be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PositiveFloat, ValidationError

from autotune.config import Scalar
from autotune.errors import InputError
from autotune.schema import Record


class TierSpec(Record):
    """A size, a variant or a precision: all are arguments of the model's function, but for a tolerance."""

    arguments: dict[str, Scalar] = {}
    """Arguments of the model's function; what is not named here stays as the study has it."""
    tolerance: Annotated[PositiveFloat, Field(allow_inf_nan=False)] | None = None
    """Largest relative error of an output; None: as the study has it."""


TierSpecs = Mapping[str, TierSpec]
"""By name, the best first."""


def parse_tier_specs(tiers: object, model: str) -> dict[str, TierSpec]:
    """The tiers that the author of `model` declared. Raises InputError."""
    if not isinstance(tiers, Mapping) or not tiers:
        raise InputError(f"{model} returned {tiers!r} as tiers", tip=_WRITE)
    for name in tiers:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"{model}: the tier {name!r} needs a name of letters, digits and underscores")
    return {name: _tier_spec(name, entry, model) for name, entry in tiers.items()}


def _tier_spec(name: str, entry: object, model: str) -> TierSpec:
    """An argument's value is never a dict, so the two forms cannot be confused."""
    is_long = isinstance(entry, Mapping) and isinstance(entry.get("arguments"), Mapping)
    try:
        return TierSpec.model_validate(entry if is_long else {"arguments": entry})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        raise InputError(f"{model}: the tier {name}: {key}: {first['msg']}", tip=_WRITE) from None


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_WRITE = (
    "write tiers as a dict, the best first: {NAME: {ARGUMENT: VALUE}}, "
    "or {NAME: {'arguments': {ARGUMENT: VALUE}, 'tolerance': 0.02}}"
)
