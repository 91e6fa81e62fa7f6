"""Who is confirmed and who wins: pure rules on figures, and whole studies on scripted processes."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.config import Config
from autotune.measure.blocks import Blocks
from autotune.measure.measurement import Failure, Measurement, Usage
from autotune.measure.proof import Proof
from autotune.measure.statistics import MARGIN, Verdict, verdict_of
from autotune.study.budget import Budget
from autotune.study.equivalence import simplicity
from autotune.study.records import DriftCheck, NoiseFloor
from autotune.tuning.confirmation import winner_of
from autotune.tuning.events import BlockMeasured, BlockStarted
from autotune.tuning.finalists import EQUALLY_FAST, by_importance, uncertainty_of
from autotune.tuning.loop import Tuner
from tests.conftest import ScriptedTrials, fake_space, summary_of, trial_record, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [a, b, c, d], default: a}
  extra: {doc: "https://e.org", when: {execution: compile}, values: [without, with], default: without}
"""
UNTUNED = Config({"execution": "eager"})
FLOOR = NoiseFloor(pairs=((1.0, 1.0),), spread=0.0, relative_error=0.0)


def compiled(mode, extra="without"):
    return Config({"execution": "compile", "mode": mode, "extra": extra})


DEFAULT = compiled("a")


@pytest.fixture
def study(make_study):
    return make_study(space=fake_space(SPACE))


@pytest.fixture
def record(measurement):
    numbers = itertools.count()

    def make(config, latency_ms, compile_s=1.0):
        outcome = with_latency(measurement, latency_ms / 1e3, compile_s=compile_s)
        return trial_record(outcome, next(numbers), config)

    return make


def value(record):
    return record.measurement.latency.p50


def shown(study):
    """What `show` prints of the verdict, on one line."""
    return " ".join(summary_of(study).split())


class TestFinalists:
    """Who of the search takes part in the confirmation."""

    def chosen(self, study, records, uncertainty=EQUALLY_FAST):
        return [record.config for record in sorted(by_importance(study, records, uncertainty, value), key=value)]

    def test_one_that_nobody_comes_near_to_stands_alone(self, study, record):
        """The framework's default, which every user could have for nothing, is one like any other."""
        records = [record(DEFAULT, 9), record(compiled("b"), 5), record(compiled("c"), 7)]
        assert self.chosen(study, records) == [compiled("b")]
        records = [record(compiled(mode), 5 + n / 100) for n, mode in enumerate("abcd")]
        assert self.chosen(study, records) == [compiled("a"), compiled("b"), compiled("c")], "it is not counted twice"
        assert self.chosen(study, []) == []

    def test_of_those_that_may_be_as_fast_the_simplest_and_the_fastest(self, study, record):
        """Three of the equals at most: the fastest, the simplest, and the next fastest; in the order of their speed."""
        far = compiled("b", "with")
        records = [
            record(far, 5.00),
            record(compiled("c", "with"), 5.01),
            record(compiled("d", "with"), 5.02),
            record(compiled("d"), 5.03),
            record(compiled("c"), 5.04, compile_s=9.0),
        ]
        assert self.chosen(study, records) == [far, compiled("c", "with"), compiled("d")]

    def test_a_noisy_machine_lets_more_be_equal(self, study, record):
        """What two processes of one config differ by anyhow keeps nobody out."""
        records = [record(compiled("b", "with"), 5), record(compiled("b"), 5.4)]
        assert self.chosen(study, records) == [compiled("b", "with")]
        assert self.chosen(study, records, uncertainty=0.1) == [compiled("b", "with"), compiled("b")]

    def test_simpler_is_nearer_to_the_default_then_cheaper_to_compile(self, study, record):
        """Fewest knobs changed first, compile seconds only between equals."""
        default, near = record(DEFAULT, 5, compile_s=99), record(compiled("b"), 5, compile_s=50)
        cheap, far = record(compiled("c"), 5, compile_s=1), record(compiled("c", "with"), 5, compile_s=0.1)
        assert sorted([far, cheap, near, default], key=lambda each: simplicity(each, study.manifest.space)) == [
            default, cheap, near, far,
        ]  # fmt: skip


