"""The benchmarks' own parts: simulated noise is what it claims to be, and each judges as it says."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from autotune.config import Config
from autotune.measure.statistics import Verdict
from autotune.space.load import Circumstances, load_space
from autotune.trial.folder import TrialFolder
from benchmarks import aa, adaptive, batches, delivered, frame, jobs, overhead, planted, regions, under_load
from benchmarks.intervals import rate_is_below, ratio_over_pairs
from benchmarks.pairs import alternate
from benchmarks.plain import settings_of
from benchmarks.record import Conditions, Kept
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


def test_only_blocks_of_one_contest_are_alike(tmp_path):
    """A contestant keeps its bias (correlation 1); another one, another contest and a trial of the search do not."""
    noise = Noise(process_sd=0.03, call_sd=0, spike_share=0, drift_sd=0, block_correlation=1.0)
    config = space_of_variants(1).untuned()
    trials = SimulatedTrials(Machine(noise, seed=1), Truth({config: UNTUNED_S}))
    request = SimpleNamespace(config=config, untuned=False)

    def bias(place):
        return trials.hold(TrialFolder(tmp_path / place), request).log_bias

    kept = [bias(f"confirm/block-{number:02d}/trial-0001") for number in (1, 2, 3)]
    assert kept == [kept[0]] * 3
    others = [bias(place) for place in ("confirm/block-01/untuned", "noise-floor/block-01/trial-0001")]
    searched = [trials.run(TrialFolder(tmp_path / "trial-0001"), request).samples.latency_s[0] for _ in range(2)]
    assert len({kept[0], *others, *searched}) == 5


def test_processes_have_two_modes_and_the_untuned_model_more_scatter_where_that_is_asked_for(tmp_path):
    """Each bias is the scatter up or down; that of the untuned model so many times as much."""
    noise = Noise(process_sd=0.03, has_two_modes=True, untuned_factor=3.0)
    config = space_of_variants(1).untuned()
    trials = SimulatedTrials(Machine(noise, seed=1), Truth({config: UNTUNED_S}))
    for is_untuned, size in ((False, 0.03), (True, 0.09)):
        request = SimpleNamespace(config=config, untuned=is_untuned)
        biases = [trials.hold(TrialFolder(tmp_path / f"{n}"), request).log_bias for n in range(20)]
        assert sorted({round(each, 6) for each in biases}) == [-size, size]


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


def test_false_winners_are_counted_among_studies_that_compared_something():
    """`keep_untuned` without a speed-up: all configs were one program, and no confirmation took place."""
    part = aa.Part("p")
    for verdict, speedup in (("faster", 1.1), ("tie", 1.0), ("keep_untuned", None)):
        part.add(verdict, speedup)
    assert part.verdicts[aa.NOT_COMPARED] == 1
    goal = aa.goal_of(part)
    assert not goal.met
    assert goal.found.startswith("1 in 2,")
    assert part.false_speedups == [1.1]


def test_each_part_has_its_own_goal():
    """Where blocks are alike in time, 2 false winners in 100 studies are within the goal."""
    verdicts = Counter({"faster": 2, "tie": 98})
    assert not aa.goal_of(aa.Part("independent", verdicts)).met
    goal = aa.goal_of(aa.Part("alike", verdicts, goal_rate=0.02))
    assert goal.met
    assert goal.text.startswith("at most 2 false winners in 100 studies")


def test_simulated_studies_may_have_blocks_alike_in_time():
    """They are counted apart from those with independent blocks, and told apart by name."""
    part = aa.simulated_part(Noise(block_correlation=0.8), num_studies=1)
    assert "0.8 between successive blocks" in part.name
    assert (part.num_studies, part.goal_rate) == (1, 0.02)
    assert aa.simulated_part(Noise(), num_studies=1).goal_rate == 0.01


def test_rows_of_real_models_may_stay(tmp_path, monkeypatch):
    """Only the simulated studies are made again: the rows of real models say when they were measured, at any repeat."""
    given = aa.BENCHMARK.parser().parse_args(
        ["--keep-real", "--simulated", "1", "--others", "0", "--alike", "0", "--process-sd", "0.03"]
    )
    docs = tmp_path / "benchmarks.md"
    for module, name, place in ((aa, "RESULTS", tmp_path), (frame, "RESULTS", tmp_path), (frame, "DOCS", docs)):
        monkeypatch.setattr(module, name, place)
    conditions = Conditions.now()
    parts = [aa.Part("simulated, a"), aa.Part("torch, b", Counter({"tie": 3, "faster": 1}), [1.02])]
    records = {each.name: TypeAdapter(aa.Part).dump_python(each, mode="json") for each in parts}
    kept = Kept(benchmark="aa", command="aa.py", minutes=1.0, conditions=conditions, records=records)
    (tmp_path / "aa.json").write_text(kept.model_dump_json())
    for _ in range(2):
        aa.BENCHMARK.execute(given, "aa.py --keep-real")
    _, real = aa.kept_parts(tmp_path / "aa.json")
    assert (real.name, real.verdicts["tie"], real.false_speedups) == ("torch, b", 3, [1.02])
    measured = f"{conditions.started:%Y-%m-%d}, commit {conditions.commit}"
    assert real.measured == measured
    assert f"| torch, b ({measured}) | 4 |" in docs.read_text()
    again = aa.cases(aa.BENCHMARK.parser().parse_args(["--keep-simulated", "--torch", "1", "--mindspore", "0"]))
    assert [(each.kept and each.kept.name, each.num_studies) for each in again] == [
        ("simulated, processes scatter by 3.0 %", 0), ("torch, b", 0), (None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "variant", "has_gain", "worth"),
    [
        ("faster", "less", True, "right"),
        ("faster", "more", True, "wrong"),
        ("keep_untuned", "planted", True, "wrong"),
        ("keep_untuned", "planted", False, "right"),
        ("faster", "more", False, "wrong"),
        ("undecided", "planted", True, "undecided"),
    ],
)
def test_what_a_verdict_under_load_is_worth(verdict, variant, has_gain, worth):
    """A missed gain is wrong as well: where the machine cannot tell, the answer is `undecided`."""
    assert under_load.judged(verdict, variant, has_gain=has_gain) == worth


@pytest.mark.parametrize("truth", planted.TRUTHS, ids=lambda each: each.name)
def test_a_planted_space_holds_only_what_was_planted(tmp_path, truth):
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(planted.space_of(truth), sort_keys=False))
    space = load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))
    untuned, *compiled = space.configs()
    assert untuned.root == {"execution": "eager", "latency_ms": 10.0}
    assert {config["latency_ms"] for config in compiled} == {10 / (1 + truth.speedup), 10 / 0.9}
    wrong = [config for config in compiled if config.get("behaviour") == "wrong"]
    assert len(wrong) == truth.wrong


@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_the_space_of_identical_configs_is_one_that_the_tool_takes(framework):
    path = aa.SPACES / f"identical_{framework}.yaml"
    version = {"torch": "2.13", "mindspore": "2.10"}[framework]
    space = load_space(path, framework=framework, circumstances=Circumstances(version=version, device="cpu"))
    assert space.size(100) >= 4
    assert {config["execution"] for config in space.configs()} == {space.untuned()["execution"]}


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
    assert shares.told


def test_imports_that_compiles_are_spared_are_not_the_tools_own():
    """Once a study: of the trials that compiled, one that found no kernel was spared these alone."""
    stages = {"start": 0.5, "build": 1.0, "compile": 8.0, "check": 1.0, "run": 4.0}
    trials = [a_trial(stage_s=stages, compile_spared_s=each) for each in (0.0, 4.0, 9.0)]
    shares = overhead.shares_of("m", trials)
    assert shares.stage_s["imports ahead"] == 4.0
    assert shares.own_share == pytest.approx((3 * (0.5 + 5.5) - 4.0) / 60)
    assert sum(shares.stage_s.values()) == pytest.approx(60)


def test_a_child_that_tells_no_stages_gives_an_upper_bound():
    shares = overhead.shares_of("m", [a_trial()])
    assert shares.own_share == pytest.approx((20 - 10 - 3) / 20)
    assert not shares.told


def test_regions_are_judged_by_the_deep_models(measurement):
    """Shares are those of the blocks over the whole; goals look at deep models in PyTorch that are not frozen."""

    def seen(case, whole_s, blocks_s):
        whole, blocks = (
            regions.Times.of([measurement.model_copy(update={"compile_s": each})] * 2) for each in (whole_s, blocks_s)
        )
        return regions.Seen(case.name, case.has_goal, untuned=whole, whole=whole, blocks=blocks)

    deep, shallow = regions.Case("torch", "vit", 24), regions.Case("torch", "vit", 6)
    frozen, other = regions.Case("torch", "vit", 24, regions.FROZEN), regions.Case("mindspore", "bert_small", 12)
    all_four = [seen(deep, 10, 4), seen(shallow, 10, 9), seen(frozen, 10, 30), seen(other, 1, 2)]
    goals = regions.judge(all_four)
    assert [goal.met for goal in goals] == [True, True]
    assert goals[0].found == "40% at most"
    assert len(regions.section(all_four).splitlines()) == 2 + 2 + 4
    assert [goal.met for goal in regions.judge([seen(deep, 10, 6)])] == [False, True]


def test_traffics_of_the_adaptive_runtime():
    """Each stream has the calls that its case says: rare shapes in the tail, whole phases in the bursts."""
    steady, tail, soon_over, bursts = (Counter(each.stream()) for each in adaptive.CASES)
    assert sorted(steady.values()) == [1200, 1200]
    assert len(tail) == 60
    assert sum(count <= 20 for count in tail.values()) >= 40
    assert sum(count <= 5 for count in soon_over.values()) > 30
    assert set(bursts.values()) == {400}
    assert [sum(each.values()) for each in (steady, tail, soon_over, bursts)] == [2400, 8000, 2400, 2400]


def test_the_adaptive_runtime_is_judged_by_the_worse_of_both():
    """Up to 5 % over the slower of the two others is met anywhere; on the long tail it must be the fastest."""

    def goals(tail_s: float, bursts_s: float):
        seconds = {
            "steady": (9, 5, 6),
            "long tail": (9, 20, tail_s),
            "long tail, over soon": (9, 20, 11),
            "bursts": (9, 8, bursts_s),
        }
        return adaptive.judge(
            [
                adaptive.Found(
                    case,
                    {
                        way: [{"seconds": each, "num_compiled": 0}]
                        for way, each in zip(adaptive.WAYS, seconds[case.name], strict=True)
                    },
                )
                for case in adaptive.CASES
            ]
        )

    assert [goal.met for goal in goals(8, 9.4)] == [True, True]
    assert [goal.met for goal in goals(9.1, 9.5)] == [False, False]


def test_eight_workers_are_held_against_one():
    """Compilations of eight as a multiple of one's, table by table and in all."""

    def of(name, num_workers, *compilations):
        return batches.Batches(
            name, 48, num_workers, list(compilations), list(compilations), [60.0] * len(compilations)
        )

    kept = [of("a", 1, 10, 10), of("a", 8, 13, 15), of("b", 1, 20), of("b", 8, 32)]
    assert batches.growths(kept) == {"a": 1.4, "b": 1.6}
    each, in_all = batches.judge(kept)
    assert (each.met, each.found) == (False, "1 of 2 tables")
    assert (in_all.met, in_all.found) == (False, "1.53 times")


