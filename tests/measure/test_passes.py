"""A stream of calls on a clock that moves only when a call says so: the cold pass, whole steady passes, and the job's
total that they come to."""

from __future__ import annotations

import pytest

from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Measurement, Replay, Samples
from autotune.measure.objective import Objective
from autotune.measure.sampling import SamplingPlan, take_cold_pass, take_samples, take_turns

STREAM = (0, 1, 0)
"""Of two shapes, 2 s and 5 s a call once compiled."""
STEADY = (2.0, 5.0, 2.0)


class Script:
    """Calls of a stream that take scripted seconds in each pass, those of the last one over and over."""

    def __init__(self, *passes: tuple[float, ...]) -> None:
        self._passes = passes
        self.now = 50.0
        self.num_calls = 0

    def calls(self):
        return [self._call] * len(self._passes[0])

    def _call(self) -> None:
        turn, place = divmod(self.num_calls, len(self._passes[0]))
        self.now += self._passes[min(turn, len(self._passes) - 1)][place]
        self.num_calls += 1

    def clock(self) -> float:
        return self.now

    def sampled(self, **plan: float) -> Samples:
        return take_samples(self.calls(), SamplingPlan.model_validate({"slow_call_s": 1e6, **plan}), self.clock)


def compiled(num_graphs: int, num_given_up: int | None = 0) -> Compilations:
    return Compilations(num_graphs=num_graphs, num_given_up=num_given_up)


def test_each_call_of_the_cold_pass_is_timed_and_the_compiler_asked_after_it() -> None:
    """What compiled when is known call by call; of a framework that does not tell, None is known, not 0."""
    said = iter([compiled(1), compiled(2), compiled(2)])
    script = Script((30.0, 40.0, 2.0))
    cold_s, compilations = take_cold_pass(script.calls(), lambda: next(said), script.clock)
    assert cold_s == pytest.approx((30, 40, 2))
    assert compilations == (compiled(1), compiled(2), compiled(2))
    assert take_cold_pass(Script((30.0, 40.0, 2.0)).calls(), lambda: None, script.clock)[1] is None


def test_passes_are_whole() -> None:
    """Sampling ends at a limit of samples or seconds, but never within a pass, and not before two."""
    assert Script(STEADY).sampled(max_samples=10, max_sampling_s=1000).latency_s == STEADY * 3
    assert Script(STEADY).sampled(max_samples=500, max_sampling_s=20).latency_s == STEADY * 3
    short = Script(STEADY).sampled(max_samples=1, max_sampling_s=0.1)
    assert (short.latency_s, short.ended_by) == (STEADY * 2, "num_samples")


def test_a_stream_ends_before_its_process_is_out_of_time() -> None:
    """Where one more pass would be too long, one is enough, and a turn ends as well."""
    samples = Script(STEADY).sampled(max_samples=500, max_warmup_s=100, longest_s=32)
    assert (samples.latency_s, samples.ended_by) == (STEADY, "time")
    script, turns = Script(STEADY), iter([True, False])
    plan = SamplingPlan(turn_s=100, longest_s=15, max_warmup_s=100, slow_call_s=5)
    assert take_turns(script.calls(), plan, lambda: next(turns), script.clock).turns == (3,)


def test_warm_up_compares_whole_passes() -> None:
    """It ends with the first pass that takes as long as the one before; calls within a pass may differ as they like."""
    settled = Script((9, 9, 9), (3, 5, 2), STEADY, STEADY).sampled(max_warmup_s=1000, max_samples=6)
    assert settled.warmup_s == (9, 9, 9, 3, 5, 2, *STEADY, *STEADY)
    assert settled.steady
    hurried = Script((9, 9, 9), STEADY).sampled(max_warmup_s=20, max_samples=6)
    assert (hurried.warmup_s, hurried.steady) == ((9, 9, 9), False)


def test_a_slow_pass_is_warm_after_one() -> None:
    """Both passes of the samples are taken all the same: each shape needs its own."""
    slow = Script((9, 9, 9), STEADY).sampled(slow_call_s=20.0, max_warmup_s=100, max_sampling_s=1.0)
    assert (slow.warmup_s, slow.latency_s) == ((9, 9, 9), STEADY * 2)


def test_a_turn_is_one_call_that_does_not_count_and_whole_passes() -> None:
    """As many passes as a turn lasts, one at least: every turn holds the same shapes."""
    for turn_s, num_passes in ((0.1, 1), (12.0, 2)):
        script, turns = Script(STEADY), iter([True, True, False])
        plan = SamplingPlan(turn_s=turn_s, max_warmup_s=100, slow_call_s=1e6)
        samples = take_turns(script.calls(), plan, lambda turns=turns: next(turns), script.clock)
        assert samples.turns == (3 * num_passes,) * 2
        assert script.num_calls == len(samples.warmup_s) + 2 * (1 + 3 * num_passes)
    with pytest.raises(RuntimeError, match="before its first turn"):
        take_turns(script.calls(), plan, lambda: False, script.clock)


@pytest.fixture
def replayed(measurement: Measurement) -> Measurement:
    """Cold 30, 40, 4 s; then two passes of 2, 5, 2 s and of 4, 5, 2 s."""
    replay = Replay(
        sizes=({"seq": 1}, {"seq": 2}), stream=STREAM, cold_s=(30, 40, 4),
        compilations=(compiled(2), compiled(3), compiled(4, 1)),
    )  # fmt: skip
    samples = Samples(latency_s=(2, 5, 2, 4, 5, 2), steady=True, ended_by="time")
    return measurement.model_copy(update={"replay": replay, "samples": samples, "first_call_s": 30.0})


@pytest.mark.parametrize(
    ("num_calls", "total_s"), [(1, 30), (2, 70), (3, 74), (4, 74 + 10 / 3), (3003, 74 + 3000 * 10 / 3)]
)
def test_the_total_of_a_job(replayed: Measurement, num_calls: int, total_s: float) -> None:
    """The cold pass, or its beginning, and for each further call the mean of a steady pass: 3, 5, 2 s by medians."""
    assert Objective.parse(f"total:{num_calls}").value(replayed) == pytest.approx(total_s)


def test_figures_of_each_shape(replayed: Measurement) -> None:
    """Its median, and the graphs that were compiled when it was called; in all: compilations and fallbacks."""
    assert [replayed.replay.shape_s(shape, replayed.samples) for shape in (0, 1)] == [2, 5]
    assert [replayed.replay.compiled_for(shape) for shape in (0, 1)] == [3, 1]
    assert (replayed.replay.num_compilations, replayed.replay.num_fallbacks) == (4, 1)
    silent = replayed.replay.model_copy(update={"compilations": None})
    assert (silent.num_compilations, silent.num_fallbacks, silent.compiled_for(0)) == (None, None, None)
