"""Two configs of one workload side by side, outside of any study: what `verify` and `compare` rest on."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.bench.bench import Bench
from autotune.config import Config
from autotune.errors import SetupError, marked
from autotune.measure.accuracy import ReferencePrecision
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Signature
from autotune.measure.objective import LATENCY, Objective
from autotune.measure.proof import Proof
from autotune.measure.statistics import Speedup, Verdict, verdict_of
from autotune.own_folders import absolute
from autotune.planning.models import make_workload
from autotune.planning.shapes import with_shapes
from autotune.planning.targets import choose_target
from autotune.study.budget import Budget
from autotune.study.study import Study
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuned.tuned_config import TunedConfig
from autotune.tuning.attempts import run_through_crashes
from autotune.tuning.blocks import BlockedRun, Contestant
from autotune.tuning.checks import wrong_again
from autotune.workload.workload import Workload

OnBlock = Callable[[float, float], None]
"""Hears the objective's value of either config in a block."""


@dataclass(frozen=True)
class Side:
    """A config, and what it is a config of."""

    workload: Workload
    config: Config
    signature: Signature | None = None
    """What the model must look like; None: as it is."""


@dataclass(frozen=True)
class PairedRun:
    """`second` is measured against `first`; the outputs of both against those of the `untuned` model."""

    untuned: Side
    first: Side
    second: Side
    variables: dict[str, str]
    objective: Objective
    tolerance: float | None
    reference_precision: ReferencePrecision
    reference: Path
    """Outputs of the untuned model; measured first where the file does not exist."""
    folder: Path
    """For requests, outcomes and caches."""


def sides_of(tuned: TunedConfig) -> tuple[Side, Side]:
    """The untuned model that an exported file's evidence compares with, and its config; here and today.

    Raises InputError, MissingFrameworkError or MissingDeviceError where a workload is not to be had here.
    """
    wanted = tuned.workload
    framework, device = choose_target(tuned.framework, wanted.device)
    workload = make_workload(
        wanted.model,
        wanted.arguments,
        framework,
        device,
        wanted.seed,
        task=wanted.task,
        inputs=None if wanted.inputs is None else Path(wanted.inputs),
    )
    workload = with_shapes(workload, tuned.traffic, Objective.parse(wanted.objective))
    answer = Side(workload, tuned.config, wanted.signature)
    return replace(answer, config=tuned.untuned), answer


def paired_run_of(tuned: TunedConfig, untuned: Side, first: Side, second: Side, folder: Path) -> PairedRun:
    """Two configs under the terms of an exported file."""
    wanted = tuned.workload
    return PairedRun(
        untuned=untuned,
        first=first,
        second=second,
        variables=tuned.environment.variables,
        objective=Objective.parse(wanted.objective),
        tolerance=wanted.tolerance,
        reference_precision=wanted.reference_precision,
        reference=folder / "reference.npz",
        folder=folder,
    )


def paired_run_of_trials(study: Study, first: int, second: int, folder: Path) -> PairedRun:
    """The configs of two trials of a study. Raises InputError for an unknown trial."""
    manifest = study.manifest
    workload = manifest.workload
    return PairedRun(
        untuned=Side(workload, manifest.space.untuned()),
        first=Side(workload, study.record(first).config),
        second=Side(workload, study.record(second).config),
        variables=study.variables,
        objective=manifest.objective,
        tolerance=manifest.tolerance,
        reference_precision=manifest.reference_precision,
        # A study that was never measured has none; what is measured here is not its record.
        reference=study.reference if study.reference.exists() else folder / "reference.npz",
        folder=folder,
    )


@dataclass(frozen=True)
class ComparisonResult:
    """Either a comparison or the failure of one of the two (or of the untuned model) and its name."""

    comparison: Proof | None
    failure: Failure | None = None
    failed: str | None = None
    """`untuned`, `first` or `second`."""
    objective: Objective = LATENCY
    """What the comparison is about."""
    second: Measurement | None = None
    """The second config's first process, which compiled with empty caches."""

    @property
    def blames_config(self) -> bool:
        """One of the two failed by its own doing."""
        return self.failure is not None and self.failed != "untuned" and self.failure.blames_config

    @property
    def speedup(self) -> Speedup | None:
        """How much better the second is than the first."""
        return None if self.comparison is None else self.comparison.look.speedups[0]

    @property
    def verdict(self) -> Verdict | None:
        """About the second; `keep_untuned` stands for: slower than the first."""
        if self.comparison is None or self.speedup is None:
            return None
        verdict = verdict_of(self.speedup)
        both = self.comparison, self.comparison.inverse
        is_tie = verdict is Verdict.UNDECIDED and all(side.look.rules_out(0) for side in both)
        return Verdict.TIE if is_tie else verdict

    @property
    def values(self) -> tuple[float, float]:
        """The objective's value of the first and the second, the median over all blocks. Only with a comparison."""
        assert self.comparison is not None
        first, second = zip(*self.comparison.blocks.values, strict=True)
        return statistics.median(first), statistics.median(second)


