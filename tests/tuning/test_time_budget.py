"""A run with a time budget: on a clock that only the scripted processes advance."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.backends.engine import ENGINES
from autotune.bench.bench import Running
from autotune.config import Config
from autotune.errors import InputError
from autotune.measure.measurement import Failure, Measurement, Reason, Samples, Stage
from autotune.measure.sampling import Reading
from autotune.measure.statistics import Verdict
from autotune.render.json import document
from autotune.study.budget import BlockPlan, Budget, duration_s
from autotune.study.folder import FolderStudies
from autotune.study.records import ENGINE_BLOCK, StopReason
from autotune.trial.deadline import SHORTEST_S, Deadline
from autotune.trial.request import Limits
from autotune.tuning import loop
from autotune.tuning.attempts import Attempts
from autotune.tuning.events import BlockMeasured, BlockStarted, BudgetShort, SearchEnded, StageEntered, TrialStarted
from autotune.tuning.loop import Tuner
from autotune.tuning.session import Session, trial_request
from autotune.tuning.time_budget import TimeBudget, TimeLeft
from tests.conftest import OneByOne, fake_space, reopened, summary_of
from tests.plugins.test_engines import ABACUS

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, default: m0,
         values: [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9]}
"""
UNTUNED = Config({"execution": "eager"})
START_S, RUN_S, TURN_S = 2.0, 5.0, 0.1
STOPPED = Failure(reason="timeout", stage="compile", error="stopped: longer than its limit in stage compile")


def _figures(pattern, confirmation):
    """The numbers in why a confirmation was not made, which is a sentence of this form."""
    found = re.fullmatch(pattern, confirmation.why)
    assert found, confirmation.why
    return [int(each) for each in found.groups()]


def compiled(number):
    return Config({"execution": "compile", "mode": f"m{number}"})


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Live(Running):
    """A live process whose turns take time; with a `hang`, one turn takes that much and kills it."""

    clock: Clock
    end: object
    hang_s: float | None = None
    outcome: object = None

    def turn(self):
        if self.outcome is None and self.hang_s is not None:
            self.clock.now += self.hang_s
            self.outcome = STOPPED
        self.clock.now += TURN_S if self.outcome is None else 0.0
        is_over = self.outcome is not None or not isinstance(self.end, Measurement)
        return None if is_over else Reading(self.end.latency.p50)

    def warm(self, on_stage=None):
        """It is."""

    def finish(self, on_stage=None):
        self.outcome = self.outcome or self.end
        return self.outcome


@dataclass
class TimedTrials(OneByOne):
    """Processes that take the time they are said to, and are killed at their limits as real ones are.

    `says` gives by config: ms a call, seconds to compile. From the second block on a live process compiles with caches,
    in a fifth of the time, or the share `warm` of it. `in_blocks` multiplies what a live process takes.
    """

    clock: Clock
    measurement: object
    says: object
    in_blocks: float = 1.0
    hangs: object = lambda name, block: False
    warm: float = 0.2
    started: list = field(default_factory=list)
    requests: list = field(default_factory=list)

    def run(self, folder, request, **_):
        self.started.append(folder.path.name)
        self.requests.append(request)
        latency_ms, compile_s = self.says(request.config)
        took_s = START_S + compile_s + RUN_S
        self.clock.now += min(took_s, request.limits.total)
        if took_s > request.limits.total:
            return STOPPED
        return self.measured(latency_ms, compile_s)

    def hold(self, folder, request, **_):
        block = folder.path.parent.name
        self.started.append(f"{folder.path.parent.parent.name}/{block}/{folder.path.name}")
        latency_ms, compile_s = self.says(request.config)
        share = 1.0 if block == "block-01" else self.warm
        took_s = self.in_blocks * (START_S + share * compile_s)
        self.clock.now += min(took_s, request.limits.total)
        if took_s > request.limits.total:
            return Live(self.clock, STOPPED, outcome=STOPPED)
        hang_s = request.limits.total if self.hangs(folder.path.name, block) else None
        return Live(self.clock, self.measured(latency_ms, compile_s), hang_s)

    def measured(self, latency_ms, compile_s):
        return self.measurement.model_copy(
            update={
                "samples": Samples(latency_s=(latency_ms / 1e3,) * 9, steady=True, ended_by="turns", turns=(9,)),
                "first_call_s": compile_s + latency_ms / 1e3,
                "compile_s": compile_s,
                "stage_s": {Stage.START: START_S, Stage.COMPILE: compile_s, Stage.RUN: RUN_S},
            }
        )


