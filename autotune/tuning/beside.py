"""Processes that stay for a whole run, at rest, and take a turn now and then: `UntunedBeside` and `SecondBeside`.

`UntunedBeside` is one of the untuned model. It takes a turn after each trial, so that what the trial shows can be set
against the untuned model of that minute, and in each block, where it says how much two processes of one config differ.

It takes the place of processes that only timed the untuned model again. There is none where its memory is the device's,
which a trial may need to the last byte, nor where trials run on other machines, nor where a run is so short that its
start would take the time of a trial.

A reading is kept as a drift check, in multiples of the first one: this process may be a little slower or faster than
the one of the untuned model's trial, for life, and only what changes in it is the machine's; but for a reading that is
slower since the process gives back more memory than at first, which is left out. Where a study goes on, on another day
perhaps, or where one of the two met other programs, the machine has changed by more than that: then the unit is the
trial itself, and the first reading is a drift check too.

`SecondBeside` is one of the second baseline: the untuned model with what an informed user would set for nothing, such
as to keep memory in the process. It takes its turns in each block, so that whatever the machine does at that minute is
the same for both. It is no contestant: it proves nothing, and no verdict depends on it. Where the search has that
config, it is also among the first to be tried, as a trial like any other.
"""

from __future__ import annotations

from autotune.backends.registry import entry_of
from autotune.bench.bench import Running
from autotune.config import Config
from autotune.measure.measurement import Failure, Reason
from autotune.measure.sampling import Reading
from autotune.measure.scatter import gives_back_more
from autotune.own_folders import absolute
from autotune.study.records import SecondBaseline
from autotune.study.study import Study
from autotune.trial.folder import TrialFolder
from autotune.tuning.attempts import may_be_random
from autotune.tuning.jobs import holds_another
from autotune.tuning.session import Session, trial_request

FOR_LIFE = 2.0
"""Two processes of one config whose calls differ by more than this factor differ by what the machine did meanwhile."""
TURN_SHARE = 0.05
"""Share of the time since its last turn that a turn may take: a model of seconds a call is timed less often."""


class _Beside:
    """A process that stays; or none."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._process: Running | None = None

    @property
    def process(self) -> Running | None:
        """It, as long as it is alive."""
        alive = self._process is not None and self._process.outcome is None
        return self._process if alive else None

    def end(self) -> None:
        """End it; nobody needs its outcome."""
        process, self._process = self._process, None
        if process is not None:
            self._session.bench.drop([process])


class UntunedBeside(_Beside):
    """See above. Each reading is kept with the study as a drift check."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._clock = session.deadline.clock
        self._unit_s: float | None = None
        self._first: Reading | None = None
        self._turn_s = 0.0
        """What the last turn took on the clock."""
        self._last = 0.0
        """When it ended."""

    def start(self) -> None:
        """Start it, without waiting for it."""
        session = self._session
        folder, request = session.untuned_again("untuned")
        limits = session.deadline.cap(request.limits)
        self._process = session.bench.start(folder, request.limited_to(limits), "live")

    def warm(self, *, is_later_run: bool) -> Failure | None:
        """Wait until it is warm, and let it take its first turn. Returns the failure of one that computes something
        else than the reference, or that fails again and again. There is none where it finds no room beside the trials,
        nor where the time is up."""
        session = self._session
        _, request = session.untuned_again("untuned")
        num_failed = 0
        while True:
            assert self._process is not None, "it was started"
            self._process.warm(session.notify_stage)
            failure = self._process.outcome
            if not isinstance(failure, Failure):
                self._first = self._take_turn()
                if self._first is not None:
                    first_s, trial_s = self._first.latency_s, self._untuned_s
                    is_machine = is_later_run or not 1 / FOR_LIFE < first_s / trial_s < FOR_LIFE
                    self._unit_s = trial_s if is_machine else first_s
                    if is_machine:
                        session.note_drift(first_s)
                return None
            if failure.reason is Reason.OUT_OF_MEMORY or session.deadline.left_s() <= 0:
                return None
            num_failed += 1
            if failure.reason is Reason.WRONG_RESULT or not may_be_random(request, failure, num_failed):
                return failure
            self.start()

    def read(self, after: int) -> None:
        """Take a turn right after a trial, if enough time has passed since the last one, and keep it with the study."""
        is_late = self._session.deadline.left_s() <= 0
        if self.process is None or is_late or self._turn_s > TURN_SHARE * (self._clock() - self._last):
            return
        reading = self._take_turn()
        if reading is None or self._first is None or self._unit_s is None or gives_back_more(reading, self._first):
            return
        self._session.note_drift(self._untuned_s * reading.latency_s / self._unit_s, after)

    @property
    def _untuned_s(self) -> float:
        return self._session.untuned.measurement.latency.p50

    def _take_turn(self) -> Reading | None:
        assert self._process is not None, "it was started"
        begun = self._clock()
        reading = self._process.turn()
        self._last = self._clock()
        self._turn_s = self._last - begun
        return reading


def plan_second_baseline(study: Study) -> None:
    """Note what costs nothing with the study, where something does: on a CPU, for what steady calls take. Where the
    search has such a config, it is among the first to be tried."""
    manifest = study.manifest
    workload, cheap = manifest.workload, entry_of(manifest.framework).cheap
    has_none = workload.device != "cpu" or not manifest.objective.is_latency
    if cheap is None or has_none or study.second_baseline is not None:
        return
    config = Config({**manifest.space.untuned().root, **cheap.settings})
    study.second_baseline = SecondBaseline(config=config, deed=cheap.deed, by_hand=cheap.by_hand)
    if manifest.space.holds(config):
        study.enqueue([config])


class SecondBeside(_Beside):
    """See above. What goes wrong with it is nobody's loss: there is none then."""

    def start(self) -> None:
        """Start it, without waiting for it, where the study has a second baseline, and the machine has room for one
        process more."""
        session, second = self._session, self._session.study.second_baseline
        if second is None or not holds_another(session.study):
            return
        folder = TrialFolder(absolute(session.study.folder / "again" / "second"))
        request = trial_request(session.study, 0, second.config, folder, session.budget)
        limits = session.deadline.cap(request.limits)
        self._process = session.bench.start(folder, request.limited_to(limits), "live")

    def warm(self) -> None:
        """Wait until it can take turns."""
        if self._process is not None:
            self._process.warm(self._session.notify_stage)
