"""Where the second call still records something, it counts as compiling; and configs whose compiler times kernels are
compiled anew in some blocks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.config import Config
from autotune.measure.constraint import Constraint
from autotune.measure.objective import Objective
from autotune.measure.sampling import SamplingPlan
from autotune.trial.worker.calls.calls import Calls
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.calls.stream import StreamCalls
from autotune.trial.worker.costs import NUM_COPIES, SecondCall, copying_s
from autotune.tuning.blocks import Contestant
from autotune.tuning.session import PIPELINED_CALLS, picks_by_timing, sampling_for
from tests.conftest import with_latency


class Device:
    """A step that takes 5 s when it is called next and 1 s later, and a device that is waited for a second more."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits = 0
        self._next_s = 5.0

    def step(self, x: int) -> int:
        self.now += self._next_s
        self._next_s = 1.0
        return x + 1

    def synchronise(self) -> None:
        self.now += 1.0
        self.waits += 1


def test_the_first_call_from_here_on_is_timed_and_no_other():
    """Till the device is done; the outputs are the step's own."""
    device = Device()
    second = SecondCall(device.step, device, lambda: device.now)
    assert second.seconds is None
    assert [second(1), second(2)] == [2, 3]
    assert second.seconds == 6.0
    assert device.waits == 1


def test_what_the_second_call_records_is_compile_time(measurement):
    """Each of the two less a steady call; without a second one it is what it was."""
    samples = with_latency(measurement, 0.5).samples
    assert Calls.compile_s(None, 10.5, None, samples) == 10.0
    assert Calls.compile_s(None, 10.5, 3.5, samples) == 13.0


def test_a_job_s_total_has_the_second_call_in_it(measurement):
    """Ten calls: the first, the one that records, and eight steady ones."""
    seen = with_latency(measurement, 0.5, first_call_s=10.0, second_call_s=3.0)
    assert seen.cold_s == (10.0, 3.0)
    assert Objective.parse("total:10").value(seen) == pytest.approx(10 + 3 + 8 * 0.5)
    assert with_latency(measurement, 0.5, first_call_s=10.0).cold_s == (10.0,)


def test_copies_of_outputs_are_timed_beside_the_calls():
    """Their mean with one wait at the end: within a call nothing waits for a copy either."""
    device = Device()
    copied = []

    def copy(outputs):
        device.now += 0.5
        copied.append(outputs)

    assert copying_s(copy, "outputs", device.synchronise, lambda: device.now) == pytest.approx(0.5 + 1.0 / NUM_COPIES)
    assert copied == ["outputs"] * (1 + NUM_COPIES)


def test_only_what_is_copied_is_timed():
    """A training step gives a number, whose copy costs nothing; calls of a stream are not told apart."""

    def copy(outputs):
        return outputs

    calls = SimpleNamespace(
        _backend=SimpleNamespace(copies_outputs=lambda model, config: copy), _subject=SimpleNamespace(model=None)
    )
    assert OneShape.copied(calls, Config({})) is copy
    assert Steps.copied(calls, Config({})) is None
    assert StreamCalls.copied(calls, Config({})) is None


def test_every_second_pair_of_blocks_begins_with_a_compile_of_its_own(make_request, tmp_path):
    """In a folder of its own: the caches that are exported are those of the other blocks."""
    shared = make_request({"execution": "compile"}).cached_in(tmp_path / "shared", cold=False)
    anew, plain = Contestant("trial-1", shared, compiles_anew=True), Contestant("trial-2", shared)
    requests = {number: anew.request_in(number, tmp_path / f"block-{number}") for number in range(1, 9)}
    assert [number for number, request in requests.items() if request.cold] == [3, 7]
    assert len({request.cache for request in requests.values()}) == 3
    assert all(requests[number] == shared for number in (1, 2, 4, 5, 6, 8))
    assert plain.request_in(3, tmp_path) == shared


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ({"mode": "max-autotune"}, "gpu", True),
        ({"mode": "default", "coordinate_descent_tuning": True}, "gpu", True),
        ({"mode": "default", "max_autotune_gemm": False}, "gpu", False),
        ({"mode": "reduce-overhead"}, "gpu", False),
        ({"mode": "max-autotune"}, "cpu", False),
    ],
)
def test_which_configs_may_come_to_other_kernels(make_request, settings, device, expected):
    """Those whose compiler keeps what was fastest on its own stopwatch, on an accelerator."""
    request = make_request({"execution": "compile", **settings})
    workload = request.workload.model_copy(update={"framework": "torch", "device": device})
    assert picks_by_timing(request.model_copy(update={"workload": workload})) is expected


@pytest.mark.parametrize(
    ("device", "objective", "constraints", "expected"),
    [
        ("gpu", "throughput", [], PIPELINED_CALLS),
        ("gpu", "throughput", ["peak_memory <= 2GiB"], PIPELINED_CALLS),
        ("gpu", "throughput", ["p99 <= 20ms"], 1),
        ("gpu", "latency", [], 1),
        ("cpu", "throughput", [], 1),
    ],
)
def test_calls_are_pipelined_where_throughput_alone_is_asked_for(device, objective, constraints, expected):
    """A latency is that of a call that is waited for; on a CPU a call returns with its result anyway."""
    manifest = SimpleNamespace(
        workload=SimpleNamespace(device=device),
        objective=Objective.parse(objective),
        constraints=tuple(map(Constraint.parse, constraints)),
    )
    assert sampling_for(SimpleNamespace(manifest=manifest), SamplingPlan()).calls_per_sample == expected
