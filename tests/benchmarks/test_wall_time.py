"""The plain loop, and how the two searches' times are made from their records."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from benchmarks import plain_loop
from benchmarks.race import LoopRun, LoopTrial, Race, ToolRun, judge, section
from benchmarks.wall_time import config_of, oracle_s

FAKE_SCRIPT = """
import json, sys
config = json.loads(sys.argv[sys.argv.index("--measure") + 1])
print("noise of the model's own")
if config["execution"] == "compile" and config["mode"] == "lite":
    sys.exit("Traceback\\nRuntimeError: no lite here")
print(0.5 if config["execution"] == "compile" else 1.0)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "fake_loop.py"
    path.write_text(FAKE_SCRIPT)
    return str(path)


def loop(*latencies_s: float | None) -> LoopRun:
    """A trial every ten seconds."""
    trials = [LoopTrial({"execution": "eager", "n": n}, s, 10.0 * (n + 1)) for n, s in enumerate(latencies_s)]
    return LoopRun("loop", trials, 10.0 * len(trials))


def study(seconds: float = 100.0, over_loop: float | None = 1.0, **changes: object) -> ToolRun:
    config = {"execution": "compile"}
    return replace(ToolRun("tool", 0, seconds, "faster", config, 9, 80.0, 60.0, over_loop, 2), **changes)


# The plain loop


def test_a_trial_is_a_process_whose_failure_is_pruned(tmp_path, script):
    """What fails is told as pruned, with its config, and the search goes on to the best that works."""
    study = plain_loop.tune("m", tmp_path / "loop", 1e-3, minutes=5, trials=16, script=script)
    assert len(study.trials) == 16
    for each in study.trials:
        config = each.user_attrs["config"]
        lite = config.get("mode") == "lite"
        assert (each.state is optuna.trial.TrialState.PRUNED) == lite
        assert lite or each.value == (0.5 if config["execution"] == "compile" else 1.0)
    assert study.best_value == 0.5


def test_the_loop_searches_the_knobs_that_the_product_offers():
    """Every config of the loop is one of the product's standard space, but for knobs that hold for other machines."""
    space = load_space(
        bundled_space("torch"),
        framework="torch",
        circumstances=Circumstances(
            version="2.13", device="cpu", preset="standard", tolerance=2e-2, num_cores=1, process_settings=True
        ),
    )
    offered = {knob.name: set(knob.values) for knob in space.knobs}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    used: dict[str, set[object]] = {}
    for _ in range(300):
        for name, value in config_of(plain_loop.suggest(study.ask(), half=True)).items():
            used.setdefault(name, set()).add(value)
    assert set(used) <= set(offered)
    assert all(values <= offered[name] for name, values in used.items())
    searched = {name for name, values in offered.items() if len(values) > 1}
    assert searched - {"packed_linear"} <= set(used)  # By hand that is `matmul_precision`.


# The race


def test_a_loop_is_done_with_its_first_trial_near_the_best_known():
    """Within 2 % of the best that any run found: by the loops' own measure, scaled by the comparison side by side."""
    loops = [loop(4.0, None, 2.02, 2.0, 1.99), loop(4.0, 3.0)]
    assert Race.of([*loops, study()]).loops_found_s() == [30.0, None]
    assert Race.of([*loops, study(over_loop=1.01)]).loops_found_s() == [40.0, None]
    assert Race.of([*loops, study(over_loop=1.03)]).loops_found_s() == [None, None]


def test_the_goal_s_border_is_not_below_the_scatter():
    """A loop whose trials of one config differ by 4 % is asked for a config within 5 %."""

    def loops(scatter: float) -> list[LoopRun]:
        apart = math.exp(scatter * math.sqrt(2))
        return [LoopRun("loop", [LoopTrial({"mode": "a"}, 1.0, 1.0), LoopTrial({"mode": "a"}, apart, 2.0)], 2.0)]

    borders = {each: Race.of(loops(each)).within for each in (0.01, 0.025, 0.04, 0.09)}
    assert borders == {0.01: 0.02, 0.025: 0.03, 0.04: 0.05, 0.09: 0.05}
    assert judge([*loops(0.04), study()])[0].text.endswith("within 5.0 %")


def test_the_goals_are_judged_by_medians():
    """Of the studies' seeds over the simulated loops, and over the oracle; every answer must be a good one."""
    loops = [loop(1.0)]
    share, proven, oracle = judge(
        [
            *loops,
            study(8.0, oracle_s=5.0, proven_s=4.0),
            study(9.0, oracle_s=5.0, proven_s=4.5),
            study(50.0, oracle_s=5.0),
        ]
    )
    assert share.met
    assert share.text.startswith("the confirmed answer in at most 0.9")
    assert proven.met
    assert not judge([*loops, study(8.0), study(8.0, proven_s=3.0), study(8.0)])[1].met
    assert oracle.met
    assert not judge([*loops, study(8.0), study(8.0, over_loop=0.9), study(8.0)])[0].met
    assert not judge([*loops, study(8.0, num_cores=4)])[0].met
    assert not judge([*loops, study(8.0, oracle_s=3.0)])[2].met
    assert judge(loops) == []
    assert "| autotune, all seeds | 150 s |" in section([*loops, study(), study(200.0, seed=1)])


def test_the_oracle_is_computed_from_a_study_s_records():
    """The untuned trial, the winner's as if nothing had been spared, and two blocks of a start and a turn of each and a
    warm compile."""

    def trial(number, spared_s=0.0, **stage_s):
        told = {"kind": "measurement", "stage_s": stage_s, "compile_spared_s": spared_s}
        return {"number": number, "outcome": told}

    winner = trial(2, start=2.0, compile=15.0, run=1.0, spared_s=5.0)
    trials = [trial(0, start=2.0, run=1.0), {"number": 1, "outcome": None}, winner]
    told = {"trials": trials, "best": {"trial": 2}, "noise_floor": {"start_s": 3.0}}
    confirmed = {**told, "confirmation": {"compile_warm_s": 10.0}}
    assert oracle_s(confirmed) == 3.0 + 23.0 + 2 * (2 * 3.0 + 10.0 + 2 * 1.0)
    assert oracle_s({**told, "confirmation": None}) is None
    assert oracle_s({**confirmed, "best": None}) is None
