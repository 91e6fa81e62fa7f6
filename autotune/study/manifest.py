"""`Manifest`: the settings that a study was created with, and that keep its trials comparable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, ValidationError, model_validator
from pydantic_core import from_json

from autotune.errors import InputError, StoreError, marked
from autotune.files import read_file, write_whole
from autotune.measure.accuracy import ReferencePrecision
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Component, Measurement
from autotune.measure.objective import Objective
from autotune.question.question import Scope
from autotune.schema import MOST_SAID, Record, problem, read
from autotune.space.space import SearchSpace
from autotune.study.earlier import MANIFEST, STUDY
from autotune.workload.workload import Workload


class Manifest(Record):
    """Everything that must stay the same for two trials of one study to be comparable."""

    schema_: Annotated[int, STUDY.within] = Field(STUDY.schema, alias="schema")
    """Schema of the study: an earlier one says by what it was written (see `earlier`)."""
    id: str
    """Unique: another study that takes the name and the folder has another id."""
    name: str
    created: str
    autotune_version: str
    optuna_version: str
    workload: Workload
    framework_version: str
    space_file: str
    space: SearchSpace
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)]
    """The first is what the verdict is about."""
    constraints: tuple[Constraint, ...]
    tolerance: Annotated[PositiveFloat, Field(allow_inf_nan=False)] | None
    """None: by the precision of the model (`accuracy.DEFAULT_TOLERANCES`)."""
    reference_precision: ReferencePrecision = "model"
    variables: dict[str, str]
    variants: dict[str, dict[str, str | None]] = {}
    """Variant -> value -> `package.module:function`, or None (see `Declaration`)."""
    components: tuple[Component, ...] = ()
    """What the call of a pipeline calls; empty for one model."""
    search: Scope = Scope()
    """What was asked of the space, of which `space` is what holds here."""

    @model_validator(mode="after")
    def _fits_together(self) -> Manifest:
        """Checked because people edit the file."""
        if self.framework != self.space.framework:
            raise ValueError(f"the space is of {self.space.framework!r} and the model of {self.framework!r}")
        return self

    @property
    def written(self) -> str:
        """What wrote the study and what reads it, for the end of a sentence."""
        return STUDY.written(f"{self.autotune_version} of {self.created[:10]}", self.schema_)

    @property
    def is_of_this_schema(self) -> bool:
        """Whether trials can be added to the study."""
        return self.schema_ == STUDY.schema

    def require_this_schema(self) -> None:
        """Raises StoreError for a study that can be read alone."""
        if not self.is_of_this_schema:
            raise StoreError(
                f"study {self.name!r} cannot go on: it was {self.written}",
                tip=f"show, explain, report and export read it; {self.begin_anew}",
            )

    @property
    def begin_anew(self) -> str:
        """What to do where no trial can be added to it."""
        new, prior = marked("study", "NAME"), marked("prior", self.name)
        return f"to begin another with what was best in it, add {new} and {prior} to its tune"

    @property
    def objective(self) -> Objective:
        """What the verdict is about."""
        return self.objectives[0]

    def values(self, measurement: Measurement) -> tuple[float, ...]:
        """What is minimised, a number for each objective."""
        return tuple(objective.value(measurement) for objective in self.objectives)

    @property
    def framework(self) -> str:
        return self.workload.framework

    def differences(self, other: Manifest) -> list[str]:
        """The settings that differ in `other`, in words; empty if the trials of both are comparable."""
        mine, theirs = self._question(), other._question()
        # 2GiB and 2048MiB are one bound.
        theirs["constraints"] = {
            bound: mine["constraints"].get(bound, text) for bound, text in theirs["constraints"].items()
        }
        return [_change(key, mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]]

    def require_same(self, now: Manifest) -> None:
        """Raises StoreError if trials of `now` would not be comparable with the recorded ones."""
        differences = self.differences(now)
        if differences:
            raise StoreError(
                f"study {self.name!r} was created with different settings: {'; '.join(differences)}",
                tip=f"tune under another name, {marked('study', f'{self.name}-2')}; or ask what it was made for",
            )

    def _question(self) -> dict[str, Any]:
        workload = self.workload
        return {
            "model": workload.reference,
            "model arguments": _named(workload.arguments),
            "the model's source (SHA-256)": (workload.source_sha256 or "")[:12],
            "framework": f"{self.framework} {self.framework_version}",
            "device": workload.device,
            "task": workload.task,
            "shapes": workload.shapes,
            "inputs (SHA-256)": (workload.inputs_sha256 or "")[:12],
            "seed": workload.seed,
            "search space": self.space.fingerprint,
            "objective": ", ".join(objective.name for objective in self.objectives),
            "constraints": {(c.quantity, c.relation, c.bound): c.text for c in self.constraints},
            "tolerance": self.tolerance,
            "reference": self.reference_precision,
            "environment variables": _named(self.variables),
        }

    def write(self, path: Path) -> None:
        write_whole(path, self.model_dump_json(by_alias=True, indent=2))


def _change(key: str, mine: Any, theirs: Any) -> str:
    """What was asked for then and now, in words; of several things, those that came and went."""
    if not isinstance(mine, dict):
        return f"{key}: {_said(mine)} before, {_said(theirs)} now"
    kept = {name for name in mine if mine[name] == theirs.get(name, not mine[name])}
    gone, come = (", ".join(_said(given[name]) for name in given if name not in kept) for given in (mine, theirs))
    one = key.removesuffix("s")
    return "; ".join([*([f"{one} left out: {gone}"] if gone else []), *([f"{one} added: {come}"] if come else [])])


def _named(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{name}={value}" for name, value in given.items()}


def _said(value: Any) -> str:
    return "none" if value in (None, "") else str(value)


def read_manifest(path: Path) -> Manifest:
    """Raises StoreError with file and key where it is missing, broken or of a schema that is not read."""
    try:
        content = from_json(read_file(path))
    except InputError as error:
        raise StoreError(str(error)) from None
    except ValueError as error:
        raise StoreError(f"{path}: not JSON: {str(error)[:MOST_SAID]}", tip=_tip()) from None
    return parse_manifest(content, str(path))


def parse_manifest(content: Any, place: str) -> Manifest:
    """From its JSON form. Raises StoreError with place and key where it is of no schema that is read."""
    kept = content if isinstance(content, dict) else {}
    written = STUDY.written(kept.get("autotune_version"), kept.get("schema"))
    try:
        current = STUDY.current({MANIFEST: content}, STUDY.schema_of(kept))[MANIFEST]
        return read(Manifest.model_validate, current)
    except ValidationError as error:
        raise StoreError(f"{place}: {problem(error, written)}", tip=_tip()) from None
    except ValueError as error:
        raise StoreError(f"{place}: {error} ({written})", tip=_tip()) from None


def _tip() -> str:
    another = f"start another with {marked('study', 'NAME')}"
    return f"use the autotune that wrote it; restore the file if it was edited or damaged; or {another}"
