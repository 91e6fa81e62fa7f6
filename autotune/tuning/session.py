"""`Session`: a study and what is needed to measure its configs; search, noise floor and confirmation share it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autotune.backends.registry import entry_of
from autotune.bench.bench import Bench
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import SetupError
from autotune.measure.constraint import GROWTH
from autotune.measure.measurement import Failure, Measurement, Stage
from autotune.measure.objective import Objective
from autotune.measure.sampling import SamplingPlan
from autotune.own_folders import absolute
from autotune.study.budget import Budget
from autotune.study.records import DriftCheck, TrialRecord
from autotune.study.slots import value_slot
from autotune.study.study import Study
from autotune.trial.deadline import NEVER, Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.cache_store import CacheStore
from autotune.tuning.events import DriftChecked, Notify, StageEntered
from autotune.tuning.jobs import compiles_unobserved, may_compile_ahead, num_jobs_in, num_warming
from autotune.tuning.room import Room, room_for
from autotune.workload.kinds import kind_of
from autotune.workload.process_start import INSTANCES

IMPORTED_APART = value_slot("imported_apart", str)
"""See `Bench.lacks`, of the latest run."""
BUILT_APART = value_slot("built_apart", str)
"""See `Bench.built_apart`, of the latest run."""
PIPELINED_CALLS = 8
_OF_SINGLE_CALLS = frozenset({"latency", "p90", "p99", "total"})
"""Quantities that are about calls that are waited for one by one."""


@dataclass(frozen=True)
class Session:
    """One run of a study. `notify` receives the events."""

    study: Study
    budget: Budget
    bench: Bench
    notify: Notify
    deadline: Deadline = NEVER

    @property
    def objective(self) -> Objective:
        """What the verdict is about."""
        return self.study.manifest.objective

    @property
    def untuned(self) -> TrialRecord:
        """The untuned model's trial, which is the first: nothing else is measured before it."""
        untuned = self.study.untuned_record()
        assert untuned is not None, "it was measured before"
        return untuned

    @cached_property
    def caches(self) -> CacheStore:
        """Caches of the search's trials; the confirmation starts from copies of them."""
        return CacheStore(self.study.folder / "caches")

    @property
    def num_jobs(self) -> int:
        """Trials that may be under way at the same time. The untuned model runs alone: it leaves the reference."""
        if self.study.untuned_record() is None:
            return 1
        if self.bench.width is not None:
            return self.bench.width
        num_jobs = num_jobs_in(self.study, self.budget.num_jobs)
        is_on_cpu = self.study.manifest.workload.device == "cpu"
        return num_jobs if is_on_cpu or self.room is None else min(num_jobs, self.room.num_processes)

    @property
    def mixes(self) -> bool:
        """Processes of a block start while trials compile. Else one comes after the other."""
        return self.study.manifest.workload.device == "cpu" and self._compiles_beside

    @property
    def in_batches(self) -> bool:
        """On a device trials compile side by side as well, and all of them are ready before the first is timed: there
        nothing stands still while another process is timed."""
        return self.study.manifest.workload.device != "cpu" and self._compiles_beside

    @property
    def _compiles_beside(self) -> bool:
        return self.bench.is_here and self.num_jobs > 1

    @property
    def num_warming(self) -> int:
        """Processes of a block that become warm at the same time."""
        if not self.bench.is_here:
            return 1
        return self.num_jobs if self.mixes else num_warming(self.study)

    @property
    def has_beside(self) -> bool:
        """A live process of the untuned model stays for the whole run (`UntunedBeside`)."""
        return self.bench.is_here and self.study.manifest.workload.device == "cpu"

    @cached_property
    def room(self) -> Room | None:
        """See `room_for`. Asked for first when the untuned model's trial has ended, and nothing else has started."""
        return room_for(self.study, is_here=self.bench.is_here)

    def value(self, measurement: Measurement) -> float:
        """What the study minimises first, in seconds or bytes."""
        return self.objective.value(measurement)

    def with_kernels(self, request: TrialRequest) -> TrialRequest:
        """The request, whose compiler finds the kernels that earlier trials of this run compiled.

        As many threads compile as there are cores for each of the trials that compile side by side. On a device its
        compiler's processes begin before the driver does, in place of that.
        """
        if self.study.manifest.workload.device != "cpu":
            is_ahead = not request.untuned and compiles_unobserved(self.study)
            return request.with_compilers_ahead() if is_ahead else request
        kernels = self.caches.kernels
        if request.untuned or kernels is None or not self.bench.is_here or not may_compile_ahead(self.study):
            return request
        return request.with_kernels(kernels, max(num_usable_cores() // self.num_jobs, 1))

    def untuned_again(self, name: str, *, is_brief: bool = False) -> tuple[TrialFolder, TrialRequest]:
        """Folder and request of a run of the untuned model that is no trial. A brief one only shows whether it became
        slower."""
        folder = TrialFolder(absolute(self.study.folder / "again" / name))
        untuned = self.study.manifest.space.untuned()
        request = trial_request(self.study, 0, untuned, folder, self.budget)
        return folder, request.sampled_by(self.budget.sentinel) if is_brief else request

    def note_drift(self, latency_s: float, after: int | None = None) -> None:
        """The untuned model takes so long now, right after this trial (None: the newest that has ended)."""
        check = DriftCheck(after=self.study.ended()[-1].number if after is None else after, latency_s=latency_s)
        self.study.drift_checks = [*self.study.drift_checks, check]
        self.notify(DriftChecked(check, self.untuned.measurement.latency.p50))

    def notify_stage(self, stage: Stage) -> None:
        self.notify(StageEntered(stage))


def note_what_is_apart(study: Study, bench: Bench) -> None:
    """Keep with the study what its trials imported and built each for itself in this run."""
    for slot, said in ((IMPORTED_APART, bench.lacks), (BUILT_APART, bench.built_apart)):
        if slot.read(study) != said:
            slot.write(study, said)


def picks_by_timing(request: TrialRequest) -> bool:
    """Two compiles of this config may come to different kernels, since its compiler times them on an accelerator."""
    return request.workload.device != "cpu" and entry_of(request.workload.framework).picks(request.config)


def sampling_for(study: Study, plan: SamplingPlan) -> SamplingPlan:
    """The plan of a study's trials: where an accelerator's throughput alone is asked for, several calls are handed over
    before it is waited for, as a job does that has more to compute."""
    manifest = study.manifest
    kept = {constraint.quantity.partition(":")[0] for constraint in manifest.constraints}
    is_alone = manifest.objective.quantity == "throughput" and not kept & _OF_SINGLE_CALLS
    if manifest.workload.device == "cpu" or not is_alone or plan.calls_per_sample > 1:
        return plan
    return plan.model_copy(update={"calls_per_sample": PIPELINED_CALLS})


def trial_request(study: Study, number: int, config: Config, folder: TrialFolder, budget: Budget) -> TrialRequest:
    """The request of a trial with empty caches of its own."""
    manifest = study.manifest
    is_untuned = config == manifest.space.untuned()
    return TrialRequest(
        number=number,
        workload=manifest.workload,
        config=config,
        untuned=is_untuned,
        tolerance=manifest.tolerance,
        reference_precision=manifest.reference_precision,
        reference=str(absolute(study.reference)),
        cache=str(absolute(folder.path / "cache")),
        cold=True,
        sampling=sampling_for(study, budget.sampling),
        limits=budget.limits,
        variables=study.variables,
        measures_growth=any(constraint.quantity == GROWTH for constraint in manifest.constraints),
        rounds=_may_be_near(study, config),
        finds_limits=is_untuned and study.untuned_record() is None,
    )


def _may_be_near(study: Study, config: Config) -> bool:
    """Calls under this config may be off by little since it rounds. Of instances, training steps and texts nothing is
    timed that is wrong."""
    manifest = study.manifest
    is_timed = kind_of(manifest.workload).times_near_misses and INSTANCES not in config.root
    return is_timed and bool(manifest.space.rounding(config).root)


def setup_error(doing: str, failure: Failure) -> SetupError:
    """The untuned model, which worked before, fails now: nothing can be compared with it any more."""
    return SetupError(f"{doing} could not be run: {failure.error}", tip=f"full log: {failure.evidence}")
