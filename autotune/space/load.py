"""`load_space`: a search space from its file, reduced to what is offered for a framework's release and a device."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from autotune.config import Config, Scalar
from autotune.environment import package_version
from autotune.errors import InputError
from autotune.files import parse_as, read_yaml
from autotune.space.schema import (
    OF_MODEL,
    PRESETS,
    RELEASE,
    Conditions,
    ForbidEntry,
    KnobEntry,
    Need,
    Pattern,
    Preset,
    RecipeEntry,
    SpaceFile,
)
from autotune.space.space import Knob, Recipe, SearchSpace, is_among
from autotune.workload.workload import Device, Task


@dataclass(frozen=True)
class Circumstances:
    """What decides which knobs and values are offered."""

    version: str
    """The framework's release."""
    device: Device
    task: Task = "infer"
    preset: Preset = "standard"
    tolerance: float = math.inf
    """Relative error of outputs that the study accepts; 0: everything that changes numerics is left out."""
    num_cores: int = 1
    num_processors: int | None = None
    """Processors of the machine; None: as many as the process may use."""
    known: frozenset[Need] = frozenset({"one shape", *OF_MODEL})
    """Known conditions on the model and the shapes that it is called with."""
    process_settings: bool = False
    """The job allows settings that affect its whole process."""
    starts: frozenset[str] = frozenset()
    """What the job's process can be started with; see `Start`."""
    own_loop: bool = False
    """The job hands no step over: it calls the model in a training loop of its own."""
    records_gradients: bool = False
    """Each call of the model records gradients: it differentiates within itself, or an input requires them."""
    constant_weights: bool = True
    """The model's weights may become constants of compiled code: it is not in training mode, for one."""
    python: str = platform.python_version()

    def holds_for(self, rule: ForbidEntry) -> bool:
        """Whether the rule applies here."""
        return self.device in rule.devices and self.task in rule.tasks

    def allow(self, conditions: Conditions) -> bool:
        """Whether a knob or value under these conditions is offered here."""
        return (
            self.device in conditions.devices
            and self.task in conditions.tasks
            and SpecifierSet(conditions.versions).contains(self.version, prereleases=True)
            and PRESETS.index(conditions.preset) <= PRESETS.index(self.preset)
            and all(map(self._is_installed, conditions.packages_on(self.device)))
            and SpecifierSet(conditions.python).contains(self.python, prereleases=True)
            and conditions.cores <= self.num_cores
            and conditions.processors <= (self.num_processors or self.num_cores)
            and conditions.error <= self.tolerance
            and self.known.issuperset(conditions.needs)
            and (self.process_settings or not conditions.process)
            and (conditions.start is None or conditions.start in self.starts)
            and not (self.own_loop and conditions.whole_step)
            and not (self.records_gradients and conditions.unrecorded)
            and (self.constant_weights or not conditions.constant_weights)
        )

    def _is_installed(self, package: str) -> bool:
        requirement = Requirement(package.replace(RELEASE, ".".join(self.version.split(".")[:2])))
        version = package_version(requirement.name)
        return version is not None and requirement.specifier.contains(version, prereleases=True)


def read_space_file(path: Path) -> SpaceFile:
    """A space file as written. Raises InputError with file and key."""
    return parse_as(SpaceFile, read_yaml(path), path)


def load_space(path: Path, *, framework: str, circumstances: Circumstances) -> SearchSpace:
    """Read a space file and keep what is offered here. Raises InputError with file and key."""
    file = read_space_file(path)
    if file.framework != framework:
        raise InputError(f"{path}: key framework: is {file.framework!r}, but the study uses {framework!r}")
    _check_references(file, path)
    recipes = {name: entry for name, entry in file.recipes.items() if _holds(entry, file, circumstances)}
    brought = _brought_by(recipes.values(), file, circumstances)
    found = (_offered(name, entry, circumstances, path, brought[name]) for name, entry in file.knobs.items())
    knobs = tuple(knob for knob in found if knob is not None)
    rules = [rule for rule in file.forbid if circumstances.holds_for(rule)]
    space = SearchSpace(
        framework=framework,
        knobs=knobs,
        forbid=(
            *((rule.if_, rule.because) for rule in rules if not rule.parts),
            *_only_together(list(recipes.values()), brought, knobs),
        ),
        forbid_in_parts=tuple((rule.if_, rule.because) for rule in rules if rule.parts),
        recipes=tuple(
            Recipe(load=name, settings=Config(entry.settings), source=str(entry.source), slow=entry.slow)
            for name, entry in recipes.items()
        ),
    )
    for config in (space.untuned(), space.default()):
        if because := space.forbidden(config):
            raise InputError(f"{path}: key forbid: rules out {config}, which every study needs ({because})")
    return space


