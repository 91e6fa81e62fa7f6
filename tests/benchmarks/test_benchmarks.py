"""The benchmarks' own parts: simulated noise is what it claims to be, and each judges as it says."""

from __future__ import annotations

import subprocess
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.statistics import Verdict
from autotune.space.load import Circumstances, load_space
from autotune.trial.folder import TrialFolder
from benchmarks import aa, delivered, overhead, planted
from benchmarks.plain import settings_of
from benchmarks.processes import Job, alternate, rate_is_below, ratio_over_pairs
from benchmarks.simulated import UNTUNED_S, Machine, Noise, SimulatedTrials, Truth, simulate, space_of_variants

STILL = Noise(process_sd=0, call_sd=0, spike_share=0, drift_sd=0)


# The simulation


def test_processes_scatter_as_stated():
    machine = Machine(Noise(process_sd=0.03), seed=1)
    biases = [machine.draw_bias() for _ in range(4000)]
    assert np.std(biases) == pytest.approx(0.03, rel=0.05)
    assert np.mean(biases) == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_blocks_are_alike_as_stated(correlation):
    """A contestant's bias resembles the one in the block before, and scatters as much as without that."""
    machine = Machine(Noise(process_sd=0.03, block_correlation=correlation), seed=1)
    biases = [machine.draw_bias()]
    for _ in range(20_000):
        biases.append(machine.draw_bias(biases[-1]))
    assert np.corrcoef(biases[1:], biases[:-1])[0, 1] == pytest.approx(correlation, abs=0.02)
    assert np.std(biases) == pytest.approx(0.03, rel=0.05)


def biases_of(noise, config, tmp_path, *, num=20, is_untuned=False):
    """Of so many processes of a config in blocks."""
    trials = SimulatedTrials(Machine(noise, seed=1), Truth({config: UNTUNED_S}))
    request = SimpleNamespace(config=config, untuned=is_untuned)
    return [trials.hold(TrialFolder(tmp_path / f"{n}"), request).log_bias for n in range(num)]


def test_all_processes_of_one_config_are_alike_its_trial_of_the_search_among_them(tmp_path):
    """A config keeps its bias (correlation 1) in whatever process; another one has its own."""
    noise = Noise(process_sd=0.03, call_sd=0, spike_share=0, drift_sd=0, block_correlation=1.0)
    one, other = space_of_variants(1).configs()
    trials = SimulatedTrials(Machine(noise, seed=1), Truth({one: 1.0, other: 1.0}))
    request, another = (SimpleNamespace(config=config, untuned=False) for config in (one, other))
    searched = trials.run(TrialFolder(tmp_path / "trial-0001"), request).samples.latency_s[0]
    held = [trials.hold(TrialFolder(tmp_path / f"{n}"), request).log_bias for n in range(3)]
    assert np.exp(held) == pytest.approx(searched)
    assert trials.hold(TrialFolder(tmp_path / "other"), another).log_bias != held[0]


def test_processes_have_two_modes_and_one_config_more_scatter_where_that_is_asked_for(tmp_path):
    """Each bias is the scatter up or down; that of the untuned model, or of the wild one, so many times as much."""
    noise = Noise(process_sd=0.03, has_two_modes=True, untuned_factor=3.0, wild_factor=5.0)
    untuned, tame, wild = space_of_variants(2).configs()
    for config, is_untuned, size in ((untuned, True, 0.09), (tame, False, 0.03), (wild, False, 0.15)):
        biases = biases_of(noise, config, tmp_path, is_untuned=is_untuned)
        assert sorted({round(each, 6) for each in biases}) == [-size, size]


def test_a_share_of_the_processes_is_hit(tmp_path):
    """Each by half, however long it lives."""
    biases = np.array(biases_of(Noise(process_sd=0, share_hit=0.1), space_of_variants(1).untuned(), tmp_path, num=4000))
    assert sorted({round(each, 6) for each in biases}) == [0, round(np.log(1.5), 6)]
    assert (biases > 0).mean() == pytest.approx(0.1, abs=0.015)