PLAN = Budget(
    confirmation=BlockPlan(num_rounds=3, max_sampling_s=3, first_look=4, num_looks=2),
    noise_floor=BlockPlan(num_rounds=3, max_sampling_s=3, first_look=2, num_looks=1),
)
DEAR_BLOCKS = PLAN.model_copy(update={"confirmation": BlockPlan(num_rounds=900, fewest_rounds=900, first_look=4)})
"""Their turns alone take 180 s, as real ones do, and three minutes as `TimedTrials` has it."""


def usual(config):
    """10 ms untuned; the others compile for 20 s, and the later the mode the faster."""
    return (10, 0.0) if config == UNTUNED else (9 - int(config["mode"][1:]) / 2, 20.0)


def slight(config):
    """One config compiles, and gains 11 %."""
    return (10, 0.0) if config == UNTUNED else (9 if config == compiled(0) else 30, 10.0)


def dear_untuned(config):
    """The untuned model's check takes 3 s more: a second process of it does not fit in 15 % of 40 s."""
    return (10, 3.0) if config == UNTUNED else usual(config)


@pytest.fixture
def study(make_study):
    return make_study(space=fake_space(SPACE))


@pytest.fixture
def tune(study, measurement):
    """Run the loop with so many seconds; what happened is kept on the function."""

    def tune(wall_s, says=usual, *, num_trials=None, on=None, plan=PLAN, **more):
        clock = Clock()
        tune.events, tune.clock = [], clock
        tune.trials = TimedTrials(clock, measurement, says, **more)
        budget = plan.model_copy(update={"wall_s": wall_s, "num_trials": num_trials})
        deadline = Deadline.after(wall_s, clock=clock)
        return Tuner(on or study, budget, tune.trials, tune.events.append, deadline=deadline).run()

    return tune


def stop_of(tune):
    return next(each.reason for each in tune.events if isinstance(each, SearchEnded))


