"""The plain loop's harness, and how the two searches' times and the features' shares are made from their records."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import optuna
import pytest

from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from benchmarks import plain_loop, wall_time
from benchmarks.savings import savings_of
from benchmarks.wall_time import LoopTrial, Race, Tool, config_of, read_loop

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


def loop(*latencies_s: float | None) -> list[LoopTrial]:
    """A trial every ten seconds."""
    return [LoopTrial({"execution": "eager", "n": n}, s, 10.0 * (n + 1)) for n, s in enumerate(latencies_s)]


def measured(**changes: object) -> dict[str, object]:
    samples = {"warmup_s": [0.5], "latency_s": [0.5] * 4, "ended_by": "precision"}
    return {"kind": "measurement", "samples": samples, "compile_s": 10.0, "first_call_s": 10.5, **changes}


def trial(number: int, **changes: object) -> dict[str, object]:
    return {
        "number": number,
        "state": "measured",
        "config": {"execution": "eager"},
        "started": "2026-01-01T00:00:00",
        "ended": "2026-01-01T00:00:10",
        "outcome": measured(**changes),
    }


def document(trials: list[dict[str, object]], best: int = 0, confirmation: object = None) -> dict[str, object]:
    chosen = {"trial": best, "config": {"execution": "eager"}}
    return {"verdict": "faster", "best": chosen, "speedup": None, "trials": trials, "confirmation": confirmation}


def a_race(**changes: object) -> Race:
    tool = Tool.of("m", document([trial(0), trial(1)], best=1))
    return replace(Race("m", tool, 100.0, loop(4.0, 3.0, 2.0), 30.0), **changes)


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


def test_a_failed_process_is_pruned_with_its_last_words(tmp_path, script):
    """The words are the child's own; a child that never ends is pruned as well."""
    asked = json.dumps({"execution": "compile", "mode": "lite"})
    with pytest.raises(optuna.TrialPruned, match="no lite here"):
        plain_loop.run_trial(["python", script, "--measure", asked], tmp_path)
    with pytest.raises(optuna.TrialPruned, match="timeout"):
        plain_loop.run_trial(["python", "-c", "while True: pass"], tmp_path, timeout_s=0.5)


def test_the_loop_goes_on_where_it_was(tmp_path, script):
    """Its database is kept: a second start adds trials to it, and they are read in their order."""
    began = datetime.now()
    plain_loop.tune("m", tmp_path / "loop", 1e-3, minutes=5, trials=2, script=script)
    plain_loop.tune("m", tmp_path / "loop", 1e-3, minutes=5, trials=1, script=script)
    read = read_loop(tmp_path / "loop", began)
    assert len(read) == 3
    assert 0 < read[0].ended_s < read[1].ended_s < read[2].ended_s


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
    assert searched <= set(used)


def test_half_precision_is_left_out_where_it_is_not_right_enough():
    """Without tolerance for it the loop searches, like the product, the other knobs only."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert {plain_loop.suggest(study.ask(), half=False)["precision"] for _ in range(50)} == {None}


def test_a_loop_s_config_in_the_product_s_words():
    """Compiled by inductor, and settings that are left alone are left out."""
    compiled = {"execution": "compile", "mode": "lite", "precision": None, "freezing": False}
    assert config_of(compiled) == {"execution": "compile", "mode": "lite", "freezing": False, "backend": "inductor"}
    assert config_of({"execution": "eager", "allocator": None}) == {"execution": "eager"}


# The race


def test_the_loop_is_done_with_its_first_trial_near_the_best_known():
    """Within 2 % of the best that either found: by its own measure, scaled by the comparison side by side."""
    found = a_race(loop=loop(4.0, None, 2.02, 2.0, 1.99))
    assert found.loop_found == 2
    assert found.loop_found_s == 30.0
    better_tool = replace(found, tool_over_loop=1.03)
    assert better_tool.loop_found is None
    assert better_tool.loop_found_s is None
    assert replace(found, tool_over_loop=1.01).loop_found == 3


def test_the_tool_s_share_is_judged_only_if_it_found_the_answer():
    """An answer that is 5 % slower is no answer; a loop that found nothing gives an upper bound of the share."""
    assert a_race(tool_s=10.0).share == pytest.approx(10 / 30)
    assert a_race(tool_s=10.0, tool_over_loop=0.95).share is None
    assert a_race(tool_s=10.0, tool_over_loop=1.5).share == pytest.approx(10 / 30)
    assert wall_time.judge([a_race(tool_s=10.0)])[0].met
    assert not wall_time.judge([a_race(tool_s=11.0)])[0].met
    assert not wall_time.judge([a_race(tool_s=1.0, tool_over_loop=0.95)])[0].met


def seconds_by_feature(of: dict[str, object], loop: list[LoopTrial], fork_s: float = 0.0) -> dict[str, float]:
    more_trials = a_race(tool=Tool.of("m", of), loop=loop).more_trials
    return {each.feature: each.seconds for each in savings_of(of, fork_s, more_trials)}


def test_features_that_did_nothing_saved_nothing():
    """A study without caches and confirmation, as quick as the loop."""
    saved = seconds_by_feature(document([trial(0), trial(1)], best=1), loop(1.0))
    assert set(saved.values()) == {0.0}


def test_what_each_feature_saved_comes_from_the_records():
    """Forking per trial; the cold compile less the real one; the confirmation's warm compiles; the loop's trials."""
    trials = [trial(0), trial(1), trial(2, compiled_from=0, first_call_s=3.0), trial(3)]
    confirmation = {"candidate": 0, "blocks": [[1.0, 1.0]] * 4, "compile_warm_s": 4.0}
    saved = seconds_by_feature(document(trials, best=0, confirmation=confirmation), loop(3.0, 3.0, 1.0), fork_s=2.0)
    assert saved["trials are forked"] == 8.0
    assert saved["a program that is known compiles from a cache"] == pytest.approx(7.0)
    assert saved["blocks keep their caches"] == pytest.approx(3 * 6.0)
    assert saved["the sampler"] == pytest.approx(2 * 10.0)


def test_the_section_says_both_times_and_every_feature():
    """Whoever reads the section finds the two times, the winners' comparison and a row for each feature."""
    savings = savings_of(document([trial(0), trial(1)], best=1), 1.0, more_trials=1)
    text = wall_time.section([a_race(tool_over_loop=1.01, savings=savings)])
    assert "100 s, confirmed" in text
    assert "1.010 times" in text
    assert all(each.feature in text for each in savings)
