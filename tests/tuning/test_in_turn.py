"""A device that has room for one process of the model: those of a block run one after the other."""

from __future__ import annotations

import pytest

from autotune.answer.result import StudyResult
from autotune.measure.measurement import DeviceMemory, Failure, Reason, Stage
from autotune.measure.statistics import Verdict
from autotune.render.json import document
from autotune.study.budget import Budget
from autotune.study.folder import FolderStudies
from autotune.study.records import SUSTAINED, SUSTAINED_S
from autotune.trial.deadline import Deadline
from autotune.tuning.events import RoomShort
from autotune.tuning.loop import Tuner
from benchmarks.simulated import (
    EndedTrial,
    Machine,
    Noise,
    SimulatedTrials,
    Truth,
    manifest_of,
    space_of_variants,
)
from tests.conftest import summary_of

FULL = Failure(reason=Reason.OUT_OF_MEMORY, stage=Stage.BUILD, error="CUDA error: out of memory")


class OneFits(SimulatedTrials):
    """Two processes that are alive at a time do not fit. A config of `never` fits in its trial alone."""

    def __init__(self, machine, truth, never, memory=None, limit_of_one=False):
        super().__init__(machine, truth)
        self.memory, self.limit_of_one = memory, limit_of_one
        self.num_live = self.num_refused = 0
        self.never = never
        self.turns_s = []

    def new_block(self):
        self.num_live = 0

    def drop(self, started):
        self.num_live = 0

    def run(self, folder, request, *, fresh=False, on_stage=None):
        if self.limit_of_one and not request.untuned:
            return FULL
        measured = super().run(folder, request)
        return measured.model_copy(update={"device_memory": self.memory, "peak_memory_bytes": 14 * 2**30})

    def hold(self, folder, request, *, on_stage=None):
        if self.num_live or request.config in self.never:
            self.num_refused += 1
            return EndedTrial(FULL)
        held = super().hold(folder, request)
        self.turns_s.append(request.sampling.turn_s)
        self.num_live, finish = 1, held.finish

        def end(on_stage=None):
            self.num_live = 0
            return finish(on_stage)

        held.finish = end
        return held


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """`tune(gain, wall_s)` on a device of sixteen cores, of a space of two configs of which the first is faster. The
    events are in its `events`."""
    events = []
    monkeypatch.setattr("autotune.tuning.jobs.num_usable_cores", lambda: 16)

    def tune(gain, wall_s=None, *, none_fits=False, num_variants=2, device="gpu", **bench):
        space = space_of_variants(num_variants)
        untuned = space.untuned()
        best, other, *_ = (config for config in space.configs() if config != untuned)
        machine = Machine(Noise(process_sd=0.03), seed=1)
        manifest = manifest_of(space, 1)
        on_a_device = manifest.workload.model_copy(update={"device": device})
        study = FolderStudies(tmp_path).create(manifest.model_copy(update={"workload": on_a_device}))
        latency_s = {untuned: 0.010, best: 0.010 / gain, other: 0.0099}
        bench = OneFits(machine, Truth(latency_s), (best, other) if none_fits else (), **bench)
        budget = Budget(num_trials=num_variants + 1, wall_s=wall_s)
        deadline = {} if wall_s is None else {"deadline": Deadline.after(wall_s, clock=machine.read_clock)}
        said = Tuner(study, budget, bench, events.append, **deadline).run()
        return study, said, bench, best

    tune.events = events
    return tune


@pytest.mark.parametrize(("gain", "wall_s"), [(5.0, 200.0), (1.3, 7200.0), (5.0, None)])
def test_what_is_faster_is_proven(tune, gain, wall_s):
    """By as many blocks as its scatter asks for; each kind of block finds out once that there is no room for two."""
    study, said, bench, best = tune(gain, wall_s)
    assert said.verdict is Verdict.FASTER
    assert study.record(said.candidate).config == best
    assert "there was room for one process at a time" in said.note
    assert bench.num_refused <= 5


def test_equals_are_no_win(tune):
    _, said, _, _ = tune(1.0, 7200.0)
    assert said.verdict in (Verdict.TIE, Verdict.KEEP_UNTUNED)


def test_a_config_that_could_not_be_compared_is_not_ruled_out(tune):
    """It ran in its trial, and no process of a block had room for it: that nothing is faster is not known."""
    _, said, _, _ = tune(5.0, 7200.0, none_fits=True)
    assert said.verdict is Verdict.UNDECIDED
    assert "maybe for lack of memory" in said.why


@pytest.mark.parametrize(("device", "needed"), [("gpu", "28"), ("cpu", "28.5")])
def test_no_process_is_lost_to_learn_that_two_do_not_fit(tune, monkeypatch, device, needed):
    """The device tells how much it has, and the system how much a container may have."""
    monkeypatch.setattr("autotune.tuning.room.available_memory_bytes", lambda: 24 * 2**30)
    memory = DeviceMemory(own_bytes=14 * 2**30, free_bytes=10 * 2**30) if device == "gpu" else None
    _, said, bench, _ = tune(5.0, device=device, memory=memory)
    assert said.verdict is Verdict.FASTER
    assert bench.num_refused == 0
    assert f"(a block of two needs {needed} GiB of 24): those of a block ran in turn" in said.note
    (short,) = (event for event in tune.events if isinstance(event, RoomShort))
    assert not short.room.holds_block


def test_where_only_the_untuned_model_fits_nothing_is_decided(tune):
    """However many configs find no room: that is neither the environment's fault nor a reason to keep it."""
    _, said, _, _ = tune(5.0, 7200.0, num_variants=6, limit_of_one=True)
    assert said.verdict is Verdict.UNDECIDED
    assert said.why == "no other config was measured: 6 failed for lack of memory"


@pytest.mark.parametrize(
    ("device", "gain", "is_measured"), [("gpu", 5.0, True), ("gpu", 1.0, False), ("cpu", 5.0, False)]
)
def test_on_a_device_the_answer_is_put_under_load_that_lasts(tune, monkeypatch, device, gain, is_measured):
    """A long turn of it and of the untuned model, after the verdict and told beside it; where nothing is faster, and on
    a CPU, there is none."""
    monkeypatch.setattr("autotune.tuning.room.available_memory_bytes", lambda: 24 * 2**30)
    memory = DeviceMemory(own_bytes=14 * 2**30, free_bytes=10 * 2**30) if device == "gpu" else None
    study, said, bench, _ = tune(gain, 7200.0, device=device, memory=memory)
    assert [turn_s for turn_s in bench.turns_s if turn_s == SUSTAINED_S] == [SUSTAINED_S] * 2 * is_measured
    assert (SUSTAINED.read(study) is not None) is is_measured
    told = document(StudyResult(study))["sustained"]
    assert (told and told["trial"]) == (said.candidate if is_measured else None)
    lines = [line for line in summary_of(study).splitlines() if line.strip().startswith("sustained")]
    assert [" ".join(line.split()[2:]) for line in lines] == [
        "over 5 s of calls without a pause (one process each)"
    ] * is_measured