def _holds(recipe: RecipeEntry, file: SpaceFile, circumstances: Circumstances) -> bool:
    """Whether the recipe is for this study, and all its settings are possible here, however deep the search is."""
    deep = replace(circumstances, preset=PRESETS[-1])
    return circumstances.allow(recipe) and all(
        deep.allow(file.knobs[name])
        and any(deep.allow(entry) for entry in file.knobs[name].entries() if is_among(entry.value, (value,)))
        for name, value in recipe.settings.items()
    )


def _brought_by(
    recipes: Iterable[RecipeEntry], file: SpaceFile, circumstances: Circumstances
) -> dict[str, tuple[Scalar, ...]]:
    """Values that are offered for these recipes alone, by their knobs."""
    brought: dict[str, tuple[Scalar, ...]] = dict.fromkeys(file.knobs, ())
    for name, value in (setting for recipe in recipes for setting in recipe.settings.items()):
        knob = file.knobs[name]
        offered = [entry.value for entry in knob.entries() if circumstances.allow(entry)]
        is_offered = circumstances.allow(knob) and is_among(value, tuple(offered))
        if not (is_offered or is_among(value, brought[name])):
            brought[name] += (value,)
    return brought


def _only_together(
    recipes: Sequence[RecipeEntry], brought: Mapping[str, tuple[Scalar, ...]], knobs: Sequence[Knob]
) -> Iterator[tuple[Pattern, str]]:
    """Rules by which a value that is there for recipes is tried in one of them as a whole: where each of these recipes
    has a setting that is another, it is not."""
    offered = {knob.name: knob.values for knob in knobs}
    special = ((knob.name, value) for knob in knobs for value in brought[knob.name] if value != knob.default)
    for name, value in special:
        others = [
            [
                (other, [each for each in offered[other] if not is_among(each, (wanted,))])
                for other, wanted in recipe.settings.items()
                if other != name and len(offered[other]) > 1
            ]
            for recipe in recipes
            if name in recipe.settings and is_among(recipe.settings[name], (value,))
        ]
        for lacking in itertools.product(*others):
            pattern: dict[str, list[Scalar]] = {}
            for other, values in lacking:
                pattern[other] = [each for each in pattern.get(other, values) if is_among(each, tuple(values))]
            if all(pattern.values()):
                yield {name: value, **pattern}, "at this depth the value is tried in a recipe alone"


def _offered(
    name: str, entry: KnobEntry, circumstances: Circumstances, path: Path, brought: tuple[Scalar, ...] = ()
) -> Knob | None:
    """The knob with the values that are offered, those that recipes brought among them; None if there are none."""
    is_allowed = circumstances.allow(entry)
    if not (is_allowed or brought):
        return None
    brought = brought if is_allowed else (*brought, entry.default)
    entries = [
        offered
        for offered in entry.entries()
        if (is_allowed and circumstances.allow(offered)) or is_among(offered.value, brought)
    ]
    values = tuple(offered.value for offered in entries)
    if not values:
        return None
    if "untuned" in entry.model_fields_set and not is_among(entry.untuned, values):
        raise InputError(
            f"{path}: key knobs.{name}.untuned: {entry.untuned!r} is not offered for "
            f"{circumstances.version} on {circumstances.device}"
        )
    default = entry.default if is_among(entry.default, values) else values[0]
    untuned = entry.untuned if "untuned" in entry.model_fields_set else default
    return Knob(
        name=name,
        doc=str(entry.doc),
        values=values,
        when=entry.when,
        default=default,
        untuned=untuned,
        runtime=entry.runtime,
        rounding=tuple(e.value for e in entries if max(e.error, entry.error) > 0 and not is_among(e.value, (untuned,))),
    )


def _check_references(file: SpaceFile, path: Path) -> None:
    """Check that conditions, rules and defaults name existing knobs and values, conditions only earlier knobs."""
    values = {name: tuple(e.value for e in entry.entries()) for name, entry in file.knobs.items()}
    before: dict[str, tuple[Scalar, ...]] = {}
    for name, entry in file.knobs.items():
        place = f"{path}: key knobs.{name}"
        if len(set(values[name])) < len(values[name]):
            raise InputError(f"{place}.values: a value is given twice (1, 1.0 and true count as one)")
        for key in {"default", "untuned"} & entry.model_fields_set:
            if not is_among(getattr(entry, key), values[name]):
                raise InputError(f"{place}.{key}: {getattr(entry, key)!r} is not one of the values")
        _check_pattern(entry.when, before, f"{place}.when", "an earlier knob")
        before[name] = values[name]
    for number, rule in enumerate(file.forbid):
        _check_pattern(rule.if_, values, f"{path}: key forbid.{number}.if", "a knob")
    for name, recipe in file.recipes.items():
        _check_pattern({**recipe.settings}, values, f"{path}: key recipes.{name}.settings", "a knob")


def _check_pattern(pattern: Pattern, known: Mapping[str, tuple[Scalar, ...]], place: str, expected: str) -> None:
    for name, wanted in pattern.items():
        if name not in known:
            raise InputError(f"{place}: {name!r} is not {expected}")
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if not is_among(value, known[name]):
                raise InputError(f"{place}.{name}: {value!r} is not one of its values")
