"""Two configs measured side by side, and an exported one measured again: in a terminal."""

from __future__ import annotations

from autotune.answer.format import ABOUT_THE_SECOND
from autotune.answer.objectives import gain, shown
from autotune.measure.objective import Objective
from autotune.verification.comparison import ComparisonResult
from autotune.verification.verify import Verification


def comparison_lines(result: ComparisonResult, names: tuple[str, str]) -> list[str]:
    """Two configs side by side, or which of them failed and why."""
    first, second = names
    if result.failure is not None:
        who = {"first": first, "second": second}.get(result.failed or "", "the untuned model")
        return [f"{who} fails ({result.failure.reason} at {result.failure.stage}): {result.failure.error}"]
    assert result.verdict is not None
    assert result.speedup is not None
    objective, values = result.objective, result.values
    width = max(len(first), len(second))
    word = ABOUT_THE_SECOND[result.verdict]
    if not objective.is_latency:
        word = {"faster": "better", "slower": "worse"}.get(word, word)
    return [
        f"{second} against {first}: {word}, {gain(objective, result.speedup)}",
        *(f"  {name:<{width}}  {value_words(objective, value)}" for name, value in zip(names, values, strict=True)),
    ]


def verification_lines(verification: Verification) -> list[str]:
    """Whether an exported answer still holds, with the figures of then and of today."""
    lines = [f"{verification.outcome}: {verification.why}"]
    if verification.promised is not None:
        lines.append(f"  promised  {gain(verification.objective, verification.promised)}")
    result = verification.result
    if result is not None and result.speedup is not None:
        untuned, tuned = (value_words(result.objective, value) for value in result.values)
        lines.append(f"  today     {gain(result.objective, result.speedup)}")
        then = ""
        if verification.then is not None:
            then = " (then {} and {})".format(*(shown(result.objective, value) for value in verification.then))
        lines.append(f"  untuned   {untuned}, tuned {tuned}{then}")
    return lines


def value_words(objective: Objective, value: float) -> str:
    """A value of the objective with its unit and, of a time, of what."""
    is_of_a_call = objective.quantity in ("latency", "p90", "p99")
    return shown(objective, value) + (" a call" if is_of_a_call else "")
