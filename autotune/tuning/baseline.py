"""Checks of the untuned model, and of the machine that measured it, before a search continues."""

from __future__ import annotations

import math

from autotune import environment
from autotune.command_line import asked
from autotune.errors import HarnessError, InputError, NoUsableTrialError
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.study.study import Study


def require_same_machine(study: Study) -> None:
    """Raises InputError if earlier trials ran on another machine or under other settings of it.

    Where workers measure, they are compared with the worker of the untuned trial (`Members.primary`).
    """
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return
    then = untuned.outcome.environment
    differences = then.differences(environment.describe(device=then.device, variables=study.manifest.variables))
    if differences:
        raise InputError(
            f"study {study.name!r} was measured on another machine or under other settings of it: "
            f"{'; '.join(differences)}",
            tip=f"tune here under another {asked('study', 'NAME')}, or restore what differs and run the same command "
            "again",
        )


def require_baseline(study: Study) -> None:
    """Raises the child's own error if the untuned model failed: there is nothing to compare with."""
    untuned = study.untuned_record()
    if untuned is None:
        return
    if isinstance(untuned.outcome, Measurement):
        _require_values(study, untuned.outcome)
        return
    failure = untuned.outcome
    assert isinstance(failure, Failure)
    kind = NoUsableTrialError if failure.blames_config else HarnessError
    raise kind(
        f"the untuned model failed ({failure.reason} at {failure.stage}): {failure.error}",
        tip=f"{_remedy(failure.reason)}, then run the same command again; full log: {failure.evidence}",
    )


def _remedy(reason: Reason) -> str:
    match reason:
        case Reason.OUT_OF_MEMORY:
            return "give it smaller inputs or a machine with more memory"
        case Reason.TIMEOUT:
            return f"give it more time with {asked('compile_timeout')} or {asked('trial_timeout')}"
        case Reason.CRASH:
            return "find the cause of the crash in the log"
    return "mend that"


def _require_values(study: Study, untuned: Measurement) -> None:
    """Raises HarnessError for an objective that cannot be measured here."""
    for objective in study.manifest.objectives:
        if not math.isfinite(objective.value(untuned)):
            raise HarnessError(
                f"{asked('objective', objective.name)}: it cannot be measured here",
                tip=f"choose another objective under another {asked('study', 'NAME')}",
            )
