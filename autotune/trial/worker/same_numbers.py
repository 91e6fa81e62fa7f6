"""A config's training steps with the very random numbers of the untuned model, in a process of their own.

Compiled code draws other random numbers from a seed than uncompiled code, so the steps of a model with dropout cannot
be compared with the untuned ones number by number. A compiler may be told to draw as uncompiled code does. What it
makes then is another program, slower where numbers are drawn and otherwise compiled alike, so it is never timed: a
second process compiles and checks it, from the caches of the trial, while the trial waits in its stage `check`. The
program that is timed is held to the distribution of the untuned losses (`calls.chance`).

docs/decisions/0065-random-numbers-in-training.md has which faults each of the two finds, and what it costs.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import require
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.errors import InvalidConfigError, SetupError, marked
from autotune.files import write_whole
from autotune.measure.measurement import Checked, Failure, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import crash_alike, run_helper
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import check
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.further import error_of
from autotune.trial.worker.subjects import subject_of

ONLY = "same-numbers"
"""Second argument of a worker that checks this and measures nothing, and the name of its folder in the trial's."""
_CHECKED = "checked.json"


def check_in_child(folder: TrialFolder, request: TrialRequest, backend: Backend) -> Checked:
    """How far the steps of the request's config are from the untuned ones. Raises WrongResultError, and
    InvalidConfigError where the config does not compile in this form, so that its results cannot be checked.

    If the child is killed by a signal, this process ends with the same one, so that the crash is reported.
    """
    inner = TrialFolder(folder.path / ONLY)
    inner.write_request(request.for_a_further_process())
    found = inner.path / _CHECKED
    found.unlink(missing_ok=True)
    status = run_helper(inner, ONLY)
    inner.drop_leftovers()
    crash_alike(status)
    outcome = inner.read_outcome()
    if isinstance(outcome, Failure):
        is_silent = require(backend.training, marked("task", "train")).silence is not None
        how = "with its dropout silent" if is_silent else "with the untuned step's random numbers"
        if outcome.reason not in (Reason.WRONG_RESULT, Reason.SETUP):
            ends = f"{how} the config ends in {outcome.reason.value} ({outcome.error})"
            raise InvalidConfigError(f"its training steps cannot be checked: {ends}")
        raise error_of(outcome, f"{how}, ")
    try:
        return Checked.model_validate_json(found.read_bytes())
    except (OSError, ValueError) as error:
        raise SetupError(f"the process that checks steps left no result in {inner.path}: {error}") from None


def write(request: TrialRequest, folder: TrialFolder, backend: Backend, enter: Callable[[Stage], None]) -> None:
    """Take the steps that a trial takes, with the untuned step's random numbers, and write how far they are from its.

    Raises WrongResultError, or what the config raises.
    """
    enter(Stage.BUILD)
    backend.prepare(request.workload.device, request.workload.seed)
    subject = subject_of(request, backend)
    calls = Steps(request.workload, subject, backend, same_numbers=True)
    enter(Stage.CHECK)
    training = require(backend.training, marked("task", "train"))
    if training.draw_as_uncompiled is not None:
        training.draw_as_uncompiled()
    changes = UndoLog()
    with calls.recording():
        step = calls.compile(request.config, changes)
        first = calls.first(step, ConfigParts.of(request.config).settings, backend.clock, backend.clock())
        seen = calls.observe(step, first)
    checked = check(request, seen, request.tolerance_for(subject.dtypes), calls.gate)
    write_whole(folder.path / _CHECKED, checked.model_dump_json(indent=2))
