"""The race: what is done next is a question to what is known (`Standing`), and whole studies on scripted processes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.answer.sections import news
from autotune.bench.bench import Lost
from autotune.config import Config
from autotune.errors import SetupError
from autotune.measure.measurement import DeviceMemory, Failure, Usage
from autotune.measure.statistics import Speedup, Verdict
from autotune.render.json import document
from autotune.study.budget import BlockPlan, Budget
from autotune.study.records import BlockRow, Confirmation, DriftCheck, NoiseFloor, StopReason
from autotune.trial.deadline import Deadline
from autotune.tuning.confirmation import conclude
from autotune.tuning.events import (
    AnswerProven,
    BlockMeasured,
    BlockStarted,
    DriftChecked,
    ScatterExplained,
    SearchEnded,
    TrialEnded,
    TrialStarted,
)
from autotune.tuning.evidence import evidence_of
from autotune.tuning.field import Field
from autotune.tuning.loop import Tuner
from autotune.tuning.race import End, Prove, Standing, Try, UnderWay
from autotune.tuning.session import Session
from tests.conftest import ScriptedLive, ScriptedTrials, fake_space, reopened, summary_of, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [m0, m1, m2, m3, m4, m5, m6, m7], default: m0}
"""
UNTUNED = Config({"execution": "eager"})


def compiled(number):
    return Config({"execution": "compile", "mode": f"m{number}"})


@pytest.fixture
def standing(make_study, measurement):
    """What is known after trials of so many ms (the untuned model's first, each of another mode) and rows of blocks in
    ms, by trial; `overrides` by number of the trial."""
    names, studies = itertools.count(), contextlib.ExitStack()

    def standing(trials_ms, rows=(), *, most=None, overrides=None, floor=None, modes=range(8), **question):
        study = make_study(f"s{next(names)}", space=fake_space(SPACE), **question)
        studies.enter_context(study.writing())  # What is known is read once.
        for number, ms in enumerate(trials_ms):
            asked = study.ask(compiled(modes[number]) if number else UNTUNED, 60.0)
            study.tell(asked, with_latency(measurement, ms / 1e3, **(overrides or {}).get(number, {})))
        study.blocks = [
            BlockRow(number=number, values={trial: ms / 1e3 for trial, ms in row.items()})
            for number, row in enumerate(rows, start=1)
        ]
        study.noise_floor = floor
        evidence = evidence_of(study, BlockPlan())
        assert evidence is not None
        standing.study = study
        return Standing(evidence, most)

    with studies:
        yield standing


def number_of(record):
    return None if record is None else record.number


class TestProvenAtOnce:
    """Whether the leader gets a block before further configs are tried."""

    def chosen(self, standing, *, has_plans=True):
        return number_of(standing.to_prove_at_once(has_plans=has_plans))

    @pytest.mark.parametrize(("trials_ms", "chosen"), [((10,), None), ((10, 7.9), None), ((10, 9, 7.8), 2)])
    def test_a_large_gain_of_a_trial(self, standing, trials_ms, chosen):
        """1.28x is one: the least that three blocks may prove."""
        assert self.chosen(standing(trials_ms)) == chosen

    def test_the_gain_is_over_the_untuned_model_of_that_minute(self, standing):
        """The machine became slower by a third behind the untuned model's trial."""
        found = standing((10, 9))
        standing.study.drift_checks = [DriftCheck(after=1, latency_s=0.0135)]
        assert self.chosen(found) == 1

    def test_a_trial_beside_which_nothing_was_read_is_set_against_the_reading_before(self, standing):
        """A slow model is not read after each trial."""
        found = standing((10, 9, 9))
        standing.study.drift_checks = [DriftCheck(after=1, latency_s=0.0135), DriftCheck(after=1, latency_s=0.01)]
        first, second = (found.evidence.searched(record) for record in found.evidence.candidates)
        assert first == pytest.approx(1.5)
        assert second == pytest.approx(10 / 9)

    def test_until_it_is_proven_and_for_three_blocks_at_most(self, standing):
        """After that it waits for its turn among the others."""
        row = {0: 10, 1: 5}
        assert self.chosen(standing((10, 5), [row])) == 1
        assert self.chosen(standing((10, 5), [row] * 2)) is None, "two blocks prove 2x"
        wild = [{0: 10, 1: ms} for ms in (4, 9, 6)]
        found = standing((10, 5), wild)
        assert not found.evidence.is_proven(found.evidence.leader)
        assert self.chosen(found) is None
        assert self.chosen(standing((10, 5), wild[:2])) == 1

    @pytest.mark.parametrize(
        ("better_ms", "has_plans", "chosen"),
        [(4, True, None), (4, False, 2), (4.9, False, None)],
        ids=["something is planned", "nothing is", "hardly better"],
    )
    def test_beside_an_answer(self, standing, better_ms, has_plans, chosen):
        """What is planned comes before a better answer, and both before what is hardly better."""
        found = standing((10, 5, better_ms), [{0: 10, 1: 5}] * 2)
        assert number_of(found.answer) == 1
        assert self.chosen(found, has_plans=has_plans) == chosen

    def test_whom_blocks_have_shown_to_be_slow_is_no_leader(self, standing):
        """The trial was lucky: the next one is tried in its place."""
        found = standing((10, 5, 6), [{0: 10, 1: 11}])
        assert number_of(found.evidence.leader) == 2
        assert self.chosen(found) == 2


