"""`diagnose`: graph breaks and recompiles of a model, with cost and fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from autotune.api.callbacks import notify_all
from autotune.api.events import Callback, DiagnosisStep
from autotune.api.given_model import named_model, split_inputs
from autotune.api.scratch import bench_in, scratch
from autotune.cli.app import print_result, say
from autotune.cli.listings import Knobs
from autotune.command_line import command
from autotune.config import Scalar
from autotune.errors import shown_at_the_call
from autotune.plugins.diagnose.diagnoser import Diagnoser, ModelDiagnosis, make_case
from autotune.plugins.diagnose.page import diagnosis_document, diagnosis_lines, diagnosis_page
from autotune.question.question import Question, as_typed


class Diagnosis(ModelDiagnosis):
    """A `ModelDiagnosis` that can be written as a page."""

    command: Annotated[str | None, Field(exclude=True)] = None
    """The command line that examines the model again; None where it was not given by name."""

    @shown_at_the_call
    def report(self, path: str | PathLike[str] = "report.html") -> Path:
        """Write it as one HTML file, as `TuneResult.report` writes a study, and return its path. Raises InputError
        where the extra `report` (matplotlib, Jinja) is not installed."""
        from autotune.render.html.page import write_page

        return write_page(Path(fspath(path)), partial(diagnosis_page, self, self.command))


@shown_at_the_call
def diagnose(
    build: Any,
    inputs: Any = None,
    *,
    device: str = "auto",
    framework: str | None = None,
    arguments: Mapping[str, Scalar] | None = None,
    knobs: Mapping[str, Scalar] | None = None,
    seed: int = 0,
    callbacks: Callback | Sequence[Callback] = (),
) -> Diagnosis:
    """Find the graph breaks and recompiles of a model that is compiled as it is by default.

    `build`, `inputs`, `device`, `framework`, `arguments` and `seed` as of `tune`. `knobs`: settings that differ from
    the default config, e.g. `{"fullgraph": True}`. `callbacks` receive a `DiagnosisStep` for each process.

    Returns a `Diagnosis`: `findings`, the most expensive first, each with `kind`, `location`, `reason`, `cost` (in
    seconds) and fix; `untuned_s` and `compiled_s`, seconds of a call; `report(path)`. Raises InputError for what cannot
    be built or a knob that there is not, and SetupError for a model that does not run untuned.
    """
    notify = notify_all(callbacks)
    file, live_inputs = split_inputs(inputs)
    # What has to be written goes into a folder of its own there, as if it were a study's.
    question = Question.of(
        {
            "study": "model",
            "framework": framework,
            "device": device,
            "arguments": arguments,
            "inputs": file,
            "seed": seed,
        }
    )
    with scratch() as folder, named_model(build, live_inputs, question, folder, notify) as named:
        found = examine(named, [f"{name}={value!r}" for name, value in (knobs or {}).items()], notify)
    # What was written for a function or a live model is gone with the folder.
    is_named = isinstance(build, str) and inputs is None
    return found if is_named else found.model_copy(update={"command": None})


def examine(question: Question, knobs: Iterable[str], notify: Callable[[DiagnosisStep], None]) -> Diagnosis:
    """Examine the request's one model, under the default config with the `knobs` (NAME=VALUE) set otherwise."""
    knobs = list(knobs)
    case = make_case(question, knobs)
    with scratch() as folder, bench_in(folder, {}) as bench:
        found = Diagnoser(case, bench, folder, lambda what: notify(DiagnosisStep(what))).run()
    return Diagnosis(**dict(found), command=_command(question, knobs))


def main(question: Question, knob: Knobs = None) -> int:
    """Find graph breaks and recompiles of a model, as `diagnose` of the command line does."""
    found = examine(question, knob or (), lambda step: say(f"  measuring {step.what} ..."))
    print_result(diagnosis_document(found), diagnosis_lines(found), as_json=question.as_json)
    if question.report is not None:
        say(f"report: {found.report(question.report)}")
    return 0


def _command(question: Question, knobs: Iterable[str]) -> str:
    return command(
        "diagnose",
        build=question.build,
        framework=question.framework,
        device=question.device,
        arguments={name: as_typed(value) for name, value in question.arguments.items()},
        knobs=list(knobs),
        seed=question.seed or None,
    )