class TestUncertainty:
    """By how much two processes of the search may differ for no reason."""

    @pytest.fixture
    def untuned(self, record):
        return record(UNTUNED, 10)

    def test_at_least_two_percent(self, study, untuned):
        """Before anything is known of the machine, and on a quiet one; else what the untuned model differs by."""
        assert uncertainty_of(study, untuned) == EQUALLY_FAST
        for spread, expected in ((0.0, EQUALLY_FAST), (0.07, 0.07)):
            study.noise_floor = FLOOR.model_copy(update={"spread": spread})
            assert uncertainty_of(study, untuned) == expected

    @pytest.mark.parametrize(("latency_ms", "expected"), [(10.4, EQUALLY_FAST), (12, 0.2), (8, 0.25)])
    def test_a_drift_worth_a_warning_counts(self, study, untuned, latency_ms, expected):
        """Up or down; below 5 % it does not."""
        study.drift_checks = [*study.drift_checks, DriftCheck(after=4, latency_s=latency_ms / 1e3)]
        assert uncertainty_of(study, untuned) == pytest.approx(expected)


NOISE = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0)
OTHER = (1.001, 0.999, 1.0, 1.002, 0.998, 1.001)


def times(factor, noise=NOISE):
    """Ratios of a config to the untuned model, one a block."""
    return [factor * each for each in noise]


EQUAL = times(1.5), times(1.501, OTHER), times(1.499)
WINNERS = {
    "the fastest": ([times(1.2), times(1.5)], [0, 9], 1),
    "of ties the simplest, the last": (EQUAL, [3, 2, 1], 2),
    "of ties the simplest, the first": (EQUAL, [1, 2, 3], 0),
    "no simpler one that is shown to be slower": ([times(1.500), times(1.485)], [2, 1], 0),
    # Not told apart for lack of evidence is no tie when the figures lie far from each other.
    "no simpler one beyond two percent": ([times(1.55), [1.10, 1.9, 1.3, 1.62, 1.7, 1.24]], [2, 1], 0),
    # The median is larger, but the interval reaches below 1.
    "a proven one beside a faster unproven one": ([times(1.1), [0.7, 1.9, 1.3, 2.9, 0.9, 2.2]], [2, 1], 0),
    "the closest where nothing is proven": ([times(0.9), times(1.002), times(0.95)], [1, 2, 3], 1),
}


@pytest.mark.parametrize(("columns", "simplicities", "winner"), WINNERS.values(), ids=WINNERS)
def test_whom_the_verdict_is_about(columns, simplicities, winner):
    """What is proven comes first, then what is simplest among those that are not told apart."""
    rows = tuple((1.0, *(1 / each for each in row)) for row in zip(*columns, strict=True))
    assert winner_of(Proof(Blocks(rows)), MARGIN, [(each, False, 0.0) for each in simplicities]) == winner


