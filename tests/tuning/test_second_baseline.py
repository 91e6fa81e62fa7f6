"""What of a gain is had for nothing: the second baseline, in studies of scripted processes."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.answer.sections.verdict import headline
from autotune.backends.registry import CheapSettings
from autotune.config import Config
from autotune.measure.measurement import Failure, Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.render.json import document
from autotune.study.budget import Budget
from autotune.trial.deadline import Deadline
from autotune.tuning import beside, jobs
from autotune.tuning.loop import Tuner
from autotune_fake import ENTRY
from tests.conftest import ScriptedTrials, fake_space, reopened, summary_of, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [m0, m1, m2], default: m0}
"""
WITH_ALLOCATOR = SPACE + '  allocator: {doc: "https://e.org", values: [null, keep], default: null}\n'
UNTUNED = Config({"execution": "eager"})
KEPT = Config({"execution": "eager", "allocator": "keep"})
UNTUNED_S, TRIAL_S = 0.010, 5.0


@pytest.fixture(autouse=True)
def _memory_can_be_kept(monkeypatch):
    """In the fake framework too, and there is room for any process."""
    cheap = CheapSettings({"allocator": "keep"}, "keeping memory", "KEEP=1 in the environment")
    monkeypatch.setattr(beside, "entry_of", lambda _: dataclasses.replace(ENTRY, cheap=cheap))
    monkeypatch.setattr(beside, "holds_another", lambda _: True)


@pytest.fixture
def tune(make_study, measurement):
    """A study of processes that scatter by 2 %: kept memory gains `kept`, any compiled config `compiled`."""

    def tune(*, kept=1.6, compiled=2.5, space=SPACE, on=None, fails=lambda *_: None, wall_s=None, seed=0, **question):
        study = on or make_study(space=fake_space(space), **question)

        def outcome_of(name, block, config):
            failure = fails(name, block, config)
            if failure is not None:
                return failure
            gain = (kept if config.get("allocator") else 1.0) * (compiled if config["execution"] == "compile" else 1.0)
            scatter = random.Random(f"{name} {block} {config} {seed}").gauss(0, 0.02)
            return with_latency(measurement, UNTUNED_S / gain * math.exp(scatter), stage_s={Stage.RUN: TRIAL_S})

        tune.bench = ScriptedTrials(outcome_of)
        deadline = None if wall_s is None else Deadline.after(wall_s)
        budget = Budget(num_trials=9, wall_s=wall_s)
        Tuner(study, budget, tune.bench, lambda _: None, deadline=deadline).run()
        return study

    return tune


def held(tune):
    return [name for name, _, _ in tune.bench.held]


class TestBothFigures:
    """What is told of it, wherever a verdict is."""

    def test_beside_a_winner(self, tune):
        """Terminal, document and file have both; each block has a value of its own for it."""
        study = tune()
        answer = StudyResult(study)
        assert answer.verdict is Verdict.FASTER
        assert all(row.second == pytest.approx(UNTUNED_S / 1.6, rel=0.1) for row in study.blocks)
        assert headline(answer).endswith(f", {_times(answer)} of it by keeping memory alone")
        shown = " ".join(summary_of(study).split())
        assert "for nothing" in shown
        assert "KEEP=1 in the environment, or " in shown
        figures = document(answer)["second_baseline"]
        assert figures["settings"] == {"allocator": "keep"}
        assert figures["speedup"]["low"] < 1.6 < figures["speedup"]["high"]
        assert tuned_config(study).evidence.second_baseline.model_dump(mode="json") == figures

    def test_of_a_winner_that_is_no_better(self, tune):
        """All of its gain was to be had without compiling anything."""
        answer = StudyResult(tune(kept=1.9, compiled=1.6))
        assert answer.verdict is Verdict.FASTER
        assert headline(answer).endswith(f", all of it by keeping memory alone ({_times(answer)})")

    def test_where_nothing_else_helps(self, tune):
        """The very thing that a user has to know; and it makes no compiled config a winner."""
        study = tune(compiled=1.0)
        answer = StudyResult(study)
        assert answer.verdict in (Verdict.TIE, Verdict.KEEP_UNTUNED)
        assert headline(answer).endswith(f"; {_times(answer)} by keeping memory alone")
        assert answer.second_figures.is_beyond_noise
        assert tuned_config(study).config == UNTUNED

    def test_what_is_within_the_noise_is_not_told(self, tune):
        """Scripts find it all the same."""
        study = tune(kept=1.02)
        assert "alone" not in headline(StudyResult(study))
        assert "for nothing" not in summary_of(study)
        assert document(StudyResult(study))["second_baseline"]["is_beyond_noise"] is False