def test_calls_scatter_and_are_delayed_as_stated():
    machine = Machine(Noise(), seed=1)
    ratios = np.array(machine.call(1.0, 0.0, 40_000))
    # 1.09 is 4.5 standard deviations of an undisturbed call, and a little less than the smallest delay.
    delayed = ratios > 1.09
    assert delayed.mean() == pytest.approx(0.05, abs=0.005)
    assert np.std(np.log(ratios[~delayed])) == pytest.approx(0.02, rel=0.05)
    assert ratios[delayed].mean() == pytest.approx(1.3, abs=0.02)
    assert ratios.max() < 1.5 * np.exp(5 * 0.02)


def test_the_machine_drifts_as_stated():
    still_but_drifting = Noise(process_sd=0, call_sd=0, spike_share=0, drift_sd=0.005)
    machine = Machine(still_but_drifting, seed=1)
    seen = [machine.call(1.0, 0.0, 1)[0]]
    for _ in range(4000):
        machine.pass_time(1.0)
        seen += machine.call(1.0, 0.0, 1)
    assert np.std(np.diff(np.log(seen))) == pytest.approx(0.005, rel=0.05)


def test_without_noise_the_truth_is_found():
    space = space_of_variants(3)
    untuned, *compiled = space.configs()
    latency_s = {untuned: UNTUNED_S, **dict.fromkeys(compiled, 2 * UNTUNED_S), compiled[1]: UNTUNED_S / 1.25}
    study = simulate(space, Truth(latency_s), STILL, seed=0)
    assert study.confirmation.verdict is Verdict.FASTER
    assert study.candidate == compiled[1]
    assert study.confirmation.speedup.median == pytest.approx(1.25)


def test_a_wrong_config_never_wins():
    space = space_of_variants(3)
    untuned, *compiled = space.configs()
    truth = Truth({untuned: UNTUNED_S, **dict.fromkeys(compiled, UNTUNED_S / 2)}, wrong=frozenset(compiled))
    assert simulate(space, truth, STILL, seed=0).confirmation.verdict is not Verdict.FASTER


def test_the_same_seed_gives_the_same_study():
    space = space_of_variants(3)
    truth = Truth(dict.fromkeys(space.configs(), UNTUNED_S))
    first, again, other = (simulate(space, truth, Noise(), seed=seed).confirmation for seed in (1, 1, 2))
    assert first == again != other


def test_a_clock_ends_a_study():
    """At a time that each study draws: some have found the gain by then, and the look at the end of the others has all
    the error that is left. Without a clock a study goes on as long as its figures ask for it."""
    space = space_of_variants(2)
    untuned, *compiled = space.configs()
    truth = Truth({untuned: UNTUNED_S, **dict.fromkeys(compiled, UNTUNED_S / 1.15)})

    def confirmed(seed, *, has_clock=True):
        return simulate(space, truth, Noise(process_sd=0.03), seed=seed, has_clock=has_clock).confirmation

    found, ended, again, endless = confirmed(5), confirmed(3), confirmed(3), confirmed(3, has_clock=False)
    assert ended == again
    assert (found.verdict, found.cut_short) == (Verdict.FASTER, False)
    assert (ended.verdict, ended.cut_short) == (Verdict.UNDECIDED, True)
    assert 0 < ended.left_s < 15 < found.left_s
    assert len(endless.blocks) > len(ended.blocks)
    assert not endless.cut_short


# Judging


def test_a_rate_s_bound_is_clopper_pearson_s():
    """No hit in 300 tries: the rule of three, 1 - 0.05 ** (1 / 300)."""
    assert rate_is_below(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert rate_is_below(3, 3) == 1.0


def test_a_ratio_is_the_geometric_mean_with_student_s_interval():
    found = ratio_over_pairs([(2.0, 1.0), (1.0, 2.0)])
    half = 12.7062 * np.log(2) * np.sqrt(2) / np.sqrt(2)
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, np.exp(-half), np.exp(half)), rel=1e-4)
    with pytest.raises(ValueError, match="at least 2 pairs"):
        ratio_over_pairs([(1.0, 1.0)])


