"""A space file as written: its knobs, their values, and the conditions under which those are on offer."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from packaging.requirements import InvalidRequirement, Requirement
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


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is not a package such as 'torch_npu' or 'torch_npu>=2.9'") from None
    return text


Package = Annotated[str, AfterValidator(_requirement)]


Preset = Literal["quick", "standard", "exhaustive"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
"""How deep a space is searched: each preset includes those before it."""


Need = Literal["one shape", "traffic", "padding", "batch", "plain decoder"]
"""A condition on the shapes that a model is called with: one shape, or traffic of several; a dimension that may be
padded, or a batch dimension (see `planning.shapes`). Or on a model that generates text: its steps can be tuned."""


class Conditions(Record):
    """Conditions under which a knob, or one of its values, is offered."""

    versions: VersionRange = ""
    devices: list[Device] = ["cpu", "gpu", "ascend"]
    tasks: list[Task] = ["infer", "train", "generate"]
    preset: Preset = "quick"
    """The first preset that includes it."""
    packages: list[Package] | dict[Device, list[Package]] = []
    """Distributions that must be installed, in a range of releases where one is given; by device, where only some need
    them."""
    python: VersionRange = ""
    cores: PositiveInt = 1
    """Minimum number of cores that the process may use."""
    error: NonNegativeFloat = 0.0
    """Expected relative error of outputs: offered if the study tolerates that much. 0: same numerics."""
    needs: list[Need] = []
    process: bool = False
    """It affects the whole process, including other models in it: offered only if the job allows that."""
    whole_step: bool = False
    """It is about more of a training step than the model's call: not offered where the job keeps its own loop."""
    unrecorded: bool = False
    """It cannot serve a call that records gradients: not offered for a model whose calls all do."""

    def packages_on(self, device: Device) -> list[Package]:
        """Those that are needed on a device."""
        return self.packages.get(device, []) if isinstance(self.packages, dict) else self.packages


class ValueEntry(Conditions):
    """A value that is offered only under conditions."""

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
    """It changes how compiled code runs, not the code: configs that differ only in it compile to the same code."""

    def entries(self) -> list[ValueEntry]:
        return [value if isinstance(value, ValueEntry) else ValueEntry(value=value) for value in self.values]


class ForbidEntry(Record):
    """A combination that is never tried, and why."""

    if_: Pattern = Field(alias="if", min_length=1)
    devices: list[Device] = ["cpu", "gpu", "ascend"]
    tasks: list[Task] = ["infer", "train", "generate"]
    parts: bool = False
    """The rule is for configs that compile parts of the model, each on its own (knob `region`)."""
    because: str = Field(min_length=1)


class SpaceFile(Record):
    """A whole space file."""

    schema_: Literal[1] = Field(alias="schema")
    framework: str
    about: str = ""
    knobs: dict[str, KnobEntry] = Field(min_length=1)
    forbid: list[ForbidEntry] = []
