"""Disturbed timing: what the samples record says whether other programs had the cores meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.environment import throttled_s
from autotune.measure.disturbance import LoadMeter, busy_cpu_s, disturbance_of
from autotune.measure.measurement import Measurement, Samples, Usage
from autotune.measure.sampling import SamplingPlan, take_samples
from autotune.study.records import DriftCheck, why_unreliable
from tests.conftest import trial_record


def timed(measurement, *, wall_s=0.005, hit=0.0, switches=1, cpu=1.0, taken=0.0, num=100, device="cpu") -> Measurement:
    """Calls of which a share was interrupted; `cpu` and `taken` in cores."""
    interrupted = tuple(switches if index < hit * num else 0 for index in range(num))
    usage = Usage(
        cpu_s=(cpu * wall_s,) * num,
        page_faults=(0,) * num,
        involuntary_switches=interrupted,
        taken_s=None if taken is None else taken * wall_s * num,
    )
    samples = Samples(latency_s=(wall_s,) * num, steady=True, ended_by="num_samples", usage=usage)
    environment = measurement.environment.model_copy(update={"device": device})
    return measurement.model_copy(update={"samples": samples, "environment": environment})


class TestDisturbanceOf:
    """The figures of these cases were measured: a small MLP on one or two cores, beside a busy loop and alone."""

    def test_a_neighbour_on_the_core_disturbs(self, measurement):
        """Two thirds of the calls interrupted, half of a core gone: it says what was measured."""
        environment = measurement.environment.model_copy(update={"num_cores": 8})
        measurement = measurement.model_copy(update={"environment": environment})
        why = disturbance_of(timed(measurement, hit=0.67, cpu=0.6, taken=0.5))
        assert why == "other programs used 0.5 of 8 cores while it was timed: 67% of the calls were interrupted"

    @pytest.mark.parametrize(
        ("case", "figures"),
        [
            ("a quiet machine", {"hit": 0.03}),
            ("more threads than cores, which get in each other's way", {"hit": 1.0, "switches": 27, "taken": 0.0}),
            ("a neighbour on another core", {"hit": 0.02, "taken": 1.0}),
            ("long calls on a quiet machine", {"wall_s": 1.0, "hit": 1.0, "switches": 8, "taken": 0.01, "num": 5}),
            ("an older record of a process with its core to itself", {"hit": 1.0, "taken": None}),
            ("a device, for which the calls wait", {"hit": 0.9, "cpu": 0.3, "taken": 1.0, "device": "NVIDIA H200"}),
        ],
    )
    def test_what_disturbs_nothing(self, measurement, case, figures):
        """Its median is that of the config."""
        assert disturbance_of(timed(measurement, **figures)) is None, case

    def test_an_older_record_tells_by_its_cpu_time(self, measurement):
        """Interrupted, and less than one core's worth of time: others had it. Without counters nothing is known."""
        assert disturbance_of(measurement) is None
        assert "interrupted" in (disturbance_of(timed(measurement, hit=0.7, cpu=0.5, taken=None)) or "")

    def test_one_instance_that_was_interrupted_disturbs_all(self, measurement):
        """The throughput is the sum: it is less by what that one lost. Cores are those of all."""
        environment = measurement.environment.model_copy(update={"num_cores": 2})
        quiet = timed(measurement.model_copy(update={"environment": environment}), hit=0.03, taken=0.5)
        calls_s, beside = quiet.samples.latency_s, {}
        for name, hit in (("quiet", 0.1), ("busy", 0.6)):
            switches = tuple(int(number < hit * len(calls_s)) for number in range(len(calls_s)))
            update = {"beside_s": (calls_s, calls_s), "beside_switches": ((0,) * len(calls_s), switches)}
            beside[name] = quiet.model_copy(update={"samples": quiet.samples.model_copy(update=update)})
        assert disturbance_of(beside["quiet"]) is None
        assert disturbance_of(beside["busy"]) == (
            "other programs used 0.5 of 6 cores while it was timed: 60% of the calls of an instance were interrupted"
        )

    def test_the_record_says_it_of_another_outcome_anew(self, measurement):
        """It is derived from the outcome, never kept beside it."""
        disturbed = trial_record(timed(measurement, hit=0.7, cpu=0.5, taken=0.5), 1)
        assert disturbed.disturbed
        assert replace(disturbed, outcome=measurement).disturbed is None


