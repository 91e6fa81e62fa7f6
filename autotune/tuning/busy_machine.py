"""`BusyMachine`: trials on a machine that other programs use too. It says so, waits within bounds, and repeats."""

from __future__ import annotations

import math
import os

from autotune.environment import num_usable_cores
from autotune.measure.disturbance import disturbance_of
from autotune.measure.machine_load import taken_cores
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.study.budget import BusyMachinePlan
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.events import MachineBusy, TrialDisturbed
from autotune.tuning.session import Session

BUSY = 0.2
"""Cores that others use: below it is what any system does by itself."""
WAIT_SHARE = 0.05
"""Of the time that a run with a time budget has left, the most that one wait may take."""


def how_busy(plan: BusyMachinePlan) -> MachineBusy | None:
    """What other programs use right now; None where that is nothing to speak of, or not known."""
    taken = taken_cores(plan.look_s)
    if taken is None or taken <= BUSY:
        return None
    return MachineBusy(taken, num_usable_cores(), os.getloadavg()[0] if hasattr(os, "getloadavg") else None)


class BusyMachine:
    """Counts over one run what was repeated, and whether waiting helped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan = session.budget.quiet
        self._repeats_left = self._plan.max_repeats
        self._may_wait = True

    def look(self) -> None:
        """Tell whether other programs use the machine right now; where workers measure, it does not matter."""
        if self._session.devices is not None:
            return
        busy = how_busy(self._plan)
        if busy is not None:
            self._session.notify(busy)

    def attempt(self, folder: TrialFolder, request: TrialRequest, longest_s: float | None = None) -> Outcome:
        """`Session.attempt`; a trial whose timing was disturbed is run once more, after a wait, if there is time."""
        deadline = self._session.deadline
        longest_s = min(deadline.left_s(), math.inf if longest_s is None else longest_s)
        begun = deadline.clock()
        outcome = self._session.attempt(folder, request, longest_s)
        took_s = deadline.clock() - begun
        why = self._why_repeat(outcome)
        spare_s = longest_s - 2 * took_s
        if why is None or spare_s < 0:
            return outcome
        self._repeats_left -= 1
        self._session.notify(TrialDisturbed(request.number, why))
        self._wait(min(self._plan.max_wait_s, spare_s, WAIT_SHARE * deadline.left_s()))
        again = self._session.attempt(folder, request, longest_s - (deadline.clock() - begun))
        was_cut = isinstance(again, Failure) and again.reason in (Reason.OUT_OF_TIME, Reason.HARNESS)
        return outcome if was_cut else again

    def _why_repeat(self, outcome: Outcome) -> str | None:
        if self._repeats_left == 0 or not isinstance(outcome, Measurement):
            return None
        is_timed = any(each.is_timed for each in self._session.study.manifest.objectives)
        return disturbance_of(outcome) if is_timed else None

    def _wait(self, at_most_s: float) -> None:
        """Until the machine is quiet. Once that did not come in time, nothing is waited for any more."""
        if not self._may_wait or self._session.devices is not None:
            return
        for _ in range(math.ceil(at_most_s / self._plan.look_s)):
            taken = taken_cores(self._plan.look_s)
            if taken is None or taken <= BUSY:
                return
        self._may_wait = False