def test_pairs_swap_their_order():
    calls = []
    pairs = alternate(3, lambda: calls.append("a") or 1.0, lambda: calls.append("b") or 2.0)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert pairs == [(1.0, 2.0)] * 3


def test_studies_that_a_clock_ends_have_parts_of_their_own():
    """With a goal: no false winner in 100. Of gains that the clock leaves no time for none is made."""
    (first, *_) = aa.cases(aa.BENCHMARK.parser().parse_args(["--pieces", "clock", "--clocked", "1"]))
    assert first.has_clock
    assert aa.run(first).name == "simulated, processes scatter by 3.0 %, ended by a clock"
    cases = planted.cases(planted.BENCHMARK.parser().parse_args(["--quick"]))
    assert len({case.name for case in cases}) == len(cases) == 3 * len(planted.TRUTHS)
    rows = [planted.Row(case.planted, case.kind, Counter({"undecided": 1})) for case in cases]
    assert [goal.met for goal in planted.judge(rows)] == [False, True, True]
    trap = next(row for row in rows if row.kind.endswith("by a clock") and row.planted.is_trap)
    trap.verdicts["faster"] += 1
    assert [goal.met for goal in planted.judge(rows)] == [False, True, False]


# Real models


@pytest.mark.torch
def test_identical_configs_are_the_untuned_model_under_other_names():
    """Each is a program of its own by its digest, so that they are compared; and nothing stands around the model."""
    torch = pytest.importorskip("torch")
    from autotune.backends.torch.apply import apply
    from autotune.backends.torch.fingerprint import program
    from autotune.backends.torch.knobs import settings_of as settings

    space = load_space(aa.IDENTICAL, framework="torch", circumstances=Circumstances("2.13", "cpu"))
    configs, model = list(space.configs()), torch.nn.Linear(2, 2)
    assert len(configs) == 3
    assert len({program(model, settings(config)) for config in configs} - {None}) == 3
    changes = UndoLog()
    assert all(apply(model, config, changes) is model for config in configs)


@pytest.mark.parametrize(
    ("pairs", "kept"), [([(1.25, 1.0)] * 2, True), ([(1.17, 1.0)] * 2, True), ([(1.1, 1.0)] * 2, False)]
)
def test_a_promise_is_kept_near_it_or_in_its_interval(pairs, kept):
    promise = delivered.Promise("faster", delivered.Ratio(1.2, 1.19, 1.3))
    assert delivered.Delivery("m", promise, pairs).kept is kept


