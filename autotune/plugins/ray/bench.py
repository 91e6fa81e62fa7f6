"""`RayBench`: trials on the workers of a cluster, side by side; those of one machine take turns at being timed until it
has shown that they do not disturb each other (`neighbours`).

Each worker measures the untuned model before its first trial, and again every few trials. The study's figures are
those of the worker itself, and `Measurement.worker` says what they are relative to its own untuned model. What one
worker ran, or was about to run, when it died is `Lost`; a worker that dies twice is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from autotune.bench.bench import Bench, Check, Lost, Run, Running, Waits
from autotune.bench.messages import Refused, StageReached
from autotune.bench.workers import WorkerChanged
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.plugins.ray.links import Cluster, LinkLostError
from autotune.plugins.ray.members import MOST_LOSSES, Job, Member, Members
from autotune.plugins.ray.messages import Ended, Report, Store, WorkerOrder, WorkerSettings
from autotune.plugins.ray.neighbours import NeighbourCheck
from autotune.plugins.ray.parcel import Parcels, order_for, outcome_in, refusal_in
from autotune.plugins.ray.worker_caches import keep, kept_for
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest


class RayBench(Bench):
    """See `Bench`. A context manager: no worker is left behind.

    `untuned` is the study's untuned trial where it has one.
    """

    is_here = False

    def __init__(
        self,
        cluster: Cluster,
        settings: WorkerSettings,
        untuned: Measurement | None = None,
        trials_per_reading: int = 4,
        notify: Callable[[WorkerChanged], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._study_s = None if untuned is None else untuned.latency.p50
        self.workers = Members([], None if untuned is None else untuned.environment)
        self._trials_per_reading = trials_per_reading
        self._notify = notify
        self._run: Run | None = None
        self._names = itertools.count()
        self._parcels = Parcels()
        self._undisturbed: set[str] = set()
        """Machines whose workers are timed side by side; those of others take turns."""
        self._drift: list[float] = []
        """What workers measured of the untuned model since the last check, as multiples of their first reading."""

    def __enter__(self) -> RayBench:
        links = self._cluster.start(self._settings)
        self.workers.members = [Member(link, dropped=link.facts.problem) for link in links]
        for member in self.workers.members:
            self._tell(member, "ready" if member.is_in else f"left out: {member.dropped}", stays=True)
        try:
            self.workers.primary()
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    @property
    def width(self) -> int:
        return len(self.workers.usable())

    def start(
        self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False
    ) -> Running:
        """Live processes are all on one worker; trials go where there is the least to do, and are timed there at
        once."""
        if waits == "live":
            return self.hold_on(self.workers.primary().name, folder, request)
        member = self.workers.primary() if request.untuned else self.workers.least_busy()
        return self._send_trial(member, folder, request, fresh=fresh)

    def first_ready(self, started: Sequence[Running]) -> Running:
        jobs = [running for running in started if isinstance(running, Job)]
        while True:
            for job in jobs:
                if job.is_ready:
                    return job
            self._listen()

    def drop(self, started: Sequence[Running]) -> None:
        """The workers that run them get a new process: killing a worker ends its trials for certain."""
        jobs = [running for running in started if isinstance(running, Job)]
        for member in dict.fromkeys(job.member for job in jobs if job.outcome is None):
            if member.is_in:
                member.link.kill()
                self._replace(member)

    def checks_for(self, run: Run, has_time: Callable[[], bool]) -> Sequence[Check]:
        self._run = run
        return NeighbourCheck(self, run, has_time).make, self._note_drift

    def hold_on(self, worker: str, folder: TrialFolder, request: TrialRequest) -> Job:
        """Start a live process on one of several workers; it may be timed whatever its neighbours do."""
        return self._send(self.workers.named(worker), folder, request, is_live=True)

    def turn_beside(self, measured: Job, others: Sequence[Job], *, are_busy: bool) -> None:
        """A turn of one live process. The others are warm; they are idle all through it, or take turns too."""
        for job in (measured, *others):
            job.wait_until_ready()
        beside = others if are_busy else ()
        for job in (*beside, measured):
            job.begin_turn()
        while not measured.is_ready:
            self._listen()
            for job in beside:
                if job.is_ready:
                    job.begin_turn()
        for job in beside:
            job.wait_until_ready()

    def time_side_by_side(self, workers: Sequence[str]) -> None:
        """The machine of these workers has shown that they do not disturb each other."""
        self._undisturbed.update(self.workers.named(worker).link.facts.boot_id for worker in workers)

    def _note_drift(self) -> None:
        """Tell the run what workers measured of the untuned model between their trials."""
        drift, self._drift = self._drift, []
        if not drift:
            return
        assert self._run is not None, "it has asked for the checks"
        untuned = self._run.study.untuned_record()
        assert untuned is not None, "it is what drifts"
        for times in drift:
            self._run.note_drift(untuned.measurement.latency.p50 * times)

    def _send_trial(self, member: Member, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False) -> Job:
        """Send a trial of the search, after a reading of the untuned model where one is due."""
        is_due = not member.untuned_s or member.num_since_reading >= self._trials_per_reading
        if is_due and not request.untuned and self._run is not None:
            reading = self._run.untuned_again(f"worker-{next(self._names):04d}", is_brief=bool(member.untuned_s))
            self._send(member, *reading, is_reading=True)
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
        job = Job(name, folder, request, member, self._listen, is_live=is_live, is_reading=is_reading)
        parcel = self._parcels.of(request, cache)
        returns_cache = not (is_live or is_reading)
        order = order_for(name, request, parcel, is_live=is_live, fresh=fresh, returns_cache=returns_cache)
        new = {digest: content for digest, content in parcel.contents.items() if digest not in member.stored}
        orders: list[WorkerOrder] = [Store(digest, content) for digest, content in new.items()]
        member.stored.update(new)
        member.jobs[name] = job
        member.link.send([*orders, order])
        return job

    def _takes_turns(self, member: Member) -> bool:
        """Another worker of its machine may disturb it."""
        boot_id = member.link.facts.boot_id
        return boot_id not in self._undisturbed and any(member in group for group in self.workers.sharing())

    def _listen(self) -> None:
        """Wait for reports, and take them in."""
        for link, reports in self._cluster.wait([member.link for member in self.workers.usable()]):
            member = self.workers.of(link)
            if isinstance(reports, LinkLostError):
                self._lose(member, str(reports))
                self._replace(member)
                continue
            for report in reports:
                if report.job in member.jobs:
                    self._take_in(member, member.jobs[report.job], report)

    def _take_in(self, member: Member, job: Job, report: Report) -> None:
        match report:
            case StageReached():
                self._tell(member, f"{job.title}: {report.stage}")
                job.reach(report.stage)
            case Refused():
                self._end(job, refusal_in(job.folder, report))
            case Ended():
                if report.cache is not None:
                    keep(Path(job.request.cache), report.cache, member.link.facts.code_key)
                if report.reference is not None and not Path(job.request.reference).exists():
                    write_whole(Path(job.request.reference), report.reference)
                self._end(job, outcome_in(job.folder, report))

    def _end(self, job: Job, outcome: Outcome) -> None:
        """It has this outcome, with the figures of its worker."""
        member = job.member
        del member.jobs[job.name]
        self._note(member, job, outcome)
        if isinstance(outcome, Measurement) and not job.is_live and member.untuned_s and self._study_s is not None:
            outcome = outcome.model_copy(update={"worker": member.figures(self._study_s)})
        job.outcome = outcome

    def _note(self, member: Member, job: Job, outcome: Outcome) -> None:
        """Keep what a run of the untuned model tells about its worker."""
        if not job.request.untuned or job.is_live:
            member.num_trials += not job.is_live
            return
        if isinstance(outcome, Measurement):
            member.note_untuned(outcome)
            if self._study_s is None:
                self._study_s, self.workers.answer = outcome.latency.p50, outcome.environment
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
        self._tell(member, f"lost: {why}", stays=True)
        for job in member.jobs.values():
            job.outcome = Lost(error=f"worker {member.name} was lost: {why}", worker=member.name)
            job.folder.drop_leftovers()
        if member.num_lost >= MOST_LOSSES:
            member.dropped = f"lost {member.num_lost} times, last: {why}"
            member.link.kill()

    def _replace(self, member: Member) -> None:
        """Give it a new process, which has none of the files yet; its readings stay: the device is the same."""
        member.jobs.clear()
        member.stored.clear()
        if not member.is_in:
            self._tell(member, f"left out: {member.dropped}", stays=True)
            return
        link = self._cluster.replace(member.link)
        if link is None:
            member.dropped = "its node is gone"
            self._tell(member, f"left out: {member.dropped}", stays=True)
        else:
            member.link = link

    def _tell(self, member: Member, what: str, *, stays: bool = False) -> None:
        self._notify(WorkerChanged(member.name, what, stays))
