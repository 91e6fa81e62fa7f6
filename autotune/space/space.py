"""`SearchSpace`: which configs there are, read from a YAML file and narrowed to a framework release and a device.

A knob is active when its `when` holds for the knobs before it; a config holds active knobs only, so two configs that
mean the same are equal. The file's order is the order of enumeration.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, HttpUrl, NonNegativeFloat, PositiveInt

from autotune.config import FRAMEWORK, Config, Scalar
from autotune.environment import package_version
from autotune.errors import InputError
from autotune.files import parse_as, read_yaml
from autotune.schema import Record
from autotune.workload.workload import Device, Task

Pattern = dict[str, Scalar | list[Scalar]]
Choose = Callable[[str, tuple[Scalar, ...]], Scalar]


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


@dataclass(frozen=True)
class Circumstances:
    """What decides which knobs and values are on offer."""

    version: str
    """The framework's release."""
    device: Device
    task: Task = "infer"
    preset: Preset = "standard"
    tolerance: float = math.inf
    """Relative error of outputs that the study accepts; 0: whatever changes numerics is left out."""
    num_cores: int = 1
    known: frozenset[Need] = frozenset({"one shape"})
    """Of the shapes that the model is called with."""
    process_settings: bool = False
    """The job will allow what holds for its whole process."""

    def holds_for(self, rule: ForbidEntry) -> bool:
        """The rule says something here."""
        return self.device in rule.devices and self.task in rule.tasks

    def allow(self, conditions: Conditions) -> bool:
        """A knob or value under these conditions is on offer here."""
        return (
            self.device in conditions.devices
            and self.task in conditions.tasks
            and SpecifierSet(conditions.versions).contains(self.version, prereleases=True)
            and PRESETS.index(conditions.preset) <= PRESETS.index(self.preset)
            and all(package_version(name) is not None for name in conditions.packages)
            and conditions.cores <= self.num_cores
            and conditions.error <= self.tolerance
            and self.known.issuperset(conditions.needs)
            and (self.process_settings or not conditions.process)
        )


class Knob(Record):
    """A knob as it holds under the circumstances of a study: `values` are those on offer, in order."""

    name: str
    doc: str
    values: tuple[Scalar, ...]
    when: Pattern
    default: Scalar
    untuned: Scalar
    runtime: bool = False


class SearchSpace(Record):
    """Ordered knobs and forbidden combinations, as they hold under the circumstances of a study."""

    framework: str
    """Several that are searched together are joined by a plus, the one to compare with first (see `joint`)."""
    knobs: tuple[Knob, ...]
    forbid: tuple[tuple[Pattern, str], ...]

    @property
    def frameworks(self) -> tuple[str, ...]:
        return tuple(self.framework.split("+"))

    @property
    def fingerprint(self) -> str:
        """UndoLog when a knob, value, order, condition or rule changes; not with links or the words of a reason."""
        content = self.model_dump(mode="json", exclude={"knobs": {"__all__": {"doc"}}, "forbid": True})
        content["forbid"] = [pattern for pattern, _ in self.forbid]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def untuned(self, framework: str | None = None) -> Config:
        """The model as it is, nothing compiled; of several frameworks the first one's, or that of the named one."""
        return self._start(framework, lambda knob: knob.untuned)

    def default(self, framework: str | None = None) -> Config:
        """The framework's compile as it does by default; of several frameworks the first one's, or the named one's."""
        return self._start(framework, lambda knob: knob.default)

    def anchors(self) -> tuple[Config, ...]:
        """What is always tried first, in this order: the untuned and the default of each framework."""
        starts = ((self.untuned(name), self.default(name)) for name in self.frameworks)
        return tuple(dict.fromkeys(config for pair in starts for config in pair))

    def walk(self, choose: Choose) -> Config:
        """One config, by asking `choose(knob, values)` for each knob that is active, in order."""
        settings: dict[str, Scalar] = {}
        for knob in self.knobs:
            if Config(settings).matches(knob.when):
                settings[knob.name] = choose(knob.name, knob.values)
        return Config(settings)

    def configs(self) -> Iterator[Config]:
        """Every allowed config once, lazily: the anchors first, then in the file's order."""
        first = dict.fromkeys(config for config in self.anchors() if not self.forbidden(config))
        yield from first
        yield from (config for config in self._expand({}, self.knobs) if config not in first)

    def size(self, limit: int) -> int:
        """Number of allowed configs, counted up to `limit`."""
        return sum(1 for _ in itertools.islice(self.configs(), limit))

    def forbidden(self, config: Config) -> str | None:
        """Why this combination is not tried, or None."""
        return next((because for pattern, because in self.forbid if config.matches(pattern)), None)

    def holds(self, config: Config) -> bool:
        """It is a config of this space: the knobs that are active, each at a value on offer, and not forbidden."""

        def choose(name: str, values: tuple[Scalar, ...]) -> Scalar:
            return config[name] if name in config.root and _among(config[name], values) else values[0]

        return self.walk(choose) == config and self.forbidden(config) is None

    def compiled_part(self, config: Config) -> Config:
        """The config without the knobs that only change how compiled code runs."""
        runtime = {knob.name for knob in self.knobs if knob.runtime}
        return Config({name: value for name, value in config.root.items() if name not in runtime})

    def num_changes(self, config: Config) -> int:
        """How many knobs differ from the framework's default compile; the simpler of two equals has fewer.

        Another framework than the first is one change more.
        """
        framework = str(config.get(FRAMEWORK, self.frameworks[0]))
        return len(config.differing(self.default(framework))) + (framework != self.frameworks[0])

    def _expand(self, settings: dict[str, Scalar], remaining: tuple[Knob, ...]) -> Iterator[Config]:
        if not remaining:
            config = Config(settings)
            if self.forbidden(config) is None:
                yield config
            return
        knob, *later = remaining
        if not Config(settings).matches(knob.when):
            yield from self._expand(settings, tuple(later))
            return
        for value in knob.values:
            yield from self._expand({**settings, knob.name: value}, tuple(later))

    def _start(self, framework: str | None, value_of: Callable[[Knob], Scalar]) -> Config:
        chosen = {} if framework is None else {FRAMEWORK: framework}
        return self.walk(lambda name, _: chosen.get(name, value_of(self._knob(name))))

    def _knob(self, name: str) -> Knob:
        return next(knob for knob in self.knobs if knob.name == name)


