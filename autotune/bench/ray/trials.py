"""`ClusterTrials`: the loop's trials on the workers of a cluster, in place of this machine's `Runners`.

Each worker measures the untuned model before its first trial, and again every few trials. The study's figures are
those of the worker itself, and `Measurement.worker` says what they are relative to its own untuned model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from autotune.bench.many_devices import Machine, ManyDevices, UntunedAgain, WorkerLostError
from autotune.bench.ray.links import Cluster, LinkLostError
from autotune.bench.ray.members import MOST_LOSSES, Job, Member, Members
from autotune.bench.ray.messages import (
    Ended,
    Finish,
    Order,
    Report,
    StageReached,
    Store,
    Turn,
    Warm,
    WorkerSettings,
)
from autotune.bench.ray.parcel import order_for
from autotune.bench.ray.parcels import Parcels, outcome_in
from autotune.bench.ray.worker_caches import keep, kept_for
from autotune.bench.trials import LiveTrial, StageCallback
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Measurement, Outcome, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

Tell = Callable[[str, str, bool], None]
"""Told the name of a worker, what it does or what happened to it, and whether that is worth a line that stays."""


class ClusterTrials(ManyDevices):
    """See `ManyDevices`. A context manager: no worker is left behind.

    `untuned` is the study's untuned trial where it has one. `time_untuned_by` is called before the first trial.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: WorkerSettings,
        untuned: Measurement | None = None,
        trials_per_reading: int = 4,
        tell: Tell = lambda _name, _what, _stays: None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._study_s = None if untuned is None else untuned.latency.p50
        self._members = Members([], None if untuned is None else untuned.environment)
        self._trials_per_reading = trials_per_reading
        self._tell = tell
        self._untuned: UntunedAgain | None = None
        self._jobs: dict[Path, Job] = {}
        self._live: list[Job] = []
        self._names = itertools.count()
        self._parcels = Parcels()
        self._undisturbed: set[str] = set()
        """Machines whose workers are timed side by side; those of others take turns."""
        self._drift: list[float] = []

    def __enter__(self) -> ClusterTrials:
        links = self._cluster.start(self._settings)
        self._members.members = [Member(each, dropped=each.facts.problem) for each in links]
        for each in self._members.members:
            self._tell(each.name, "ready" if each.is_in else f"left out: {each.dropped}", True)
        try:
            self._members.primary()
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    @property
    def members(self) -> Sequence[Member]:
        """The workers, those that were left out included."""
        return self._members.members

    @property
    def num_workers(self) -> int:
        return len(self._members.usable())

    def time_untuned_by(self, untuned: UntunedAgain) -> None:
        self._untuned = untuned

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        job = self._jobs.pop(folder.path, None)
        if job is None:
            member = self._members.primary() if request.untuned else self._members.least_busy()
            job = self._send_trial(member, folder, request, fresh=fresh)
        self._watch(job, on_stage)
        while not job.is_over:
            self._listen()
        return self._outcome_of(job)

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> LiveTrial:
        for each in self._live:
            self._require_worker(each)  # The others of its block are lost with it.
        live = self.hold_on(self._members.primary().name, folder, request)
        self._watch(live.job, on_stage)
        self._wait_until_warm(live.job)
        return live

    def crowded_machines(self) -> Sequence[Machine]:
        groups = self._members.sharing()
        return [Machine(group[0].link.facts.host, tuple(each.name for each in group)) for group in groups]

    def hold_on(self, worker: str, folder: TrialFolder, request: TrialRequest) -> _LiveJob:
        job = self._send(self._members.named(worker), folder, request, is_live=True)
        self._live.append(job)
        return _LiveJob(job, self)

    def turn_beside(self, measured: LiveTrial, others: Sequence[LiveTrial], *, are_busy: bool) -> None:
        job, *others_jobs = (each.job for each in (measured, *others) if isinstance(each, _LiveJob))
        for each in (job, *others_jobs):
            self._wait_until_warm(each)
        beside = others_jobs if are_busy else []
        for each in (*beside, job):
            self._begin_turn(each)
        while not (job.is_warm or job.is_over):
            self._listen()
            for each in beside:
                if each.is_warm:
                    self._begin_turn(each)
        for each in (job, *beside):
            self._wait_until_warm(each)

    def time_side_by_side(self, workers: Sequence[str]) -> None:
        self._undisturbed.update(self._members.named(each).link.facts.boot_id for each in workers)

    def prepare(self, folder: TrialFolder, request: TrialRequest) -> None:
        self._jobs[folder.path] = self._send_trial(self._members.least_busy(), folder, request)

    def prepare_live(self, folder: TrialFolder, request: TrialRequest) -> None:
        """Live processes become warm one after the other: all of them are on one device."""

    def drop_prepared(self) -> None:
        """The workers that run them get a new process: killing a worker ends its trials for certain."""
        self._jobs.clear()
        for member in self._members.members:
            if member.is_in and member.jobs:
                member.link.kill()
                self._replace(member)

    def next_ready(self, folders: Sequence[TrialFolder]) -> TrialFolder:
        while True:
            for folder in folders:
                if self._jobs[folder.path].is_over:
                    return folder
            self._listen()

    def take_drift(self) -> list[float]:
        drift, self._drift = self._drift, []
        return drift

    def turn(self, job: Job) -> None:
        """Let a live process take its samples once."""
        self._begin_turn(job)
        self._wait_until_warm(job)

    def _begin_turn(self, job: Job) -> None:
        job.is_warm = False
        if not job.is_over:
            job.member.link.send([Turn(job.name)])

    def finish(self, job: Job) -> Outcome:
        """End a live process."""
        if not job.is_over:
            job.member.link.send([Finish(job.name)])
        while not job.is_over:
            self._listen()
        return self._outcome_of(job)

    def _wait_until_warm(self, job: Job) -> None:
        while not (job.is_warm or job.is_over):
            self._listen()
        self._require_worker(job)

    def _require_worker(self, job: Job) -> None:
        if job.lost is not None:
            self._live.clear()
            raise WorkerLostError(job.lost, job.member.name)

    def _watch(self, job: Job, on_stage: StageCallback | None) -> None:
        job.on_stage = on_stage
        if on_stage is not None and job.stage is not Stage.START:
            on_stage(job.stage)

    def _send_trial(self, member: Member, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False) -> Job:
        """Send a trial of the search, after a reading of the untuned model where one is due."""
        is_due = not member.untuned_s or member.num_since_reading >= self._trials_per_reading
        if is_due and not request.untuned and self._untuned is not None:
            number = next(self._names)
            self._send(member, *self._untuned(f"worker-{number:04d}", not member.untuned_s), is_reading=True)
            member.num_since_reading = 0
        member.num_since_reading += 1
        return self._send(member, folder, request, fresh=fresh)

    def _send(
        self,
        member: Member,
        folder: TrialFolder,
        request: TrialRequest,
        *,
        fresh: bool = False,
        is_live: bool = False,
        is_reading: bool = False,
    ) -> Job:
        if not is_live and self._takes_turns(member):
            request = request.timed_alone_on("device", "host")
        cache = None if request.cold else kept_for(Path(request.cache), member.link.facts.code_key)
        if cache is None and request.compiled_before is not None:
            request = request.from_empty_caches()
        folder.write_request(request)
        name = f"{folder.path.name}-{next(self._names)}"
        job = Job(name, folder, request, member, is_live=is_live, is_reading=is_reading)
        parcel = self._parcels.of(request, cache)
        returns_cache = not (is_live or is_reading)
        order = order_for(name, request, parcel, is_live=is_live, fresh=fresh, returns_cache=returns_cache)
        new = {digest: content for digest, content in parcel.contents.items() if digest not in member.stored}
        orders: list[Order] = [Store(digest, content) for digest, content in new.items()]
        member.stored.update(new)
        member.jobs[name] = job
        member.link.send([*orders, order])
        return job

    def _takes_turns(self, member: Member) -> bool:
        """Another worker of its machine may disturb it."""
        boot_id = member.link.facts.boot_id
        return boot_id not in self._undisturbed and any(member in group for group in self._members.sharing())

    def _listen(self) -> None:
        """Wait for reports, and take them in."""
        for link, reports in self._cluster.wait([each.link for each in self._members.usable()]):
            member = self._members.of(link)
            if isinstance(reports, LinkLostError):
                self._lose(member, str(reports))
                self._replace(member)
                continue
            for each in reports:
                if each.job in member.jobs:
                    self._take_in(member, member.jobs[each.job], each)

    def _take_in(self, member: Member, job: Job, report: Report) -> None:
        match report:
            case StageReached():
                job.stage = report.stage
                self._tell(member.name, f"{job.title}: {report.stage}", False)
                if job.on_stage is not None:
                    job.on_stage(report.stage)
            case Warm():
                job.is_warm = True
            case Ended():
                del member.jobs[job.name]
                job.outcome = outcome_in(job.folder, report)
                if report.cache is not None:
                    keep(Path(job.request.cache), report.cache, member.link.facts.code_key)
                if report.reference is not None and not Path(job.request.reference).exists():
                    write_whole(Path(job.request.reference), report.reference)
                self._note(member, job)

    def _note(self, member: Member, job: Job) -> None:
        """Keep what a run of the untuned model tells about its worker."""
        outcome = job.outcome
        if not job.request.untuned or job.is_live:
            member.num_trials += not job.is_live
            return
        if isinstance(outcome, Measurement):
            member.note_untuned(outcome)
            if self._study_s is None:
                self._study_s, self._members.answer = outcome.latency.p50, outcome.environment
            elif len(member.untuned_s) > 1 and job.is_reading:
                self._drift.append(member.untuned_s[-1] / member.untuned_s[0])
        elif job.is_reading and isinstance(outcome, Failure) and not member.untuned_s:
            # Its trials would have nothing to be compared with.
            self._lose(member, f"the untuned model failed there ({outcome.reason} at {outcome.stage}): {outcome.error}")
            member.link.kill()
            self._replace(member)

    def _lose(self, member: Member, why: str) -> None:
        """All that it ran or was about to run is lost, which no config is blamed for."""
        member.num_lost += 1
        self._tell(member.name, f"lost: {why}", True)
        for job in member.jobs.values():
            job.lost = f"worker {member.name} was lost: {why}"
            job.folder.drop_leftovers()
        if member.num_lost >= MOST_LOSSES:
            member.dropped = f"lost {member.num_lost} times, last: {why}"
            member.link.kill()

    def _replace(self, member: Member) -> None:
        """Give it a new process, which has none of the files yet; its readings stay: the device is the same."""
        member.jobs.clear()
        member.stored.clear()
        if not member.is_in:
            self._tell(member.name, f"left out: {member.dropped}", True)
            return
        link = self._cluster.replace(member.link)
        if link is None:
            member.dropped = "its node is gone"
            self._tell(member.name, f"left out: {member.dropped}", True)
        else:
            member.link = link

    def _outcome_of(self, job: Job) -> Outcome:
        """With the figures of its worker. Raises WorkerLostError."""
        self._require_worker(job)
        if job in self._live:
            self._live.remove(job)
        outcome, member = job.outcome, job.member
        assert outcome is not None
        if isinstance(outcome, Failure) or job.is_live or not member.untuned_s or self._study_s is None:
            return outcome
        return outcome.model_copy(update={"worker": member.figures(self._study_s)})


@dataclass
class _LiveJob:
    """See `LiveTrial`."""

    job: Job
    trials: ClusterTrials

    @property
    def outcome(self) -> Outcome | None:
        return self.job.outcome

    def turn(self) -> None:
        if self.job.outcome is None:
            self.trials.turn(self.job)

    def finish(self) -> Outcome:
        return self.trials.finish(self.job)
