"""`Rule`: settings that are known to make trials fail, under which circumstances, and what shows it; and their file.

The file is `rules.yaml` beside the studies, one for all of them, made to be read and edited by hand. Nothing here
overwrites a file that it cannot read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.errors import InputError
from autotune.files import parse_as, read_yaml, write_yaml
from autotune.measure.accuracy import ReferencePrecision
from autotune.measure.measurement import Reason, Stage
from autotune.schema import Record
from autotune.space.space import SearchSpace
from autotune.study.manifest import Manifest
from autotune.study.storage import in_turn
from autotune.workload.workload import Device, Task

FILE_NAME = "rules.yaml"
OF_ONE_STUDY = frozenset({Reason.OUT_OF_MEMORY, Reason.TIMEOUT})
"""Failures that depend on limits and on what else runs: what they teach holds for the study that saw them."""

_HEADING = """Settings that are known to make trials fail; studies under the same scope do not try them.
List: python cli.py spaces --rules. Remove: python cli.py spaces --forget ID, or delete the entry here."""


class Numerics(Record):
    """What decides whether an output counts as right."""

    tolerance: float | None = None
    reference: ReferencePrecision
    seed: int


class Scope(Record):
    """Circumstances under which a rule holds: under any others it says nothing."""

    model: str
    """What is imported, `package.module:function` or `/path/file.py:function`."""
    arguments: dict[str, Scalar] = {}
    source_sha256: str | None = None
    framework: str
    version: str
    device: Device
    task: Task = "infer"
    device_name: str
    """As the framework names it; of a CPU the processor."""
    variables: dict[str, str] = {}
    numerics: Numerics | None = None
    """Of wrong results only."""
    study: str | None = None
    """Id of the only study in which it holds; None: in all."""

    def is_same(self, other: Scope) -> bool:
        """Equality that keeps 1 and true apart."""
        return _canonical(self) == _canonical(other)


class RuleEvidence(Record):
    """Which trials of which study show it."""

    study: str
    failed: tuple[NonNegativeInt, ...]
    worked: tuple[NonNegativeInt, ...]
    proof: Literal["hybrid", "counts"]
    """`hybrid`: a trial that works and one that fails differ by these settings alone. `counts`: all trials with them
    failed and none without."""
    chance: NonNegativeFloat | None = None
    """By which an innocent setting would look like this; of `counts` only."""
    trials_spent: NonNegativeInt
    """Trials that were asked to find it."""


class Rule(Record):
    """A config that has all settings of `pattern` fails, as far as `knobs` are all there are to set."""

    id: str = Field(min_length=1)
    pattern: dict[str, Scalar] = Field(min_length=1)
    reason: Reason
    stage: Stage
    error: str
    """First line of the child's own error."""
    scope: Scope
    knobs: tuple[str, ...] | None = None
    """The knobs of the space in which it was found; None: whatever there is to set."""
    evidence: RuleEvidence | None = None
    """None: written by hand."""
    created: str = ""

    def excludes(self, config: Config, space: SearchSpace) -> bool:
        """True for a config that has the settings, and sets no knob that is new since away from its default."""
        if not config.matches(self.pattern):
            return False
        known = None if self.knobs is None else set(self.knobs)
        return known is None or all(
            knob.name in known or config.matches({knob.name: knob.default})
            for knob in space.knobs
            if knob.name in config.root
        )

    def subsumes(self, other: Rule) -> bool:
        """Whatever `other` excludes for the same reason under the same circumstances, this one does, too."""
        same = self.reason is other.reason and self.scope.is_same(other.scope) and self.knobs == other.knobs
        return same and Config(other.pattern).matches(self.pattern)


class RulesFile(Record):
    """The whole file."""

    schema_: Literal[1] = Field(alias="schema")
    rules: list[Rule] = []

    @model_validator(mode="after")
    def _ids_differ(self) -> RulesFile:
        ids = [each.id for each in self.rules]
        twice = next((each for each in ids if ids.count(each) > 1), None)
        if twice is not None:
            raise ValueError(f"two rules have the id {twice!r}")
        return self


def scope_of(manifest: Manifest, environment: Environment, reason: Reason, *, of_one_study: bool = False) -> Scope:
    """The circumstances of a study, as far as they matter for failures of this kind; or the study alone."""
    workload = manifest.workload
    numerics = Numerics(tolerance=manifest.tolerance, reference=manifest.reference_precision, seed=workload.seed)
    return Scope(
        model=workload.reference,
        arguments=workload.arguments,
        source_sha256=workload.source_sha256,
        framework=workload.framework,
        version=manifest.framework_version,
        device=workload.device,
        task=workload.task,
        device_name=environment.processor if workload.device == "cpu" else environment.device,
        variables=manifest.variables,
        numerics=numerics if reason is Reason.WRONG_RESULT else None,
        study=manifest.id if of_one_study or reason in OF_ONE_STUDY else None,
    )


def id_of(pattern: dict[str, Scalar], reason: Reason, scope: Scope, knobs: Sequence[str]) -> str:
    """The same for the same finding, whichever study made it."""
    content = json.dumps([pattern, reason, _canonical(scope), list(knobs)], sort_keys=True)
    return "r" + hashlib.sha256(content.encode()).hexdigest()[:7]


def rules_path(studies_dir: Path) -> Path:
    """Where the rules of the studies in a folder are."""
    return studies_dir / FILE_NAME


def read_rules(studies_dir: Path) -> list[Rule]:
    """All rules on file; none where there is no file. Raises InputError with file and key where it is broken."""
    path = rules_path(studies_dir)
    return parse_as(RulesFile, read_yaml(path), path).rules if path.exists() else []


def add_rule(studies_dir: Path, rule: Rule) -> None:
    """Write a rule down, in place of the same one and of those that it makes superfluous. Raises AutotuneError."""

    def superfluous(other: Rule) -> bool:
        return other.id == rule.id or rule.subsumes(other)

    _change(studies_dir, lambda rules: [*(each for each in rules if not superfluous(each)), rule])


def forget_rules(studies_dir: Path, ids: Collection[str] | None) -> list[Rule]:
    """Remove the rules with these ids, or all; those that were removed. Raises AutotuneError."""
    if not rules_path(studies_dir).exists():
        return []
    gone: list[Rule] = []

    def without(rules: Sequence[Rule]) -> list[Rule]:
        gone.extend(each for each in rules if ids is None or each.id in ids)
        return [each for each in rules if each not in gone]

    _change(studies_dir, without)
    return gone


def _change(studies_dir: Path, change: Callable[[Sequence[Rule]], list[Rule]]) -> None:
    """Read, change and write in turn with other processes: two studies may learn at the same time."""
    with in_turn(studies_dir / f".{FILE_NAME}.lock"):
        rules = RulesFile(schema=1, rules=change(read_rules(studies_dir)))
        content = rules.model_dump(mode="json", by_alias=True, exclude_none=True)
        # None is a value in these; everywhere else it means: does not apply.
        for plain, rule in zip(content["rules"], rules.rules, strict=True):
            plain["pattern"], plain["scope"]["arguments"] = rule.pattern, rule.scope.arguments
        try:
            write_yaml(rules_path(studies_dir), content, comment=_HEADING, compact=True)
        except InputError as error:
            raise InputError(str(error), tip="check the permissions of the studies folder") from None


def _canonical(scope: Scope) -> str:
    return json.dumps(scope.model_dump(mode="json"), sort_keys=True)
