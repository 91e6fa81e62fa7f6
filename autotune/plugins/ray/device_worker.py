"""`DeviceWorker`: runs trials on one device of one host, in a folder of its own. It knows nothing of Ray.

Orders come in through a queue and are executed one after the other by one thread; reports go out through another one.
Nobody polls: who waits for a report sleeps until there is one. The trials' processes belong to a supervisor, as on one
machine: when the worker dies, however it dies, its pipe closes and the supervisor kills them.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from autotune import environment
from autotune.backends.registry import entry_of, framework_version
from autotune.bench.bench import Running
from autotune.bench.local import LocalBench
from autotune.bench.messages import Finish, Refused, StageReached, Turn
from autotune.bench.probe import find_devices
from autotune.errors import AutotuneError
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.own_folders import TemporaryFolder, link, remove
from autotune.plugins.ray.messages import Begin, Ended, File, Report, Store, WorkerFacts, WorkerOrder, WorkerSettings
from autotune.plugins.ray.parcel import CACHE, REFERENCE, request_there
from autotune.plugins.ray.worker_caches import code_key, code_sha256, packed_cache
from autotune.trial.folder import OUTCOME_FILE, TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuned.cache_file import unpack

MOST_LOG_BYTES = 2**20
"""Bytes at the end of a log that are sent back."""
_LOGS = ("stdout.txt", "stderr.txt", "stage", OUTCOME_FILE)


class DeviceWorker:
    """See above. `close` ends its processes and removes its folder; so does its death, but for the folder, which the
    next worker of the host removes."""

    def __init__(self, settings: WorkerSettings) -> None:
        _forget_added_threads()
        self._settings = settings
        self._own = TemporaryFolder("worker")
        self._home = self._own.path
        log = self._home / "supervisor.log"
        forks = all(settings.device in entry_of(framework).forks_on for framework in settings.frameworks)
        self._bench = LocalBench(settings.variables, preload=forks or None, log=log)
        self._orders: queue.SimpleQueue[WorkerOrder | None] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._live: dict[str, tuple[Running, TrialFolder]] = {}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def facts(self) -> WorkerFacts:
        """What it is, and whether it can measure the study."""
        settings = self._settings
        versions, devices, compilers, problem = {}, {}, {}, None
        try:
            for framework in settings.frameworks:
                found = find_devices(framework)
                versions[framework] = framework_version(framework)
                if versions[framework] != settings.versions[framework]:
                    problem = f"{framework} {versions[framework]} is installed, and the study is about another release"
                devices = found.devices
                compilers[framework] = found.compilers
                if settings.device != "cpu" and settings.device not in found.devices:
                    problem = f"{framework} finds no {settings.device}"
        except AutotuneError as error:
            problem = f"{error}"
        if code_sha256() != settings.code_sha256:
            problem = "the sources of autotune there are not the driver's: install the same release"
        device = devices.get(settings.device, settings.device)
        return WorkerFacts(
            host=environment.hostname(),
            boot_id=environment.boot_id(),
            processors=environment.usable_cpus(),
            device=device,
            versions=versions,
            environment=environment.describe(device=device, variables=settings.variables),
            code_key=code_key(device, versions, compilers),
            problem=problem,
        )

    def pid(self) -> int:
        """Number of its process."""
        return os.getpid()

    def order(self, orders: list[WorkerOrder]) -> None:
        """Execute these after the earlier ones."""
        for order in orders:
            self._orders.put(order)

    def reports(self) -> list[Report]:
        """All reports since the last call; waits for the first one."""
        reports = [self._reports.get()]
        with suppress(queue.Empty):
            while True:
                reports.append(self._reports.get_nowait())
        return reports

    def close(self) -> None:
        """End all processes and remove the folder."""
        self._orders.put(None)
        self._bench.close()
        self._own.remove()

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._execute(order)
            except AutotuneError as error:
                self._refuse(order, error.with_tip())
            except Exception:  # A driver that waits for a report must get one.
                self._refuse(order, traceback.format_exc())

    def _refuse(self, order: WorkerOrder, why: str) -> None:
        if not isinstance(order, Store):
            self._reports.put(Refused(order.job, why))

    def _execute(self, order: WorkerOrder) -> None:
        match order:
            case Store():
                self._content(order.digest).parent.mkdir(exist_ok=True)
                self._content(order.digest).write_bytes(order.content)
            case Begin():
                self._begin(order)
            case Turn():
                live, folder = self._live[order.job]
                live.turn()
                self._tell_if_over(order.job, live, folder)
            case Finish():
                live, folder = self._live.pop(order.job)
                self._reports.put(self._ended(order.job, live.finish(), folder, None))

    def _begin(self, order: Begin) -> None:
        folder = TrialFolder(self._home / "trials" / _digest(order.job))
        request, made = self._request(order)
        if order.is_live:
            live = self._bench.hold(folder, request, on_stage=lambda stage: self._tell_stage(order.job, stage))
            self._live[order.job] = (live, folder)
            self._tell_if_over(order.job, live, folder)
            return
        outcome = self._bench.run(
            folder, request, fresh=order.fresh, on_stage=lambda stage: self._tell_stage(order.job, stage)
        )
        ended = self._ended(order.job, outcome, folder, made)
        if order.returns_cache and isinstance(outcome, Measurement):
            ended = replace(ended, cache=packed_cache(Path(request.cache)))
        self._reports.put(ended)
        remove(Path(request.cache))
        remove(folder.path)

    def _request(self, order: Begin) -> tuple[TrialRequest, Path | None]:
        """The request with the paths of this host, and the reference if this trial is to write it."""
        files = self._home / "files" / _digest(repr(sorted(order.files, key=lambda file: file.place)))
        for file in order.files:
            _link(self._content(file.digest), files / file.place)
        (files / "search").mkdir(parents=True, exist_ok=True)
        given = self._home / "given" / order.job
        reference = _place_of(REFERENCE, order.files, files) or given / REFERENCE
        reference.parent.mkdir(parents=True, exist_ok=True)
        wanted = TrialRequest.model_validate_json(order.request)
        request = request_there(order, files, reference, self._home / CACHE / _digest(wanted.cache))
        if self._settings.has_own_processors:  # Other workers of the machine are timed beside it.
            request = request.timed_alone_on(*(what for what in wanted.alone_on if what != "device"))
        if order.cache is not None and not Path(request.cache).exists():
            unpack(self._content(order.cache).read_bytes(), Path(request.cache))
        return request, None if reference.exists() else reference

    def _tell_stage(self, job: str, stage: Stage) -> None:
        self._reports.put(StageReached(job, stage))

    def _tell_if_over(self, job: str, live: Running, folder: TrialFolder) -> None:
        """One that ended before it was told to. That it is ready for a turn is a stage like any other."""
        if live.outcome is not None:
            del self._live[job]
            self._reports.put(self._ended(job, live.outcome, folder, None))

    def _ended(self, job: str, outcome: Outcome, folder: TrialFolder, made: Path | None) -> Ended:
        if folder.read_outcome() is None:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.write_outcome(_with_log(outcome, self._home / "supervisor.log"))
        files = {name: _end_of(folder.path / name) for name in _LOGS if (folder.path / name).is_file()}
        reference = made.read_bytes() if made is not None and made.exists() else None
        return Ended(job, files, reference if isinstance(outcome, Measurement) else None)

    def _content(self, digest: str) -> Path:
        return self._home / "contents" / digest


def _with_log(outcome: Outcome, log: Path) -> Outcome:
    """With the end of the supervisor's log, which the driver cannot read, where the trial was lost with it."""
    if isinstance(outcome, Failure) and outcome.reason is Reason.SETUP and log.is_file():
        last = _end_of(log).decode(errors="replace").strip().splitlines()[-1:]
        return outcome.model_copy(update={"error": "; ".join([outcome.error, *last])})
    return outcome


def _link(content: Path, place: Path) -> None:
    if not place.exists():
        link(content, place)


def _place_of(name: str, files: tuple[File, ...], home: Path) -> Path | None:
    return home / name if any(file.place == name for file in files) else None


def _digest(text: str) -> str:
    """A short name: sockets of a compiler lie below it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        if path.name != OUTCOME_FILE:
            file.seek(max(path.stat().st_size - MOST_LOG_BYTES, 0))
        return file.read()


def _forget_added_threads() -> None:
    """Ray sets OMP_NUM_THREADS in its workers after their start. A trial must find what a job on the host finds."""
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return
    if not any(variable.startswith(b"OMP_NUM_THREADS=") for variable in given):
        os.environ.pop("OMP_NUM_THREADS", None)
