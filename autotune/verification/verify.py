"""Does an exported answer still hold, here and today? And how do two answers compare?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from autotune.bench.bench import Bench
from autotune.errors import InputError, SetupError, marked
from autotune.measure.constraint import Constraint
from autotune.measure.objective import LATENCY, Objective
from autotune.measure.statistics import Speedup, Verdict
from autotune.study.budget import Budget
from autotune.study.records import UNRELIABLE_DRIFT
from autotune.tuned.tuned_config import TunedConfig
from autotune.verification.comparison import ComparisonResult, OnBlock, PairedRun, measure, paired_run_of, sides_of

Fate = Literal["holds", "regressed", "wrong", "unclear"]
"""What becomes of an exported answer: shown, refuted, failing or computing something else, or none of these."""
EXIT_CODES: dict[Fate, int] = {"holds": 0, "regressed": 1, "wrong": 1, "unclear": 3}


@dataclass(frozen=True)
class Verification:
    """`outcome` decides a job's fate: `holds`, `regressed`, `wrong` or `unclear` (unproven); `why` is a sentence."""

    outcome: Fate
    why: str
    promised: Speedup | None
    result: ComparisonResult | None
    """None where there was nothing to measure: the exported answer is the untuned model."""
    objective: Objective = LATENCY
    """What was promised."""
    then: tuple[float, float] | None = None
    """The objective's values of the untuned model and the config when it was promised, the median over its blocks.
    Where the untuned model takes another time today, the machine is in another state than it was then."""

    @property
    def exit_code(self) -> int:
        """2 stays for what could not be measured at all."""
        return EXIT_CODES[self.outcome]


def verify(
    tuned: TunedConfig,
    pair: PairedRun | None,
    bench: Bench,
    budget: Budget,
    on_block: OnBlock,
    *,
    max_loss: float = 0.0,
) -> Verification:
    """Measure the exported config against the untuned model; `pair` None if the export is the untuned model.

    A loss of up to `max_loss` of the promised speed-up is no regression. Raises SetupError where the untuned model
    cannot be measured or is not the one that was tuned.
    """
    found = _verify(tuned, pair, bench, budget, on_block, max_loss=max_loss)
    pairs = tuned.evidence.process_pairs
    then = (median(untuned for untuned, _ in pairs), median(best for _, best in pairs)) if pairs else None
    if then is not None and found.outcome == "regressed" and found.result is not None:
        found = replace(found, why=found.why + _moved(tuned, then, found.result))
    return replace(found, objective=Objective.parse(tuned.workload.objective), then=then)


def _moved(tuned: TunedConfig, then: tuple[float, float], result: ComparisonResult) -> str:
    """Which of the two takes something else than it did, where the untuned model does: the ratio alone does not say."""
    untuned, config = (now / before for now, before in zip(result.values, then, strict=True))
    if max(untuned, 1 / untuned) <= 1 + UNRELIABLE_DRIFT:
        return ""
    both = f"the untuned model takes {untuned:.2f} times what it took then, this config {config:.2f} times"
    elsewhere = [] if result.second is None else tuned.environment.differences(result.second.environment)
    if elsewhere:
        return f"; {both} ({'; '.join(elsewhere)})"
    # What a call takes of memory does not depend on how fast a machine is.
    return f"; {both}" + (": the machine may be in another state" if result.objective.is_timed else "")


def _verify(
    tuned: TunedConfig, pair: PairedRun | None, bench: Bench, budget: Budget, on_block: OnBlock, *, max_loss: float
) -> Verification:
    if pair is None:
        return Verification("holds", "the answer is the untuned model, which apply() leaves untouched", None, None)
    promised = tuned.evidence.speedup
    constraints = [Constraint.parse(text) for text in tuned.workload.constraints]  # Before anything takes time.
    result = measure(pair, bench, budget, on_block)
    if result.failure is not None:
        return _of_failure(result, promised)
    assert result.second is not None
    misses = [constraint.miss(result.second) for constraint in constraints]
    broken = ", ".join(miss.constraint.text for miss in misses if miss is not None)
    if broken:
        return Verification("regressed", f"it does not keep {broken} any more", promised, result)
    return Verification(*_judgement(tuned, result, max_loss), promised=promised, result=result)


