"""What runs trials, as the loop and the blocks see it: `Trials`, `PreparedTrials` and `LiveTrial`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from autotune.measure.measurement import Outcome, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

StageCallback = Callable[[Stage], None]


class LiveTrial(Protocol):
    """A process that has built, compiled and checked its config and is warm; it takes samples on request."""

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome if it has ended; None while it is running."""

    def turn(self) -> None:
        """Make it take one burst of samples, and wait. Does nothing if it has ended."""

    def finish(self) -> Outcome:
        """End it. Returns a measurement with the samples of all its turns, or the failure."""


class Trials(Protocol):
    """Anything that runs trials; `Runner` and `Runners` run them in processes."""

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        """Run one trial to its end. Raises HarnessError if it cannot be started."""

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> LiveTrial:
        """Start a fresh process that is ready for its first turn, or has failed. Raises HarnessError like `run`."""


class PreparedTrials(Trials, Protocol):
    """Trials that can be started ahead."""

    def prepare(self, folder: TrialFolder, request: TrialRequest) -> None:
        """Start a trial ahead of its `run`, which times it. Raises HarnessError like `run`."""

    def prepare_live(self, folder: TrialFolder, request: TrialRequest) -> None:
        """Start a live process ahead of its `hold`. Raises HarnessError like `run`."""

    def next_ready(self, folders: Sequence[TrialFolder]) -> TrialFolder:
        """Wait until one of these has compiled, or has ended: its `run` or `hold` does not wait for it then."""

    def next_block(self) -> None:
        """What is held from now on may share what is alike in all processes, such as imports, with what is held until
        the next call, and shares nothing with what was held before. By default no two processes share anything."""
        return

    def drop_prepared(self) -> None:
        """End the prepared trials that were neither run nor held."""
