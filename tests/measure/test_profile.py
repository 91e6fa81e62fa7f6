"""Where the time of a call goes: profiles of a trial, made by real profilers, and what the reports make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.answer.sections.hot_spots import profile_lines
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.measure.profile import HotSpots, Profile
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder


def test_the_figures_are_those_of_one_call():
    """Seconds and counts over several calls of the model become those of one; shares add up; the largest is first."""
    profile = Profile.of({"small": (0.002, 8), "large": (0.006, 4)}, num_calls=4)
    assert [each.name for each in profile.operators] == ["large", "small"]
    assert [each.self_s for each in profile.operators] == [0.0015, 0.0005]
    assert [each.share for each in profile.operators] == [0.75, 0.25]
    assert [each.num_calls for each in profile.operators] == [1, 2]


def test_nothing_that_took_time_is_no_error():
    """A profile without operators, or of operators that took no time, is one; its note is shown."""
    assert Profile.of({"free": (0.0, 1)}, 1).operators[0].share == 0
    assert profile_lines(Profile.of({}, 1, "there is no profiler")) == ["  there is no profiler"]


def test_side_by_side():
    """An operator is listed for its larger share; gone or new is what one lacks and what has a share worth naming."""
    untuned = Profile.of({"matmul": (50.0, 1), "tanh": (49.5, 1), "copy": (0.5, 1)}, 1)
    best = Profile.of({"matmul": (10.0, 1), "fused": (30.0, 1)}, 1)
    spots = HotSpots(untuned, best)
    assert spots.largest(2) == ["fused", "matmul"]
    assert spots.gone() == ["tanh"]
    assert spots.new() == ["fused"]
    alone = HotSpots(untuned, None)
    assert alone.largest(1) == ["matmul"]
    assert alone.gone() == alone.new() == [], "without the other one, no operator is called gone"


GRAPH = "## Call CompiledFxGraph f ##"
BROKEN_CALL = [
    # The forward to its branch at line 5, then the rest to its print at line 9, then the rest; each with its graph.
    ("Torch-Compiled Region: 0/0", 0.0, 10.0),
    ("TorchDynamo Cache Lookup", 0.0, 0.1),
    (GRAPH, 1.0, 2.0),
    ("aten::is_nonzero", 2.5, 3.0),
    ("Torch-Compiled Region: 1/0", 4.0, 9.9),
    (GRAPH, 4.5, 5.0),
    ("Torch-Compiled Region: 2/0", 7.0, 9.8),
    (GRAPH, 7.25, 9.0),
]


@pytest.mark.torch
def test_a_break_costs_the_time_between_its_graphs():
    """From the end of the graph before the break to the start of the next one, whatever runs in between."""
    pytest.importorskip("torch")
    from autotune.backends.torch.profile import between_graphs

    resumed = {"1/0": "m.py:5", "2/0": "m.py:9"}
    assert between_graphs(BROKEN_CALL, resumed) == {"m.py:5": 2.5, "m.py:9": 2.25}
    twice = BROKEN_CALL + [(name, begin + 20, end + 20) for name, begin, end in BROKEN_CALL]
    assert between_graphs(twice, resumed) == {"m.py:5": 5.0, "m.py:9": 4.5}
    without_graph_before = [each for each in BROKEN_CALL if each[1] != 1.0]
    assert between_graphs(without_graph_before, {"1/0": "m.py:5"}) == {"m.py:5": 4.5}
    assert between_graphs([], resumed) == {}


@pytest.mark.torch
def test_what_is_given_up_costs_the_time_after_the_last_graph():
    """Of each call, until what was compiled first is left; a call without any graph counts from its start."""
    pytest.importorskip("torch")
    from autotune.backends.torch.profile import after_the_last_graph

    assert after_the_last_graph(BROKEN_CALL) == 1.0
    second = [("Torch-Compiled Region: 0/0", 20.0, 23.0)]
    assert after_the_last_graph(BROKEN_CALL + second) == 4.0
    assert after_the_last_graph([]) == 0.0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("## Call CompiledFxGraph fnaldq2ji4o3g4jiwesj2blyk63afdra ##", "CompiledFxGraph"),
        ("Torch-Compiled Region: 3/0", "Torch-Compiled Region"),
        ("aten::addmm", "aten::addmm"),
    ],
)
def test_names_are_the_same_in_every_process(key, name):
    """Graphs go by a digest or a number in PyTorch's profile; side by side they are one operator."""
    pytest.importorskip("torch")
    from autotune.backends.torch.profile import operator_name

    assert operator_name(key) == name


@pytest.mark.parametrize(
    ("framework", "untuned", "compiled", "operator"),
    [
        pytest.param(
            "torch",
            {"execution": "eager"},
            {"execution": "compile", "backend": "aot_eager", "dynamic": None},
            "aten::addmm",
            marks=pytest.mark.torch,
        ),
        pytest.param(
            "mindspore",
            {"execution": "pynative"},
            {"execution": "jit", "capture": "ast"},
            "MatMul",
            marks=pytest.mark.mindspore,
        ),
    ],
)
@pytest.mark.fast_cases("torch")
def test_a_trial_under_the_frameworks_profiler(
    tmp_path, make_request, no_toolchain, framework, untuned, compiled, operator
):
    """Untuned and compiled, the operator that does the work is found with a time, and a Chrome trace is left."""
    pytest.importorskip(framework)
    model = make_workload("bert_small", {"depth": 1, "seq": 8}, framework, "cpu", 0)
    with LocalBench({}, preload=framework == "torch", log=tmp_path / "log") as runner:
        for settings in (untuned, compiled):
            kept = TrialFolder(tmp_path / settings["execution"] / "kept")
            request = make_request(
                None if settings is untuned else settings,
                workload=model,
                config=Config(settings),
                profile_in=str(kept.path),
                limits={},
            )
            assert isinstance(runner.run(TrialFolder(tmp_path / settings["execution"]), request), Measurement)
            profile = kept.read_profile()
            found = profile.operator(operator)
            assert found.self_s > 0
            assert found.num_calls >= 4
            assert sum(each.share for each in profile.operators) == pytest.approx(1)
            assert operator.removeprefix("aten::").lower() in kept.trace_file.read_text().lower()
            trace = json.loads(kept.trace_file.read_text())
            assert any("dur" in each for each in (trace["traceEvents"] if isinstance(trace, dict) else trace))


@pytest.mark.slow
def test_on_the_command_line(tune_fake, cli, tmp_path):
    """`run --profile` leaves profile and trace with the trial; `show`, `explain` and their documents then have them."""
    told = json.loads(tune_fake("--trials", "8", "--json").stdout)
    assert told["hot_spots"] is None
    assert cli("run", "s", "0").returncode == 0
    assert not list((tmp_path / "studies").rglob("profile.json")), "without the flag nothing is profiled"
    best = told["best"]["trial"]
    for number in (0, best):
        said = cli("run", "s", str(number), "--profile")
        assert said.returncode == 0
        assert "function" in said.stdout
        folder = tmp_path / "studies" / "s" / "trials" / f"{number:04d}"
        assert json.loads((folder / "trace.json").read_text())["traceEvents"]
        assert str(Path("trials", f"{number:04d}", "trace.json")) in said.stdout
    spots = json.loads(cli("show", "s", "--json").stdout)["hot_spots"]
    assert spots["untuned"]["operators"][0]["name"] == spots["best"]["operators"][0]["name"] == "function"
    assert json.loads(cli("explain", "s", "--json").stdout)["hot_spots"] == spots
    for command in ("show", "explain"):
        assert "where the time of a call goes" in cli(command, "s").stdout