# Compiled side by side, timed alone


def side_by_side(round_: int, beside_s: float, again_s: float = 1.0) -> jobs.Times:
    seconds: dict[jobs.Way, float] = {"alone": 1.0, "again": again_s, "beside": beside_s, "found": beside_s}
    return jobs.Times("vit", "default", round_, seconds, dict.fromkeys(seconds, 9.0), {**seconds, "found": 5.0})


def test_side_by_side_is_judged_by_the_scatter_of_processes_alone():
    """The mean ratio may be as far from 1 as the means of so many processes of one config are, and 1 % at least."""
    scattered = [side_by_side(n, 1.015, 1.0 + 0.04 * (-1) ** n) for n in range(4)]
    assert jobs.judge(scattered)[0].met
    assert not jobs.judge([side_by_side(n, 1.015) for n in range(4)])[0].met
    assert not jobs.judge([side_by_side(n, 0.98) for n in range(4)])[0].met
    assert "| vit | default | 4 | 1000.00 ms | 1015.00 ms |" in jobs.section(scattered)
    assert "| 9.0 s (1.0 s) | 9.0 s (5.0 s) |" in jobs.section(scattered)


def test_side_by_side_runs_each_config_in_every_order():
    """Round by round: a run that is stopped early has seen all configs of all models."""
    given = jobs.BENCHMARK.parser().parse_args(["--rounds", "3"])
    cases = jobs.cases(given)
    assert {each.round for each in cases[: len(cases) // 3]} == {0}
    assert all(set(order) == {"alone", "again", "beside", "found"} for order in jobs.ORDERS)
    assert all(order.index("found") > order.index("beside") for order in jobs.ORDERS), "nothing to be found"
    assert len({order.index("beside") for order in jobs.ORDERS}) == 3
