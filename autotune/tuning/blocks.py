"""`BlockedRun`: configs compared in blocks of live processes, sampled in turns, until the answer is clear.

In a block each contestant has one fresh process. They are started one after the other, or a few at a time, the next
when one is warm (in a random order, reversed in the next block, since the first one started tends to be slower). All
are kept warm, and then take their samples in turns, in a random order each round, so that any disturbance of the
machine affects all of them. On a device with room for two blocks the processes of both become warm side by side, and
are waited for before the first of the two takes its turns. There the first block becomes warm beside the trial of the
first config, which waits for it, and is dropped where that trial does not ask for one.

A device may have room for one process of the model. There a block is *in turn*: each process takes all of its samples
and ends before the next one starts. Since orders alternate, what changes slowly falls on each contestant alike from one
block to the next; ratios scatter more, which the verdict sees, and takes more blocks for.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from autotune.backends.registry import entry_of
from autotune.bench.bench import Bench, Lost, Running
from autotune.config import Config
from autotune.measure.blocks import Blocks
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.measure.proof import Proof
from autotune.measure.sampling import Reading, middle_of
from autotune.own_folders import absolute
from autotune.study.budget import LONGEST_LOOK_S, BlockPlan
from autotune.trial.deadline import NEVER, Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.attempts import may_be_random
from autotune.tuning.room import BLOCK, Room
from autotune.tuning.session import Session, picks_by_timing, trial_request


@dataclass(frozen=True)
class Contestant:
    """A config that takes part: a name for its folders, and its request."""

    name: str
    request: TrialRequest
    compiles_anew: bool = False
    """Every second pair of blocks begins with a process that compiles from empty caches of its own: its compiler picks
    kernels by timing them, so that the choice of one compile would be compared in place of the config."""

    def used_longer(self, *, is_used: bool) -> Contestant:
        """Its process is used as a job will use it, once it was timed."""
        return replace(self, request=self.request.used_longer(is_used=is_used))

    def request_in(self, block: int, folder: Path) -> TrialRequest:
        """The request of its process in a block; the caches that all other blocks share stay as they are."""
        if not (self.compiles_anew and block % 4 == 3):
            return self.request
        return self.request.cached_in(absolute(folder / self.name / "cache"), cold=True)


@dataclass
class BlockedRun:
    """The blocks measured so far. The first contestant is the base.

    A failure that may be random gets further processes: any failure of the untuned model, a crash of a config; a block
    in which it happened during the turns is measured again. `mishaps` keeps these failures. A config that keeps failing
    leaves the run, and a base that does ends the run with the blocks before; `failures` says why. All others take part
    to the end, those that cannot win as well: how they scatter says how much the blocks prove
    (docs/decisions/0005-verdict-in-blocks.md). No block begins that is unlikely to end before the `deadline`, and one
    in which the deadline ended a process is dropped. Without a deadline none begins towards a look that is too far off.

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
    was_lost: bool = False
    """A worker was lost with a process of the latest block."""
    in_turn: bool = False
    """Each process of a block ends before the next one starts: there is room for one."""
    _longest_block_s: float = 0.0
    _num_failed: Counter[str] = field(default_factory=Counter)
    """Processes of each contestant that failed in the block that is being measured."""

    @property
    def base(self) -> Contestant:
        return self.contestants[0]

    def run(self, is_clear: Callable[[Proof], bool]) -> Proof | None:
        """Measure until `is_clear`, or until the plan is used up.

        Returns None if all but the base failed, or if the base failed or the time was up before the first look.
        """
        entered = list(self.contestants)
        while True:
            self.on_begin()
            self.was_lost = False
            comparison = self._measure(is_clear)
            if not self.was_lost:
                return comparison
            self.contestants = list(entered)
            for evidence in (self.blocks, self.failures, self.mishaps, self._num_failed):
                evidence.clear()

    def _measure(self, is_clear: Callable[[Proof], bool]) -> Proof | None:
        begun = self.deadline.clock()
        comparison = None
        for num_blocks in self.plan.looks:
            while len(self.blocks) < num_blocks and not self._is_late(begun):
                self.measure_block()
                if len(self.contestants) < 2:
                    return None
            if len(self.blocks) < self.plan.first_look:
                break
            comparison = self.comparison()
            if is_clear(comparison):
                return comparison
            if num_blocks == self.plan.most_blocks or self._is_late(begun):
                comparison = replace(comparison, is_final=True)
                break
        return comparison

    def _is_late(self, begun: float) -> bool:
        """The base failed or all was lost, the deadline is near, or there is none and the next look is too far off."""
        if self.was_lost or self.base.name in self.failures:
            return True
        left_s = self.deadline.left_s()
        if math.isfinite(left_s) or len(self.blocks) < self.plan.first_look:
            return left_s <= self._longest_block_s
        block_s = (self.deadline.clock() - begun) / len(self.blocks)
        return self.plan.seconds_to_look(len(self.blocks), block_s) > LONGEST_LOOK_S

    def comparison(self) -> Proof:
        """The comparison over all blocks so far, with the contestants in their order."""
        rows = tuple(
            tuple(self.value(block[contestant.name]) for contestant in self.contestants) for block in self.blocks
        )
        return Proof(Blocks(rows), num_looks=self.plan.num_looks, first_look=self.plan.first_look)

    def measure_block(self) -> None:
        block, num_before = self.open_block(self.contestants), len(self.blocks)
        while not block.is_warm and not self._must_end(block):
            while block.can_start and len(block.warming) < self.num_at_once:
                block.start_next()
            started = list(block.warming.values())
            block.note_ready(self.bench.first_ready(started) if len(started) > 1 else started[0])
        self.close_block(block)
        if not self.in_turn and any(failure.reason is Reason.OUT_OF_MEMORY for failure in self.failures.values()):
            self.in_turn, self.contestants = True, block.contestants
            self.failures.clear()
            del self.blocks[num_before:]

    def _must_end(self, block: Block) -> bool:
        has_begun = bool(block.live or block.ended)
        return block.is_lost or (has_begun and self.deadline.left_s() <= 0)

    def open_block(
        self,
        contestants: Sequence[Contestant],
        control: Running | None = None,
        number: int | None = None,
        second: Running | None = None,
    ) -> Block:
        """The next block, of these contestants, the untuned model first. None of its processes is started yet.
        `control`, `second`: live processes of the untuned model, and of the second baseline, which take their turns
        beside them."""
        number = number or len(self.blocks) + 1
        if any(not contestant.request.untuned for contestant in contestants):
            self.bench.new_block()
        order = _starting_order(contestants, number, self.seed)
        if self.in_turn and any(contestant.request.is_used for contestant in contestants):
            order = list(contestants)  # What the untuned model gives in a longer use is asked for first.
        return Block(self, number, contestants, order, (Guest(control), Guest(second)))

    def close_block(self, block: Block) -> dict[str, Measurement] | None:
        """Let the processes of a block take their turns, if all are warm, and end them. What they measured; None where
        one failed: such a block is not counted, and may be opened again."""
        is_whole = block.is_warm and len(block.live) + len(block.ended) == len(block.contestants)
        if not self.in_turn:
            with self.bench.quiet():
                is_whole = is_whole and self._give_turns(block, random.Random(f"{self.seed}.{block.number}"))
        if not is_whole and self.deadline.left_s() <= 0:
            _leave_out(self, _wrong_among({name: each.outcome for name, each in block.live.items()}))
            block.drop()  # It does not count, and waiting for what its processes write would end the run later still.
            return None
        outcomes = block.end()
        self._longest_block_s = max(self._longest_block_s, self.deadline.clock() - block.begun)
        self.was_lost = any(isinstance(outcome, Lost) for outcome in outcomes.values())
        return self._take_in(block, outcomes) if is_whole and not self.was_lost else None

    def _give_turns(self, block: Block, chance: random.Random) -> bool:
        """Run as many rounds as there is time for. Returns False if the deadline came before `fewest_rounds`."""
        names = [contestant.name for contestant in block.contestants]
        for _ in self._rounds(self.plan.max_sampling_s):
            if self.deadline.left_s() <= 0:
                return False
            chance.shuffle(names)
            for name in names:
                block.live[name].turn()
                if isinstance(block.live[name].outcome, Lost):
                    return False
            block.control.turn()
            block.second.turn()
        return True

    def give_all_turns(self, running: Running, num: int) -> Outcome:
        """Let a process that is warm, one of `num`, take as many turns as there is time for, and end. Its outcome."""
        with self.bench.quiet():
            for _ in self._rounds(self.plan.max_sampling_s / num):
                running.turn()
        return running.finish()

    def _rounds(self, most_s: float) -> Iterator[int]:
        """Those of the plan, and from its fewest on as long as there is time."""
        ends = self.deadline.clock() + most_s
        for num_done in range(self.plan.num_rounds):
            if num_done >= self.plan.fewest_rounds and self.deadline.clock() > ends:
                return
            yield num_done

    def gets_another(self, name: str, request: TrialRequest, failure: Failure) -> bool:
        """Whether the failure is retried in another process."""
        if isinstance(failure, Lost) or (failure.reason is Reason.OUT_OF_MEMORY and not self.in_turn):
            return False
        if request.untuned and failure.reason is Reason.WRONG_RESULT and not self.blocks:
            return False  # Its processes do not agree, and one that is right afterwards does not undo that.
        self._num_failed[name] += 1
        if self.deadline.left_s() <= 0 or not may_be_random(request, failure, self._num_failed[name]):
            return False
        self.mishaps.append((name, failure))
        return True

    def _take_in(self, block: Block, outcomes: dict[str, Outcome]) -> dict[str, Measurement] | None:
        measured = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Measurement)}
        failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failure)}
        if failed and self.deadline.left_s() <= 0:
            _leave_out(self, _wrong_among(outcomes))
            return None  # The deadline ended the others, which says nothing about their configs.
        requests = {contestant.name: contestant.request for contestant in block.contestants}
        again = [name for name, failure in failed.items() if self.gets_another(name, requests[name], failure)]
        _leave_out(self, {name: failure for name, failure in failed.items() if name not in again})
        if again or self.base.name in self.failures:
            return None
        self._num_failed.clear()
        self.blocks.append(measured)
        self.on_block({name: self.value(measured[name]) for name in requests if name in measured})
        return measured


