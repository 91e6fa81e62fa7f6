"""The fork server that builds a large model once, for all trials of a study (`BuiltAhead`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.bench.messages import FORK_SERVER
from autotune.measure.measurement import Failure, Outcome
from autotune.own_folders import TemporaryFolder
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.worker.built_ahead import WHY_FILE, WORKLOAD_FILE
from autotune.workload.workload import Workload

IMPORT_LIMIT_S = 120.0
"""For a fork server; the blocks do without one that takes longer."""


@dataclass(frozen=True)
class Held:
    """What a builder leaves to the next one of the same supervisor."""

    workload: Workload
    job: str | None
    """Job of the server that holds the model and rests; None: it lacks something."""
    lacks: str | None


class Server(Protocol):
    """A fork server, as whoever waits for it sees it."""

    @property
    def folder(self) -> TrialFolder:
        """Its job is named by it."""

    @property
    def outcome(self) -> Outcome | None:
        """None: it has not ended."""

    @property
    def is_ready(self) -> bool:
        """It forks, or has ended."""

    def wait_until_ready(self) -> None:
        """Until it forks, or has ended."""

    def go_on(self) -> None:
        """Let it go on, if it is paused."""

    def kill(self) -> None:
        """Nobody needs it."""

    def wait(self) -> Outcome:
        """Until it has ended."""


class Quiet(Protocol):
    """The machine for what is timed."""

    def end(self) -> None:
        """Let all go on."""


class Supervised(Protocol):
    """Whoever starts fork servers."""

    @property
    def has_servers(self) -> bool:
        """The framework is imported ahead."""

    @property
    def quiet(self) -> Quiet:
        """To be ended before anything is waited for."""

    def begin(self, program: str, folder: TrialFolder, limits: Limits, *, fresh: bool) -> Server:
        """Start a program for this folder, which may be paused: in a new Python, or as a fork."""

    def resting_server(self, folder: TrialFolder) -> Server:
        """One that rests already, of the same supervisor."""


def job_at_rest(server: Server, quiet: Quiet) -> str | None:
    """The job of a fork server, once it rests. None: it has ended."""
    if not server.is_ready:
        quiet.end()
        server.wait_until_ready()
    server.go_on()
    return str(server.folder.path) if server.outcome is None else None


class Builder:
    """The fork server that has built a large model, from which all trials come that share the build (`BuiltAhead`).

    On a device it builds for what is asked of the model before the study, too, and is left to the study's bench.
    """

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised
        self._process: Server | None = None
        self._workload: Workload | None = None
        self._is_taken = False
        """What it has was left by another one, and no trial has asked for it."""
        self.lacks: str | None = None
        """See `Bench.built_apart`."""

    @property
    def is_used(self) -> bool:
        """Trials come from it, or wait for it."""
        return self._process is not None and self.lacks is None

    def job_for(self, request: TrialRequest) -> str | None:
        """Its job, once it rests. None: the trial builds the model, since it is small, or cannot be shared by forks."""
        if not request.workload.built_once:
            return None
        if self._is_taken and not self._builds(request.workload):
            self._drop()
        self._is_taken = False
        if self.lacks is not None:
            return None
        if self._process is None:
            folder = TemporaryFolder("model")
            try:
                self.hold(request.workload, TrialFolder(folder.path), request.limits)
            finally:
                folder.remove()
        if self._process is None or not self._builds(request.workload):
            return None
        job = job_at_rest(self._process, self._supervised.quiet)
        if job is None:
            self.lacks = _error_of(self._process)
        return job

    def hold(self, workload: Workload, folder: TrialFolder, limits: Limits) -> str | None:
        """Let it build this model in this folder, which it needs no longer then, and answer what is asked there. Why
        it holds none, where that is so."""
        if not self._supervised.has_servers:
            self.lacks = f"{workload.framework} is not imported ahead"
            return self.lacks
        (folder.path / WORKLOAD_FILE).write_text(workload.model_dump_json())
        at_work = limits.model_copy(update={"start": limits.build, "wall": None})
        self._workload = workload
        server = self._supervised.begin(FORK_SERVER, folder, at_work, fresh=False)
        if job_at_rest(server, self._supervised.quiet) is not None:
            self._process = server
            return None
        said = folder.path / WHY_FILE
        self.lacks = said.read_text() if said.exists() else _error_of(server)
        return self.lacks

    def leave(self) -> Held | None:
        """For the next bench of the supervisor; None: it has built nothing."""
        if self._workload is None:
            return None
        return Held(self._workload, None if self._process is None else str(self._process.folder.path), self.lacks)

    def take(self, held: Held) -> None:
        """Go on with what another one has left; one that builds already does without it."""
        server = None if held.job is None else self._supervised.resting_server(TrialFolder(Path(held.job)))
        if self._workload is None:
            self._process, self._workload, self.lacks, self._is_taken = server, held.workload, held.lacks, True
        elif server is not None:
            _end(server)

    def _builds(self, workload: Workload) -> bool:
        return self._workload is not None and self._workload.is_built_as(workload)

    def _drop(self) -> None:
        """It is another study's."""
        if self._process is not None:
            _end(self._process)
        self._process = self._workload = self.lacks = None

    def end(self) -> None:
        """Forget it, when its supervisor has ended. What it lacked is known to the end of the run."""
        self._process = None


def _error_of(server: Server) -> str:
    assert isinstance(server.outcome, Failure), "it is no trial"
    return server.outcome.error


def _end(server: Server) -> None:
    server.kill()
    server.wait()