class Plenty:
    """A schedule that has time for everything, or a sampler that has one config."""

    def __init__(self, *, trial_s=60.0, config=None):
        self.trial_s, self.config = trial_s, config

    def next_trial_s(self, standing):
        return self.trial_s

    spare_trial_s = next_trial_s

    def fitting(self, finalists):
        return list(finalists)

    def holds(self, finalists):
        return True

    is_short = excludes = may_hold = lambda *_: False

    def has_plans(self):
        return self.config is not None

    def suggest(self):
        return self.config


class TestNext:
    """What a free place is used for: a question to figures, without a bench."""

    MIXED = UnderWay(1, mixes=True, ended=StopReason.TRIALS)
    CASES = {
        "a config": ((10, 9), UnderWay(0), {"config": compiled(3)}, Try(compiled(3), 60.0)),
        "a large gain first": ((10, 5), UnderWay(0), {"config": compiled(3)}, [1]),
        "not while a trial is under way": ((10, 5), UnderWay(1), {"config": compiled(3)}, None),
        "beside it where they mix": ((10, 5), UnderWay(1, mixes=True), {"config": compiled(3)}, [1]),
        "nothing beside an open block": ((10, 9), UnderWay(0, finalists=()), {"config": compiled(3)}, None),
        "no time": ((10, 9), UnderWay(0), {"trial_s": None, "config": compiled(3)}, End(StopReason.TIME)),
        "all trials": ((10, 9, 9, 9), UnderWay(0), {"config": compiled(3)}, End(StopReason.TRIALS)),
        "none is left": ((10, 9), UnderWay(0), {}, End(StopReason.EXHAUSTED)),
        "a trial may still show more": ((10, 9), UnderWay(1), {}, None),
        "the field": ((10, 9), UnderWay(0, ended=StopReason.TRIALS), {"trial_s": None}, [1]),
        "the field, while trials end": ((10, 9), MIXED, {}, [1]),
        "nothing near the untuned model": ((10, 30), UnderWay(0, ended=StopReason.TRIALS), {}, None),
    }

    @pytest.mark.parametrize(("trials_ms", "way", "given", "expected"), CASES.values(), ids=CASES)
    def test_what_is_done(self, standing, trials_ms, way, given, expected):
        """Each answer has its limits in it, and asking changes nothing."""
        plenty = Plenty(**given)
        budget = Budget(num_trials=4, stop_early=False)
        for _ in range(2):
            found = standing(trials_ms).next(way, budget, plenty, plenty)
            if isinstance(found, Prove):
                found = [record.number for record in found.finalists]
            assert found == expected


class TestBlocksNeeded:
    """How many further blocks are expected to prove a config: time is kept for them."""

    @pytest.mark.parametrize(
        ("trial_ms", "num_done", "needed"),
        [(3.3, 0, 1), (6, 0, 2), (7.5, 0, 3), (9, 0, 4), (9, 3, 1), (9, 4, 4), (9, 8, 8), (9, 16, 1), (7.5, 2, 1)],
    )
    def test_up_to_the_next_look(self, standing, trial_ms, num_done, needed):
        """One to three where the trial shows a large gain, else up to four, eight or sixteen."""
        unclear = [{0: 10, 1: ms} for ms in itertools.islice(itertools.cycle([8, 12]), num_done)]
        found = standing((10, trial_ms), unclear)
        assert found.blocks_needed(found.evidence.candidates[0]) == needed

    def test_none_for_what_is_proven(self, standing):
        """It has all the blocks that it needs."""
        found = standing((10, 5), [{0: 10, 1: 5}] * 2)
        assert found.blocks_needed(found.evidence.candidates[0]) == 0