class TestConfirmation:
    """Whole studies on scripted processes: `latencies` has ms a call by config, `confirmed` what differs in blocks."""

    @pytest.fixture
    def tune(self, study, measurement):
        events = []

        def tune(latencies, confirmed=None, *, control_ms=10, trials=99):
            def outcome_of(name, block, config):
                said = latencies[config] if config in latencies or isinstance(latencies, defaultdict) else 20
                if (name, block) == ("untuned", 0):
                    said = control_ms  # The process beside the trials, which takes turns in each block.
                elif block:
                    said = (confirmed or {}).get(config, said)
                said = said(block) if callable(said) else said
                is_outcome = isinstance(said, Failure | Measurement)
                return said if is_outcome else with_latency(measurement, said / 1e3)

            events.clear()
            scripted = ScriptedTrials(outcome_of)
            confirmation = Tuner(study, Budget(num_trials=trials), scripted, events.append).run()
            tune.blocks = sum(isinstance(each, BlockMeasured) for each in events)
            begun = [each for each in events if isinstance(each, BlockStarted)]
            tune.begun = [[record.config for record in each.finalists] for each in begun]
            return confirmation

        return tune

    def config_of(self, study, confirmation):
        return study.record(confirmation.candidate).config

    def test_the_framework_s_default_takes_part_if_it_may_be_the_best(self, study, tune):
        """A gain of 2x is proven by two blocks; what is slower by far is not compared, whatever it is called."""
        confirmation = tune({UNTUNED: 10, DEFAULT: 9, compiled("b"): 5})
        assert confirmation.verdict is Verdict.FASTER
        assert self.config_of(study, confirmation) == compiled("b")
        configs = [study.record(number).config for number in confirmation.contestants]
        assert configs == [UNTUNED, compiled("b")]
        assert [each.median for each in confirmation.speedups] == pytest.approx([2])
        assert confirmation.speedup == confirmation.speedups[0]
        assert confirmation.pairs == ((0.010, 0.005),) * 2
        assert confirmation.values == pytest.approx((0.010, 0.005))

    def test_one_that_is_no_faster_when_confirmed_does_not_win(self, study, tune):
        """The search's figures choose who takes part, and decide nothing."""
        confirmation = tune({UNTUNED: 10, compiled("b"): 5}, {compiled("b"): 10})
        assert confirmation.verdict is Verdict.TIE
        assert tuned_config(study).is_untuned

    @pytest.mark.parametrize(
        ("scatter", "verdict", "num_blocks", "at_most"),
        [
            ([10.4, 9.8, 10.6, 9.9], Verdict.TIE, 4, 1.05),
            ([10.9, 9.6, 10.7, 9.7] * 2, Verdict.TIE, 8, 1.05),
            ([12.2, 10.9, 12.7, 11.1], Verdict.KEEP_UNTUNED, 4, 0.99),
        ],
        ids=["tie after four blocks", "tie after eight", "slower"],
    )
    def test_blocks_in_which_nothing_looks_faster_are_few(self, study, tune, scatter, verdict, num_blocks, at_most):
        """The interval is too wide to tell a small gain, but a gain worth further blocks is ruled out, as a note says.

        The verdict stands: run again, nothing is measured.
        """
        latencies, blocks = {UNTUNED: 10, DEFAULT: 9.8, compiled("b"): 20}, dict(enumerate(scatter, start=1))
        confirmation = tune(latencies, {DEFAULT: blocks.get}, trials=3)
        assert verdict_of(confirmation.speedup) is Verdict.UNDECIDED
        assert (confirmation.verdict, tune.blocks) == (verdict, num_blocks)
        number = next(each.number for each in study.records() if each.config == DEFAULT)
        told = re.fullmatch(r"trial (\d+) does not look better, and is (\S+)x at most \(95 % sure\)", confirmation.note)
        assert told is not None
        assert int(told[1]) == number
        assert float(told[2]) <= at_most
        assert tuned_config(study).is_untuned
        assert "runs of the same config differ on this machine searched" in shown(study)
        assert tune({}, trials=3) == confirmation
        assert tune.blocks == 0

    @pytest.mark.parametrize(("control_ms", "verdict"), [(10, Verdict.FASTER), (12, Verdict.TIE)])
    def test_the_noise_floor_raises_the_margin(self, study, tune, control_ms, verdict):
        """A gain of 4 % is one; on a machine that shows 10 % between two processes of one config it is a tie."""
        confirmation = tune({UNTUNED: 10, compiled("b"): 10 / 1.04}, control_ms=control_ms)
        assert confirmation.verdict is verdict
        assert confirmation.margin > 0.04 if verdict is Verdict.TIE else confirmation.margin == MARGIN
        assert study.noise_floor.pairs == ((0.010, control_ms / 1e3),) * tune.blocks

    @pytest.mark.parametrize(("faults", "verdict"), [(0, Verdict.TIE), (1500, Verdict.FASTER)])
    def test_a_control_that_gives_back_memory_is_none(self, study, tune, measurement, faults, verdict):
        """It is slower than the untuned model's other process since page faults take its time: it raises no margin, and
        stands in no row."""

        def taking(ms, faults):
            usage = Usage(cpu_s=(ms / 1e3,) * 3, page_faults=(faults,) * 3, involuntary_switches=(0,) * 3)
            timed = with_latency(measurement, ms / 1e3)
            return timed.model_copy(update={"samples": timed.samples.model_copy(update={"usage": usage})})

        latencies = {UNTUNED: taking(10, 0), compiled("b"): taking(10 / 1.04, 0)}
        confirmation = tune(latencies, control_ms=taking(12, faults))
        assert confirmation.verdict is verdict
        assert {row.control for row in study.blocks} == {None if faults else 0.012}

    def test_undecided_is_confirmed_again(self, study, tune):
        """A wild machine gives no verdict, and nothing compiled is exported; run again when quiet, it does."""
        wild = dict(enumerate([4, 16, 7, 30] * 4, start=1))
        latencies = {UNTUNED: 10, compiled("b"): 8}
        confirmation = tune(latencies, {compiled("b"): wild.get})
        assert confirmation.verdict is Verdict.UNDECIDED
        assert tune.blocks == 16
        assert "runs of the same config differ on this machine; `resume`" in shown(study)
        assert StudyResult(study).best.config == UNTUNED
        assert tuned_config(study).is_untuned
        again = tune(latencies)
        assert tune.blocks == 4
        assert again.verdict is Verdict.FASTER
        assert "16 blocks of earlier runs tell of another machine: left out" in again.note
        assert study.confirmation == again

    @pytest.mark.parametrize(("later", "verdict"), [([7.6, 8.6], "faster"), ([8.1, 10.7], "undecided")])
    def test_blocks_of_an_undecided_run_stay_evidence(self, study, tune, later, verdict):
        """A run that goes on adds to them, has one look more at all together, and says at which it ended."""
        scatter = dict(enumerate([8.1, 10.7] * 8 + later * 8, start=1))
        latencies = {UNTUNED: 10, compiled("b"): 9}
        confirmation = tune(latencies, {compiled("b"): scatter.get})
        assert (confirmation.verdict, len(study.blocks)) == (Verdict.UNDECIDED, 16)
        assert confirmation.why == "this machine is too noisy to tell by 16 blocks"
        again = tune(latencies, {compiled("b"): scatter.get})
        assert (again.verdict, len(study.blocks), tune.blocks) == (Verdict(verdict), 32, 16)
        assert again.why == (None if verdict == "faster" else "this machine is too noisy to tell by 32 blocks")

    @pytest.mark.parametrize("speed", [5, 10, 10.5], ids=["faster", "tie", "keep_untuned"])
    def test_a_decided_verdict_stands(self, study, tune, speed):
        """Run again with the same number of trials, a verdict costs nothing and stays."""
        latencies = {UNTUNED: 10, DEFAULT: speed}
        first = tune(latencies)
        assert tune.blocks > 0
        assert tune({}) == first
        assert tune.blocks == 0

    def test_more_trials_are_judged_with_the_blocks_that_there_are(self, study, tune):
        """A verdict speaks of the trials that there were; no block is measured again for those that show nothing."""
        latencies = {UNTUNED: 10, DEFAULT: 5}
        first = tune(latencies, trials=3)
        second = tune(latencies, trials=5)
        assert (first.num_trials, second.num_trials) == (3, 5)
        assert tune.blocks == 0
        assert second.model_copy(update={"num_trials": 3}) == first

    @pytest.mark.parametrize(("slower_ms", "is_near"), [(11.5, False), (10.5, True)], ids=["far", "near"])
    def test_nothing_within_reach_is_not_compared(self, study, tune, slower_ms, is_near):
        """A best that is far slower than the untuned model needs no block."""
        confirmation = tune({UNTUNED: 10, DEFAULT: slower_ms})
        assert (tune.blocks > 0) is is_near
        assert confirmation.verdict is Verdict.KEEP_UNTUNED
        assert ("within" in (confirmation.note or "")) is not is_near

    def test_all_candidates_may_fail(self, study, tune):
        """Each compiled config that came near fails in its block, and is named; then the untuned model is kept."""
        failure = Failure(reason="crash", stage="compile", error="gone")
        all_compiled = [compiled(mode, extra) for mode in "abcd" for extra in ("without", "with")]
        latencies = {UNTUNED: 10} | {config: 5 + n / 2 for n, config in enumerate(all_compiled)}
        confirmation = tune(latencies, dict.fromkeys(all_compiled, failure))
        assert confirmation.verdict is Verdict.KEEP_UNTUNED
        assert confirmation.note.count("failed in a fresh process: crash: gone") == len(all_compiled)
        assert "none is left" in confirmation.note

    def test_without_room_for_all_only_the_best_is_compared(self, study, tune):
        """Several live models need more memory than one: out of memory shrinks the field, and blames no config."""
        failure = Failure(reason="out_of_memory", stage="compile", error="1 TiB")
        numbers = iter([failure])
        latencies = {UNTUNED: 10, compiled("c"): 9.1, compiled("b"): 9}
        confirmation = tune(latencies, {compiled("c"): lambda block: next(numbers, 9.1)})
        assert confirmation.verdict is Verdict.FASTER
        assert self.config_of(study, confirmation) == compiled("b")
        assert "no room for several processes at once: only the best config was compared" in confirmation.note
        sizes = [len(each) for each in tune.begun]
        assert sizes == [2, *[1] * (len(sizes) - 1)]

    def test_the_untuned_model_failing_in_its_blocks(self, study, tune):
        """It worked before, so the study ends with an answer: undecided, with the child's own error as the reason. No
        further config is tried, since nothing could be proven, and the run that follows goes on."""
        failure = Failure(reason="run_error", stage="run", error="RuntimeError: no device")
        confirmation = tune({UNTUNED: 10, DEFAULT: 5}, {UNTUNED: failure})
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.why == "the untuned model failed 4 times in a row: run_error: RuntimeError: no device"
        assert study.confirmation == confirmation
        assert tuned_config(study).is_untuned
        assert shown(study).startswith("undecided: ")
        assert confirmation.why in shown(study)
        assert confirmation.cut_short
        assert (len(tune.begun), num_recorded := study.num_recorded()) == (1, 2)
        assert tune({UNTUNED: 10, DEFAULT: 5}).verdict is Verdict.FASTER
        assert study.num_recorded() > num_recorded

    def test_a_crash_by_chance_is_noted_and_costs_nothing(self, study, tune):
        """A config that crashed once and then ran takes part, and the note says so."""
        crash = [Failure(reason="crash", stage="run", error="SIGSEGV")]
        confirmation = tune({UNTUNED: 10, DEFAULT: 5}, {DEFAULT: lambda block: crash.pop() if crash else 5})
        assert confirmation.verdict is Verdict.FASTER
        assert "failed and was run again: crash: SIGSEGV" in confirmation.note

    def test_an_untuned_model_that_fails_by_chance_is_run_again(self, study, tune):
        """Three times in a row, of any kind: the study ends with the answer that it would have had."""
        failures = [Failure(reason="run_error", stage="run", error="RuntimeError: Illegal device type")] * 3
        confirmation = tune({UNTUNED: 10, DEFAULT: 5}, {UNTUNED: lambda _: failures.pop() if failures else 10})
        assert "the untuned model failed and was run again: run_error" in confirmation.note
        assert not failures
        assert confirmation.verdict is Verdict.FASTER

    def test_a_run_without_the_process_beside_the_trials(self, study, tune):
        """There is no room for it: no noise floor then, and an answer all the same."""
        failure = Failure(reason="out_of_memory", stage="compile", error="1 TiB")
        confirmation = tune({UNTUNED: 10, DEFAULT: 5}, control_ms=failure)
        assert confirmation.verdict is Verdict.FASTER
        assert study.noise_floor is None
        assert study.drift_checks == []

    def test_the_blocks_go_on_while_a_rival_looks_faster(self, study, tune):
        """One config is proven, another looks faster and was hit once: the answer is the best."""
        hit = {1: 9.5, 2: 5.02, 3: 4.98}
        latencies = {UNTUNED: 10, compiled("c"): 5.3, compiled("b"): 5.25}
        confirmation = tune(latencies, {compiled("b"): lambda n: hit.get(n, 5)})
        assert self.config_of(study, confirmation) == compiled("b")

    @pytest.mark.parametrize(
        ("reason", "more"),
        [
            ("invalid", ""),
            ("out_of_memory", " for lack of memory"),
            ("wrong_result", ", whose outputs are not the untuned model's"),
        ],
    )
    def test_configs_that_all_fail_are_no_answer(self, study, tune, reason, more):
        """Nothing was measured beside the untuned model, so nothing was shown to be no faster: undecided, and the next
        step tries further configs."""
        failure = Failure(reason=reason, stage="compile", error="knob freezing: no")
        confirmation = tune(defaultdict(lambda: failure, {UNTUNED: 10}), trials=3)
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.why == f"no other config was measured: 2 failed{more}"
        assert f"undecided: {confirmation.why}" in shown(study)
        assert "(tries further configs)" in shown(study)
        assert tuned_config(study).is_untuned

    def test_the_untuned_model_alone_is_no_answer(self, study, tune):
        """One trial shows nothing: no other config was measured, which is not that nothing is faster."""
        confirmation = tune({UNTUNED: 10}, trials=1)
        assert confirmation.verdict is Verdict.UNDECIDED
        assert confirmation.why == "no other config was measured"
        assert "undecided: no other config was measured" in shown(study)