def measure(
    pair: PairedRun, bench: Bench, budget: Budget, on_block: OnBlock = lambda _first, _second: None
) -> ComparisonResult:
    """Measure until the answer is clear or the budget's blocks, or its time, are used up.

    Raises SetupError for another model than the one whose signature a side names, or whose outputs the study keeps, and
    for too little time.
    """
    deadline = Deadline.after(budget.wall_s)
    untuned = untuned_outcome(pair, bench, budget, deadline, "untuned")
    if isinstance(untuned, Failure):
        if untuned.reason is Reason.WRONG_RESULT:
            raise wrong_again(untuned, is_later_run=True)
        return ComparisonResult(None, failure=untuned, failed="untuned")
    contest = BlockedRun(
        bench,
        pair.folder,
        [Contestant(name, request_of(pair, budget, side, name)) for name, side in _sides(pair).items()],
        budget.confirmation.fit_for(pair.objective),
        pair.objective.value,
        seed=pair.untuned.workload.seed,
        on_block=lambda values: on_block(*values.values()) if len(values) == 2 else None,
        deadline=deadline,
    )
    comparison = contest.run(is_clear)
    if comparison is None:
        for name, failure in contest.failures.items():
            return ComparisonResult(None, failure=failure, failed=name)
        raise TooLittleTimeError(budget)
    for name, side in _sides(pair).items():
        require_same_model(side, contest.blocks[0][name])
    return ComparisonResult(comparison, objective=pair.objective, second=contest.blocks[0]["second"])


def untuned_outcome(pair: PairedRun, bench: Bench, budget: Budget, deadline: Deadline, name: str) -> Outcome:
    """One process of the untuned model, in the folder `name`, which leaves the reference. Raises SetupError for another
    model than the one that was tuned, and where the time was up before it ended."""
    request = request_of(pair, budget, pair.untuned, name)
    folder = TrialFolder(absolute(pair.folder / name))
    outcome = run_through_crashes(bench, folder, request.limited_to(deadline.cap(request.limits)))
    if isinstance(outcome, Measurement):
        require_same_model(pair.untuned, outcome)
    elif deadline.left_s() <= 0:
        raise TooLittleTimeError(budget)
    return outcome


class TooLittleTimeError(SetupError):
    """The time is up before there are blocks enough."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            f"the time of {budget.wall_s:.3g} s does not hold a comparison of the two",
            tip=f"give more with {marked('budget')}",
        )


def _sides(pair: PairedRun) -> dict[str, Side]:
    return {"first": pair.first, "second": pair.second}


def require_same_model(side: Side, measured: Measurement) -> None:
    """Raises SetupError for another model than the one whose signature the side names."""
    if side.signature not in (None, measured.signature):
        raise SetupError(
            f"{side.workload.model} is not the model that was tuned: its parameters or inputs differ",
            tip="tune it again, and export again",
        )


def request_of(pair: PairedRun, budget: Budget, side: Side, name: str) -> TrialRequest:
    """The request of a side's processes, with caches of their own."""
    return TrialRequest(
        number=0,
        workload=side.workload,
        config=side.config,
        untuned=(side.workload, side.config) == (pair.untuned.workload, pair.untuned.config),
        tolerance=pair.tolerance,
        reference_precision=pair.reference_precision,
        reference=str(absolute(pair.reference)),
        cache=str(absolute(pair.folder / "cache" / name)),
        cold=pair.objective.compiles_cold,
        sampling=budget.sampling,
        limits=budget.limits,
        variables=pair.variables,
    )


def is_clear(comparison: Proof) -> bool:
    """One of the two is proven faster, or neither even looks it."""
    both = comparison, comparison.inverse
    return any(verdict_of(way.look.speedups[0]) is Verdict.FASTER for way in both) or all(
        way.is_clear() for way in both
    )
