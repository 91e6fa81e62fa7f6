"""What a process that finds caches pays of its compile: as seen in the study, else as measured for such configs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.config import Config
from autotune.measure.measurement import Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.study.records import Confirmation, TrialRecord
from autotune.tuning.warm_compile import block_shares, warm_share

PLAIN = {"execution": "compile", "backend": "inductor"}


@pytest.fixture
def trial(measurement):
    """A trial whose compile stage took so long; `cold_s` where it began with the caches of trial 1."""

    def make(number, config, stage_s, cold_s=None, spared_s=0.0):
        outcome = measurement.model_copy(
            update={
                "stage_s": {Stage.COMPILE: stage_s},
                "compile_s": cold_s or stage_s + spared_s,
                "compile_spared_s": spared_s,
                "compiled_from": None if cold_s is None else 1,
            }
        )
        return TrialRecord(number, Config(config), outcome, {}, None, None, running=False)

    return make


@pytest.fixture
def session(make_manifest, workload):
    """With these trials, of which some have a cache."""

    def make(*records, framework="torch", confirmation=None, cached=(), objective="latency"):
        manifest = make_manifest(workload=workload.model_copy(update={"framework": framework}))
        study = SimpleNamespace(manifest=manifest, confirmation=confirmation, records=lambda: list(records))
        caches = SimpleNamespace(holds=lambda number: number in cached)
        return SimpleNamespace(study=study, caches=caches, objective=Objective(quantity=objective))

    return make


@pytest.mark.parametrize(
    ("framework", "config", "share"),
    [
        ("torch", PLAIN, 0.15),
        ("torch", PLAIN | {"freezing": True, "cpp_wrapper": False}, 0.18),
        ("torch", {"execution": "eager"}, 1.0),
        ("mindspore", {"execution": "jit"}, 1.0),
        ("mindspore", {"execution": "graph", "enable_graph_kernel": True}, 0.38),
        ("fake", {"execution": "compile"}, 1.0),
    ],
)
def test_what_was_not_seen_is_as_measured_for_such_configs(session, trial, framework, config, share):
    """The most special pattern that matches; where a framework keeps nothing, all of it."""
    record = trial(1, config, 10.0)
    assert warm_share(session(record, framework=framework).study, record) == share


def test_a_trial_that_began_with_the_caches_of_another_tells_its_share(session, trial):
    """Also a confirmation that was made before tells that of its candidate."""
    first, second = trial(1, PLAIN, 10.0), trial(2, PLAIN | {"threads": 2}, 3.0, cold_s=10.0)
    assert warm_share(session(first, second).study, first) == pytest.approx(0.3)
    earlier = Confirmation(verdict=Verdict.FASTER, candidate=1, compile_warm_s=4.0, num_trials=1)
    assert warm_share(session(first, confirmation=earlier).study, first) == pytest.approx(0.4)


def test_the_first_block_is_cold_only_without_the_trial_s_cache(session, trial):
    """A confirmation begins with the caches of this run's trials; a run that goes on has none of the earlier ones."""
    record = trial(1, PLAIN, 10.0)
    assert block_shares(session(record, cached=[1]), record) == (0.15, 0.15)
    assert block_shares(session(record), record) == (1.0, 0.15)
    assert block_shares(session(record, cached=[1], objective="compile"), record) == (1.0, 1.0)


def test_what_a_trial_was_spared_is_part_of_its_cold_compile(session, trial):
    """A block pays its share of all of that, which is more of the time that the trial was at work."""
    record = trial(1, PLAIN, 10.0, spared_s=30.0)
    assert block_shares(session(record, cached=[1]), record) == (pytest.approx(0.6), pytest.approx(0.6))
    assert block_shares(session(record), record) == (1.0, pytest.approx(0.6))


def test_a_trial_that_was_warm_itself_is_not_shortened_again(session, trial):
    """Its compile stage is a warm one; a cold one takes what the first of its kind took."""
    record = trial(2, PLAIN, 3.0, cold_s=10.0)
    assert block_shares(session(record, cached=[2]), record) == (1.0, 1.0)
    assert block_shares(session(record), record) == (pytest.approx(10 / 3), 1.0)
