"""`Field`: the finalists of a run in their blocks, one block at a time, with what each block leaves behind."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.bench.bench import Running
from autotune.config import Config
from autotune.measure.disturbance import disturbance_of
from autotune.measure.looks import FIRST_LOOK
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.measure.sampling import Reading
from autotune.measure.scatter import Cause, ProcessState, gives_back_more, state_of, widest
from autotune.measure.statistics import Verdict, spread_of_pairs
from autotune.own_folders import remove
from autotune.study.own_files import clear_runs
from autotune.study.records import (
    BlockRow,
    Confirmation,
    LongerUse,
    NoiseFloor,
    TrialRecord,
    counted,
    states_of,
    together_in,
)
from autotune.study.study import AskedTrial, Study
from autotune.tuning.blocks import Block, BlockAhead, BlockedRun, Contestant, blocked_run, contestant_of
from autotune.tuning.cache_store import CacheStore
from autotune.tuning.estimate import block_plan, setting_up_s
from autotune.tuning.events import BlockMeasured, BlockStarted, RoomShort, ScatterExplained
from autotune.tuning.room import BLOCK, Room
from autotune.tuning.session import Session
from autotune.user_folders import is_remembered, remember

_UNTUNED = "untuned"
CALMER = 9.0
"""Variance of log ratios in an earlier run over that in this one: by chance so much in one case of twenty of the fewest
blocks."""
MOST_IN_BLOCK = 4
"""Processes: the untuned model's, and those of three finalists."""
APART = 4.0
"""Standard errors by which the mean log ratios of two runs differ."""