class TestField:
    """Whom a block compares."""

    def numbers(self, found):
        return [record.number for record in found.field]

    def test_the_leader_and_those_that_may_be_as_good(self, standing):
        """Three at most; one where there is no room for more."""
        found = self.numbers(standing((10, 9, 5.05, 5, 5.04, 5.03)))
        assert found[0] == 3
        assert len(found) == 3
        assert 1 not in found
        assert self.numbers(standing((10, 9, 5.05, 5, 5.04, 5.03), most=1)) == [3]

    def test_the_answer_stays_in_it(self, standing):
        """A better one has to be better than that, in the same blocks."""
        assert self.numbers(standing((10, 5, 4), [{0: 10, 1: 5}] * 2)) == [1, 2]

    def test_nothing_that_is_far_slower_than_the_untuned_model(self, standing):
        """Unless two processes of the latter differ by as much."""
        assert not standing((10, 11.5)).field
        assert standing((10, 11.5)).is_decided
        noisy = NoiseFloor(pairs=((1.0, 1.2),), spread=0.2, relative_error=0.0)
        assert self.numbers(standing((10, 11.5), floor=noisy)) == [1]

    def test_an_untuned_model_that_breaks_a_constraint_is_no_bar(self, standing):
        """The best of those that keep it is compared, however slow."""
        overrides = {0: {"peak_memory_bytes": 3 * 2**30}, 1: {"peak_memory_bytes": 2**30}}
        found = standing((10, 30), overrides=overrides, constraints=("peak_memory <= 2GiB",))
        assert found.evidence.untuned.violations
        assert self.numbers(found) == [1]
        assert not found.is_decided


class TestDecided:
    """When no further block is measured."""

    def test_a_proven_answer_that_nobody_may_beat(self, standing):
        """And not before, nor without a block."""
        assert standing((10,)).is_decided
        assert not standing((10, 5)).is_decided
        assert not standing((10, 5), [{0: 10, 1: 5}]).is_decided
        assert standing((10, 5), [{0: 10, 1: 5}] * 2).is_decided

    def test_a_rival_that_may_be_better_keeps_it_open(self, standing):
        """Until it has had its blocks."""
        rows = [{0: 10, 1: 5}] * 2
        assert not standing((10, 5, 4), rows).is_decided
        assert standing((10, 5, 4), [*rows, *[{0: 10, 1: 5, 2: 4}] * 4]).is_decided
        assert standing((10, 5, 4), [*rows, *[{0: 10, 1: 5, 2: 5.5}] * 6]).is_decided

    def test_which_of_several_equal_ones_is_the_best_is_asked_for_eight_blocks(self, standing):
        """What they scatter by leaves one of them better by half a percent, perhaps, for ever."""
        waves = [{0: 10, 1: 5 + shift, 2: 5 - shift} for shift in (0.3, -0.3, 0.2, -0.2)]
        assert not standing((10, 5, 5), waves).is_decided
        assert standing((10, 5, 5), waves * 2).is_decided

    @pytest.mark.parametrize("num_old", [8, 16])
    def test_a_newcomer_gets_blocks_of_its_own(self, standing, num_old):
        """A run that goes on finds a config that looks better than an answer that has all its blocks: one block of it
        decides nothing."""
        old, both = [{0: 10, 1: 9}] * num_old, {0: 10, 1: 9, 2: 8.3}
        assert standing((10, 9), old).is_decided
        assert not standing((10, 9, 8.3), old).is_decided
        assert not standing((10, 9, 8.3), [*old, both]).is_decided
        found = standing((10, 9, 8.3), [*old, *[both] * 4])
        assert found.is_decided
        assert number_of(found.answer) == 2

    def test_a_simpler_one_that_looks_as_good_is_proven_as_well(self, standing):
        """It is the one to export: the default, and a config with another setting."""
        rows = [{0: 10, 2: 5}] * 2
        found = standing((10, 5.05, 5), rows, modes=(None, 0, 1))
        assert number_of(found.answer) == 2
        assert number_of(found.evidence.simplest) == 1
        assert not found.is_decided
        assert standing((10, 5.05, 5), [*rows, *[{0: 10, 1: 5.05, 2: 5}] * 2], modes=(None, 0, 1)).is_decided

    def test_nothing_that_looks_faster(self, standing):
        """At a look: four blocks of the one that had the fewest."""
        rows = [{0: 10, 1: 10}] * 4
        assert [standing((10, 9.5), rows[:num]).is_decided for num in range(5)] == [False] * 4 + [True]

    def test_not_what_sixteen_blocks_do_not_tell(self, standing):
        """The machine is too wild: then it is undecided."""
        wild = [{0: 10, 1: ms} for ms in [4, 16, 7, 30] * 4]
        assert not standing((10, 8), wild[:15]).is_decided
        assert standing((10, 8), wild).is_decided

    def test_what_is_not_decided_is_ended_by_the_clock_alone(self, standing):
        """What is proven, or clear, is not. Without a time that was given a next look half an hour away ends it."""
        wild = [{0: 10, 1: ms} for ms in [4, 16, 7, 30]]
        assert standing((10, 5), [{0: 10, 1: 5}]).is_ended_by_clock
        assert not standing((10, 5), [{0: 10, 1: 5}] * 2).is_ended_by_clock
        clear = standing((10, 9.5), [{0: 10, 1: 10}] * 4)
        assert not clear.is_ended_by_clock
        for block_s, is_over in ((450.0, False), (451.0, True)):
            opened = dataclasses.replace(standing((10, 8), wild[:4]), blocks_s=4 * block_s, block_s=block_s)
            assert (opened.is_decided, opened.is_over, opened.is_ended_by_clock) == (False, is_over, True)

    def test_a_last_look_by_the_clock_spends_what_is_left(self, standing):
        """The verdict that is stored on the way does not."""
        found = standing((10, 9.1), [{0: 10, 1: 10 / ratio} for ratio in (1.13, 1.04, 1.14, 1.09, 1.12, 1.11)])
        session = Session(
            standing.study, Budget(), ScriptedTrials(lambda *_: None), lambda _: None, Deadline.after(60.0)
        )
        concluded = [
            conclude(session, found, Field(session), StopReason.TIME, is_interim=is_interim)
            for is_interim in (False, True)
        ]
        assert [each.verdict for each in concluded] == [Verdict.FASTER, Verdict.UNDECIDED]
        assert concluded[0].speedups[0].low > concluded[1].speedups[0].low


