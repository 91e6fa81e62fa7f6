"""A compile that takes many times what the others took is cut off, and learned as slow. Scripted processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autotune.measure.measurement import Failure, Reason, Samples, Stage
from autotune.measure.objective import Objective
from autotune.trial.request import Limits
from autotune.tuning.checks import ERRORS_IN_A_ROW
from autotune.tuning.compile_limit import SHORTEST_S, CompileLimit, compile_limit
from autotune.tuning.events import ConfigProbed, RuleLearned, TrialEnded
from autotune.tuning.loop import Tuner
from tests.conftest import OneByOne, fake_space
from tests.tuning.test_time_budget import PLAN, SPACE, UNTUNED, Clock, Deadline, Live, compiled

pytestmark = pytest.mark.usefixtures("in_memory")

GENERAL_S = Limits().compile
SURPRISES = {compiled(number) for number in (4, 5, 6, 7)}


def says(config):
    """Seconds to compile: 10 for most, twenty times that for some."""
    return 0.0 if config == UNTUNED else 200.0 if config in SURPRISES else 10.0


def like_a_vit(config):
    """Two of the ten compile five times as long as the others, and are the fastest."""
    return 0.0 if config == UNTUNED else 75.0 if config in {compiled(8), compiled(9)} else 15.0


@dataclass
class CompilingTrials(OneByOne):
    """Processes that compile as long as `says` has it, and are killed at the limit of that stage."""

    clock: Clock
    measurement: object
    says: object = says
    compile_limits: dict = field(default_factory=dict)

    def run(self, folder, request, **_):
        compile_s = self.says(request.config)
        self.compile_limits[request.config] = request.limits.compile
        self.clock.now += min(compile_s, request.limits.compile)
        if compile_s > request.limits.compile:
            return Failure(reason="timeout", stage="compile", error="stopped: longer than its limit in stage compile")
        return measured(self.measurement, compile_s)

    def hold(self, folder, request, **_):
        return Live(self.clock, measured(self.measurement, self.says(request.config)))


def measured(measurement, compile_s, latency_s=0.01):
    samples = Samples(latency_s=(latency_s,) * 9, steady=True, ended_by="turns", turns=(9,))
    stage_s = {Stage.START: 1.0, Stage.COMPILE: compile_s}
    first_s = {"first_call_s": compile_s + latency_s, "compile_s": compile_s}
    return measurement.model_copy(update={"samples": samples, "stage_s": stage_s, **first_s})


@pytest.fixture
def modes():
    return fake_space(SPACE)


@pytest.fixture
def tune(make_study, modes, measurement):
    """Run a new study of all modes with a budget; the trials, the study and its events are returned."""

    def tune(budget=PLAN, says=says, wall_s=None):
        clock, study, events = Clock(), make_study(space=modes), []
        trials = CompilingTrials(clock, measurement, says)
        budget = budget.model_copy(update={"num_trials": 11})
        Tuner(study, budget, trials, events.append, deadline=Deadline.after(wall_s, clock=clock)).run()
        return trials, study, events

    return tune


@pytest.fixture
def limit_after(make_study, modes, measurement):
    """The limit of the next trial after trials of these compile seconds; the untuned model was first."""

    def limit_after(*compiled_s, at_most_s=GENERAL_S, **manifest):
        study = make_study(space=modes, **manifest)
        with study.writing():
            for number, seconds in enumerate([0.0, *compiled_s]):
                config = UNTUNED if number == 0 else compiled(number)
                study.tell(study.ask(config, longest_s=60), measured(measurement, seconds))
        return compile_limit(study, compiled(9), at_most_s)

    return limit_after


TOTAL = (Objective.parse("total:1000"),)
LIMITS = {
    "none without another compile": ((), {}, None),
    # Under latency alone a slow compile is legitimate, so the limit is generous.
    "ten times the median": ((20.0, 30.0, 25.0), {}, (250.0, "the median of the others is 25 s")),
    "never less than a minute": ((0.2, 0.2), {}, (SHORTEST_S, "the median of the others is 0.2 s")),
    "the general limit stands where it comes first": ((40.0,), {}, None),
    "three times the best where compiling counts": (
        (15.0, 30.0), {"objectives": TOTAL}, (pytest.approx(30.0), "the best total:1000 is 10 s"),
    ),
    "three times a bound": (
        (15.0,), {"constraints": ("compile <= 10s",)}, (30.0, "the bound is compile <= 10s"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("others_s", "manifest", "expected"), LIMITS.values(), ids=LIMITS)
def test_the_limit(limit_after, others_s, manifest, expected):
    """It follows from what the other configs took, and from what is compared or bounded."""
    limit = limit_after(*others_s, **manifest)
    assert (limit and (limit.seconds, limit.why)) == expected


class TestASlowCompile:
    """It is cut off, named, not tried again, and not called broken."""

    def test_it_is_recorded_with_the_reason(self, tune):
        """One sentence says after how long, and what was usual. No rule and no alarm follows, though there are as many
        as would make one: the search goes on, and tries the rest."""
        trials, study, events = tune()
        assert len(SURPRISES) >= ERRORS_IN_A_ROW
        assert study.num_recorded() == 11
        assert not [each for each in events if isinstance(each, (RuleLearned, ConfigProbed))]
        tried = [each.record.config for each in events if isinstance(each, TrialEnded)]
        assert len(tried) == len(set(tried))
        slow = {each.config: each.outcome for each in study.records() if isinstance(each.outcome, Failure)}
        assert set(slow) == SURPRISES
        for outcome in slow.values():
            assert (outcome.reason, outcome.stage, outcome.cut_off_s) == (Reason.SLOW_COMPILE, Stage.COMPILE, 100.0)
            assert outcome.error == "compile cut off after 100 s: the median of the others is 10 s"
        assert {trials.compile_limits[each] for each in SURPRISES} == {100.0}

    def test_a_time_budget_cuts_nothing_off_by_itself(self, tune):
        """A config that compiles five times as long as the others may be the winner."""
        _, study, _ = tune(says=like_a_vit, wall_s=600.0)
        slow = [each for each in study.records() if each.config in {compiled(8), compiled(9)}]
        assert [each.state for each in slow] == ["measured"] * 2

    @pytest.mark.parametrize(
        ("budget", "limit_s"),
        [(PLAN.but(compile_s=250.0), 250.0), (PLAN.model_copy(update={"cuts_slow_compiles": False}), GENERAL_S)],
        ids=["compile_timeout", "cuts_slow_compiles: false"],
    )
    def test_the_users_own_limit_lifts_it(self, tune, budget, limit_s):
        """With `--compile-timeout` a compile may take that long; a budget file may turn it off."""
        trials, study, _ = tune(budget)
        assert set(trials.compile_limits.values()) == {limit_s}
        assert not [each for each in study.records() if isinstance(each.outcome, Failure)]

    def test_its_seconds_are_learned_and_those_of_other_failures_are_not(self, make_study, modes, measurement):
        """A config like it is expected to take long; of a crash nothing is known."""
        study = make_study(space=modes)
        slow = Failure(reason="slow_compile", stage="compile", error="cut off", cut_off_s=100.0)
        crash = Failure(reason="crash", stage="compile", error="killed by SIGSEGV")
        with study.writing():
            for config, outcome in ((UNTUNED, measured(measurement, 0.0)), (compiled(1), slow), (compiled(2), crash)):
                study.tell(study.ask(config, longest_s=60), outcome)
        assert [each.child_s for each in study.records()] == [1.0, 100.0, None]

    @pytest.mark.parametrize("outcome", ["crash", "timeout"])
    def test_other_ends_keep_their_names(self, measurement, outcome):
        """A compiler that dies and a model that hangs later on are what they were."""
        stage = "compile" if outcome == "crash" else "run"
        failure = Failure(reason=outcome, stage=stage, error="killed")
        limit = CompileLimit(60.0, "the median of the others is 2 s")
        assert limit.named(failure) is failure
        assert limit.named(measured(measurement, 1.0)).kind == "measurement"
