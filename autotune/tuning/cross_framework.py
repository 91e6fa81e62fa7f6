"""The model in the other frameworks of a study: does it compute what the base's untuned model computes?

One that does not makes every config of its framework wrong, so it is no config that must be blamed.
"""

from __future__ import annotations

from typing import TypeGuard

from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.study.study import Study
from autotune.tuning.session import Session


def require_same_function(study: Study) -> None:
    """Raises HarnessError once another framework's untuned model was tried and gave other outputs."""
    base, *others = study.manifest.space.frameworks
    for framework in others:
        outcome = _recorded(study, framework)
        if _is_wrong(outcome):
            raise HarnessError(
                f"the untuned model in {framework} does not give what it gives in {base}: {outcome.error}",
                tip="give both functions the same weights and inputs, or allow more with --tolerance; then tune under "
                "another --study NAME",
            )


def require_unchanged(session: Session) -> None:
    """Run the others' untuned models again where they were right. Raises HarnessError if one is wrong now."""
    study = session.study
    for framework in study.manifest.space.frameworks[1:]:
        if not isinstance(_recorded(study, framework), Measurement):
            continue
        outcome = session.attempt(*session.untuned_again(f"untuned-{framework}", framework))
        if _is_wrong(outcome):
            raise HarnessError(
                f"the untuned model in {framework} does not give what it gave when the study began: {outcome.error}",
                tip="undo what changed (its imports, weights, the machine), or start another study with --study NAME",
            )


def _recorded(study: Study, framework: str) -> Outcome | None:
    """What became of the framework's untuned model in the search."""
    config = study.manifest.space.untuned(framework)
    outcomes = (each.outcome for each in study.records() if each.config == config)
    return next((outcome for outcome in outcomes if outcome is not None), None)


def _is_wrong(outcome: Outcome | None) -> TypeGuard[Failure]:
    return isinstance(outcome, Failure) and outcome.reason is Reason.WRONG_RESULT
