"""`Runners`: trials of any framework, each in the processes of its own `Runner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import TracebackType

from autotune.backends.registry import entry_of
from autotune.bench.runner import Runner
from autotune.bench.trials import LiveTrial, StageCallback
from autotune.measure.measurement import Outcome
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest


class Runners:
    """Runs trials of any framework, with a `Runner` for each, made at its first trial. A context manager.

    Arguments as of `Runner`, but a framework whose live processes are forks is always preloaded; the supervisors share
    the log, and `on_queued` is called once.
    """

    def __init__(
        self,
        variables: dict[str, str],
        *,
        preload: bool,
        log: Path | None,
        on_queued: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = partial(Runner, variables=variables, log=log, on_queued=cache(on_queued))
        self._preload = preload
        self._runners: dict[str, Runner] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Runners:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them all, even if one fails."""
        self._stack.close()

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        return self._of(request).run(folder, request, fresh=fresh, on_stage=on_stage)

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> LiveTrial:
        return self._of(request).hold(folder, request, on_stage=on_stage)

    def prepare(self, folder: TrialFolder, request: TrialRequest) -> None:
        self._of(request).prepare(folder, request)

    def prepare_live(self, folder: TrialFolder, request: TrialRequest) -> None:
        self._of(request).prepare_live(folder, request)

    def next_ready(self, folders: Sequence[TrialFolder]) -> TrialFolder:
        (runner,) = self._runners.values()
        return runner.next_ready(folders)

    def next_block(self) -> None:
        for each in self._runners.values():
            each.next_block()

    def drop_prepared(self) -> None:
        for each in self._runners.values():
            each.drop_prepared()

    def _of(self, request: TrialRequest) -> Runner:
        framework = request.workload.framework
        if framework not in self._runners:
            preload = self._preload or not entry_of(framework).holds_fresh
            self._runners[framework] = self._stack.enter_context(self._make(framework, preload=preload))
        return self._runners[framework]