class TestTheSearch:
    """It goes on as long as the best answer can still be confirmed."""

    def test_it_stops_in_time_for_the_confirmation(self, study, tune):
        """Several configs are tried, not all; the verdict comes before the time is up; and why it stopped is said."""
        confirmation = tune(300)
        assert confirmation.verdict is Verdict.FASTER
        assert tune.clock.now <= 300
        assert 3 < study.num_recorded() < 11
        assert stop_of(tune) is study.stop_reason is StopReason.TIME
        assert f"searched    {study.num_recorded()} of 11 configs: time limit reached; `resume` goes on" in summary_of(
            study
        )
        assert document(StudyResult(study))["stop_reason"] == "time"

    @pytest.mark.parametrize("wall_s", [160, 400, 900])
    def test_whatever_the_time_the_answer_is_confirmed_within_it(self, study, tune, wall_s):
        """The first look is always reached, and no run outlasts its time."""
        confirmation = tune(wall_s)
        assert len(confirmation.blocks) >= PLAN.confirmation.first_look
        assert confirmation.verdict is Verdict.FASTER
        assert tune.clock.now <= wall_s

    def test_more_time_tries_more(self, make_study, study, tune):
        """The rest of the time is not given away: each further minute is used."""
        tried = []
        for number, wall_s in enumerate((180, 260, 340)):
            other = make_study(f"s{number}", space=study.manifest.space)
            tune(wall_s, on=other)
            tried.append(other.num_recorded())
        assert tried == sorted(set(tried))

    def test_the_number_of_trials_may_come_first(self, study, tune):
        """Whichever of the two is used up."""
        tune(3000, num_trials=4)
        assert study.num_recorded() == 4
        assert study.stop_reason is StopReason.TRIALS
        assert "searched    4 of 11 configs: trial limit reached" in summary_of(study)

    def test_all_configs_may_come_first(self, study, tune):
        """Time that is left over is no reason. The machine is watched, and all finalists take part, as in any run."""
        tune(3000)
        assert study.num_recorded() == 11
        assert study.stop_reason is StopReason.EXHAUSTED
        assert study.noise_floor.start_s == START_S
        assert len(study.drift_checks) == 10, "one beside each trial of a config"
        started = [each for each in tune.events if isinstance(each, BlockStarted)]
        assert compiled(9) in [each.config for each in started[-1].finalists]

    def test_without_a_time_nothing_is_capped(self, study, tune):
        """Limits and plans are those of the budget."""
        tune(None, num_trials=5)
        assert {request.limits.total for request in tune.trials.requests} == {Limits().total}

    def test_dear_confirmations_stop_it_earlier(self, make_study, study, tune):
        """What the likely finalists cost is kept back: where they compile long, fewer are tried in the same time."""

        def dear(config):
            latency_ms, compile_s = usual(config)
            return latency_ms, 2 * compile_s

        tune(400)
        other = make_study("dear", space=study.manifest.space)
        confirmation = tune(400, dear, on=other)
        assert other.num_recorded() < study.num_recorded()
        assert confirmation.verdict is Verdict.FASTER
        assert tune.clock.now <= 400

    def test_a_running_trial_is_cut_off_and_asked_again(self, study, tune):
        """It is on record, it blames nobody, it leaves time to confirm the others; and `resume` runs it to its end."""
        slow = compiled(3)

        def says(config):
            return (1, 500.0) if config == slow else usual(config)

        study.enqueue([slow])
        confirmation = tune(600, says)
        cut = [each for each in study.records() if each.was_cut_off]
        assert [each.config for each in cut] == [slow]
        assert cut[0].outcome.reason is Reason.OUT_OF_TIME
        assert cut[0].outcome.error == "stopped: the run's time was used up"
        assert stop_of(tune) is StopReason.TIME
        assert confirmation.verdict is Verdict.FASTER
        assert tune.clock.now <= 600
        assert "1 x out_of_time, first in trial" in summary_of(study)
        again = reopened(study)
        num_before = again.num_recorded()
        tune(4000, says, on=again)
        assert again.num_recorded() == 11
        assert num_before < 11
        last = next(each for each in again.records() if each.config == slow and not each.was_cut_off)
        assert last.state == "measured"

    def test_a_trial_that_reaches_its_own_limit_blames_its_config(self, study, tune):
        """The time of the run was not what ended it."""
        plan = PLAN.model_copy(update={"limits": Limits(total=60)})
        tune(2000, lambda config: (1, 300.0) if config == compiled(3) else usual(config), plan=plan)
        failed = [each for each in study.records() if each.state == "failed"]
        assert [each.outcome.reason for each in failed] == [Reason.TIMEOUT]
        assert study.num_recorded() == 11

    def test_a_run_that_goes_on_has_its_time_anew(self, study, tune):
        """What an earlier run used up is not counted; the verdict is made again with the new trials."""
        first = tune(300)
        num_before = study.num_recorded()
        again = reopened(study)
        second = tune(300, on=again)
        assert again.num_recorded() > num_before
        assert second.num_trials > first.num_trials
        assert second.verdict is Verdict.FASTER
        assert tune.clock.now <= 300


