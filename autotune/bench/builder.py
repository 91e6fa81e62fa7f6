"""The fork server that builds a large model once, for all trials of a study (`BuiltAhead`)."""

from __future__ import annotations

from typing import Protocol

from autotune.measure.measurement import Failure, Outcome
from autotune.own_folders import TemporaryFolder
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.worker.built_ahead import WHY_FILE, WORKLOAD_FILE

IMPORT_LIMIT_S = 120.0
"""For a fork server; the blocks do without one that takes longer."""


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

    def begin_server(self, folder: TrialFolder, limits: Limits) -> Server:
        """Start one that has this folder."""


def job_at_rest(server: Server, quiet: Quiet) -> str | None:
    """The job of a fork server, once it rests. None: it has ended."""
    if not server.is_ready:
        quiet.end()
        server.wait_until_ready()
    server.go_on()
    return str(server.folder.path) if server.outcome is None else None


class Builder:
    """The fork server that has built a large model, from which all trials come that share the build (`BuiltAhead`)."""

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised
        self._process: Server | None = None
        self._folder: TemporaryFolder | None = None
        self.lacks: str | None = None
        """See `Bench.built_apart`."""

    @property
    def is_used(self) -> bool:
        """Trials come from it, or wait for it."""
        return self._process is not None and self.lacks is None

    def job_for(self, request: TrialRequest) -> str | None:
        """Its job, once it rests. None: the trial builds the model, since it is small, or cannot be shared by forks."""
        if not request.workload.built_once or self.lacks is not None:
            return None
        if not self._supervised.has_servers:
            self.lacks = f"{request.workload.framework} is not imported ahead"
            return None
        server = self._process or self._begin(request)
        job = job_at_rest(server, self._supervised.quiet)
        if job is not None:
            return job
        assert isinstance(server.outcome, Failure), "it is no trial"
        said = server.folder.path / WHY_FILE
        self.lacks = said.read_text() if said.exists() else server.outcome.error
        return None

    def _begin(self, request: TrialRequest) -> Server:
        self._folder = TemporaryFolder("model")
        folder = TrialFolder(self._folder.path)
        (folder.path / WORKLOAD_FILE).write_text(request.workload.model_dump_json())
        limits = Limits(start=IMPORT_LIMIT_S + request.limits.build)
        self._process = self._supervised.begin_server(folder, limits)
        return self._process

    def end(self) -> None:
        """Forget it, when its supervisor has ended. What it lacked is known to the end of the run."""
        if self._folder is not None:
            self._folder.remove()
        self._process = self._folder = None
