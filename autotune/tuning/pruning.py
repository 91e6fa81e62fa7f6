"""What the winner has and does not need: settings that do nothing here go back before anything is confirmed. Pure.

A setting goes back to the untuned model's value where that model has the knob, else to the framework's default. What
comes out must have been measured itself: `simpler_config` names a config that would show it, and
`NeededSettings` uses what was measured.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from autotune.config import Config, Scalar
from autotune.space.space import SearchSpace
from autotune.study.equivalence import run_same_program
from autotune.study.manifest import Manifest
from autotune.study.records import TrialRecord

MOST_EXTRA = 1
"""Trials of a run at the most that are spent on finding out what the winner does not need."""


def changed_settings(config: Config, space: SearchSpace) -> dict[str, Scalar]:
    """The settings that are not the untuned model's, nor the default where that model has no such knob."""
    away = config.differing(Config(_start(config, space)))
    return {name: value for name, value in config.root.items() if name in away}


@dataclass(eq=False)
class _Candidate:
    """A candidate with what decides for whom it stands."""

    record: TrialRecord
    settings: frozenset[tuple[str, Scalar]]
    """See `changed_settings`."""
    values: tuple[float, ...]
    """One for each objective."""
    stand_in: _Candidate | None = None
    """None: itself."""

    @classmethod
    def of(cls, record: TrialRecord, manifest: Manifest) -> _Candidate:
        settings = frozenset(changed_settings(record.config, manifest.space).items())
        return cls(record, settings, tuple(manifest.values(record.measurement)))

    @property
    def rank(self) -> tuple[int, float, int]:
        """Smaller is the better one to stand for another: by its settings, then by the first objective."""
        return len(self.settings), self.values[0], self.record.number

    def offer(self, other: _Candidate, equal: float) -> None:
        """Take the other one for a stand-in, where it does and is better than the one there is."""
        if other.settings < self.settings and (self.stand_in is None or other.rank < self.stand_in.rank):
            self.stand_in = other if self._equals(other, equal) else self.stand_in

    def _equals(self, other: _Candidate, equal: float) -> bool:
        if run_same_program(other.record, self.record):
            return True
        if other.record.disturbed is not None or self.record.disturbed is not None:
            return False
        return all(max(pair) <= (1 + equal) * min(pair) for pair in zip(other.values, self.values, strict=True))