@pytest.mark.parametrize(("wall_s", "problem"), [(260, None), (100, "no time was left for it")])
def test_an_engine_is_timed_in_the_time_that_is_left_after_the_proof(
    install_backend, make_study, study, tune, monkeypatch, wall_s, problem
):
    """Its block's seconds are held back from what follows the first proof, and from nothing before it."""
    install_backend("abacus", "abacus_engine", ABACUS.format(body="return model", package="pydantic"), ENGINES.group)
    tune(wall_s)
    assert tune.clock.now <= wall_s
    (figure,) = ENGINE_BLOCK.read(study).figures
    assert figure.problem == problem
    monkeypatch.setattr(loop, "to_be_timed", lambda _: {})
    tune(wall_s, on=(unreserved := make_study("unreserved", space=study.manifest.space)))
    assert study.confirmation.verdict is unreserved.confirmation.verdict is Verdict.FASTER
    assert study.answers[0] == unreserved.answers[0]


def test_a_start_that_waits_is_a_part_of_the_time(study, measurement):
    """A trial that the run's end stops is cut off, and its config is not blamed, if most of it was waiting to start."""
    clock = Clock()

    class Waits(TimedTrials):
        def start(self, folder, request, waits="free", *, fresh=False):
            clock.now += 40
            return Live(clock, STOPPED)

    session = Session(study, PLAN, Waits(clock, measurement, usual), lambda _: None, Deadline.after(60, clock=clock))
    attempts, request = Attempts(session), trial_request(study, 1, compiled(0), study.trial_folder(1), PLAN)
    ahead = attempts.start_ahead(study.trial_folder(1), request, 60.0)
    clock.now += 20
    assert attempts.once(study.trial_folder(1), request, 60.0, ahead).reason is Reason.OUT_OF_TIME


