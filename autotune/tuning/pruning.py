"""What the winner has and does not need: settings that do nothing here go back before anything is confirmed. Pure.

A setting goes back to the untuned model's value where that model has the knob, else to the framework's default. What
comes out must have been measured itself: `simpler_config` names a config that would show it, and
`without_idle_settings` uses what was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from autotune.config import Config, Scalar
from autotune.space.space import SearchSpace
from autotune.study.equivalence import run_same_program
from autotune.study.knob_effects import pairs_of
from autotune.study.manifest import Manifest
from autotune.study.records import TrialRecord

MOST_EXTRA = 1
"""Trials of a run at the most that are spent on finding out what the winner does not need."""


def changed_settings(config: Config, space: SearchSpace) -> dict[str, Scalar]:
    """The settings that are not the untuned model's, nor the default where that model has no such knob."""
    away = config.differing(Config(_start(config, space)))
    return {name: value for name, value in config.root.items() if name in away}


def without_idle_settings(candidates: Sequence[TrialRecord], manifest: Manifest, equal: float) -> list[TrialRecord]:
    """The candidates but those for which another one stands that has some of its own settings only.

    One stands for another if the same program ran, or no objective differs by more than the share `equal`. A config
    that is slower than a simpler one stays: it may be needed if that one fails in a fresh process. So does the default,
    which every winner is compared with.
    """
    default = manifest.space.default()
    stand_ins = (
        record if record.config == default else _stand_in(record, candidates, manifest, equal) for record in candidates
    )
    return list({record.number: record for record in stand_ins}.values())


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
    space = manifest.space
    own = changed_settings(record.config, space).items()

    def does(other: TrialRecord) -> bool:
        fewer = changed_settings(other.config, space).items()
        return fewer < own and _are_equal(other, record, manifest, equal)

    ranked = sorted(candidates, key=lambda other: manifest.values(other.measurement)[0])
    return min(filter(does, ranked), key=lambda other: len(changed_settings(other.config, space)), default=record)


def _are_equal(other: TrialRecord, record: TrialRecord, manifest: Manifest, equal: float) -> bool:
    if run_same_program(other, record):
        return True
    if other.disturbed is not None or record.disturbed is not None:
        return False
    pairs = zip(manifest.values(other.measurement), manifest.values(record.measurement), strict=True)
    return all(max(pair) <= (1 + equal) * min(pair) for pair in pairs)


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
    for pair in pairs_of(name, [record for record in measured if record.disturbed is None], manifest.space):
        having = [record for record in pair if record.config.matches({name: config[name]})]
        lacking = [record for record in pair if record.config.matches({name: back})]
        if having and lacking:
            same = run_same_program(*pair)
            gains.append(1.0 if same else value(lacking[0].measurement) / value(having[0].measurement))
    if not gains:
        return "unknown"
    return "matters" if statistics.median(gains) > 1 + equal else "idle"


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
