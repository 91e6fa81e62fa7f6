"""A space file as written: its knobs, their values, and the conditions under which those are on offer."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Literal, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, HttpUrl, NonNegativeFloat, PositiveInt

from autotune.config import Scalar
from autotune.schema import Record
from autotune.workload.workload import Device, Load, Task

Pattern = dict[str, Scalar | list[Scalar]]
"""Knob -> the value, or the values, that it must have."""


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version range such as '>=2.6,<3'") from None
    return text


VersionRange = Annotated[str, AfterValidator(_specifier)]


RELEASE = "{release}"
"""In a package's range of releases: the framework's own, as 2.14."""


def _requirement(text: str) -> str:
    try:
        Requirement(text.replace(RELEASE, "0.0"))
    except InvalidRequirement:
        raise ValueError(f"{text!r} is not a package such as 'torch_npu' or 'torch_npu>=2.9'") from None
    return text


Package = Annotated[str, AfterValidator(_requirement)]


Preset = Literal["quick", "standard", "exhaustive"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
"""How deep a space is searched: each preset includes those before it."""


_OfModel = Literal["plain decoder", "linear layers", "matrix products", "dropout", "no dropout"]
Need = Literal["one shape", "traffic", "padding", _OfModel, Load]
"""A condition on the shapes that a model is called with: one shape, or traffic of several; a dimension that may be
padded (see `planning.shapes`). Or on the model: the steps in which it generates text can be
tuned; a compiler may pack its linear layers, and they hold a part of its weights that counts; its calls multiply
matrices, and that is a part of their work that counts; a step of its training drops some of its numbers, or none; or
the kind of load that a call is."""
UNLESS_LACKING: frozenset[Need] = frozenset({"matrix products", "no dropout"})
"""Conditions that every model meets unless it is known not to."""
OF_MODEL: tuple[Need, ...] = get_args(Need)[3:]
"""Conditions on the model, whichever shapes it is called with."""


Start = Literal["variables", "cores", "jemalloc", "tcmalloc", "iomp"]
"""What a process can be started with: environment variables, a core set, a library that is loaded before all others."""


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
    processors: PositiveInt = 1
    """Minimum number of processors of the machine, whichever of them the process may use."""
    error: NonNegativeFloat = 0.0
    """Expected relative error of outputs: offered if the study tolerates that much. 0: same numerics."""
    needs: list[Need] = []
    process: bool = False
    """The knob affects the whole process, including other models in it: offered only if the job allows that."""
    start: Start | None = None
    """A process can be started so: offered only if the job lets its process be started anew, and where this machine has
    what it takes."""
    whole_step: bool = False
    """The knob is about more of a training step than the model's call: not offered where the job keeps its loop."""
    unrecorded: bool = False
    """The knob cannot serve a call that records gradients: not offered for a model whose calls all do."""
    constant_weights: bool = False
    """The knob makes constants of the weights: not offered where they change, such as in training mode."""

    def packages_on(self, device: Device) -> list[Package]:
        """Those that are needed on a device."""
        return self.packages.get(device, []) if isinstance(self.packages, dict) else self.packages


class ValueEntry(Conditions):
    """A value that is offered only under conditions."""

    value: Scalar
    because: str = ""


class RegisteredEntry(Conditions):
    """Names that installed packages give in a group of entry points, each a value that is offered under conditions."""

    registered: str
    because: str = ""

    def entries(self) -> list[ValueEntry]:
        """Those that are installed, in the order of the alphabet."""
        conditions = self.model_dump(exclude={"registered"}, exclude_unset=True)
        names = sorted(metadata.entry_points(group=self.registered).names)
        return [ValueEntry(value=name, **conditions) for name in names]


class KnobEntry(Conditions):
    """A knob as written in the file."""

    doc: HttpUrl
    about: str = ""
    values: list[ValueEntry | RegisteredEntry | Scalar] = Field(min_length=1)
    when: Pattern = {}
    default: Scalar
    untuned: Scalar = None
    runtime: bool = False
    """The knob changes how compiled code runs and not the code: configs that differ only in it share their code."""

    def written(self) -> list[ValueEntry | RegisteredEntry]:
        """Values with their conditions, as the file has them."""
        return [value if isinstance(value, Conditions) else ValueEntry(value=value) for value in self.values]

    def entries(self) -> list[ValueEntry]:
        """Values with their conditions, those that are registered here among them."""
        named = [entry for entry in self.written() if isinstance(entry, ValueEntry)]
        known = {entry.value for entry in named}
        groups = [entry for entry in self.written() if isinstance(entry, RegisteredEntry)]
        return [*named, *(entry for group in groups for entry in group.entries() if entry.value not in known)]


class ForbidEntry(Record):
    """A combination that is never tried, and why."""

    if_: Pattern = Field(alias="if", min_length=1)
    devices: list[Device] = ["cpu", "gpu", "ascend"]
    tasks: list[Task] = ["infer", "train", "generate"]
    parts: bool = False
    """The rule is for configs that compile parts of the model, each on its own (knob `region`)."""
    because: str = Field(min_length=1)


class RecipeEntry(Conditions):
    """Settings that pay together by public reports, and where a study tries them among its first configs. A value that
    the preset leaves out is then tried in its recipe, and nowhere else."""

    about: str
    """What was reported, in a part of a sentence."""
    source: HttpUrl
    settings: dict[str, Scalar] = Field(min_length=1)
    slow: bool = False
    """Compiling it takes minutes: what was best on recorded models is tried before it."""


class SpaceFile(Record):
    """A whole space file."""

    schema_: Literal[1] = Field(alias="schema")
    framework: str
    about: str = ""
    knobs: dict[str, KnobEntry] = Field(min_length=1)
    forbid: list[ForbidEntry] = []
    recipes: dict[str, RecipeEntry] = {}
    """By the kind of load that they are for."""
