"""`Bench`: whoever runs trials, here or on a cluster; and `Running`, a process that one of them has started.

A trial is a folder with a request in it and, later, an outcome. A bench puts a process to it, and the process can wait
for its user in three ways (`Waits`):

    free    nothing: it builds, compiles, checks, takes all its samples and ends.
    gated   it does all that can be done beside others, and takes its samples once `finish` is called.
    live    it becomes warm, takes a burst of samples at each `turn`, and ends at `finish`.

Any user may ask for a fresh process of any config at any time, in any of these ways, and several can be there at once;
what each of them measured is an outcome like any other. Gated and live ones start, compile and become warm beside each
other, in any mix. A bench sees to it that nothing runs beside a process that is being timed, unless it has shown that
this does no harm: what is at work is paused until then, once for all turns inside of `quiet`.

Nothing here raises because of what a process did: an end of any kind is an `Outcome`. One of them says nothing of the
config, nor of this machine: `Lost`, whose worker died. Only a bench whose workers can die on their own gives it, and
it is for `tuning.attempts` to say what becomes of it. What raises is SetupError, where nothing can be started at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol

from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.measure.sampling import Reading
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

if TYPE_CHECKING:  # A child that runs one trial needs no search engine.
    from autotune.bench.workers import WorkerEvent
    from autotune.study.budget import Budget
    from autotune.study.study import Study
    from autotune.workload.workload import Workload

Waits = Literal["free", "gated", "live"]
"""What a process waits for before it takes samples: nothing, one order to begin, or an order for each turn."""

StageCallback = Callable[[Stage], None]


class Lost(Failure):
    """The worker of a trial died, or its node did: the trial says nothing, and is tried again."""

    reason: Reason = Reason.LOST
    stage: Stage = Stage.START
    worker: str
    """Its name."""

    def as_setup_failure(self, folder: TrialFolder) -> Failure:
        """The outcome of a trial that was lost again."""
        return Failure(reason=Reason.SETUP, stage=self.stage, error=self.error, evidence=str(folder.stderr))


class Running(Protocol):
    """A process that a bench has started."""

    outcome: Outcome | None
    """None while it is running."""

    def warm(self, on_stage: StageCallback | None = None) -> None:
        """Wait until it is ready to be timed, or has ended. `on_stage` is told its stages, from the one it is in."""

    def turn(self) -> Reading | None:
        """Make a live one take a burst of samples, and wait. What it read in it; None where it has ended, or the bench
        does not know before the end."""

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        """Let it come to its end, and wait. A live one gives a measurement with the samples of all its turns."""


class Process(Running):
    """What each bench knows of a process that it has started. `listen` waits for news of any process of the bench."""

    def __init__(self, listen: Callable[[], None]) -> None:
        self._listen = listen
        self._on_stage: StageCallback | None = None
        self.stage = Stage.START
        self.outcome: Outcome | None = None

    @property
    def is_ready(self) -> bool:
        """It waits to be timed, or has ended."""
        return self.outcome is not None or self.stage is Stage.WAIT

    def watch(self, on_stage: StageCallback | None) -> None:
        """Tell the stages from now on, and first the one that it is in."""
        self._on_stage = on_stage or self._on_stage
        if on_stage is not None and self.stage is not Stage.START:
            on_stage(self.stage)

    def reach(self, stage: Stage) -> None:
        """Note that it is in this stage now."""
        self.stage = stage
        if self._on_stage is not None:
            self._on_stage(stage)

    def wait_until_ready(self) -> None:
        while not self.is_ready:
            self._listen()

    def wait(self) -> Outcome:
        """Wait until it ends by itself."""
        while self.outcome is None:
            self._listen()
        return self.outcome


class Run(Protocol):
    """The run of a study, as far as a bench's own phases may know it."""

    @property
    def study(self) -> Study: ...

    @property
    def budget(self) -> Budget: ...

    def untuned_again(self, name: str, *, is_brief: bool = False) -> tuple[TrialFolder, TrialRequest]:
        """Folder and request of a run of the untuned model that is no trial, with a few samples where it is brief."""

    def note_drift(self, latency_s: float) -> None:
        """The untuned model takes so long now, after the newest trial that has ended."""

    def notify(self, event: WorkerEvent, /) -> None:
        """Tell what happens."""


Check = Callable[[], None]
"""Something that is looked at between two trials."""


class Bench(Protocol):
    """Whoever runs trials; a context manager that leaves no process behind."""

    @property
    def is_here(self) -> bool:
        """Trials run on this machine and see its files."""

    @property
    def width(self) -> int | None:
        """Trials that are measured side by side. None: one, and others may compile beside it if there is room. Raises
        SetupError where nobody is left to run one."""

    @property
    def lacks(self) -> str | None:
        """What trials import each for itself that might have been imported for all of them, and why."""
        return None

    @property
    def built_apart(self) -> str | None:
        """Why trials build a large model each for itself, if they do."""
        return None

    def start(
        self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False
    ) -> Running:
        """Write the request and start a process, without waiting for it. `fresh`: in a new Python. Raises SetupError
        if nothing can be started."""

    def first_ready(self, started: Sequence[Running]) -> Running:
        """Wait until one of these is ready to be timed, or has ended; the first of several that are."""

    def prepare(self, workload: Workload, most_s: float = math.inf) -> None:  # noqa: ARG002
        """Trials of this workload follow: what they all need is made from now on, beside whatever is at work; they do
        without it where that takes more than `most_s`."""
        return

    def new_block(self) -> None:
        """Live processes that start from now on may share what is alike in all, such as imports, with those until the
        next call, and share nothing with those of the block before. May be called whatever else is at work."""
        return

    def quiet(self) -> AbstractContextManager[None]:
        """What is at work stays paused from one turn to the next in here, and goes on behind it, or when something is
        waited for that is not ready."""
        return nullcontext()

    def drop(self, started: Sequence[Running]) -> None:
        """End these, whose outcomes nobody needs any more."""

    def checks_for(self, run: Run, has_time: Callable[[], bool]) -> Sequence[Check]:  # noqa: ARG002
        """What the bench looks at between two trials of a run that it is about to work for; the check of one machine's
        drift is the run's own. `has_time`: for something that takes as long as the noise floor."""
        return ()

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        """Run one trial to its end."""
        return self.start(folder, request, fresh=fresh).finish(on_stage)

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> Running:
        """A live process that is ready for its first turn, or has failed."""
        live = self.start(folder, request, "live")
        live.warm(on_stage)
        return live
