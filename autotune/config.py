"""`Config`: one immutable point of a search space, with a canonical form and a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated

from pydantic import ConfigDict, Field, RootModel, StrictBool, StrictFloat, StrictInt, StrictStr

Scalar = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | StrictStr | None

VARIANT = "variant."
"""Prefix of knobs of variants, alternative implementations of parts of a model that compute the same, declared by its
author: `variant.attention` is the knob of the variant `attention`."""


class Config(RootModel[dict[str, Scalar]]):
    """Knob name -> value, active knobs only. Two configs that say the same have the same fingerprint."""

    model_config = ConfigDict(frozen=True)

    def __getitem__(self, knob: str) -> Scalar:
        return self.root[knob]

    def get(self, knob: str, default: Scalar = None) -> Scalar:
        return self.root.get(knob, default)

    def knobs(self) -> Iterator[str]:
        return iter(self.root)

    def canonical(self) -> str:
        """JSON with sorted keys and no spaces: equal configs give equal text."""
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        # Kept, since sets of thousands of configs are made again and again.
        return json.dumps(self.root, sort_keys=True, separators=(",", ":"))

    @property
    def fingerprint(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    def differing(self, other: Config) -> frozenset[str]:
        """Names of the knobs that the two set differently, or that only one of them has."""
        names = self.root.keys() | other.root.keys()
        return frozenset(
            n for n in names if not (n in self.root and n in other.root and _fits(self.root[n], other.root[n]))
        )

    def matches(self, pattern: Mapping[str, object]) -> bool:
        """True if each knob of `pattern` is set here to its value, or to one of its list of values."""
        return fits(self.root, pattern)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def __str__(self) -> str:
        """Knobs and values, for people."""
        return " ".join(f"{name}={_short(value)}" for name, value in self.root.items())


def fits(settings: Mapping[str, Scalar], pattern: Mapping[str, object]) -> bool:
    """`Config.matches` of settings that may be a part of a config only."""
    return all(name in settings and _fits(settings[name], wanted) for name, wanted in pattern.items())


def _fits(value: Scalar, wanted: object) -> bool:
    alternatives = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    return any(value == each and type(value) is type(each) for each in alternatives)


def _short(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)