class Interrupt:
    """Collects events, and raises at the n-th of a kind."""

    def __init__(self, kind=None, nth=1, error=KeyboardInterrupt):
        self.events, self._kind, self._nth, self._error = [], kind, nth, error

    def __call__(self, event):
        self.events.append(event)
        if self._kind is not None and sum(isinstance(seen, self._kind) for seen in self.events) == self._nth:
            self._kind = None
            raise self._error

    def of(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]


GAINS = {1: 1.4, 2: 1.1, 5: 1.5, 6: 1.8}
"""Mode -> its true gain; the others are as fast as the untuned model."""


@pytest.fixture
def race(make_study, measurement):
    """Runs a study on scripted processes that scatter by 2 %, the same in each run. `fails` gives a failure by name,
    block and config."""

    def process(seed, fails):
        def outcome_of(name, block, config):
            failure = fails(name, block, config)
            if failure is not None:
                return failure
            gain = 1.0 if config == UNTUNED else GAINS.get(int(config["mode"][1:]), 1.0)
            scatter = random.Random(f"{seed} {name} {block} {config}").gauss(0, 0.02)
            return with_latency(measurement, 0.010 / gain * math.exp(scatter))

        return outcome_of

    def race(name="s", *, on=None, seed=0, notify=None, fails=lambda *_: None, trials=99, **question):
        study = on or make_study(name, space=fake_space(SPACE), **question)
        notify = notify or Interrupt()
        trials_run = ScriptedTrials(process(seed, fails))
        try:
            confirmation = Tuner(study, Budget(num_trials=trials), trials_run, notify).run()
        except KeyboardInterrupt:
            confirmation = None
        return study, confirmation, notify

    return race


PLACES = [
    (TrialStarted, 1),
    (TrialEnded, 1),
    (TrialStarted, 3),
    (BlockStarted, 1),
    (BlockMeasured, 1),
    (AnswerProven, 1),
    (DriftChecked, 3),
    (TrialEnded, 6),
    (SearchEnded, 1),
    (BlockStarted, 4),
    (BlockMeasured, 5),
]