def _judgement(
    tuned: TunedConfig, result: ComparisonResult, max_loss: float
) -> tuple[Literal["holds", "regressed", "unclear"], str]:
    """`regressed` needs proof: today's whole interval below 1, or below the promised one less `max_loss`.

    Where no gain was promised it holds unless it is proven to be worse than it was; a gain that was promised and is
    neither shown nor refuted today is `unclear`. What was chosen and never compared has to show a gain, too.
    """
    today, promised = result.speedup, tuned.evidence.speedup
    assert today is not None
    better, worse = ("faster", "slower") if result.objective.is_latency else ("better", "worse")
    was_faster, is_new = tuned.verdict is Verdict.FASTER, tuned.verdict is Verdict.CHOSEN and promised is None
    if (was_faster or is_new) and today.high < 1:
        return "regressed", f"it is {worse} than the untuned model" + (", and was never compared with it" * is_new)
    if promised is not None and today.high < promised.low * (1 - max_loss):
        more = f" by more than {max_loss:.0%}" if max_loss else ""
        return "regressed", f"against the untuned model it is worse than it was{more}"
    if not (was_faster or is_new):
        return "holds", "it keeps what was asked of it, and is no worse against the untuned model than it was"
    if result.verdict is Verdict.FASTER:
        return "holds", f"it is {better} than the untuned model here{'' if is_new else ' too'}"
    lost = f"nor to be {worse}, and was never compared with it"
    if not is_new:
        lost = "nor shown to have lost what was promised"
    return "unclear", (
        f"it is neither shown to be {better} than the untuned model today {lost}; runs of one config differ too much "
        "here, try again"
    )


def _of_failure(result: ComparisonResult, promised: Speedup | None) -> Verification:
    failure = result.failure
    assert failure is not None
    if result.failed == "first" or not result.blames_config:
        raise SetupError(
            f"the untuned model could not be measured: {failure.error}", tip=f"full log: {failure.evidence}"
        )
    return Verification("wrong", f"it fails ({failure.reason} at {failure.stage}): {failure.error}", promised, result)


def paired_run_with_untuned(tuned: TunedConfig, folder: Path) -> PairedRun | None:
    """The exported config against the untuned model; None if they are the same."""
    if tuned.is_untuned:
        return None
    untuned, answer = sides_of(tuned)
    return paired_run_of(tuned, untuned, untuned, answer, folder)


def paired_run_of_configs(first: TunedConfig, second: TunedConfig, folder: Path) -> PairedRun:
    """Two exported configs of the same workload against each other. Raises InputError if they are not of one.

    Both run with the first one's seed: with other weights and inputs each, their outputs could not be compared.
    """
    # Each framework has its own function for the model; that both compute the same is measured.
    must_agree = ["arguments", "device", "task", "objective"]
    if first.framework == second.framework:
        must_agree.insert(0, "model")
    for key in must_agree:
        one, other = getattr(first.workload, key), getattr(second.workload, key)
        if one != other:
            raise InputError(
                f"the two files are not comparable: {key} is {one} in the first and {other} in the second",
                tip="compare exports of one model with the same arguments, device and objective",
            )
    traffics = [tuned.traffic for tuned in (first, second)]
    if traffics[0] != traffics[1]:
        one, other = (traffic or "one shape" for traffic in traffics)
        raise InputError(
            f"the two files are not comparable: the first was tuned for {one} and the second for {other}",
            tip="compare exports of the same traffic",
        )
    if first.environment.variables != second.environment.variables:
        raise InputError(
            f"the two files were tuned under different {marked('env')} variables, which decide as much as a config"
        )
    (untuned, one_side), (_, other_side) = sides_of(first), sides_of(second)
    workload = other_side.workload.model_copy(update={"seed": one_side.workload.seed})
    return paired_run_of(first, untuned, one_side, replace(other_side, workload=workload), folder)
