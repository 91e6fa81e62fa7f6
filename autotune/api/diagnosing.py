"""`diagnose`: graph breaks and recompiles of a model, with cost and fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autotune.api.events import DiagnosisStep
from autotune.api.scratch import runners_in, scratch
from autotune.doctor.diagnose import Examiner, ModelDiagnosis, make_case
from autotune.planning.request import TuneRequest


def examine(request: TuneRequest, knobs: Iterable[str], notify: Callable[[DiagnosisStep], None]) -> ModelDiagnosis:
    """Examine the request's one model, under the default config with the `knobs` (NAME=VALUE) set otherwise."""
    case = make_case(request, knobs)
    with scratch() as folder, runners_in(folder, {}) as trials:
        return Examiner(case, trials, folder, lambda what: notify(DiagnosisStep(what))).run()