def _wrong_among(outcomes: Mapping[str, Outcome | None]) -> dict[str, Failure]:
    """Failures that no deadline causes: an output was compared, and is another one."""
    failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failure)}
    return {name: failure for name, failure in failed.items() if failure.reason is Reason.WRONG_RESULT}


def _leave_out(run: BlockedRun, failures: Mapping[str, Failure]) -> None:
    """From now on."""
    run.failures |= failures
    run.contestants = [run.base, *(each for each in run.contestants[1:] if each.name not in run.failures)]


def _starting_order(contestants: Sequence[Contestant], number: int, seed: int) -> list[Contestant]:
    """Drawn for each pair of blocks; the second of a pair starts in the reverse order of the first."""
    order = list(contestants)
    random.Random(f"{seed}.{(number - 1) // 2}.order").shuffle(order)
    return order if number % 2 == 1 else order[::-1]


class Block:
    """A block under way. Its processes start one after the other, in the order of `left`; each becomes warm and waits;
    then all take their turns (`BlockedRun.close_block`)."""

    def __init__(
        self,
        run: BlockedRun,
        number: int,
        contestants: Sequence[Contestant],
        order: Sequence[Contestant],
        guests: tuple[Guest, Guest],
    ) -> None:
        self._run = run
        self.number = number
        self.contestants = list(contestants)
        self.begun = run.deadline.clock()
        self.was_beside = False
        """A trial compiled beside it, and it took longer for that."""
        self.left = list(order)
        """Not started yet."""
        self.warming: dict[str, Running] = {}
        self.live: dict[str, Running] = {}
        """Warm, or failed for good."""
        self.ended: dict[str, Outcome] = {}
        """They took all their turns, where processes run in turn."""
        self.control, self.second = guests
        self.opens_following: Callable[[], Block] | None = None
        """Opens the next block, whose processes become warm beside those of this one once these have started: each of
        the two comes from a fork server of its own."""
        self.following: Block | None = None

    @property
    def is_warm(self) -> bool:
        """All processes have started, and none is on its way; those of the block that follows neither."""
        is_alone = self.opens_following is None and (self.following is None or self.following.is_warm)
        return not self.left and not self.warming and is_alone

    @property
    def on_their_way(self) -> list[Running]:
        """Processes that become warm, of this block and of the one that follows."""
        following = [] if self.following is None else self.following.on_their_way
        return [*self.warming.values(), *following]

    @property
    def can_start(self) -> bool:
        """There is another process to start, and nothing that it has to wait for."""
        if self.left:
            return not (self._run.in_turn and self.warming)
        return self.opens_following is not None or (self.following is not None and self.following.can_start)

    @property
    def is_lost(self) -> bool:
        """A worker was lost with one of them."""
        outcomes = [*self.ended.values(), *(running.outcome for running in self.live.values())]
        return any(isinstance(outcome, Lost) for outcome in outcomes)

    def start_next(self) -> Running:
        """Start the next process."""
        if self.left:
            return self._start(self.left.pop(0))
        if self.opens_following is not None:
            self.following, self.opens_following = self.opens_following(), None
        assert self.following is not None, "somebody can start"
        return self.following.start_next()

    def let_follow(self) -> None:
        """The next block is opened and becomes warm beside this one."""
        # This one uses its configs longer; whoever is wrong then takes part in no further block.
        contestants = [each.used_longer(is_used=False) for each in self.contestants]
        self.opens_following = partial(self._run.open_block, contestants, number=self.number + 1)

    def become_current(self) -> None:
        """The block that it followed has ended: what it takes counts from here on."""
        self.begun = self._run.deadline.clock()

    def note_ready(self, running: Running) -> None:
        """One that is on its way is warm, or has failed: then another process may take its place."""
        if all(process is not running for process in self.warming.values()):
            assert self.following is not None, "it is of one of the two"
            self.following.note_ready(running)
            return
        name = next(name for name, process in self.warming.items() if process is running)
        running.warm(self._run.on_stage)
        del self.warming[name]
        contestant = self._named(name)
        failure = running.outcome
        if isinstance(failure, Failure) and self._run.gets_another(name, self._request(contestant), failure):
            self._start(contestant)
            return
        if self._run.in_turn and failure is None:
            self.ended[name] = self._run.give_all_turns(running, len(self.contestants))
        else:
            self.live[name] = running

    def drop(self) -> None:
        """End all processes, those of the block that follows too: nobody needs what they measured."""
        if self.following is not None:
            self.following.drop()
        self._run.bench.drop([*self.live.values(), *self.warming.values()])
        self.left.clear()
        self.live.clear()
        self.warming.clear()

    def end(self) -> dict[str, Outcome]:
        """End all processes, the untuned model's first, and drop those that are on their way. The outcomes of the
        others, by name."""
        self._run.bench.drop(list(self.warming.values()))
        self.warming.clear()
        self.left.clear()
        names = [contestant.name for contestant in self.contestants if contestant.name in self.live]
        return self.ended | {name: self.live[name].finish() for name in names}

    def _start(self, contestant: Contestant) -> Running:
        run, request = self._run, self._request(contestant)
        folder = TrialFolder(absolute(self._folder / contestant.name))
        running = run.bench.start(folder, request.limited_to(run.deadline.cap(request.limits)), "live")
        self.warming[contestant.name] = running
        return running

    def _request(self, contestant: Contestant) -> TrialRequest:
        return contestant.request_in(self.number, self._folder)

    @property
    def _folder(self) -> Path:
        return self._run.folder / f"block-{self.number:02d}"

    def _named(self, name: str) -> Contestant:
        return next(contestant for contestant in self.contestants if contestant.name == name)


