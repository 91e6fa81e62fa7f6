"""`diagnose`: graph breaks and recompiles of a model, with cost and fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autotune.api.callbacks import notify_all
from autotune.api.events import Callback, DiagnosisStep
from autotune.api.given_model import named_model
from autotune.api.requests import make_request
from autotune.api.scratch import runners_in, scratch
from autotune.api.wording import in_python_words
from autotune.config import Scalar
from autotune.doctor.diagnose import Diagnoser, ModelDiagnosis, make_case
from autotune.planning.request import TuneRequest


@in_python_words
def diagnose(
    build: Any,
    inputs: Any = None,
    *,
    device: str = "cpu",
    framework: str | None = None,
    arguments: Mapping[str, Scalar] | None = None,
    knobs: Mapping[str, Scalar] | None = None,
    seed: int = 0,
    callbacks: Callback | Sequence[Callback] = (),
) -> ModelDiagnosis:
    """Find the graph breaks and recompiles of a model that is compiled as it is by default.

    `build`, `inputs`, `device`, `framework`, `arguments` and `seed` as of `tune`. `knobs`: settings that differ from
    the default config, e.g. `{"fullgraph": True}`. `callbacks` receive a `DiagnosisStep` for each process.

    Returns a `ModelDiagnosis`: `findings`, the most expensive first, each with `kind`, `location`, `reason`, `cost` (in
    seconds) and fix; `untuned_s` and `compiled_s`, seconds of a call. Raises InputError for what cannot be built or a
    knob that there is not, and HarnessError for a model that does not run untuned.
    """
    notify = notify_all(callbacks)
    # What has to be written goes into a folder of its own there, as if it were a study's.
    request = make_request(study="model", framework=framework, device=device, arguments=arguments, seed=seed)
    with scratch() as folder, named_model(build, inputs, request, folder, notify) as named:
        return examine(named, [f"{name}={value!r}" for name, value in (knobs or {}).items()], notify)


def examine(request: TuneRequest, knobs: Iterable[str], notify: Callable[[DiagnosisStep], None]) -> ModelDiagnosis:
    """Examine the request's one model, under the default config with the `knobs` (NAME=VALUE) set otherwise."""
    case = make_case(request, knobs)
    with scratch() as folder, runners_in(folder, {}) as trials:
        return Diagnoser(case, trials, folder, lambda what: notify(DiagnosisStep(what))).run()
