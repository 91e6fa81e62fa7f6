"""A trial whose process crashed gets one more: what happens by chance is not its config's doing.

Some frameworks die now and then whatever they run (MindSpore's PyNative: 8 of 52 processes of one small model). The
untuned model has its own rule (`blocks.attempt`); docs/decisions/0019-random-crashes.md has the figures.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from autotune.measure.measurement import Failure, Outcome, Reason
from autotune.trial.folder import FIRST_CRASH, TrialFolder
from autotune.trial.request import TrialRequest


def retry_if_crashed(
    folder: TrialFolder, request: TrialRequest, outcome: Outcome, run: Callable[[TrialRequest], Outcome]
) -> Outcome:
    """The outcome to record: of a second process with empty caches where the first one crashed, else the given one."""
    if request.untuned or not isinstance(outcome, Failure) or outcome.reason is not Reason.CRASH:
        return outcome
    kept = _put_aside(folder)
    return run(request.from_empty_caches()).model_copy(update={"first_crash": str(kept)})


def _put_aside(folder: TrialFolder) -> Path:
    """The next process starts from an empty record, so what this one said is moved."""
    kept = folder.path / FIRST_CRASH
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    for file in (folder.outcome_file, folder.stdout, folder.stderr):
        if file.exists():
            file.replace(kept / file.name)
    return kept