class TestTooLittle:
    """A time that does not hold what a verdict needs."""

    def test_one_config_and_no_block(self, study, tune):
        """The first config may take all of the time; it is named, and marked as unconfirmed."""
        confirmation = tune(40)
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.cut_short
        assert confirmation.candidate == 1
        _figures(r"a block of two processes did not fit in the (\d+) s left", confirmation)
        text = summary_of(study)
        assert text.startswith("undecided: trial 1 looks 1.11x by its trial alone, unconfirmed")
        assert study.stop_reason is StopReason.TIME
        assert tune.clock.now <= 40
        assert "export s -o best.yaml --trial 1" in " ".join(text.split())
        assert tuned_config(study, 1).verdict is Verdict.CHOSEN

    def test_time_that_is_of_no_other_use_is_for_a_block_that_may_end_in_it(self, study, tune):
        """It takes 0.6 of what was expected: 32 s are left for 44."""
        tune(78, lambda config: (10, 0.0) if config == UNTUNED else (3, 30.0), num_trials=2, in_blocks=0.6)
        assert len(study.blocks) == 1
        assert tune.clock.now <= 78

    def test_a_block_that_could_not_end_in_it_is_not_begun(self, study, tune):
        """Nobody waits for nothing."""
        confirmation = tune(60, lambda config: (10, 0.0) if config == UNTUNED else (3, 30.0), num_trials=2)
        _figures(r"a block of two processes did not fit in the (\d+) s left", confirmation)
        assert not any(isinstance(each, BlockStarted) for each in tune.events)

    @pytest.mark.parametrize(("wall_s", "is_told"), [(300.0, True), (3600.0, False)])
    def test_one_call_of_the_untuned_model_shows_it(self, study, measurement, wall_s, is_told):
        """It is said when the call has ended, before more is spent, and once."""
        clock, events = Clock(), []
        trials = TimedTrials(clock, measurement, usual)
        deadline = Deadline.after(wall_s, clock=clock)
        session = Session(study, Budget(wall_s=wall_s), trials, events.append, deadline)
        time = TimeBudget(session)
        told = TimeLeft(session, time)
        told(TrialStarted(0, UNTUNED))
        for stage, seconds in ((Stage.BUILD, 5.0), (Stage.COMPILE, 17.0), (Stage.CHECK, 60.0)):
            told(StageEntered(stage))
            clock.now += seconds
        short = [event for event in events if isinstance(event, BudgetShort)]
        assert [(each.wall_s, each.call_s) for each in short] == ([(300.0, 17.0)] if is_told else [])
        assert all(300 < each.needed_s < 900 for each in short)
        study.tell(study.ask(UNTUNED, 60.0), measurement)
        clock.now = wall_s - 1
        assert (time.shortage() is None) is is_told

    @pytest.mark.parametrize(("stage", "is_built"), [("start", False), ("build", False), ("compile", True)])
    def test_a_time_that_ended_before_the_model_was_built(self, study, measurement, stage, is_built):
        """It is named: nothing is wrong with the model."""
        study.tell(study.ask(UNTUNED, 60.0), Failure(reason="out_of_time", stage=stage, error="stopped"))
        session = Session(study, Budget(wall_s=9.0), TimedTrials(Clock(), measurement, usual), lambda _: None)
        with pytest.raises(InputError, match="the time of 9 s does not hold") as refused:
            TimeBudget(session).require_untuned()
        assert str(refused.value).endswith("before the model was built") is not is_built

    def test_time_that_holds_trials_and_no_block_is_for_trials(self, study, tune):
        """A block that does not fit reserves nothing; that nothing can be proven is said before the first config."""
        confirmation = tune(150, plan=DEAR_BLOCKS)
        assert confirmation.verdict is Verdict.UNDECIDED
        assert study.num_recorded() > 2
        assert study.blocks == []
        best = min(study.records(), key=lambda record: record.measurement.latency.p50)
        assert confirmation.candidate == best.number
        assert tune.clock.now <= 150
        short = next(index for index, event in enumerate(tune.events) if isinstance(event, BudgetShort))
        assert tune.events[short].wall_s == 150 < tune.events[short].needed_s
        num_before = sum(isinstance(event, TrialStarted) for event in tune.events[:short])
        assert num_before == 1

    def test_a_time_that_holds_what_is_needed_is_not_called_short(self, tune):
        """Nobody is told to give more."""
        tune(300)
        assert not any(isinstance(event, BudgetShort) for event in tune.events)

    def test_not_even_one_config(self, study, tune):
        """The untuned model alone is no comparison: undecided, and its trial is kept."""
        confirmation = tune(10)
        assert confirmation.verdict is Verdict.UNDECIDED
        _figures(r"no other config was measured: a trial of one did not fit in the (\d+) s left", confirmation)
        assert [each.config for each in study.records()] == [UNTUNED]

    def test_nothing_but_failures(self, study, tune, measurement):
        """The time ended the search when only wrong results had been seen: that nothing is faster is not known."""
        wrong = Failure(reason="wrong_result", stage="check", error="relative error 3")
        study.tell(study.ask(UNTUNED, 60.0), measurement)
        study.tell(study.ask(compiled(0), 60.0), wrong)
        confirmation = tune(3)
        assert study.num_recorded() > 1
        assert stop_of(tune) is StopReason.TIME
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.why.startswith("no other config was measured")

    def test_not_even_the_untuned_model(self, study, tune):
        """It was cut off, which blames nobody; with more time the same study goes on."""
        with pytest.raises(InputError, match="the time of 3 s does not hold"):
            tune(3)
        assert [each.was_cut_off for each in study.records()] == [True]
        assert tune(600).verdict is Verdict.FASTER

    def test_the_only_config_was_cut_off(self, study, tune):
        """Nothing was learned of any config: no verdict about none."""
        confirmation = tune(120, lambda config: (10, 0.0) if config == UNTUNED else (5, 1000.0))
        assert [each.was_cut_off for each in study.records()] == [False, True]
        assert confirmation.verdict is Verdict.UNDECIDED
        assert tune.clock.now <= 120

    def test_little_time_is_not_spent_on_a_process_beside_the_trials(self, study, tune):
        """It takes no more than its share, which is less than a second process of this model; there is a verdict, and
        the next run, which has more time, makes up for it."""
        assert tune(40, dear_untuned).verdict is not None
        assert study.noise_floor is None
        assert study.drift_checks == []
        assert not any("again" in each for each in tune.trials.started)
        again = reopened(study)
        tune(3000, dear_untuned, on=again)
        assert again.noise_floor is not None
        assert again.drift_checks