def test_the_plain_script_reads_the_export(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text("config: {execution: compile, backend: inductor, dynamic: null}\n")
    assert settings_of(path) == {"execution": "compile", "backend": "inductor", "dynamic": None}


@pytest.mark.torch
def test_the_plain_script_does_by_hand_what_the_backend_does():
    """Two ways of writing it: the plain script hands torch.compile what the product hands it, knob by knob."""
    pytest.importorskip("torch")
    from autotune.backends.torch.apply import mode_options
    from autotune.backends.torch.knobs import compile_arguments
    from autotune.backends.torch.knobs import settings_of as settings
    from benchmarks.plain import OPTIONS, arguments_of

    for name in OPTIONS:
        for value in (True, False) if name != "max_autotune_gemm_backends" else ("CPP", None):
            config = {"execution": "compile", "backend": "inductor", "mode": "max-autotune", name: value}
            product = compile_arguments(settings(Config(config)), mode_options("max-autotune"))
            plain = {"dynamic": None, "fullgraph": False, **arguments_of(config)}
            # The plain script says what is the default anyway, the product leaves it unsaid.
            told = product.get("options", mode_options("max-autotune"))
            assert plain.get("options", mode_options(plain.get("mode"))).items() >= told.items()
            assert {n: v for n, v in plain.items() if n not in ("options", "mode")} == {
                n: v for n, v in product.items() if n not in ("options", "mode")
            }


@pytest.mark.torch
def test_the_plain_script_compiles_a_model_of_a_file(tmp_path):
    """Its globals are looked up by the name of its module."""
    torch = pytest.importorskip("torch")
    from benchmarks.plain import function_of

    (tmp_path / "of_a_file.py").write_text(
        "import torch\nfrom torch.nn import functional\n\n"
        "class Layer(torch.nn.Module):\n    def forward(self, x):\n        return functional.relu(x)\n\n"
        "def model():\n    return torch.nn.Sequential(Layer())\n"
    )
    model = function_of(f"{tmp_path / 'of_a_file.py'}:model", "torch")()
    assert torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [1.0, 1.0]


def a_trial(**outcome):
    samples = {"warmup_s": [0.5, 0.5], "latency_s": [1.0, 1.0]}
    return {
        "started": "2026-01-01T00:00:00",
        "ended": "2026-01-01T00:00:20",
        "outcome": {"kind": "measurement", "samples": samples, "first_call_s": 10.0, **outcome},
    }


def test_a_trial_s_seconds_add_up_to_its_wall_time():
    stages = {"start": 0.5, "build": 1.0, "compile": 11.0, "check": 3.0, "run": 4.0}
    split = overhead.split_of(a_trial(stage_s=stages))
    assert sum(split.values()) == pytest.approx(20)
    assert split["rest of run"] == pytest.approx(1.0)
    shares = overhead.shares_of("m", [a_trial(stage_s=stages), {**a_trial(), "outcome": None}])
    assert shares.own_share == pytest.approx((0.5 + 0.5) / 20)


def test_imports_that_compiles_are_spared_are_not_the_tools_own():
    """Once a study: of the trials that compiled, one that found no kernel was spared these alone."""
    stages = {"start": 0.5, "build": 1.0, "compile": 8.0, "check": 1.0, "run": 4.0}
    trials = [a_trial(stage_s=stages, compile_spared_s=spared_s) for spared_s in (0.0, 4.0, 9.0)]
    shares = overhead.shares_of("m", trials)
    assert shares.stage_s["imports ahead"] == 4.0
    assert shares.own_share == pytest.approx((3 * (0.5 + 5.5) - 4.0) / 60)
    assert sum(shares.stage_s.values()) == pytest.approx(60)


JOB = """
import json, os, sys
from pathlib import Path
if "fail=True" in sys.argv:
    sys.exit("no such model")
seen = {"words": sys.argv[1:-2], "path": os.environ["PYTHONPATH"], "caches": os.environ["TORCHINDUCTOR_CACHE_DIR"]}
Path(sys.argv[-1]).write_text(json.dumps(seen))
print("a call" * 10000)
"""


def test_a_job_says_what_it_saw_and_why_it_failed(tmp_path, monkeypatch):
    """With its model's arguments, libraries of its own and none of another checkout, and caches in its folder."""
    (tmp_path / "checkout" / "autotune").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'checkout'}:/elsewhere")
    (tmp_path / "job.py").write_text(JOB)
    job = Job(tmp_path / "job.py", tmp_path, tmp_path / "libraries")
    assert job.seen("m", "--passes", "2", arguments={"depth": 3}) == {
        "words": ["m", "--passes", "2", "--argument", "depth=3"],
        "path": f"{tmp_path / 'libraries'}:/elsewhere",
        "caches": str(tmp_path / "inductor"),
    }
    with pytest.raises(subprocess.CalledProcessError) as caught:
        job.seen("m", arguments={"fail": True})
    assert caught.value.stderr.strip() == "no such model"
    assert caught.value.__notes__ == [caught.value.stderr]