class TestWhyUnreliable:
    """When the search's figures do not tell which configs are the fastest."""

    def test_a_drift_that_is_larger_than_most_gains(self, measurement):
        """Up to a fifth the ranking holds for what is worth finding."""
        untuned = trial_record(measurement, 0)
        first_s = measurement.latency.p50
        assert why_unreliable(untuned, [untuned], [DriftCheck(after=4, latency_s=1.1 * first_s)]) is None
        assert why_unreliable(untuned, [untuned], [DriftCheck(after=4, latency_s=2 * first_s)]) == (
            "the untuned model's own latency changed by 100% during the search"
        )

    def test_many_disturbed_trials(self, measurement):
        """One in ten may be; with more the best one may be among them."""
        quiet = [trial_record(measurement, number) for number in range(18)]
        loud = [trial_record(timed(measurement, hit=0.7, cpu=0.5, taken=0.5), 20 + number) for number in range(3)]
        assert why_unreliable(quiet[0], [*quiet, *loud[:2]], []) is None
        assert why_unreliable(quiet[0], [*quiet, *loud], []) == "other programs disturbed 3 of 21 trials"


class TestMeter:
    """What others take of the usable cores, from the system's own counters."""

    @staticmethod
    def stat(user, idle, steal=0):
        return f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {user} 0 0 {idle} 5 0 0 {steal} 7 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 1\n"

    @pytest.fixture
    def counters(self, tmp_path, monkeypatch):
        monkeypatch.setattr("autotune.measure.disturbance.usable_cpus", lambda: frozenset({0}))
        monkeypatch.setattr("autotune.measure.disturbance.num_usable_cores", lambda: 1)
        monkeypatch.setattr("autotune.measure.disturbance.os.sysconf", lambda _: 100)
        file = tmp_path / "stat"
        file.write_text(self.stat(1000, 1000))
        return file

    def test_busy_time_less_the_own(self, counters):
        """Idle and waiting time is free; what this process used itself is not others'."""
        own = iter([2.0, 2.5])
        meter = LoadMeter(lambda: next(own), counters)
        counters.write_text(self.stat(1100, 9000, steal=25))
        assert meter.taken_s() == pytest.approx(1.0 + 0.25 - 0.5)

    def test_cores_that_are_named(self, counters):
        """In place of those that this process may use."""
        meter = LoadMeter(lambda: 0.0, counters, frozenset({1}))
        counters.write_text(self.stat(1100, 9000, steal=25).replace("cpu1 0 0 0 0 0 0 0 0", "cpu1 300 0 0 0 0 0 0 50"))
        assert (meter.taken_s(), meter.stolen_s()) == (pytest.approx(3.5), pytest.approx(0.5))

    def test_stolen_time_is_told_apart(self, counters, monkeypatch):
        """What a hypervisor gave to others, and what a quota kept from this process."""
        kept = iter([3.0, 3.5])
        monkeypatch.setattr("autotune.measure.disturbance.throttled_s", lambda: next(kept))
        meter = LoadMeter(lambda: 0.0, counters)
        counters.write_text(self.stat(1100, 9000, steal=25))
        assert meter.stolen_s() == pytest.approx(0.25 + 0.5)

    def test_a_quota_counts_what_it_keeps(self, tmp_path):
        """In the groups of either version, the process's own and those above it."""
        own, group = tmp_path / "own", tmp_path / "root" / "pod" / "job"
        group.mkdir(parents=True)
        own.write_text("0::/pod/job\n")
        (group / "cpu.stat").write_text("usage_usec 7\nthrottled_usec 1500000\n")
        (group.parent / "cpu.stat").write_text("nr_throttled 2\nthrottled_time 500000000\n")
        assert throttled_s(tmp_path / "root", own) == pytest.approx(2.0)
        assert throttled_s(tmp_path / "root", tmp_path / "none") == 0

    def test_a_system_that_does_not_tell(self, tmp_path):
        """No file, or one without counters of the usable processors: unknown, never 0."""
        assert LoadMeter(lambda: 0.0, tmp_path / "none").taken_s() is None
        (tmp_path / "stat").write_text("cpu  0 0 0 0\n")
        assert busy_cpu_s(tmp_path / "stat") is None

    def test_what_a_quota_leaves_to_others_anyway_is_not_taken(self, counters, monkeypatch):
        """A container with a quota of one of the host's two processors lacks nothing while the other is busy."""
        monkeypatch.setattr("autotune.measure.disturbance.usable_cpus", lambda: frozenset({0, 1}))
        monkeypatch.setattr("autotune.measure.disturbance.time.monotonic", iter([0.0, 1.0]).__next__)
        meter = LoadMeter(lambda: 0.0, counters)
        counters.write_text(self.stat(1100, 1000))
        assert meter.taken_s() == 0.0

    def test_samples_record_it(self):
        """Once for all samples of a trial; nothing can have taken more than the whole machine."""
        pytest.importorskip("resource")
        usage = take_samples([lambda: None], SamplingPlan(min_samples=3, max_samples=3)).usage
        assert usage.taken_s is None or usage.taken_s >= 0
