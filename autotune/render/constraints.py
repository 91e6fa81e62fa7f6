"""Constraints in words: what keeps them, what does not, and by how much."""

from __future__ import annotations

from autotune.answer.format import missed
from autotune.answer.objectives import gain, shown
from autotune.answer.result import StudyResult
from autotune.study.records import TrialRecord, exclusions


def feasible(answer: StudyResult) -> str:
    """The headline where the untuned model is out of the question, so that the best of the others is the answer."""
    assert answer.best is not None
    compared = f"; {gain(answer.objective, answer.speedup)} against it" if answer.speedup else ""
    return f"feasible: trial {answer.best.number} keeps every constraint, the untuned model does not{compared}"


def infeasible(answer: StudyResult) -> str:
    """The headline where nothing can be used: the trial that comes closest to what was asked for."""
    closest = answer.closest_miss
    if closest is None:
        return "infeasible: no config works"
    tried = f"none of the {answer.num_tried} configs that were tried keeps every constraint"
    return f"infeasible: {tried}; closest is trial {closest.number}: {misses(closest)}"


def misses(record: TrialRecord) -> str:
    """Every constraint that a trial breaks, with how far; empty where it keeps all."""
    return ", ".join(map(missed, record.violations.values()))


def constraint_lines(answer: StudyResult) -> list[str]:
    """What the constraints exclude, and what they cost."""
    lines = []
    if answer.untuned is not None and answer.untuned.violations:
        lines.append(f"untuned     breaks a constraint: {misses(answer.untuned)}")
    tempting = answer.out_of_bounds
    if tempting is not None:
        value = shown(answer.objective, answer.objective.value(tempting.measurement))
        lines.append(f"infeasible  trial {tempting.number} has {value}, but {misses(tempting)}")
    lines += [f"excluded    {number} of the trials by {name}" for name, number in exclusions(answer.records).items()]
    return lines