class TestInterrupted:
    """Ctrl-C at any time: nothing that was measured is lost, and the run that follows ends as this one would have."""

    @pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_the_next_run_gives_the_answer_of_one_that_was_not_interrupted(self, race, seed):
        """Wherever it was, of which the fast case takes a third. The same trials and rows are recorded, and none is
        measured again."""
        whole, expected, events = race("whole", seed=seed)
        assert expected.verdict is Verdict.FASTER
        assert whole.record(expected.candidate).config == compiled(6)
        for kind, nth in PLACES if seed == 2 else PLACES[2::3]:
            name = f"{kind.__name__}-{nth}"
            study, nothing, first = race(name, seed=seed, notify=Interrupt(kind, nth))
            if len(events.of(kind)) < nth:
                continue
            assert nothing is None, name
            kept = study.blocks
            assert len(kept) == len(first.of(BlockMeasured)), name
            study, confirmation, second = race(on=reopened(study), seed=seed)
            assert confirmation.verdict is expected.verdict, name
            assert study.record(confirmation.candidate).config == whole.record(expected.candidate).config, name
            assert study.blocks[: len(kept)] == kept, name
            assert len(study.blocks) == len(kept) + len(second.of(BlockMeasured)), name
            tried = [record.config for record in study.records() if record.state == "measured"]
            assert len(set(tried)) == len(tried), name

    def test_an_answer_that_was_proven_stands(self, race):
        """It is the study's answer from that moment on, and is said to be an interrupted run's."""
        study, _, interrupt = race(notify=Interrupt(AnswerProven))
        assert not interrupt.of(SearchEnded)
        (step,) = study.answers
        assert step.speedup.low > 1.01
        found = study.confirmation
        assert (found.verdict, found.candidate, found.cut_short) == (Verdict.FASTER, step.trial, True)
        assert found.why == "the run has not come to its end"
        assert len(found.blocks) == step.num_blocks == len(study.blocks)
        assert tuned_config(study).config == study.record(step.trial).config
        assert found.why in summary_of(study)

    def test_rows_that_prove_nothing_yet_are_kept_too(self, race):
        """Without a verdict: the run that follows has one block less to measure."""
        study, _, _ = race(notify=Interrupt(BlockMeasured))
        assert study.confirmation is None
        assert len(study.blocks) == 1


class TestAnswers:
    """The history of the answer."""

    def test_a_large_gain_is_proven_before_the_search_ends(self, race):
        """By two or three blocks, right after its trial."""
        study, confirmation, interrupt = race()
        kinds = [type(event) for event in interrupt.of(AnswerProven, SearchEnded, TrialEnded)]
        assert kinds.index(AnswerProven) < kinds.index(SearchEnded)
        assert study.answers[0].num_blocks <= 3
        assert study.answers[-1].trial in study.confirmation.contestants
        assert confirmation == study.confirmation
        assert not confirmation.cut_short

    def test_only_a_better_one_takes_its_place(self, race):
        """Each step is proven itself, and better than the one before."""
        study, _, interrupt = race()
        steps = interrupt.of(AnswerProven)
        assert [event.step for event in steps] == study.answers
        assert [event.replaced for event in steps] == [None, *study.answers[:-1]]
        modes = [GAINS[int(event.record.config["mode"][1:])] for event in steps]
        assert modes == sorted(modes)
        assert all(step.speedup.low > 1.01 for step in study.answers)

    def test_trials_as_many_as_asked_for(self, race):
        """The last one is proven as well, though no further one is tried."""
        study, confirmation, _ = race(trials=2)
        assert study.stop_reason is StopReason.TRIALS
        assert study.num_recorded() <= 3, "one may be spent on a simpler form"
        assert confirmation.blocks

    def test_a_space_of_one_config(self, make_study, measurement):
        """It is exhausted at once, and what there is is proven."""
        study = make_study(space=fake_space(SPACE[: SPACE.index("  mode")]))
        latency_ms = {UNTUNED: 10}
        trials = ScriptedTrials(lambda name, block, config: with_latency(measurement, latency_ms.get(config, 4) / 1e3))
        confirmation = Tuner(study, Budget(), trials).run()
        assert study.stop_reason is StopReason.EXHAUSTED
        assert (confirmation.verdict, len(confirmation.blocks)) == (Verdict.FASTER, 2)


def in_blocks(failure, is_hit):
    """`fails` of a study in which some processes of blocks do."""
    return lambda name, block, config: failure if block and is_hit(name, config) else None


