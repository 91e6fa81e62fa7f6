"""`Standing.next`: what a run does next, from its first minute to its last: `Try` another config, `Prove` some by a
block, or `End` the search.

Trials and blocks are evidence about one answer, and whatever may still change it most is done next. In this order,
whenever there is a place for one more process:

    a block of the leader   it looks faster by `EARLY_GAIN` or more and is not proven: two or three blocks prove that,
                            and the answer stands from then on. Once nothing is planned any more, also where it looks
                            clearly better than the answer.
    a trial                 as long as one is planned or the `StopRule` does not hold, and time is left for blocks that
                            prove the leader.
    a trial of a simpler    the leader without the settings that may do nothing.
    config
    a block of the field    the leader, and those that may be as good: until one is proven and no other is expected to
                            be better by `WORTH_KNOWING`, or until more blocks would prove nothing.

A trial is one process, and chosen among others for its figure: it never proves anything by itself. The time left
decides what is done next, and never whether what was measured counts: rows of blocks are stored as they come
(`Evidence`).

Trials compile, and processes of a block become warm, beside each other, as many as there are places; whatever is timed
has the machine to itself, which is the bench's part. Where only one process may be under way, all comes one after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.config import Config
from autotune.measure.early_look import EARLY_GAINS
from autotune.study.budget import LONGEST_LOOK_S, Budget
from autotune.study.early_stop import ExpectedGain
from autotune.study.records import StopReason, TrialRecord
from autotune.study.sampler.sampler import Sampler
from autotune.tuning import pruning
from autotune.tuning.evidence import CLEARLY_BETTER, Evidence
from autotune.tuning.finalists import EQUALLY_FAST

BETTER_ANSWER = 0.02
"""Log gain by which a proven config must be better than the answer to take its place while the run goes on."""
WORTH_KNOWING = 0.01
"""Log gain: where the best of the others is expected to bring less over the answer, no further block is measured."""
EARLY_GAIN = min(EARLY_GAINS.values())
"""Speed-up that a trial has to show for blocks at once: what they may prove early."""
MOST_EARLY = max(EARLY_GAINS)
"""Blocks that a large gain gets at once."""
SETTLED = 8
"""Blocks of the answer and its first rival after which it is not asked any more which of equal ones is the best."""
DISTURBED = 4
"""Disturbed blocks after which no quiet one is hoped for."""
LONG_CALL_S = 1.0
"""Seconds of an untuned call above which one more block costs more than it would show."""
OUT_OF_REACH = 0.10
"""A best config that is so much slower than the untuned model by its trial need not be compared with it again."""


@dataclass(frozen=True)
class Try:
    """A trial of this config, which may take so many seconds. `is_extra`: it is a simpler form of the leader."""

    config: Config
    longest_s: float
    is_extra: bool = False


@dataclass(frozen=True)
class Prove:
    """A block of these and the untuned model, the most important one first."""

    finalists: Sequence[TrialRecord]


@dataclass(frozen=True)
class End:
    """No further config is tried. `forecast` is the gain that was too small, where that is the reason."""

    reason: StopReason
    forecast: ExpectedGain | None = None


@dataclass(frozen=True)
class UnderWay:
    """What is under way, and what there is room for."""

    num_trials: int
    finalists: Sequence[TrialRecord] | None = None
    """Those of the open block; None where none is open."""
    has_place: bool = True
    """For one more process. Without one there may still be a place for a block."""
    mixes: bool = False
    """Trials compile beside the processes of a block."""
    num_extra: int = 0
    """Trials that were spent on a simpler form of the leader."""
    ended: StopReason | None = None
    """Why no further config is tried."""


class Schedule(Protocol):
    """What a time budget is asked (`TimeBudget`)."""

    def next_trial_s(self, standing: Standing | None) -> float | None: ...
    def spare_trial_s(self, standing: Standing) -> float | None: ...
    def holds(self, finalists: Sequence[TrialRecord]) -> bool: ...
    def fitting(self, finalists: Sequence[TrialRecord]) -> list[TrialRecord]: ...
    def may_hold(self, finalist: TrialRecord) -> bool: ...
    def is_short(self, finalists: Sequence[TrialRecord]) -> bool: ...


@dataclass(frozen=True)
class Standing:
    """What is known at some point of a run, and what follows from it. Pure."""

    evidence: Evidence
    most_finalists: int | None = None
    """Fewer where there is no room for more processes."""
    blocks_s: float = 0.0
    """Seconds that this run's blocks have taken."""
    block_s: float = 0.0
    """Seconds of one of them, where no time was given; with a time its deadline alone ends them."""

    def next(self, way: UnderWay, budget: Budget, time: Schedule, sampler: Sampler) -> Try | Prove | End | None:
        """What a free place is used for; None where it stays free, or all is decided. After an `End` it is asked again,
        with `way.ended`."""
        block, may_prove = way.finalists, way.mixes or not way.num_trials
        if block is not None and (not way.mixes or time.is_short(block)):
            return None
        early = None if block is not None else self.to_prove_at_once(has_plans=sampler.has_plans())
        if early is not None and time.holds([early]):
            return Prove([early]) if may_prove else None
        if way.ended is None:
            found = self._to_try(way, budget, time, sampler) if way.has_place else None
            # While trials are under way the search does not end: what is not measured yet may show more.
            if found is None or isinstance(found, Try) or not way.num_trials:
                return found
        if block is not None or not may_prove:
            return None
        return self._simpler(way, time, sampler) or self._to_prove(way, time)

    def _to_try(self, way: UnderWay, budget: Budget, time: Schedule, sampler: Sampler) -> Try | End:
        """The config to try next, or why none is tried any more."""
        study, longest_s = self.evidence.study, time.next_trial_s(self)
        if longest_s is None:
            return End(StopReason.TIME)
        num_tried = study.num_recorded()
        if budget.num_trials is not None and num_tried + way.num_trials >= budget.num_trials:
            return End(StopReason.TRIALS)
        # No forecast is made before it could end the search.
        may_stop = budget.stop_early and num_tried >= study.stop_rule.fewest_trials
        forecast = sampler.forecast() if may_stop else None
        if forecast is not None and forecast.is_negligible:
            return End(StopReason.UNPROMISING, forecast)
        config = sampler.suggest()
        return End(StopReason.EXHAUSTED) if config is None else Try(config, longest_s)

    def _simpler(self, way: UnderWay, time: Schedule, sampler: Sampler) -> Try | None:
        """The leader without settings that may have no effect, unless a trial shows it already."""
        evidence, leader = self.evidence, self.evidence.leader
        longest_s = None if way.num_trials else time.spare_trial_s(self)
        if way.num_extra >= pruning.MOST_EXTRA or leader is None or longest_s is None:
            return None
        if not evidence.untuned.violations and evidence.gain(leader) <= 0:
            return None
        config = pruning.simpler_config(evidence.study.records(), leader, evidence.study.manifest, EQUALLY_FAST)
        return None if config is None or sampler.excludes(config) else Try(config, longest_s, is_extra=True)

    def _to_prove(self, way: UnderWay, time: Schedule) -> Prove | None:
        """A block of the field; None once all is decided, or there is no time."""
        if self.is_over:
            return None
        finalists = time.fitting(self.field)
        if not finalists and self.answer is None and self.is_within_reach:
            # What looks best takes too long to compile: the best that has time may be proven.
            finalists = time.fitting(sorted(self.evidence.candidates, key=self.evidence.gain)[::-1])[:1]
        if not finalists and not way.num_trials:  # The time is of no other use.
            finalists = [record for record in self.field[:1] if time.may_hold(record)]
        return Prove(finalists) if finalists else None

    @property
    def answer(self) -> TrialRecord | None:
        """The proven config of which the most is expected."""
        return self.evidence.proven[0] if self.evidence.proven else None

    def answer_after(self, before: int | None) -> TrialRecord | None:
        """The answer, where it takes the place of the one that this trial was before; None where that one stays."""
        answer, gain = self.answer, self.evidence.gain
        if answer is None or answer.number == before:
            return None
        old = next((record for record in self.evidence.proven if record.number == before), None)
        return None if old is not None and gain(answer) < gain(old) + BETTER_ANSWER else answer

    def to_prove_at_once(self, *, has_plans: bool) -> TrialRecord | None:
        """The leader, where two or three blocks are expected to prove it."""
        evidence, leader, answer = self.evidence, self.evidence.leader, self.answer
        if (
            leader is None
            or leader == answer
            or evidence.is_proven(leader)
            or evidence.num_blocks(leader) >= MOST_EARLY
        ):
            return None
        if evidence.searched(leader) < EARLY_GAIN:
            return None
        is_better = answer is None or evidence.gain(leader) > evidence.gain(answer) + CLEARLY_BETTER
        return leader if is_better and (answer is None or not has_plans) else None

    def blocks_needed(self, record: TrialRecord) -> int:
        """Further blocks that are expected to prove it: one to three where its gain is large, else up to a look."""
        if self.evidence.is_proven(record):
            return 0
        num_done, searched = self.evidence.num_blocks(record), self.evidence.searched(record)
        early = [num for num, gain in EARLY_GAINS.items() if searched >= gain]
        looks = [*early, *self.evidence.plan.looks]
        return min((num - num_done for num in looks if num > num_done), default=1)

    @property
    def field(self) -> Sequence[TrialRecord]:
        """Whom a block compares when no config is tried any more; none where nothing came near the untuned model."""
        evidence, most = self.evidence, self.most_finalists
        if evidence.num_disturbed:
            most = 1  # Beside other programs many blocks prove one config, and few blocks of several none.
        return evidence.field[:most] if self.is_within_reach else ()

    @property
    def reach(self) -> float:
        """Share by which a config may look slower than the untuned model and still be compared with it."""
        floor = self.evidence.study.noise_floor
        return max(OUT_OF_REACH, floor.spread if floor is not None else 0.0)

    @property
    def is_within_reach(self) -> bool:
        """Some candidate may still be faster than the untuned model, or that one breaks a constraint."""
        evidence = self.evidence
        if evidence.untuned.violations:
            return bool(evidence.candidates)
        reach = self.reach
        return any(evidence.searched(record) * (1 + reach) > 1 for record in evidence.candidates)

    @property
    def is_decided(self) -> bool:
        """Further blocks would neither change the verdict nor whom it is about."""
        evidence, field, answer = self.evidence, self.field, self.answer
        if not field:
            return True
        compared = evidence.comparison_of(field)
        if compared is None:
            return False
        num_blocks, plan = [evidence.num_blocks(record) for record in field], evidence.plan
        if answer is not None:
            # One that joined late, and may be better, has had blocks of its own then.
            is_settled = min(num_blocks[:2]) >= SETTLED
            is_best = evidence.regret(answer) <= WORTH_KNOWING and not self._may_be_simpler(answer)
            has_enough = evidence.num_blocks(answer) >= self.fewest_blocks and not self.may_be_quieter
            return self.has_used_its_time or (has_enough and (is_settled or is_best))
        if num_blocks[0] >= plan.most_blocks:
            return True
        return min(num_blocks) in plan.looks and compared.is_clear()

    @property
    def may_be_quieter(self) -> bool:
        """What is proven rests on blocks beside other programs, and few of them: they are taken again."""
        return 0 < self.evidence.num_disturbed < DISTURBED

    @property
    def has_used_its_time(self) -> bool:
        """Each config has had a look. With a proven answer, the plan's seconds are over; without one, the next look is
        too far off for a run that was given no time."""
        evidence = self.evidence
        if any(evidence.num_blocks(record) < evidence.plan.first_look for record in self.field):
            return False
        if self.answer is not None:
            return self.blocks_s > evidence.plan.max_s
        return self.seconds_to_look > LONGEST_LOOK_S

    @property
    def seconds_to_look(self) -> float:
        """What the blocks up to the next look at the leader take; 0 where a time was given."""
        num_blocks = self.evidence.num_blocks(self.field[0]) if self.field else 0
        return self.evidence.plan.seconds_to_look(num_blocks, self.block_s)

    @property
    def is_ended_by_clock(self) -> bool:
        """A run that ends now does so for lack of time alone: by its figures it would go on."""
        return self.has_used_its_time or not self.is_decided

    @property
    def is_over(self) -> bool:
        """No further block is measured, whatever time is left."""
        return self.is_decided or self.has_used_its_time

    @property
    def fewest_blocks(self) -> int:
        """Blocks of an answer that ends a run: one more than may prove it, unless its calls take too long. It narrows
        the interval, and what one process of the untuned model showed is shown again."""
        return 1 if self.evidence.untuned.measurement.steady_call_s > LONG_CALL_S else 2

    def _may_be_simpler(self, answer: TrialRecord) -> bool:
        """A simpler config that looks as good as the answer has not had the blocks that would prove it."""
        simplest, evidence = self.evidence.simplest, self.evidence
        if simplest in (None, answer) or evidence.is_proven(simplest):
            return False
        return evidence.num_blocks(simplest) < evidence.plan.first_look