class HasRoom(Protocol):
    """Whoever knows how many processes find room at a time."""

    has_room: bool
    room: Room | None


class BlockAhead:
    """The block that becomes warm beside the open one on a device, whose seconds until it is warm the two then share;
    none where there are no places or no room for the processes of both, or one block is expected to be enough."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._block: Block | None = None
        """It followed the block that was closed last, or began beside the first config's trial."""
        self._follows = False

    def may_begin(self, config: Config) -> bool:
        """Whether a block may begin beside the trial of this config: the first one on a device, with places for the
        trial and both processes of the block. A compiler that times candidates itself takes too long for a guess."""
        session, study = self._session, self._session.study
        has_places = session.in_batches and session.num_jobs > BLOCK
        picks = entry_of(study.manifest.workload.framework).picks(config)
        return has_places and not picks and not study.blocks and len(study.ended()) == 1

    def begin(self, block: Block) -> None:
        """All its processes become warm beside a trial. It is the next block if that trial's config is worth one."""
        self._block, self._follows, block.was_beside = block, False, True
        while block.can_start:
            block.start_next()

    def rest(self) -> None:
        """Wait until none of its processes is on its way: a trial is about to be timed."""
        while self._block is not None and (started := self._block.on_their_way):
            self._block.note_ready(self._session.bench.first_ready(started) if len(started) > 1 else started[0])

    def let_follow(self, block: Block, where: HasRoom, *, num_needed: int) -> None:
        """Let one follow this block, which has just been opened; none beside one that followed itself. `num_needed`:
        blocks that are expected to be needed."""
        num = 2 * len(block.contestants)
        has_room = where.has_room and (where.room is None or where.room.num_processes >= num)
        has_places = not self._session.mixes and self._session.num_warming >= num
        if num_needed > 1 and has_room and has_places and len(block.left) == len(block.contestants):
            block.let_follow()

    def keep(self, block: Block) -> None:
        """The block is about to be closed: what followed it is next."""
        self._block, self._follows, block.following = block.following, True, None

    def taken(self, number: int, contestants: Sequence[Contestant]) -> Block | None:
        """The block of this number and these configs. None, and it is dropped, where another one is opened."""
        block, self._block = self._block, None
        if block is None:
            return None
        if block.number == number and {each.name for each in block.contestants} == {each.name for each in contestants}:
            if self._follows:
                block.become_current()
            return block
        block.drop()
        return None

    def drop(self) -> None:
        """End its processes: something else comes next."""
        block, self._block = self._block, None
        if block is not None:
            block.drop()