class TestFailures:
    """What goes wrong in a block costs as little as possible."""

    def test_a_finalist_that_fails_leaves_room_for_the_next_one(self, race):
        """It is out for this run, and named."""
        failure = Failure(reason="wrong_result", stage="check", error="relative error 3")
        best = (compiled(5), compiled(6))
        study, confirmation, _ = race(fails=in_blocks(failure, lambda _, config: config in best))
        assert confirmation.verdict is Verdict.FASTER
        assert study.record(confirmation.candidate).config == compiled(1)
        assert confirmation.note.count("relative error 3") == 2

    @pytest.mark.parametrize("reason", ["crash", "setup"])
    def test_blocks_that_always_fail_end(self, race, reason):
        """Whatever the reason: each config once or twice, and then nothing is left to compare."""
        failure = Failure(reason=reason, stage="compile", error="gone")
        study, confirmation, interrupt = race(
            fails=lambda name, block, _: failure if block and name != "untuned" else None
        )
        assert confirmation.verdict in (Verdict.KEEP_UNTUNED, Verdict.UNDECIDED)
        assert study.blocks == [] or all(len(row.values) == 1 for row in study.blocks)
        assert len(interrupt.of(BlockStarted)) <= 2 * study.num_recorded()

    @pytest.mark.parametrize("num_wrong", [1, 9])
    def test_an_untuned_model_that_is_another_one_in_its_first_block_is_refused(self, race, num_wrong):
        """One that is right afterwards does not undo that; once a block has shown that processes agree, it is a note,
        or the reason of a study that stays undecided."""
        wrong = Failure(reason="wrong_result", stage="check", error="relative error 3")
        left = {1: num_wrong, 2: num_wrong}

        def fails_in(number):
            def fails(name, block, _):
                is_wrong = name == "untuned" and block == number and left[number] > 0
                left[number] -= is_wrong
                return wrong if is_wrong else None

            return fails

        with pytest.raises(SetupError, match=r"another output in another process.*relative error 3"):
            race(fails=fails_in(1))
        _, confirmation, _ = race("other", fails=fails_in(2))
        if num_wrong == 1:
            assert "the untuned model failed and was run again: wrong_result: relative error 3" in confirmation.note
        else:
            assert "gave another output in another process: relative error 3" in str(confirmation.why)

    def test_an_untuned_model_that_crashes_now_and_then(self, race):
        """Beside the trials as in a block: MindSpore's does by chance, whatever it runs."""
        crash = Failure(reason="crash", stage="run", error="SIGSEGV")
        left = {"beside": 3, "block": 3}

        def fails(name, block, config):
            if name != "untuned":
                return None
            where = "block" if block else "beside"
            left[where] -= 1
            return crash if left[where] >= 0 else None

        _, confirmation, _ = race(fails=fails)
        assert confirmation.verdict is Verdict.FASTER
        assert "the untuned model failed and was run again: crash: SIGSEGV" in confirmation.note

    def test_a_lost_worker_takes_its_rows_with_it_and_the_run_goes_on(self, race):
        """Figures of two machines are not compared: all blocks are measured anew, and the answer is the same."""
        lost = [Lost(error="node gone", worker="w1")]

        def fails(name, block, config):
            return lost.pop() if lost and block == 3 else None

        study, confirmation, interrupt = race(fails=fails)
        assert confirmation.verdict is Verdict.FASTER
        assert [row.number for row in study.blocks] == list(range(1, len(study.blocks) + 1))
        assert len(interrupt.of(BlockMeasured)) == len(study.blocks) + 2
        assert study.record(confirmation.candidate).config == compiled(6)

    def test_a_last_finalist_out_of_memory(self, race):
        """Beside the untuned model alone there is no room for it: it is blamed, the next one is compared."""
        failure = Failure(reason="out_of_memory", stage="compile", error="1 TiB")
        best = (compiled(5), compiled(6))
        study, confirmation, _ = race(fails=in_blocks(failure, lambda _, config: config in best))
        assert study.record(confirmation.candidate).config == compiled(1)
        assert "out_of_memory: 1 TiB" in confirmation.note


@pytest.fixture
def on_a_cpu(measurement):
    """A measurement of a process there, of such calls."""
    environment = measurement.environment.model_copy(update={"device": "cpu"})

    def on_a_cpu(latency_s, faults=0):
        none = (0,) * 3
        usage = Usage(cpu_s=none, page_faults=(faults,) * 3, involuntary_switches=none, taken_s=0, stolen_s=0)
        samples = measurement.samples.model_copy(
            update={"latency_s": (latency_s,) * 3, "usage": usage, "calls_per_sample": 1, "turns": ()}
        )
        return measurement.model_copy(update={"samples": samples, "environment": environment})

    return on_a_cpu


