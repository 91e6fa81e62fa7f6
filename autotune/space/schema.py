"""A space file as written: its knobs, their values, and the conditions under which those are on offer."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, HttpUrl, NonNegativeFloat, PositiveInt

from autotune.config import Scalar
from autotune.schema import Record
from autotune.workload.workload import Device, Task

Pattern = dict[str, Scalar | list[Scalar]]
"""Knob -> the value, or the values, that it must have."""


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version range such as '>=2.6,<3'") from None
    return text


VersionRange = Annotated[str, AfterValidator(_specifier)]


Preset = Literal["quick", "standard", "exhaustive"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
"""How deep a space is searched: each preset has all of those before it."""


Need = Literal["one shape", "traffic", "padding", "batch"]
"""What must be so of the shapes that a model is called with: there is one, or there are several; one of their
dimensions may be padded, or is a batch (see `strategy.known_of`)."""


class Conditions(Record):
    """Where a knob, or one of its values, is on offer."""

    versions: VersionRange = ""
    devices: list[Device] = ["cpu", "gpu", "ascend"]
    tasks: list[Task] = ["infer", "train"]
    preset: Preset = "quick"
    """The first preset that has it."""
    packages: list[str] = []
    """Distributions that must be installed."""
    cores: PositiveInt = 1
    """Fewest cores that a process must be allowed to use."""
    error: NonNegativeFloat = 0.0
    """Relative error of outputs to be expected: it is offered where the study tolerates so much. 0: same numerics."""
    needs: list[Need] = []
    process: bool = False
    """It holds for the whole process, other models in it included: offered where the job is to allow that."""


class ValueEntry(Conditions):
    """A value that is not on offer everywhere."""

    value: Scalar
    because: str = ""


class KnobEntry(Conditions):
    """A knob as written in the file."""

    doc: HttpUrl
    about: str = ""
    values: list[ValueEntry | Scalar] = Field(min_length=1)
    when: Pattern = {}
    default: Scalar
    untuned: Scalar = None
    runtime: bool = False
    """It never changes what the compiler emits, only how that runs: configs that differ in it alone compile alike."""

    def entries(self) -> list[ValueEntry]:
        return [each if isinstance(each, ValueEntry) else ValueEntry(value=each) for each in self.values]


class ForbidEntry(Record):
    """A combination that is never tried, and why."""

    if_: Pattern = Field(alias="if", min_length=1)
    devices: list[Device] = ["cpu", "gpu", "ascend"]
    tasks: list[Task] = ["infer", "train"]
    because: str = Field(min_length=1)


class SpaceFile(Record):
    """The whole file."""

    schema_: Literal[1] = Field(alias="schema")
    framework: str
    about: str = ""
    knobs: dict[str, KnobEntry] = Field(min_length=1)
    forbid: list[ForbidEntry] = []
