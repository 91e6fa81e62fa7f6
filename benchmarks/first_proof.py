"""When a gain is first proven on a device, added up: nothing is measured, and no device is needed.

The order is the product's own: its tuner decides what starts, what is waited for and how many blocks a proof takes, on
figures that scatter, and it is asked whether a declaration is a fork and compilers begin before the driver. The seconds
are those of a small decode step on an H200 (docs/decisions/0064-on-a-gpu.md), or with a build of 30 s, which is made by
each process, or once, so that each moves its copy to the device; who reads what the model declares begins no driver. A
run in which a sample is taken while anything else is at work fails. It prints a table of docs/benchmarks.md.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.bench import probe
from autotune.bench.bench import Running, StageCallback, Waits
from autotune.config import Config
from autotune.measure.measurement import Measurement, Outcome, Stage
from autotune.measure.sampling import Reading
from autotune.study.budget import Budget, BusyMachinePlan
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning import jobs
from autotune.tuning.loop import Tuner
from benchmarks import simulated
from benchmarks.evidence import table

COMMAND_S, PYTHON_S, IMPORT_S, DRIVER_S, BUILD_S, END_S, STORE_S = 0.7, 0.6, 5.0, 4.6, 0.3, 0.3, 0.8
COMPILER_S, COLD_S, POOLED_S, WARM_S, FIRST_CALL_S, CHECK_S = 1.5, 13.0, 8.0, 5.0, 1.0, 0.7
"""Its import, a compile from empty caches, one whose pool of processes was begun before, and one from full caches."""
LARGE_S, MOVE_S = 30.0, 1.0
"""To build a model of 13 GB, and to move it to the device: estimates."""
NUM_BURSTS, AFTER_S, NUDGES_S = 5, 1.1, 2.0
NUM_CORES, NUM_STUDIES, BUDGETS_S, PROCESS_SD = 16, 40, (120.0, 600.0), 0.03


class Device(simulated.OneByOne):
    """A device on a clock that shows what was added to it; `did` is what was started and timed, in order."""

    width = None  # type: ignore[assignment]

    def __init__(self, gain: float, seed: int, build_s: float) -> None:
        self.build_s = build_s
        self.machine, self.gain, self.seed = simulated.Machine(simulated.Noise(), seed), gain, seed
        self.processes: list[OnDevice] = []
        self.compiled_s: dict[Config, float] = {}
        self.did: list[tuple[str, str]] = []

    def start(
        self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False
    ) -> Running:
        now, is_live = self.machine.clock_s, waits == "live"
        is_warm = not request.cold and self.compiled_s.get(request.config, now + 1) <= now
        cold_s = POOLED_S if request.compilers_ahead else COLD_S
        took_s = COMPILER_S + (WARM_S if is_warm else cold_s) + FIRST_CALL_S if not request.untuned else BUILD_S
        model_s = MOVE_S if request.workload.built_once else self.build_s
        compiled_s = now + DRIVER_S + model_s + took_s
        self.compiled_s.setdefault(request.config, compiled_s)
        # One at a time is checked.
        ready_s = CHECK_S + max([compiled_s, *(each.ready_s for each in self.processes if each.ready_s > compiled_s)])
        latency_s = simulated.UNTUNED_S / (1 if request.untuned else self.gain)
        name = "/".join(folder.path.parts[-2 if is_live else -1 :])
        bias = random.Random(f"{self.seed} {name}").gauss(0.0, PROCESS_SD)  # In whatever order things are done.
        took = (model_s, took_s, ready_s)
        self.processes.append(OnDevice(self.machine, latency_s, None, bias, [], self, name, is_live, *took))
        self.did.append(("start", name))
        return self.processes[-1]


@dataclass(eq=False)
class OnDevice(simulated.SimulatedProcess):
    """A process of it that is ready to be timed at `ready_s`."""

    device: Device = None  # type: ignore[assignment]
    name: str = ""
    is_live: bool = False
    model_s: float = 0.0
    compile_s: float = 0.0
    ready_s: float = 0.0

    def warm(self, on_stage: StageCallback | None = None) -> None:
        self.machine.clock_s = max(self.machine.clock_s, self.ready_s)

    def turn(self) -> Reading | None:
        if busy := [each.name for each in self.device.processes if each.ready_s > self.machine.clock_s]:
            raise RuntimeError(f"{self.name} is timed while {', '.join(busy)} is at work")
        self.device.did.append(("time", self.name))
        return super().turn()

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        self.warm()
        for _ in range(0 if self.is_live else NUM_BURSTS):
            self.turn()
        self.machine.clock_s += END_S + (0 if self.is_live else AFTER_S) + (NUDGES_S if self.name == "0000" else 0)
        measured = super().finish()
        assert isinstance(measured, Measurement)
        build_s = DRIVER_S + self.model_s
        stage_s = {Stage.BUILD: build_s, Stage.COMPILE: self.compile_s, Stage.CHECK: CHECK_S, Stage.RUN: 1.0}
        return measured.model_copy(update={"stage_s": stage_s})


def study_of(
    gain: float, wall_s: float, seed: int, num_configs: int = 1, *, build_s: float = BUILD_S, built_once: bool = False
) -> tuple[Device, float]:
    """A study on the device, and the second of the command in which a config was first proven; infinite: in none."""
    device, own_s = Device(gain, seed, build_s), 0.0 if probe.is_forked("torch", "gpu") else PYTHON_S + IMPORT_S
    begun_s = device.machine.clock_s = COMMAND_S + own_s + IMPORT_S + build_s + END_S + STORE_S
    manifest = simulated.manifest_of(simulated.space_of_variants(num_configs), seed)
    workload = manifest.workload.model_copy(update={"device": "gpu", "built_once": built_once})
    manifest = manifest.model_copy(update={"workload": workload})
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(jobs, "num_usable_cores", return_value=NUM_CORES):
        study = simulated.StudiesInMemory(Path(folder)).create(manifest)
        budget = Budget(quiet=BusyMachinePlan(look_s=1e-3)).but(wall_s=wall_s)
        Tuner(study, budget, device, deadline=Deadline.after(wall_s, 0.0, device.machine.read_clock)).run()
        return device, min((begun_s + step.after_s for step in study.answers), default=float("inf"))


if __name__ == "__main__":
    longest_s = BUDGETS_S[-1]
    ways = {f"in {wall_s:.0f} s": partial(study_of, wall_s=wall_s) for wall_s in BUDGETS_S}
    for way, once in (("by each process", False), ("once", True)):
        ways[f"built in {LARGE_S:.0f} s {way}"] = partial(study_of, wall_s=longest_s, build_s=LARGE_S, built_once=once)
    rows = []
    for gain in (5.0, 1.5, 1.3, 1.2, 1.1):
        found = [[study(gain, seed=seed)[1] for seed in range(NUM_STUDIES)] for study in ways.values()]
        rows.append([f"{gain:g}x", *(f"{statistics.median(seconds):.0f}" for seconds in found)])
    print(table(["gain", *ways], rows))