def told_in_blocks(study, trial, outcome_of, controls=(None,) * 3):
    """What is told in blocks of the untuned model and a config, of which each measured `trial` in the search."""
    for number in range(2):
        study.tell(study.ask(compiled(number) if number else UNTUNED, 60.0), trial)
    seen = Interrupt()
    field = Field(Session(study, Budget(), ScriptedTrials(outcome_of), seen))
    for control in controls:
        field.open([study.ended()[1]], control and ScriptedLive(control))
        while not field.block.is_warm:
            field.block.note_ready(field.block.start_next())
        field.close()
    speedup = Speedup(median=1.3, low=0.9, high=1.7)
    study.confirmation = Confirmation(
        verdict=Verdict.UNDECIDED, candidate=1, contestants=(0, 1), blocks=((0.01, 0.01),), speedups=(speedup,),
        num_trials=2,
    )  # fmt: skip
    (told,) = seen.of(ScatterExplained)
    return news(told)


def test_what_makes_processes_differ_is_told_once(make_study, on_a_cpu):
    """Page faults of the untuned model's processes, which each row keeps: one line, with the cause, and no advice about
    other programs."""
    study = make_study(space=fake_space(SPACE))

    def of(faults):
        return on_a_cpu(0.01 + 1.5e-6 * faults, faults)

    told = told_in_blocks(study, of(0), lambda name, block, _: of(5000 * (block - 1) if name == "untuned" else 0))
    assert [row.states[0].page_faults for row in study.blocks] == [0, 5000, 10000]
    assert told == [
        "scatter     the untuned model takes 10 ms to 17.5 ms by process: up to 5,000 page faults a call, since the C "
        "library gives memory back to the system"
    ]
    shown = summary_of(study)
    assert "25 ms by process: up to 10,000 page faults a call" in shown
    assert "keep memory in the process" in shown
    assert "other programs" not in shown
    assert "quieter" not in shown


def test_a_machine_that_was_slower_in_some_blocks_is_told(make_study, on_a_cpu):
    """Where all processes of a block went with it, the one of the whole run among them. It asks for nothing."""
    study = make_study(space=fake_space(SPACE))
    slow = {1: 1.0, 2: 1.4, 3: 1.02}
    (line,) = told_in_blocks(
        study,
        on_a_cpu(0.01),
        lambda _, block, __: on_a_cpu(0.01 * slow[block]),
        [on_a_cpu(0.0101 * each) for each in slow.values()],
    )
    assert line.endswith(
        "by process: the machine was slower in some blocks, for all processes alike; ratios are not touched by it"
    )
    assert document(StudyResult(study))["scatter"]["cause"] == "slower_machine"
    shown = " ".join(summary_of(study).split())
    assert "for all processes alike" in shown
    assert "runs of the same config differ on this machine; `resume`" in shown