class Field:
    """Opens a block, lets its processes take their turns, and stores the row. A finalist that keeps failing is out for
    the rest of the run (`failed`); an untuned model that does ends all (`lost`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder = session.study.folder / "confirm"
        self._run: BlockedRun | None = None
        self._contestants: dict[int, Contestant] = {}
        self._seen: list[dict[str, Measurement]] = []
        self.block: Block | None = None
        self.ahead = BlockAhead(session)
        self.failed: dict[int, Failure] = {}
        """Trial -> why its config cannot take part."""
        self.most_finalists: int | None = None
        """Fewer, once there was no room for more processes."""
        self.has_room = True
        """For several processes that become warm at the same time."""
        self.room: Room | None = None
        """As it was planned with."""
        self._used: set[int] = set()
        """Trials whose config was right in a longer use in this run."""
        self._told: set[Cause] = set()
        """Causes of scatter that were told of."""
        self.finalists: Sequence[TrialRecord] = ()
        """Finalists of the open block, or of the last one."""
        earlier = session.study.confirmation
        is_open = earlier is not None and earlier.verdict is Verdict.UNDECIDED and not earlier.cut_short
        self._num_before = len(session.study.blocks) if is_open else 0
        """Rows of earlier runs, of which all looks have left it undecided."""
        self.num_contradicted = 0
        """Rows of earlier runs that those of this run have taken the place of."""

    def plan(self, room: Room | None) -> None:
        """Take as many processes at a time as there is room for; None: as many as are wanted, until some find none."""
        self.room = room
        if room is not None and room.num_processes < MOST_IN_BLOCK:
            self.has_room, self.most_finalists = False, max(room.num_processes - 1, 1)
            self._session.notify(RoomShort(room))

    @property
    def has_guests(self) -> bool:
        """There is room for a process that stays beside the smallest block."""
        return self.room is None or self.room.num_processes > BLOCK

    @property
    def lost(self) -> Failure | None:
        """Why the untuned model does not run any more."""
        return None if self._run is None else self._run.failures.get(_UNTUNED)

    @property
    def is_in_turn(self) -> bool:
        """The processes of a block run one after the other, since there was room for one."""
        return self._run is not None and self._run.in_turn

    @property
    def mishaps(self) -> list[tuple[str, Failure]]:
        """Who failed and then ran, in words, and the failure."""
        last = {} if self._run is None else dict(self._run.mishaps)
        return [(_in_words(name), failure) for name, failure in last.items() if not self._is_out(name)]

    @property
    def seen(self) -> list[dict[int, Measurement]]:
        """What this run's blocks measured, by trial."""
        return [{self._number(name): measured for name, measured in block.items()} for block in self._seen]

    @property
    def num_measured(self) -> int:
        """Blocks of this run."""
        return len(self._seen)

    def open(self, finalists: Sequence[TrialRecord], control: Running | None, second: Running | None = None) -> Block:
        """Begin a block of these and the untuned model; `control` is another process of the latter, `second` one of
        the second baseline."""
        session, self.finalists = self._session, finalists
        number, run, contestants = self._entered([(record.number, record.config) for record in finalists])
        session.notify(BlockStarted(number, tuple(finalists)))
        # The objective of a control is that of its calls.
        control, second = (control, second) if session.objective.is_latency else (None, None)
        run.plan = block_plan([session.untuned, *finalists], session.objective, session.budget)
        self.block = self.ahead.taken(number, contestants) or run.open_block(contestants, control, number, second)
        return self.block

    def warm_beside(self, asked: AskedTrial) -> None:
        """Where this is the first config of a study on a device, its first block becomes warm beside its trial."""
        if self.has_room and self.ahead.may_begin(asked.config):
            number, run, contestants = self._entered([(asked.number, asked.config)])
            self.ahead.begin(run.open_block(contestants, number=number))

    def _entered(self, entries: Sequence[tuple[int, Config]]) -> tuple[int, BlockedRun, list[Contestant]]:
        """The next block of the untuned model and of these trials' configs: its number, its run, and who takes part."""
        session = self._session
        number = max((row.number for row in session.study.blocks), default=0) + 1
        run = self._begin(number)
        for trial, config in entries:
            if trial not in self._contestants:
                self._contestants[trial] = contestant_of(session, self._folder, _name(trial), trial, config)
        # The untuned model's process says what a longer use gives: `Block.end` lets it come to its end first.
        chosen = [run.contestants[0], *(self._contestants[trial] for trial, _ in entries)]
        return number, run, [each.used_longer(is_used=self._number(each.name) not in self._used) for each in chosen]

    def close(self) -> BlockRow | None:
        """Let the processes of the open block take their turns, and store what they measured. None where it does not
        count; it may be opened again unless somebody has failed for good."""
        block, self.block = self.block, None
        assert block is not None, "one is open"
        assert self._run is not None, "it is of this run"
        study = self._session.study
        self.ahead.keep(block)
        measured = self._run.close_block(block)
        if self._run.was_lost:
            # Its worker was lost: what was measured on another machine cannot stand beside what comes now.
            study.blocks, self._num_before = [], 0
        self._note_failures(self._run, len(block.contestants))
        self._note_uses(measured or {})
        if measured is None:
            return None
        self._seen.append(measured)
        values = {self._number(name): self._session.value(outcome) for name, outcome in measured.items()}
        untuned = measured[_UNTUNED]
        states = {self._number(name): state for name, outcome in measured.items() if (state := state_of(outcome))}
        first = self._number(_UNTUNED)
        value_of_a_second = self._session.value(untuned) / untuned.latency.p50
        control, second = (
            None if reading is None else value_of_a_second * reading.latency_s
            for reading in (_comparable(block.control.middle, states.get(first)), block.second.middle)
        )
        is_timed = self._session.objective.is_timed
        why = next(filter(None, map(disturbance_of, measured.values())), None) if is_timed else None
        row = BlockRow(number=block.number, values=values, control=control, second=second, states=states, disturbed=why)
        study.blocks = [*study.blocks, row]
        self._drop_contradicted()
        _note_noise(study, first, untuned)
        others = {number: value for number, value in values.items() if number != first}
        self._session.notify(BlockMeasured(values[first], others, why))
        _explain_scatter(self._session, self.finalists, self._told)
        return row

    def end(self) -> None:
        """Drop what is open; keep the caches of those whose compiler picks kernels by timing them, and no others."""
        self.ahead.drop()
        if self.block is not None:
            self.block.drop()
            self.block = None
        if self._run is not None:
            keep_confirmed(self._session.study, list(self._contestants.values()))
            remove(self._folder / "cache")

    def _begin(self, number: int) -> BlockedRun:
        if self._run is None:
            session = self._session
            # What earlier runs measured stays, but for their caches: one of a killed process may be half written.
            if number == 1:
                clear_runs(self._folder)
            remove(self._folder / "cache")
            entries = [(_UNTUNED, session.untuned.number, session.untuned.config)]
            self._run = blocked_run(session, self._folder, entries, session.budget.confirmation)
        return self._run

    def _note_failures(self, run: BlockedRun, num_processes: int) -> None:
        failures = run.failures
        lacks_room = any(failure.reason is Reason.OUT_OF_MEMORY for failure in failures.values())
        if lacks_room and self._makes_room(run, num_processes):
            failures.clear()
        self.failed.update({self._number(name): each for name, each in failures.items() if name != _UNTUNED})

    def _makes_room(self, run: BlockedRun, num: int) -> bool:
        """Whether another block of so many processes, of which some found no room, is to need less: nobody is blamed
        then. They become warm one by one, then in pairs alone, then in turn."""
        warmed_together = self.has_room and self._session.num_warming > 1 and not self._session.mixes
        self.has_room = False
        if warmed_together:
            return True
        if num > 2:
            self.most_finalists = 1
            return True
        was_in_turn, run.in_turn = run.in_turn, True
        return not was_in_turn

    def _drop_contradicted(self) -> None:
        """Rows of an undecided run stay evidence, unless those of this one tell of another machine."""
        study = self._session.study
        before, now = study.blocks[: self._num_before], study.blocks[self._num_before :]
        if contradict(before, now, self._number(_UNTUNED)):
            study.blocks = now
            self.num_contradicted, self._num_before = len(before), 0

    def _note_uses(self, measured: Mapping[str, Measurement]) -> None:
        """A finalist was used as a job will use it in its first block; one that was wrong is so in each later run."""
        assert self._run is not None
        study = self._session.study
        for name, failure in self._run.failures.items():
            if name != _UNTUNED and failure.reason is Reason.WRONG_RESULT:
                note_use(study, LongerUse(trial=self._number(name), failure=failure))
        for number in {self._number(name) for name in measured if name != _UNTUNED} - self._used:
            self._used.add(number)
            note_use(study, LongerUse(trial=number, not_varied=measured[_name(number)].not_varied))

    def _is_out(self, name: str) -> bool:
        return self._run is not None and name in self._run.failures

    def _number(self, name: str) -> int:
        if name != _UNTUNED:
            return int(name.removeprefix("trial-"))
        return self._session.untuned.number


