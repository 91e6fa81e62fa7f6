"""Equivalence classes: trials in which the very same program ran are one config under several names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.measure.measurement import Measurement
from autotune.space.space import SearchSpace
from autotune.study.records import TrialRecord


def program_of(record: TrialRecord) -> str | None:
    """The program that a measured trial ran; None where it failed or the framework does not tell."""
    return record.outcome.program if isinstance(record.outcome, Measurement) else None


def run_same_program(first: TrialRecord, second: TrialRecord) -> bool:
    """The two are the same config under two names, as far as the framework tells."""
    program = program_of(first)
    return program is not None and program == program_of(second)


def equivalence_classes(records: Iterable[TrialRecord]) -> list[list[TrialRecord]]:
    """The measured trials by class, in the order of each class's first. A trial without a program is one of its own."""
    classes: dict[str | int, list[TrialRecord]] = {}
    for record in records:
        if isinstance(record.outcome, Measurement):
            program = program_of(record)
            classes.setdefault(record.number if program is None else program, []).append(record)
    return list(classes.values())


def simplest(names: Sequence[TrialRecord], space: SearchSpace) -> TrialRecord:
    """The name to call a class by: the untuned model, or the simplest config, then the cheapest to compile."""
    if len(names) == 1:
        return names[0]
    untuned = space.untuned()
    return min(names, key=lambda record: (record.config != untuned, *simplicity(record, space)))


def representative_of(names: Sequence[TrialRecord], space: SearchSpace) -> TrialRecord:
    """A class as one trial: its simplest name, with a classmate's samples where its own never settled."""
    chosen = simplest(names, space)
    if chosen.measurement.samples.steady:
        return chosen
    better = next((name for name in names if name.measurement.samples.steady), chosen)
    outcome = chosen.measurement.model_copy(update={"samples": better.measurement.samples})
    return replace(chosen, outcome=outcome)


def representatives(records: Iterable[TrialRecord], space: SearchSpace) -> list[TrialRecord]:
    """One trial for each class."""
    return [representative_of(names, space) for names in equivalence_classes(records)]


def simplicity(record: TrialRecord, space: SearchSpace) -> tuple[int, bool, float]:
    """Smaller is simpler: that of the config, then seconds to compile."""
    return *space.simplicity(record.config), record.measurement.compile_s