class TestTheProcess:
    """One for the whole run, which is missed by nobody."""

    def test_there_is_one(self, tune):
        """It is no trial, and takes part in each block from the first on."""
        study = tune()
        assert held(tune).count("second") == 1
        assert all(record.config.get("allocator") is None for record in study.records())
        ((_, _, process),) = (each for each in tune.bench.held if each[0] == "second")
        num_rounds = Budget().confirmation.num_rounds
        assert process.num_turns == num_rounds * len(study.blocks)

    def test_a_run_that_goes_on_has_another(self, tune):
        """Where no block was measured there is no figure."""
        study = tune(fails=lambda name, block, _: Failure(reason="crash", stage="run", error="x") if block else None)
        assert study.blocks == []
        assert StudyResult(study).second_figures is None
        again = tune(on=reopened(study))
        assert held(tune).count("second") == 1
        assert all(row.second is not None for row in again.blocks)

    @pytest.mark.parametrize("error", ["invalid", "crash", "out_of_memory", "wrong_result"])
    def test_one_that_fails(self, tune, error):
        """No other C library keeps memory: the study is as without it."""
        failure = Failure(reason=error, stage="compile", error="no glibc")
        study = tune(fails=lambda name, *_: failure if name == "second" else None)
        assert study.confirmation.verdict is Verdict.FASTER
        assert all(row.second is None for row in study.blocks)
        assert StudyResult(study).second_figures is None

    @pytest.mark.parametrize(("wall_s", "has_one"), [(100.0, False), (1000.0, True)])
    def test_none_without_time(self, tune, wall_s, has_one):
        """The untuned model's trial took too much of so short a run."""
        assert tune(wall_s=wall_s).confirmation is not None
        assert ("second" in held(tune)) is has_one

    @pytest.mark.parametrize(("free_gib", "has_one"), [(1, False), (64, True)])
    def test_none_without_memory(self, tune, monkeypatch, free_gib, has_one):
        """On a machine that holds the trials alone."""
        monkeypatch.setattr(beside, "holds_another", jobs.holds_another)
        monkeypatch.setattr(jobs, "available_memory_bytes", lambda: free_gib * 2**30)
        assert tune().confirmation.verdict is Verdict.FASTER
        assert ("second" in held(tune)) is has_one

    @pytest.mark.parametrize("objective", ["memory", "compile", "total:100"])
    def test_none_for_what_is_no_steady_call(self, tune, objective):
        """It changes what calls take, and keeps memory."""
        study = tune(objectives=(Objective.parse(objective),))
        assert study.second_baseline is None
        assert "second" not in held(tune)


def test_a_search_that_has_it_tries_it_soon(tune):
    """After the default config, as a trial like any other, which may win by itself; then nothing is told beside it. Its
    figure is that of the blocks, as in any study."""
    study = tune(space=WITH_ALLOCATOR, compiled=0.8)
    assert study.record(2).config == KEPT
    assert held(tune).count("second") == 1
    answer = StudyResult(study)
    assert answer.best.config == KEPT
    assert "alone" not in headline(answer)
    assert answer.second_figures.speedup.median == pytest.approx(1.6, rel=0.1)
    study = tune(space=WITH_ALLOCATOR, compiled=2.5, on=None, name="other")
    assert StudyResult(study).best.config.get("allocator") == "keep"
    assert "of it by keeping memory alone" in headline(StudyResult(study))


@pytest.mark.parametrize("seed", range(3))
def test_a_compile_that_gains_nothing_does_not_win_by_it(tune, seed):
    """With memory kept a compiled config is as fast as the untuned model with memory kept, which is the simpler one:
    whichever looks faster by chance, nothing is compiled."""
    study = tune(space=WITH_ALLOCATOR, compiled=1.0, seed=seed)
    answer = StudyResult(study)
    assert answer.verdict is Verdict.FASTER
    assert answer.best.config == KEPT


def _times(answer):
    return f"{answer.second_figures.speedup.median:.2f}x"