def contradict(before: Sequence[BlockRow], now: Sequence[BlockRow], untuned: int) -> bool:
    """Whether earlier rows do not tell of the machine as later ones show it: a config scattered far more in them, or
    gained something else. Pure."""
    for trial in {number for row in now for number in row.values} - {untuned}:
        early, late = (
            [math.log(row.values[untuned] / row.values[trial]) for row in rows if trial in row.values]
            for rows in (before, now)
        )
        if min(len(early), len(late)) < FIRST_LOOK:
            continue
        was, is_now = statistics.variance(early), statistics.variance(late)
        apart = abs(statistics.fmean(early) - statistics.fmean(late))
        if was > CALMER * is_now or apart > APART * math.sqrt(was / len(early) + is_now / len(late)):
            return True
    return False


def _explain_scatter(session: Session, finalists: Sequence[TrialRecord], told: set[Cause]) -> None:
    """Tell why processes of one config differ, once for each cause."""
    records = {record.number: record for record in (session.untuned, *finalists)}
    if not session.objective.is_latency:
        return
    blocks = session.study.blocks
    found = widest(states_of(records.values(), blocks), together_in(blocks))
    if found is not None and found[1].cause is not None and found[1].cause not in told:
        told.add(found[1].cause)
        session.notify(ScatterExplained(records[found[0]], found[1]))


def _note_noise(study: Study, first: int, untuned: Measurement) -> None:
    """What two processes of the untuned model, whose trial is the `first`, differ by over all blocks with a control."""
    pairs = tuple((row.values[first], row.control) for row in counted(study.blocks) if row.control is not None)
    if not pairs:
        return
    before = study.noise_floor
    errors = [untuned.relative_error or 0.0, 0.0 if before is None else before.relative_error]
    study.noise_floor = NoiseFloor(
        pairs=pairs, spread=spread_of_pairs(pairs), relative_error=max(errors), start_s=setting_up_s(untuned)
    )


def note_use(study: Study, use: LongerUse) -> None:
    """Keep what a longer use of a trial's config has shown. One that is wrong is no answer, whatever was proven of it,
    and no part of any comparison."""
    study.uses = [*(one for one in study.uses if one.trial != use.trial), use]
    if use.failure is None:
        return
    values = [{trial: value for trial, value in row.values.items() if trial != use.trial} for row in study.blocks]
    rows = zip(study.blocks, values, strict=True)
    study.blocks = [row.model_copy(update={"values": kept}) for row, kept in rows]
    study.answers = [step for step in study.answers if step.trial != use.trial]
    if study.confirmation is not None and use.trial in study.confirmation.contestants:
        record_verdict(study, None)


def record_verdict(study: Study, confirmation: Confirmation | None) -> None:
    """Store the verdict, or take it back; and once more as a text, for those who read the records without this package.
    The text is never read here."""
    study.confirmation = confirmation
    study.write_attribute("verdict", None if confirmation is None else confirmation.words)


def _comparable(control: Reading | None, untuned: ProcessState | None) -> Reading | None:
    """None for a control that gives back more memory than the untuned model's process of the block: it has aged, and
    does not tell by how much two fresh ones differ."""
    if control is None or untuned is None:
        return control
    return None if gives_back_more(control, Reading(untuned.latency_s, untuned.page_faults)) else control


def _name(number: int) -> str:
    return f"trial-{number:04d}"


def _in_words(name: str) -> str:
    return "the untuned model" if name == _UNTUNED else f"trial {int(name.removeprefix('trial-'))}"


def confirmed_caches(study: Study) -> CacheStore:
    """Caches of the finalists of a study's latest run, by the trials' numbers."""
    return CacheStore(study.folder / "confirmed")


def has_own_caches(study: Study) -> bool:
    """Whether this user has kept them: they are code, and a folder may come from somebody else."""
    return is_remembered(_known_by(study))


def _known_by(study: Study) -> str:
    return hashlib.sha256(f"confirmed {study.manifest.id}".encode()).hexdigest()


def keep_confirmed(study: Study, contestants: Sequence[Contestant]) -> None:
    """Keep the caches of those whose compiler picks kernels by timing them, and drop those of an earlier run.

    Caches that lie on another host are not kept.
    """
    store = confirmed_caches(study)
    store.clear()
    picking = [contestant.request for contestant in contestants if contestant.compiles_anew]
    for request in picking:
        store.take_in(request.number, Path(request.cache))
    if picking:
        store.keep([request.number for request in picking])
        remember(_known_by(study))