class TestOnADevice:
    """Trials run one by one there, while the processes of a block become warm side by side, as far as the machine has
    cores to compile and the device has room."""

    @pytest.fixture
    def run(self, monkeypatch, make_study, measurement, workload):
        """A study of three configs on a machine with so many cores. Returns it, its end and, for each process of a
        block, how many were on their way when it started. `fails` is told that too, and gives a failure or None."""

        def run(num_cores, fails=lambda _: None, room=None, trial=lambda _: None, width=1):
            memory = None if room is None else DeviceMemory(own_bytes=2**30, free_bytes=(room - 1) * 2**30)
            seen = measurement.model_copy(update={"device_memory": memory})
            monkeypatch.setattr("autotune.tuning.jobs.num_usable_cores", lambda: num_cores)
            on_their_way = []

            def outcome_of(name, block, config):
                latency_ms = {"m0": 8, "m5": 7.9, "m6": 7.8}.get(config.get("mode"), 10)
                if block == 0:
                    return trial(tuner) or with_latency(seen, latency_ms / 1e3)
                if tuner._field.block is None:  # It begins beside a trial.
                    return with_latency(seen, latency_ms / 1e3)
                on_their_way.append(len(tuner._field.block.on_their_way))
                return fails(on_their_way[-1]) or with_latency(seen, latency_ms / 1e3)

            of_three = SPACE.replace("[m0, m1, m2, m3, m4, m5, m6, m7]", "[m0, m5, m6]")
            on_gpu = workload.model_copy(update={"device": "gpu"})
            study = make_study(space=fake_space(of_three), workload=on_gpu)
            bench = ScriptedTrials(outcome_of)
            bench.width = width
            tuner = Tuner(study, Budget(num_trials=99), bench, lambda _: None)
            return study, tuner.run(), on_their_way

        return run

    @pytest.mark.parametrize(
        ("num_cores", "room", "order"),
        [
            (2, None, [0] * 6),
            (4, None, [0, 1] * 3),
            (16, None, [0, 1, 2, 3, 0, 1]),
            (16, 4, [0, 1, 2, 3, 0, 1]),
            (16, 3, [0] * 6),
        ],
    )
    def test_processes_of_a_block_become_warm_side_by_side(self, run, num_cores, room, order):
        """The leader's and the untuned model's, where there are two cores for each of the two; those of the next block
        beside them, where there are cores and memory for all four and one block is not enough."""
        study, confirmation, on_their_way = run(num_cores, room=room)
        assert on_their_way == order
        assert study.record(confirmation.candidate).config == compiled(6)

    def test_a_pair_that_has_no_room_becomes_warm_one_by_one(self, run):
        """Nobody is blamed: an untuned model that has no room gets another process, a config another block."""
        failure = Failure(reason="out_of_memory", stage="compile", error="1 TiB")
        study, confirmation, on_their_way = run(16, lambda num: failure if num else None)
        assert 1 in on_their_way
        assert on_their_way[-2:] == [0, 0]
        assert study.record(confirmation.candidate).config == compiled(6)

    @pytest.mark.parametrize(("num_before", "num_lost"), [(1, 1), (2, 2)])
    def test_trials_that_find_no_room_beside_others_run_alone(self, run, num_before, num_lost):
        """Nobody is blamed where several compile side by side, or the first beside its block: each is tried again, by
        itself."""
        failure = Failure(reason="out_of_memory", stage="compile", error="1 TiB")

        def is_full(tuner):
            is_beside = tuner._session.in_batches and tuner._attempts.has_room
            return failure if is_beside and tuner._study.num_recorded() >= num_before else None

        study, confirmation, _ = run(16, trial=is_full, width=None)
        states = [record.state for record in study.records()]
        assert (states.count("lost"), states.count("failed"), states.count("measured")) == (num_lost, 0, 4)
        assert study.record(confirmation.candidate).config == compiled(6)

    def test_what_is_done_without_room(self, make_study, measurement, workload, monkeypatch):
        """One by one at first, then in pairs, then in turn; then it is the config's own fault."""
        monkeypatch.setattr("autotune.tuning.jobs.num_usable_cores", lambda: 16)
        failure = Failure(reason="out_of_memory", stage="compile", error="1 TiB")
        on_gpu = workload.model_copy(update={"device": "gpu"})
        study = make_study(space=fake_space(SPACE), workload=on_gpu)
        for number in range(3):
            study.tell(study.ask(compiled(number) if number else UNTUNED, 60.0), measurement)
        bench = ScriptedTrials(lambda name, _, __: failure if name == "trial-0001" else measurement)
        field = Field(Session(study, Budget(), bench, lambda _: None))
        _, *finalists = study.ended()

        def failed_after_a_block(of):
            field.open(of, None)
            while not field.block.is_warm:
                if field.block.left:
                    field.block.start_next()
                for running in list(field.block.warming.values()):
                    field.block.note_ready(running)
            field.close()
            return list(field.failed), field.has_room, field.most_finalists

        assert failed_after_a_block(finalists) == ([], False, None)
        assert failed_after_a_block(finalists) == ([], False, 1)
        assert failed_after_a_block(finalists[:1]) == ([], False, 1)
        assert field.is_in_turn
        assert failed_after_a_block(finalists[:1]) == ([1], False, 1)


@pytest.mark.usefixtures("every_turn")
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_study_that_goes_on_on_a_slower_machine(make_study, measurement, factor):
    """Its trials are set against the untuned model of that day: none looks slower for it, and the change is known."""
    study = make_study(space=fake_space(SPACE))
    day = [1.0]

    def outcome_of(_name, _block, config):
        gain = 1.0 if config == UNTUNED else GAINS.get(int(config["mode"][1:]), 1.0)
        return with_latency(measurement, 0.010 / gain * day[0])

    Tuner(study, Budget(num_trials=2), ScriptedTrials(outcome_of)).run()
    study.reference.write_bytes(b"")  # As a real trial of the untuned model leaves it.
    day[0] = factor
    confirmation = Tuner(reopened(study), Budget(num_trials=99), ScriptedTrials(outcome_of)).run()
    again = reopened(study)
    evidence = evidence_of(again, BlockPlan())
    for record in evidence.candidates:
        assert evidence.searched(record) == pytest.approx(GAINS.get(int(record.config["mode"][1:]), 1.0))
    assert again.record(confirmation.candidate).config == compiled(6)
