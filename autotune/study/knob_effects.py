"""Pairs of trials that differ in one knob alone, and which knobs had an effect on the programs of a study. Pure.

Where a knob's value switches others on or off, those count as equal if they stand at their default: nobody asked
anything of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from autotune.config import Config, Scalar
from autotune.space.space import SearchSpace
from autotune.study.equivalence import equivalence_classes, program_of
from autotune.study.records import TrialRecord


@dataclass(frozen=True)
class Effect:
    """What a study's trials say about one knob."""

    knob: str
    num_same: int
    """Pairs of trials that differ in this knob alone and ran the same program."""
    num_different: int
    """Pairs of trials that differ in this knob alone and ran different programs."""
    num_classes: int
    """Programs that ran under several of its values, whatever else was set."""

    @property
    def verdict(self) -> Literal["no effect", "changes the program", "not compared"]:
        if self.num_different:
            return "changes the program"
        return "no effect" if self.num_same or self.num_classes else "not compared"


def effects_of(records: Sequence[TrialRecord], space: SearchSpace) -> list[Effect]:
    """One for each knob that can be set in two ways, in the space's order. Trials that tell no program say nothing."""
    told = [record for record in records if program_of(record) is not None]
    classes = [[record.config for record in names] for names in equivalence_classes(told)]
    return [_effect(knob.name, told, classes, space) for knob in space.knobs if len(knob.values) > 1]


def pairs_of(name: str, records: Sequence[TrialRecord], space: SearchSpace) -> list[tuple[TrialRecord, TrialRecord]]:
    """Trials that both have the knob and differ in it alone, apart from knobs at their default that it switches on.

    They are grouped by all their other knobs, so that few have to be compared.
    """
    groups: dict[tuple[Scalar | type, ...], list[TrialRecord]] = defaultdict(list)
    for record in records:
        if name in record.config.root:
            groups[_others(record.config, name, space)].append(record)
    pairs = (pair for group in groups.values() for pair in combinations(group, 2))
    return [(one, other) for one, other in pairs if one.config != other.config]


def _effect(name: str, told: Sequence[TrialRecord], classes: Sequence[Sequence[Config]], space: SearchSpace) -> Effect:
    pairs = pairs_of(name, told, space)
    num_same = sum(program_of(first) == program_of(second) for first, second in pairs)
    return Effect(
        knob=name,
        num_same=num_same,
        num_different=len(pairs) - num_same,
        num_classes=sum(
            len({Config({name: config[name]}) for config in configs if name in config.root}) > 1 for configs in classes
        ),
    )


def _others(config: Config, name: str, space: SearchSpace) -> tuple[Scalar | type, ...]:
    """All knobs but this one, inactive ones at their default; with types, since True and 1 are not the same."""
    values = (config.get(knob.name, knob.default) for knob in space.knobs if knob.name != name)
    return tuple(part for value in values for part in (type(value), value))
