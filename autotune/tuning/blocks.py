"""`BlockedRun`: configs compared in blocks of live processes, sampled in turns, until the answer is clear.

In a block each contestant has one fresh process. They are started one after the other, or a few at a time, the next
when one is warm (in a random order, reversed in the next block, since the first one started tends to be slower). All
are kept warm, and then take their samples in turns, in a random order each round, so that any disturbance of the
machine affects all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.bench.bench import Bench, Lost, Running
from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement, Outcome, Stage
from autotune.measure.statistics import Comparison
from autotune.study.budget import BlockPlan
from autotune.study.own_files import clear_runs
from autotune.trial.deadline import NEVER, Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.attempts import may_be_random
from autotune.tuning.session import Session, picks_by_timing, trial_request


@dataclass(frozen=True)
class Contestant:
    """A config that takes part: a name for its folders, and its request."""

    name: str
    request: TrialRequest
    compiles_anew: bool = False
    """Every second pair of blocks begins with a process that compiles from empty caches of its own: its compiler picks
    kernels by timing them, so that the choice of one compile would be compared in place of the config."""

    def request_in(self, block: int, folder: Path) -> TrialRequest:
        """The request of its process in a block; the caches that all other blocks share stay as they are."""
        if not (self.compiles_anew and block % 4 == 3):
            return self.request
        return self.request.cached_in((folder / self.name / "cache").resolve(), cold=True)


@dataclass
class BlockedRun:
    """The blocks measured so far. The first contestant is the base.

    A failure that may be random gets further processes: any failure of the untuned model, a crash of a config; a block
    in which it happened during the turns is measured again. `mishaps` keeps these failures. A config that keeps failing
    leaves the run, and a base that does ends the run with the blocks before; `failures` says why. All others take part
    to the end, those that cannot win as well: how they scatter says how much the blocks prove
    (docs/decisions/0040-all-take-part.md). No block begins that is unlikely to end before the `deadline`, and a block
    in which the deadline ended a process is dropped; `was_cut_short` is set then.

    Where a worker is lost all begins anew, since the figures of two machines cannot be compared. That ends: a worker
    that is lost twice gets no further work.
    """

    bench: Bench
    folder: Path
    contestants: list[Contestant]
    plan: BlockPlan
    value: Callable[[Measurement], float]
    seed: int = 0
    on_stage: Callable[[Stage], None] | None = None
    on_begin: Callable[[], None] = lambda: None
    on_block: Callable[[dict[str, float]], None] = lambda _: None
    deadline: Deadline = NEVER
    num_at_once: int = 1
    """Processes that become warm at the same time."""
    blocks: list[dict[str, Measurement]] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    mishaps: list[tuple[str, Failure]] = field(default_factory=list)
    was_cut_short: bool = False
    _was_lost: bool = False
    """A worker was lost with a process of the block that is being measured."""
    _longest_block_s: float = 0.0
    _num_failed: Counter[str] = field(default_factory=Counter)
    """Processes of each contestant that failed in the block that is being measured."""

    @property
    def base(self) -> Contestant:
        return self.contestants[0]

    def run(self, is_clear: Callable[[Comparison], bool]) -> Comparison | None:
        """Measure until `is_clear`, or until the plan is used up.

        Returns None if all but the base failed, or if the base failed or the time was up before the first look.
        """
        entered = list(self.contestants)
        while True:
            self.on_begin()
            self._was_lost = False
            comparison = self._measure(is_clear)
            if not self._was_lost:
                return comparison
            self.contestants = list(entered)
            for evidence in (self.blocks, self.failures, self.mishaps, self._num_failed):
                evidence.clear()

    def _measure(self, is_clear: Callable[[Comparison], bool]) -> Comparison | None:
        begun = self.deadline.clock()
        comparison = None
        for look in range(self.plan.num_looks):
            while len(self.blocks) < self.plan.first_look * 2**look and not self._is_late(begun):
                self._measure_block()
                if len(self.contestants) < 2:
                    return None
            if len(self.blocks) < self.plan.first_look:
                break
            comparison = self.comparison()
            if is_clear(comparison):
                return comparison
            if look == self.plan.num_looks - 1 or self._is_late(begun):
                break
        self.was_cut_short = self._is_over() and len(self.blocks) < self.plan.most_blocks
        return comparison

    def _is_late(self, begun: float) -> bool:
        """The base failed or all was lost, the deadline is near, or the plan's time is used up and the blocks can be
        looked at."""
        if self._was_lost or self.base.name in self.failures:
            return True
        is_pair = len(self.blocks) >= self.plan.first_look and len(self.blocks) % 2 == 0
        return self._is_over() or (is_pair and self.deadline.clock() - begun > self.plan.max_s)

    def _is_over(self) -> bool:
        """There is no time for one more block."""
        return self.deadline.left_s() <= self._longest_block_s

    def comparison(self) -> Comparison:
        """The comparison over all blocks so far, with the contestants in their order."""
        rows = tuple(
            tuple(self.value(block[contestant.name]) for contestant in self.contestants) for block in self.blocks
        )
        return Comparison(rows, num_looks=self.plan.num_looks, first_look=self.plan.first_look)

    def _measure_block(self) -> None:
        begun = self.deadline.clock()
        number = len(self.blocks) + 1
        if any(not contestant.request.untuned for contestant in self.contestants):
            self.bench.new_block()
        live = self._start_all(number, self._starting_order(number))
        is_whole = len(live) == len(self.contestants) and self._give_turns(live, random.Random(f"{self.seed}.{number}"))
        outcomes = {name: trial.finish() for name, trial in live.items()}
        self._longest_block_s = max(self._longest_block_s, self.deadline.clock() - begun)
        self._was_lost = any(isinstance(outcome, Lost) for outcome in outcomes.values())
        if is_whole and not self._was_lost:
            self._take_in(outcomes)

    def _give_turns(self, live: dict[str, Running], chance: random.Random) -> bool:
        """Run as many rounds as there is time for. Returns False if the deadline came before `fewest_rounds`."""
        ends = self.deadline.clock() + self.plan.max_sampling_s
        names = [contestant.name for contestant in self.contestants]
        for num_done in range(self.plan.num_rounds):
            if num_done >= self.plan.fewest_rounds and self.deadline.clock() > ends:
                break
            if self.deadline.left_s() <= 0:
                return False
            chance.shuffle(names)
            for name in names:
                live[name].turn()
                if isinstance(live[name].outcome, Lost):
                    return False
        return True

    def _starting_order(self, number: int) -> list[Contestant]:
        """Drawn for each pair of blocks; the second of a pair starts in the reverse order of the first."""
        order = list(self.contestants)
        random.Random(f"{self.seed}.{(number - 1) // 2}.order").shuffle(order)
        return order if number % 2 == 1 else order[::-1]

    def _start_all(self, number: int, order: Sequence[Contestant]) -> dict[str, Running]:
        """Warm processes and failed ones by name; not all of them where the time was up or a worker was lost."""
        folder = self.folder / f"block-{number:02d}"
        left = [
            (TrialFolder((folder / contestant.name).resolve()), contestant.request_in(number, folder))
            for contestant in order
        ]
        warming: dict[str, tuple[Running, TrialFolder, TrialRequest]] = {}
        live: dict[str, Running] = {}
        while left or warming:
            is_lost = any(isinstance(running.outcome, Lost) for running in live.values())
            if is_lost or (live and self.deadline.left_s() <= 0):
                self.bench.drop([running for running, _, _ in warming.values()])
                break
            while left and len(warming) < self.num_at_once:
                place, request = left.pop(0)
                warming[place.path.name] = (self._start(place, request), place, request)
            started = [running for running, _, _ in warming.values()]
            ready = self.bench.first_ready(started) if len(started) > 1 else started[0]
            name = next(name for name, (running, _, _) in warming.items() if running is ready)
            live[name] = self._warmed(*warming.pop(name))
        return live

    def _start(self, folder: TrialFolder, request: TrialRequest) -> Running:
        return self.bench.start(folder, request.limited_to(self.deadline.cap(request.limits)), "live")

    def _warmed(self, running: Running, folder: TrialFolder, request: TrialRequest) -> Running:
        """A warm process, or a failed one that is not retried."""
        running.warm(self.on_stage)
        while isinstance(running.outcome, Failure) and self._gets_another(folder.path.name, request, running.outcome):
            running = self._start(folder, request)
            running.warm(self.on_stage)
        return running

    def _gets_another(self, name: str, request: TrialRequest, failure: Failure) -> bool:
        """Whether the failure is retried in another process."""
        if isinstance(failure, Lost):
            return False
        self._num_failed[name] += 1
        if self.deadline.left_s() <= 0 or not may_be_random(request, failure, self._num_failed[name]):
            return False
        self.mishaps.append((name, failure))
        return True

    def _take_in(self, outcomes: dict[str, Outcome]) -> None:
        measured = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Measurement)}
        failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failure)}
        if failed and self.deadline.left_s() <= 0:
            return  # The deadline ended them, which says nothing about the configs.
        requests = {contestant.name: contestant.request for contestant in self.contestants}
        again = [name for name, failure in failed.items() if self._gets_another(name, requests[name], failure)]
        self.failures |= {name: failure for name, failure in failed.items() if name not in again}
        self.contestants = [
            self.base,
            *(contestant for contestant in self.contestants[1:] if contestant.name not in self.failures),
        ]
        if again or self.base.name in self.failures:
            return
        self._num_failed.clear()
        self.blocks.append(measured)
        self.on_block({contestant.name: self.value(measured[contestant.name]) for contestant in self.contestants})


def blocked_run(
    session: Session,
    folder: Path,
    entries: list[tuple[str, int, Config]],
    plan: BlockPlan,
    *,
    on_begin: Callable[[], None],
    on_block: Callable[[dict[str, float]], None] = lambda _: None,
) -> BlockedRun:
    """A blocked run of `(name, trial number, config)`, the base first.

    Compile caches are kept from block to block, and begin as copies of the trials' own so far as those are on the
    shelf, unless the objective is about what compiling costs. What an earlier run left in the folder is removed
    first: a cache of a killed process may be half written.
    """
    clear_runs(folder)
    contestants = []
    for name, number, config in entries:
        request = trial_request(session.study, number, config, TrialFolder(folder / name), session.budget)
        request = session.with_kernels(request)
        cache, cold = (folder / "cache" / name).resolve(), session.objective.compiles_cold
        if not cold:
            session.caches.copy(number, cache)
        contestants.append(Contestant(name, request.cached_in(cache, cold=cold), picks_by_timing(request)))
    return BlockedRun(
        session.bench,
        folder,
        contestants,
        plan.fit_for(session.objective),
        session.value,
        seed=session.study.manifest.workload.seed,
        on_stage=session.notify_stage,
        on_begin=on_begin,
        on_block=on_block,
        deadline=session.deadline,
        num_at_once=session.num_jobs if session.bench.is_here else 1,
    )
