"""What another environment changes for an exported config: the day of an upgrade.

The same model is measured four times in each block, in processes of both environments: untuned and tuned, here and
there. So every figure of the answer is a ratio within blocks of one run, as everywhere: how the untuned model changes,
how the tuned one does, and what the config gains in each. Outputs of all four are compared with those of the untuned
model here, so a release that computes something else is found.

The other environment has this package's requirements installed, and runs this package's own files.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from autotune.backends.registry import framework_version
from autotune.bench.bench import Bench, Running, Waits
from autotune.errors import SetupError
from autotune.measure.blocks import Blocks
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.objective import LATENCY, Objective
from autotune.measure.proof import Proof
from autotune.measure.statistics import Speedup, Verdict, verdict_of
from autotune.study.budget import Budget
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuned.tuned_config import TunedConfig
from autotune.tuning.blocks import BlockedRun, Contestant
from autotune.verification.comparison import (
    PairedRun,
    TooLittleTimeError,
    is_clear,
    paired_run_of,
    request_of,
    sides_of,
    untuned_outcome,
)
from autotune.verification.verify import EXIT_CODES, Fate

Name = Literal["untuned", "tuned", "untuned-there", "tuned-there"]
_NAMES: tuple[Name, ...] = get_args(Name)
_THERE = "-there"


@dataclass(frozen=True)
class Upgrade:
    """`outcome` is `holds`, `regressed`, `wrong` (something fails there, or gives other outputs) or `unclear`; `why` is
    a sentence. Speed-ups are None where something failed, and of a tuned model where the file is the untuned one."""

    outcome: Fate
    why: str
    here: str
    """Release of the framework."""
    there: str
    objective: Objective = LATENCY
    untuned: Speedup | None = None
    """Speed-up of the untuned model there over that here."""
    tuned: Speedup | None = None
    """Speed-up of the tuned model there over that here."""
    gains: tuple[Speedup | None, Speedup | None] = (None, None)
    """Speed-ups of the config over the untuned model, here and there."""
    values: Mapping[str, float] | None = None
    """Objective's median over the blocks, by name."""
    measured: Mapping[str, Measurement] | None = None
    """First process of each, which compiled with empty caches, by name."""
    failed: Name | None = None
    """The side that is wrong."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


class BothEnvironments(Bench):
    """Runs a process here or there, by the name of its folder."""

    is_here = True
    width = None

    def __init__(self, here: Bench, there: Bench) -> None:
        self._here, self._there = here, there

    def start(
        self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False
    ) -> Running:
        bench = self._there if folder.path.name.endswith(_THERE) else self._here
        return bench.start(folder, request, waits, fresh=fresh)

    def first_ready(self, started: Sequence[Running]) -> Running:
        """Processes of a block become warm one by one."""
        (running,) = started
        return running

    def new_block(self) -> None:
        self._here.new_block()
        self._there.new_block()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        with self._here.quiet(), self._there.quiet():
            yield

    def drop(self, started: Sequence[Running]) -> None:
        self._here.drop(started)


def upgrade(
    tuned: TunedConfig,
    there: str,
    bench: BothEnvironments,
    budget: Budget,
    folder: Path,
    *,
    on_block: Callable[[Mapping[str, float]], None] = lambda _: None,
    max_loss: float = 0.0,
) -> Upgrade:
    """Measure until it is clear what changes, or the budget is used up. `there`: the other release. A loss of up to
    `max_loss` of the speed here is no regression.

    Raises SetupError where the model or its config cannot be measured here, and for too little time.
    """
    untuned, answer = sides_of(tuned)
    pair = paired_run_of(tuned, untuned, untuned, answer, folder)
    deadline = Deadline.after(budget.wall_s)
    seen = untuned_outcome(pair, bench, budget, deadline, "reference")
    if isinstance(seen, Failure):
        raise SetupError(f"the untuned model could not be measured: {seen.error}", tip=f"full log: {seen.evidence}")
    here = framework_version(tuned.framework)
    sides = {"untuned": untuned, "tuned": answer} if not tuned.is_untuned else {"untuned": untuned}
    names = [name for name in _NAMES if name.removesuffix(_THERE) in sides]
    contest = BlockedRun(
        bench,
        folder,
        [Contestant(name, request_of(pair, budget, sides[name.removesuffix(_THERE)], name)) for name in names],
        budget.confirmation.fit_for(pair.objective),
        pair.objective.value,
        seed=untuned.workload.seed,
        on_block=on_block,
        deadline=deadline,
    )
    contest.run(lambda _: _Rows(contest, pair).are_clear)
    if contest.failures:
        name = next(name for name in names if name in contest.failures)
        return _of_failure(name, contest.failures[name], here, there)
    if len(contest.blocks) < contest.plan.first_look:
        raise TooLittleTimeError(budget)
    was_faster = tuned.verdict is Verdict.FASTER
    return _Rows(contest, pair).answer(was_faster=was_faster, here=here, there=there, max_loss=max_loss)


def _of_failure(name: Name, failure: Failure, here: str, there: str) -> Upgrade:
    """What fails there is the answer. Raises SetupError for what fails here."""
    if not name.endswith(_THERE):
        raise SetupError(f"the {name} model fails here: {failure.error}", tip=f"full log: {failure.evidence}")
    what = f"the {name.removesuffix(_THERE)} model fails there ({failure.reason} at {failure.stage})"
    return Upgrade("wrong", f"{what}: {failure.error}", here, there, failed=name)


@dataclass(frozen=True)
class _Rows:
    """The blocks so far, and what they say of any two."""

    contest: BlockedRun
    pair: PairedRun

    @property
    def has_tuned(self) -> bool:
        return any("tuned" in block for block in self.contest.blocks)

    def of(self, base: Name, other: Name) -> Proof:
        """One of the four against another."""
        value, plan = self.pair.objective.value, self.contest.plan
        rows = tuple((value(block[base]), value(block[other])) for block in self.contest.blocks)
        return Proof(Blocks(rows), num_looks=plan.num_looks, first_look=plan.first_look)

    @property
    def decisive(self) -> list[Proof]:
        """What the answer rests on."""
        if not self.has_tuned:
            return [self.of("untuned", "untuned-there")]
        return [self.of("tuned", "tuned-there"), self.of("untuned-there", "tuned-there")]

    @property
    def are_clear(self) -> bool:
        return bool(self.contest.failures) or all(is_clear(comparison) for comparison in self.decisive)

    def answer(self, *, was_faster: bool, here: str, there: str, max_loss: float) -> Upgrade:
        """What all blocks come to."""
        change = self.decisive[0].look.speedups[0]
        untuned = self.of("untuned", "untuned-there").look.speedups[0]
        tuned: Speedup | None = None
        gains: tuple[Speedup | None, Speedup | None] = (None, None)
        if self.has_tuned:
            tuned = change
            gains = (
                self.of("untuned", "tuned").look.speedups[0],
                self.of("untuned-there", "tuned-there").look.speedups[0],
            )
        outcome, why = _judged(change, gains[1], was_faster=was_faster, there=there, max_loss=max_loss)
        value, blocks = self.pair.objective.value, self.contest.blocks
        values = {name: statistics.median(value(block[name]) for block in blocks) for name in blocks[0]}
        return Upgrade(outcome, why, here, there, self.pair.objective, untuned, tuned, gains, values, blocks[0])


def _judged(
    change: Speedup, gain: Speedup | None, *, was_faster: bool, there: str, max_loss: float
) -> tuple[Fate, str]:
    """`regressed` needs proof, and so has a gain that was promised. `max_loss` is of the speed here; slower than the
    untuned model there is never allowed."""
    if was_faster and gain is not None and gain.high < 1:
        return "regressed", f"under {there} the config is slower than the untuned model"
    if change.high < 1 - max_loss:
        more = f" by more than {max_loss:.0%}" if max_loss else ""
        return "regressed", f"the model is slower under {there}{more}"
    if was_faster and gain is not None and verdict_of(gain) is not Verdict.FASTER:
        return "unclear", f"the config is neither shown to gain under {there} nor shown not to"
    if change.high < 1:
        return "holds", f"the model is slower under {there}, and not shown to be so by more than {max_loss:.0%}"
    return "holds", f"nothing is shown to be slower under {there}"