class Guest:
    """A process of the whole run that takes its turns in a block as well; or none."""

    def __init__(self, process: Running | None) -> None:
        self._process = process
        self._readings: list[Reading] = []

    def turn(self) -> None:
        """Let it take one."""
        reading = None if self._process is None else self._process.turn()
        if reading is not None:
            self._readings.append(reading)

    @property
    def middle(self) -> Reading | None:
        """The middle of its turns; None where there is none, or it has ended before its first."""
        return middle_of(self._readings) if self._readings else None


def contestant_of(session: Session, folder: Path, name: str, number: int, config: Config) -> Contestant:
    """A config of a study, as it takes part in blocks under `folder`.

    Its compile caches are kept from block to block, and begin as a copy of the trial's own so far as those are on the
    shelf, unless the objective is about what compiling costs.
    """
    request = trial_request(session.study, number, config, TrialFolder(folder / name), session.budget)
    request = session.with_kernels(request)
    cache, cold = absolute(folder / "cache" / name), session.objective.compiles_cold
    if not cold:
        session.caches.copy(number, cache)
    return Contestant(name, request.cached_in(cache, cold=cold), picks_by_timing(request))


def blocked_run(
    session: Session,
    folder: Path,
    entries: list[tuple[str, int, Config]],
    plan: BlockPlan,
    *,
    on_begin: Callable[[], None] = lambda: None,
) -> BlockedRun:
    """A blocked run of `(name, trial number, config)`, the base first."""
    return BlockedRun(
        session.bench,
        folder,
        [contestant_of(session, folder, name, number, config) for name, number, config in entries],
        plan.fit_for(session.objective),
        session.value,
        seed=session.study.manifest.workload.seed,
        on_stage=session.notify_stage,
        on_begin=on_begin,
        deadline=session.deadline,
        num_at_once=session.num_warming,
        in_turn=session.room is not None and not session.room.holds_block,
    )