class TestTheConfirmation:
    """It ends in time too, and says so where it could not be finished."""

    def test_blocks_that_take_far_longer_than_expected(self, study, tune):
        """Everything takes forty times what it took in the search: none is whole when the time is up."""
        confirmation = tune(500, in_blocks=40.0)
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.cut_short
        assert confirmation.blocks == ()
        assert confirmation.why == "the time was used up"
        assert tune.clock.now <= 500
        text = summary_of(study)
        assert text.startswith("undecided: ")
        assert confirmation.why in text
        assert tuned_config(study).is_untuned
        num_trials, again = study.num_recorded(), reopened(study)
        confirmation = tune(2000, num_trials=num_trials, on=again)
        assert (confirmation.verdict, confirmation.cut_short) == (Verdict.FASTER, False), "without a single new trial"
        assert again.num_recorded() == num_trials

    def test_whatever_was_measured_counts(self, make_study, study, tune):
        """Whenever the time is up: all rows are kept and judged, nothing outlasts the time, and a run that goes on adds
        to the rows. More time never knows less."""
        nums = []
        for wall_s in (20, *range(45, 59, 6)):
            other = make_study(f"s{wall_s}", space=study.manifest.space)
            confirmation = tune(wall_s, slight, num_trials=2, on=other)
            assert tune.clock.now <= wall_s + 1e-9  # A sum of turns.
            nums.append(len(other.blocks))
            assert len(confirmation.blocks) == len(other.blocks)
            assert len(other.blocks) == sum(isinstance(event, BlockMeasured) for event in tune.events)
            assert confirmation.cut_short is (confirmation.verdict is Verdict.UNDECIDED)
            if other.blocks:
                assert confirmation.speedup.median == pytest.approx(10 / 9, rel=0.01)
                assert confirmation.candidate is not None
            rows, again = other.blocks, reopened(other)
            confirmation = tune(2000, slight, num_trials=2, on=again)
            assert again.blocks[: len(rows)] == rows
            assert confirmation.verdict is Verdict.FASTER
        assert {0, 1} < set(nums), nums
        assert nums == sorted(nums)

    def test_cut_short_between_two_looks(self, study, tune):
        """What there is is judged; the run that goes on measures more."""
        waves = itertools.cycle([6, 12, 8, 15])

        def says(config):
            return (10, 0.0) if config == UNTUNED else (9.9, 20.0)

        def wild(config):
            latency_ms, compile_s = says(config)
            is_live = config != UNTUNED and tune.trials.started[-1].startswith("confirm/")
            return next(waves) if is_live else latency_ms, compile_s

        plan = PLAN.model_copy(update={"confirmation": PLAN.confirmation.model_copy(update={"num_looks": 3})})
        confirmation = tune(150, wild, num_trials=2, plan=plan)
        assert 4 <= len(confirmation.blocks) < 16
        assert confirmation.cut_short
        (left_s,) = _figures(r"another block did not fit in the (\d+) s left", confirmation)
        assert left_s > 0
        assert confirmation.verdict is not Verdict.FASTER
        assert "with more time" in summary_of(study)

    def test_a_fastest_that_costs_too_much_leaves_the_next_best(self, study, tune):
        """An answer that is proven beats a better one that is not."""

        def says(config):
            return (1, 400.0) if config == compiled(5) else usual(config)

        confirmation = tune(800, says)
        fastest = next((each for each in study.records() if each.config == compiled(5)), None)
        assert confirmation.verdict is Verdict.FASTER
        assert fastest is None or confirmation.candidate != fastest.number or fastest.number in confirmation.contestants

    def test_a_process_that_hangs_until_the_end_is_not_blamed(self, study, tune):
        """Its limit was the run's; nobody is out of the contest, and nothing was decided."""
        confirmation = tune(500, hangs=lambda name, block: name.startswith("trial-") and block == "block-02")
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.cut_short
        assert "failed in a fresh process" not in (confirmation.note or "")

    def test_a_verdict_is_not_given_up_for_less(self, study, tune):
        """New trials, and no time to compare them: what was proven stays proven."""
        first = tune(250)
        assert first.verdict is Verdict.FASTER
        again = reopened(study)
        second = tune(250, in_blocks=90.0, on=again)
        assert again.num_recorded() > first.num_trials
        assert second.verdict is Verdict.FASTER
        assert second.candidate == first.candidate
        assert second.blocks[: len(first.blocks)] == first.blocks or len(second.blocks) == len(first.blocks)

    def test_out_of_time_with_an_untuned_model_that_is_out_of_the_question(self, make_study, study, tune):
        """What keeps the constraints is the answer, compared or not."""
        other = make_study("bound", space=study.manifest.space, constraints=("latency <= 9.2ms",))
        confirmation = tune(500, on=other, in_blocks=90.0)
        assert (confirmation.verdict, confirmation.speedup) == (Verdict.FEASIBLE, None)
        best = StudyResult(other).best
        assert best.number == confirmation.candidate
        assert best.outcome.latency.p50 == min(each.outcome.latency.p50 for each in other.records())
        text = summary_of(other)
        assert "keeps every constraint, the untuned model does not\n" in text
        assert tuned_config(other).config == best.config


