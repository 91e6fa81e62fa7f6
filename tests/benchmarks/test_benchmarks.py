"""The benchmarks' own parts: simulated noise is what it claims to be, and each judges as it says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.statistics import Verdict
from autotune.space.load import Circumstances, load_space
from benchmarks import aa, delivered, planted
from benchmarks.processes import rate_is_below, ratio_over_pairs
from benchmarks.simulated import UNTUNED_S, Machine, Noise, Truth, simulate, space_of_variants

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


def test_a_clock_ends_a_study():
    """At a time that each study draws: some have found the gain by then, and the look at the end of the others has all
    the error that is left. Without a clock a study goes on as long as its figures ask for it."""
    space = space_of_variants(2)
    untuned, *compiled = space.configs()
    truth = Truth({untuned: UNTUNED_S, **dict.fromkeys(compiled, UNTUNED_S / 1.15)})

    def confirmed(seed, *, has_clock=True):
        return simulate(space, truth, Noise(process_sd=0.03), seed=seed, has_clock=has_clock).confirmation

    found, ended, again, endless = confirmed(5), confirmed(3), confirmed(3), confirmed(3, has_clock=False)
    assert (ended, endless) == (again, confirmed(3, has_clock=False))
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


@pytest.mark.torch
def test_the_plain_script_does_by_hand_what_the_backend_does():
    """Two ways of writing it: the plain script hands torch.compile what the product hands it, knob by knob."""
    pytest.importorskip("torch")
    from autotune.backends.torch.apply import mode_options
    from autotune.backends.torch.knobs import compile_arguments
    from autotune.backends.torch.knobs import settings_of as settings
    from benchmarks.plain import OPTIONS, arguments_of

    values = {"max_autotune_gemm_backends": ("CPP", None), "multi_kernel": (0, 1)}
    for name in OPTIONS:
        for value in values.get(name, (True, False)):
            config = {"execution": "compile", "backend": "inductor", "mode": "max-autotune", name: value}
            product = compile_arguments(settings(Config(config)), mode_options("max-autotune"))
            plain = {"dynamic": None, "fullgraph": False, **arguments_of(config)}
            # The plain script says what is the default anyway, the product leaves it unsaid.
            told = product.get("options", mode_options("max-autotune"))
            assert plain.get("options", mode_options(plain.get("mode"))).items() >= told.items()
            assert {n: v for n, v in plain.items() if n not in ("options", "mode")} == {
                n: v for n, v in product.items() if n not in ("options", "mode")
            }