def read_space_file(path: Path) -> SpaceFile:
    """A space file as written. Raises InputError with file and key."""
    return parse_as(SpaceFile, read_yaml(path), path)


def load_space(path: Path, *, framework: str, circumstances: Circumstances) -> SearchSpace:
    """Read a space file and keep what is on offer here. Raises InputError with file and key."""
    file = read_space_file(path)
    if file.framework != framework:
        raise InputError(f"{path}: key framework: is {file.framework!r}, but the study uses {framework!r}")
    _check_references(file, path)
    knobs = [_narrow(name, entry, circumstances, path) for name, entry in file.knobs.items()]
    space = SearchSpace(
        framework=framework,
        knobs=tuple(knob for knob in knobs if knob is not None),
        forbid=tuple((rule.if_, rule.because) for rule in file.forbid if circumstances.holds_for(rule)),
    )
    for config in (space.untuned(), space.default()):
        if because := space.forbidden(config):
            raise InputError(f"{path}: key forbid: rules out {config}, which every study needs ({because})")
    return space


def _narrow(name: str, entry: KnobEntry, circumstances: Circumstances, path: Path) -> Knob | None:
    """The knob with the values that are on offer; None if none is left."""
    if not circumstances.allow(entry):
        return None
    values = tuple(each.value for each in entry.entries() if circumstances.allow(each))
    if not values:
        return None
    if "untuned" in entry.model_fields_set and not _among(entry.untuned, values):
        raise InputError(
            f"{path}: key knobs.{name}.untuned: {entry.untuned!r} is not offered for "
            f"{circumstances.version} on {circumstances.device}"
        )
    default = entry.default if _among(entry.default, values) else values[0]
    untuned = entry.untuned if "untuned" in entry.model_fields_set else default
    return Knob(
        name=name,
        doc=str(entry.doc),
        values=values,
        when=entry.when,
        default=default,
        untuned=untuned,
        runtime=entry.runtime,
    )


def _among(value: Scalar, values: tuple[Scalar, ...]) -> bool:
    """Membership that keeps 1 and True apart."""
    return any(value == each and type(value) is type(each) for each in values)


def _check_references(file: SpaceFile, path: Path) -> None:
    """Every knob and value that a condition, rule or default names exists, and conditions look back only."""
    values = {name: tuple(e.value for e in entry.entries()) for name, entry in file.knobs.items()}
    before: dict[str, tuple[Scalar, ...]] = {}
    for name, entry in file.knobs.items():
        place = f"{path}: key knobs.{name}"
        if name == FRAMEWORK:
            raise InputError(f"{place}: the name is taken by the knob that chooses between frameworks")
        if len(set(values[name])) < len(values[name]):
            raise InputError(f"{place}.values: a value is given twice (1, 1.0 and true count as one)")
        for key in {"default", "untuned"} & entry.model_fields_set:
            if not _among(getattr(entry, key), values[name]):
                raise InputError(f"{place}.{key}: {getattr(entry, key)!r} is not one of the values")
        _check_pattern(entry.when, before, f"{place}.when", "an earlier knob")
        before[name] = values[name]
    for number, rule in enumerate(file.forbid):
        _check_pattern(rule.if_, values, f"{path}: key forbid.{number}.if", "a knob")


def _check_pattern(pattern: Pattern, known: Mapping[str, tuple[Scalar, ...]], place: str, expected: str) -> None:
    for name, wanted in pattern.items():
        if name not in known:
            raise InputError(f"{place}: {name!r} is not {expected}")
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if not _among(value, known[name]):
                raise InputError(f"{place}.{name}: {value!r} is not one of its values")
