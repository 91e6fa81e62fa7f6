"""`Session`: a study and what is needed to measure its configs; search, noise floor and confirmation share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.backends.registry import entry_of
from autotune.bench.many_devices import ManyDevices
from autotune.bench.trials import PreparedTrials, Trials
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.measure.objective import Objective
from autotune.measure.sampling import SamplingPlan
from autotune.study.budget import BlockPlan, Budget
from autotune.study.own_files import clear_runs
from autotune.study.study import Study
from autotune.trial.deadline import NEVER, Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.tuning.blocks import BlockedRun, Contestant, attempt
from autotune.tuning.cache_store import CacheStore
from autotune.tuning.events import Notify, StageEntered
from autotune.tuning.jobs import may_compile_ahead, num_jobs_in

PIPELINED_CALLS = 8
_OF_SINGLE_CALLS = frozenset({"latency", "p90", "p99", "total"})
"""Quantities that are about calls that are waited for one by one."""


@dataclass(frozen=True)
class Session:
    """One run of a study. `notify` receives the events."""

    study: Study
    budget: Budget
    trials: Trials
    notify: Notify
    deadline: Deadline = NEVER
    prepared_trials: PreparedTrials | None = None
    """The same, where trials can be started ahead."""
    devices: ManyDevices | None = None
    """The same, where trials run on several devices side by side."""
    _prepared: dict[Path, tuple[float, Limits]] = field(default_factory=dict)
    """Folders of the trials that were: when, and under which limits."""

    @property
    def objective(self) -> Objective:
        """What the verdict is about."""
        return self.study.manifest.objective

    @property
    def caches(self) -> CacheStore:
        """Of the search's trials; the confirmation starts from copies of them."""
        return CacheStore(self.study.folder / "caches")

    @property
    def num_jobs(self) -> int:
        """Trials that may be compiled at the same time, or run on several devices. The untuned model runs alone: it
        leaves the reference."""
        if self.devices is not None:
            return 1 if self.study.untuned_record() is None else self.devices.num_workers
        return 1 if self.prepared_trials is None else num_jobs_in(self.study, self.budget.num_jobs)

    def value(self, measurement: Measurement) -> float:
        """What the study minimises first, in seconds or bytes."""
        return self.objective.value(measurement)

    def attempt(self, folder: TrialFolder, request: TrialRequest, longest_s: float | None = None) -> Outcome:
        """Run once, within the run's time. An untuned model that crashes gets further processes.

        A trial that the end of that time (or `longest_s`) cut off is a failure that no config is blamed for.
        """
        begun, limits = self._prepared.pop(folder.path, (self.deadline.clock(), None))
        limits = limits or self.deadline.cap(request.limits, longest_s)
        capped = request.limited_to(limits)
        outcome = attempt(self.trials, folder, capped, on_stage=self.notify_stage)
        was_cut = limits.total < request.limits.total and self.deadline.clock() - begun >= limits.total
        return _cut_off(outcome) if was_cut else outcome

    def prepare(self, folder: TrialFolder, request: TrialRequest, longest_s: float) -> None:
        """Start a trial ahead of its `attempt`."""
        assert self.prepared_trials is not None, "the caller has looked"
        limits = self.deadline.cap(request.limits, longest_s)
        self._prepared[folder.path] = (self.deadline.clock(), limits)
        self.prepared_trials.prepare(folder, request.limited_to(limits))

    def with_kernels(self, request: TrialRequest) -> TrialRequest:
        """The request, whose compiler finds the kernels that earlier trials of this run compiled.

        As many threads compile as there are cores for each of the trials that compile side by side.
        """
        if request.untuned or self.devices is not None or not may_compile_ahead(self.study):
            return request
        return request.with_kernels(self.caches.kernels, max(num_usable_cores() // self.num_jobs, 1))

    def untuned_again(self, name: str) -> tuple[TrialFolder, TrialRequest]:
        """Folder and request of a run of the untuned model that is no trial."""
        folder = TrialFolder((self.study.folder / "again" / name).resolve())
        untuned = self.study.manifest.space.untuned()
        return folder, trial_request(self.study, 0, untuned, folder, self.budget)

    def blocked_run(
        self,
        folder: Path,
        entries: list[tuple[str, int, Config]],
        plan: BlockPlan,
        on_block: Callable[[dict[str, float]], None],
    ) -> BlockedRun:
        """A blocked run of `(name, trial number, config)`, the base first.

        Compile caches are kept from block to block, and begin as copies of the trials' own so far as those are on the
        shelf, unless the objective is about what compiling costs. What an earlier run left in the folder is removed
        first: a cache of a killed process may be half written.
        """
        clear_runs(folder)
        contestants = []
        for name, number, config in entries:
            request = trial_request(self.study, number, config, TrialFolder(folder / name), self.budget)
            request = self.with_kernels(request)
            cache, cold = (folder / "cache" / name).resolve(), self.objective.compiles_cold
            if not cold:
                self.caches.copy(number, cache)
            contestants.append(Contestant(name, request.cached_in(cache, cold=cold), picks_by_timing(request)))
        return BlockedRun(
            self.trials,
            folder,
            contestants,
            plan.fit_for(self.objective),
            self.value,
            seed=self.study.manifest.workload.seed,
            on_stage=self.notify_stage,
            on_block=on_block,
            deadline=self.deadline,
            prepared_trials=self.prepared_trials,
            num_at_once=1 if self.devices is not None else self.num_jobs,
        )

    def untuned_of_worker(self, name: str, is_first: bool) -> tuple[TrialFolder, TrialRequest]:
        """As `untuned_again`; all but a worker's first run are short, since they only show whether it drifts."""
        folder, request = self.untuned_again(name)
        return folder, request if is_first else request.sampled_by(self.budget.sentinel)

    def notify_stage(self, stage: Stage) -> None:
        self.notify(StageEntered(stage))


def picks_by_timing(request: TrialRequest) -> bool:
    """Two compiles of this config may come to different kernels, since its compiler times them on an accelerator."""
    return request.workload.device != "cpu" and entry_of(request.workload.framework).picks(request.config)


def sampling_for(study: Study, plan: SamplingPlan) -> SamplingPlan:
    """The plan of a study's trials: where an accelerator's throughput alone is asked for, several calls are handed over
    before it is waited for, as a job does that has more to compute."""
    manifest = study.manifest
    asked = {each.quantity for each in manifest.objectives}
    kept = {each.quantity.partition(":")[0] for each in manifest.constraints}
    is_alone = "throughput" in asked and not (asked | kept) & _OF_SINGLE_CALLS
    if manifest.workload.device == "cpu" or not is_alone or plan.calls_per_sample > 1:
        return plan
    return plan.model_copy(update={"calls_per_sample": PIPELINED_CALLS})


def trial_request(study: Study, number: int, config: Config, folder: TrialFolder, budget: Budget) -> TrialRequest:
    """The request of a trial with empty caches of its own."""
    manifest = study.manifest
    return TrialRequest(
        number=number,
        workload=manifest.workload,
        config=config,
        untuned=config == manifest.space.untuned(),
        tolerance=manifest.tolerance,
        reference_precision=manifest.reference_precision,
        reference=str(study.reference.resolve()),
        cache=str((folder.path / "cache").resolve()),
        cold=True,
        sampling=sampling_for(study, budget.sampling),
        limits=budget.limits,
        variables=manifest.variables,
    )


def _cut_off(outcome: Outcome) -> Outcome:
    """A process that the end of the run's time ended. One that failed by itself just then is tried again as well."""
    if isinstance(outcome, Measurement) or outcome.reason not in (Reason.TIMEOUT, Reason.HARNESS):
        return outcome
    error = "stopped: the run's time was used up"
    return outcome.model_copy(update={"reason": Reason.OUT_OF_TIME, "error": error})


def harness_error(doing: str, failure: Failure) -> HarnessError:
    """The untuned model, which worked before, fails now: nothing can be compared with it any more."""
    return HarnessError(f"{doing} could not be run: {failure.error}", tip=f"full log: {failure.evidence}")
