"""Running a recorded trial again, alone, as the user watches. The study's own record is not touched."""

from __future__ import annotations

from pathlib import Path

from autotune.bench.local import LocalBench
from autotune.measure.measurement import Outcome
from autotune.own_folders import absolute
from autotune.study.budget import Budget
from autotune.study.study import Study
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import repeat_command
from autotune.tuning.session import trial_request


def rerun_trial(study: Study, number: int, *, log: Path | None = None) -> tuple[Outcome, str]:
    """The new outcome, and the plain command that repeats the run. Raises InputError for an unknown number.

    What the trial prints goes to the file `log`, if given.
    """
    record = study.record(number)
    folder = TrialFolder(absolute(study.folder / "again" / f"{number:04d}"))
    # Not the recorded request: that names folders to empty and to run from, and is a file of the study's folder.
    request = trial_request(study, number, record.config, folder, study.budget or Budget())
    with LocalBench(study.variables, preload=False, log=log) as bench:
        return bench.run(folder, request, fresh=True), repeat_command(folder, request)