class TestDeadline:
    """When a run must be over."""

    def test_time_left(self):
        """Counted from when it began; without an end there is all the time in the world."""
        clock = Clock(now=5.0)
        deadline = Deadline.after(10, begun=3.0, clock=clock)
        assert deadline.left_s() == 8
        clock.now = 20
        assert deadline.left_s() == -7
        assert Deadline.after(None, clock=clock).left_s() == float("inf")

    def test_limits_are_capped_and_stay_above_zero(self):
        """By what is left, or by less; never raised."""
        clock = Clock()
        deadline = Deadline.after(50, clock=clock)
        assert deadline.cap(Limits(total=900)).total == 50
        assert deadline.cap(Limits(total=900), longest_s=30).total == 30
        assert deadline.cap(Limits(total=20)).total == 20
        assert deadline.cap(Limits(compile=7)).compile == 7
        clock.now = 99
        assert deadline.cap(Limits()).total == SHORTEST_S


class TestWords:
    """`--budget` takes a time or a file; they are told apart by their form."""

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("600", 600), ("90s", 90), ("10m", 600), ("10 min", 600), ("1.5h", 5400), ("budget.yaml", None), ("10x", None),
         ("10m.yaml", None), ("1e999", None), ("", None), ("-5m", None)],
    )  # fmt: skip
    def test_durations(self, text, seconds):
        """Seconds unless a unit says otherwise; what has another form is a file."""
        assert duration_s(text) == seconds

    def test_a_time_alone_is_the_only_limit(self):
        """The usual number of trials is for runs without a time; what is said holds."""
        assert Budget().but(wall_s=60) == Budget(wall_s=60, num_trials=None)
        assert Budget().but(wall_s=60).but(num_trials=5) == Budget(wall_s=60, num_trials=5)
        assert Budget(wall_s=60, num_trials=None).but() == Budget(wall_s=60, num_trials=None)

    def test_on_the_command_line(self, tune_fake, cli, budget_file, tmp_path):
        """In a file or as it is; `resume` keeps the time, or takes another. What is neither is refused."""
        budget_file.write_text(budget_file.read_text().replace("wall_s: null", "wall_s: 3600"))
        result = tune_fake("--trials", "1")
        assert result.returncode == 0, result.stderr
        assert "trial limit reached" in result.stderr
        study = FolderStudies(tmp_path / "studies").open("s")
        assert (study.budget.wall_s, study.budget.num_trials) == (3600, 1)
        assert cli("resume", "s", "--budget", "30m", "--trials", "2").returncode == 0
        assert (study.budget.wall_s, study.budget.num_trials) == (1800, 2)
        for given, words in (("0", "not a duration"), ("10x", "neither a time nor a file")):
            result = tune_fake("--budget", given)
            assert result.returncode == 2
            assert f"--budget {given}: {words}" in result.stderr
            assert "Traceback" not in result.stderr