class NeededSettings:
    """The candidates but those for which another one stands that has some of its own settings only.

    One stands for another if the same program ran, or no objective differs by more than the share `equal`. A config
    that is slower than a simpler one stays: it may be needed if that one fails in a fresh process. So does the default,
    which every winner is compared with. From one call to the next only what is new is compared with all others.
    """

    def __init__(self, manifest: Manifest, equal: float) -> None:
        self._manifest = manifest
        self._equal = equal
        self._known: dict[int, _Candidate] = {}

    def among(self, candidates: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Those of them that are needed, in the places of those they stand for."""
        known = self._known
        told = {record.number: record for record in candidates}
        self._forget([one for number, one in known.items() if one.record is not told.get(number)])
        for number, record in told.items():
            if number not in known:
                new = _Candidate.of(record, self._manifest)
                for one in known.values():
                    one.offer(new, self._equal)
                    new.offer(one, self._equal)
                known[number] = new
        default = self._manifest.space.default()
        own = [known[number] for number in told]
        stands = [one if one.record.config == default else one.stand_in or one for one in own]
        return list({one.record.number: one.record for one in stands}.values())

    def _forget(self, gone: Sequence[_Candidate]) -> None:
        """Those for whom one of these stood look for another."""
        left = set(gone)
        for one in left:
            del self._known[one.record.number]
        for orphan in [one for one in self._known.values() if one.stand_in in left]:
            orphan.stand_in = None
            for one in self._known.values():
                orphan.offer(one, self._equal)


def simpler_config(
    records: Sequence[TrialRecord], winner: TrialRecord, manifest: Manifest, equal: float
) -> Config | None:
    """A config that may be as good as the winner with fewer settings, and that no trial has; None: there is none.

    First the winner without all that is not known to matter, then with the most helpful of those that no pair of
    trials tells of, then without those alone that are known to do nothing.
    """
    space = manifest.space
    measured = [record for record in records if record.state == "measured"]
    start = _stand_in(winner, measured, manifest, equal)
    tried = {record.config for record in records if record.outcome is not None}
    for names in _guesses(start, measured, manifest, equal):
        # Where the space forbids it, one more setting stays: it may be what another one needs.
        for fewer in (names, *(names - {staying} for staying in sorted(names))):
            config = _without(start.config, fewer, space)
            if space.holds(config):
                if fewer and config not in tried:
                    return config
                break
    return None


def _stand_in(record: TrialRecord, candidates: Sequence[TrialRecord], manifest: Manifest, equal: float) -> TrialRecord:
    """The candidate with the fewest settings that does for the record; else the record itself."""
    own = _Candidate.of(record, manifest)
    for other in candidates:
        own.offer(_Candidate.of(other, manifest), equal)
    return (own.stand_in or own).record


def _guesses(
    start: TrialRecord, measured: Sequence[TrialRecord], manifest: Manifest, equal: float
) -> Iterator[frozenset[str]]:
    """Sets of settings that may do nothing, the largest first. Whether to compile at all is no such setting."""
    space = manifest.space
    switches = {knob.name for knob in space.knobs if repr(knob.untuned) != repr(knob.default)}
    own = [name for name in changed_settings(start.config, space) if name not in switches]
    told = {name: _told(name, start.config, measured, manifest, equal) for name in own}
    idle = [name for name in own if told[name] == "idle"]
    unknown = [name for name in own if told[name] == "unknown"]
    yield frozenset(idle + unknown)
    if unknown:
        best = max(unknown, key=lambda name: _helpfulness(name, start.config, measured, manifest))
        yield frozenset(idle + unknown) - {best}
    yield frozenset(idle)


def _told(
    name: str, config: Config, measured: Sequence[TrialRecord], manifest: Manifest, equal: float
) -> Literal["idle", "matters", "unknown"]:
    """By pairs of undisturbed trials, whatever else they set: one has the setting, the other has it put back."""
    back, value = _start(config, manifest.space)[name], manifest.objective.value
    gains = []
    for pair in _pairs(name, [record for record in measured if record.disturbed is None], manifest.space):
        having = [record for record in pair if record.config.matches({name: config[name]})]
        lacking = [record for record in pair if record.config.matches({name: back})]
        if having and lacking:
            same = run_same_program(*pair)
            gains.append(1.0 if same else value(lacking[0].measurement) / value(having[0].measurement))
    if not gains:
        return "unknown"
    return "matters" if statistics.median(gains) > 1 + equal else "idle"


def _pairs(name: str, records: Sequence[TrialRecord], space: SearchSpace) -> list[tuple[TrialRecord, TrialRecord]]:
    """Trials that both have the knob and differ in it alone, apart from knobs at their default that it switches on.

    They are grouped by all their other knobs, so that few have to be compared. A knob that another value switches on
    counts as equal where it stands at its default: nobody asked anything of it.
    """
    groups: dict[tuple[Scalar | type, ...], list[TrialRecord]] = defaultdict(list)
    for record in records:
        if name in record.config.root:
            groups[_others(record.config, name, space)].append(record)
    pairs = (pair for group in groups.values() for pair in combinations(group, 2))
    return [(one, other) for one, other in pairs if one.config != other.config]


def _others(config: Config, name: str, space: SearchSpace) -> tuple[Scalar | type, ...]:
    """All knobs but this one, inactive ones at their default; with types, since True and 1 are not the same."""
    values = (config.get(knob.name, knob.default) for knob in space.knobs if knob.name != name)
    return tuple(part for value in values for part in (type(value), value))


def _helpfulness(name: str, config: Config, measured: Sequence[TrialRecord], manifest: Manifest) -> float:
    """Median of the trials without the setting over that of those with it, whatever else they differ in."""
    value = manifest.objective.value
    having = [value(trial.measurement) for trial in measured if trial.config.matches({name: config[name]})]
    lacking = [value(trial.measurement) for trial in measured if not trial.config.matches({name: config[name]})]
    return statistics.median(lacking) / statistics.median(having) if having and lacking else 1.0


def _start(config: Config, space: SearchSpace) -> dict[str, Scalar]:
    """What each knob of the config goes back to."""
    untuned = space.untuned().root
    return {knob.name: untuned.get(knob.name, knob.default) for knob in space.knobs if knob.name in config.root}


def _without(config: Config, names: frozenset[str], space: SearchSpace) -> Config:
    """The config with these settings put back, made whole: knobs that this switches on have their defaults."""
    back = _start(config, space)
    defaults = {knob.name: knob.default for knob in space.knobs}
    return space.walk(lambda name, _: back[name] if name in names else config.get(name, defaults[name]))
