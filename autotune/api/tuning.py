"""`tune`, `resume` and `load_study`: a study, from Python."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from os import PathLike
from typing import Any, Unpack

from autotune.api.callbacks import notify_all
from autotune.api.events import Callback
from autotune.api.given_model import named_model, split_inputs
from autotune.api.result import TuneResult, answer_so_far
from autotune.api.running import Terms, reopen, search, terms_of
from autotune.api.studies import studies_at
from autotune.bench.supervisor_process import kept_supervisors
from autotune.errors import shown_at_the_call
from autotune.planning.manifest import make_manifest
from autotune.question.question import DEFAULT_STUDIES_DIR, Asked, AskedAgain, Question, taking
from autotune.render.console import PlainConsole
from autotune.render.live import LiveDisplay
from autotune.render.notebook import NotebookDisplay, is_notebook
from autotune.study.study import Study
from autotune.tuning.events import Event, Notify


@shown_at_the_call
@taking(Asked)
def tune(
    build: Any,
    inputs: Any = None,
    *,
    more_inputs: Sequence[Any] = (),
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
    **question: Unpack[Asked],
) -> TuneResult:
    """Search for the fastest correct compile config of a model, prove it, and return the result.

    What is tuned:

    * `build`: a function that returns `(model, inputs)`, or more (docs/models.md). It runs in other processes. One of a
      module is imported there by its place; of one in a notebook or script the source is written into the study's
      folder, with the imports, constants, functions and classes of the same notebook that it uses. Or a text as
      `tune --model` takes it: `"FILE.py:FUNCTION"`, `"PACKAGE.MODULE:FUNCTION"`, a bundled name, `"hf:TYPE"`.
    * `inputs`: None, unless `build` is a live `torch.nn.Module`: then its example inputs, a tensor, a tuple of
      positional or a dict of keyword arguments of a call. Model and inputs are saved (`torch.save`) into the study's
      folder, and trials load them from there; what happens to the live model later does not reach them. Or, with
      either, the path of a file of real calls, as of `tune --inputs`: results are compared on them, and the first is
      timed where there are no other inputs.
    * `more_inputs`: with a live model, further inputs of the same form on which results are compared.
    * `arguments`: name -> value (number, text, bool or None) for the function.
    * `task`: `"infer"` or `"train"`. `shapes`, `traffic`: the shapes of the job, as of `tune --shapes`, `--traffic`.

    Where, how long, and what for:

    * `device`: `"auto"`, `"cpu"`, `"gpu"` or `"ascend"`. `framework`: `"torch"` or `"mindspore"`; None: by device.
    * `budget`: time for the whole call: `"10m"`, seconds, a YAML file, or a `Budget`; None:
      no limit. `trials`: most trials of the study; None: 24, or with a time as many as it holds. `effort`: `"quick"`,
      `"normal"` (None) or `"exhaustive"`. `jobs`: trials that are compiled at the same time; None: as many as there are
      cores and memory for. `compile_timeout`, `trial_timeout`: seconds.
    * `on`: `"ray"` or `"ray://HOST:PORT"`: all devices of a Ray cluster run trials side by side
      (docs/many-machines.md); None: this machine.
    * `objective`: `"latency"` (None), `"p90"`, `"p99"`, `"throughput"`, `"memory"`, `"compile"` or
      `"total:CALLS"`. `constraints`: texts such as `"peak_memory <= 2GiB"`.
    * `tolerance`: largest relative error of an output; None: by precision. `reference`: `"model"`, `"float32"` or
      `"float64"`. `space`, `fixed_precision`, `process_settings`, `whole_step`, `instances`, `prior`,
      `seed` and `env`: as the options of the same names of `tune`.

    The study: `study` names it; None: a name made of the model, framework and device. An existing study of that name
    with the same settings goes on where it stopped. It lies in the folder `studies_dir`/`study`. `storage`: URL of a
    PostgreSQL database in which several machines share their studies' records (docs/many-machines.md); None: what the
    environment variable AUTOTUNE_STORAGE names, if it is set.

    `callbacks` are called with each event (`autotune.events`). `progress`: show a line for each trial on stderr,
    and on a terminal what is going on; in a notebook, a bar and the lines below the cell.

    Raises InputError for an argument that cannot be used, StoreError for a study of other settings or a folder that
    cannot be written, MissingFrameworkError and MissingDeviceError, SetupError and NoUsableTrialError where nothing
    could be measured, and CallbackError where a callback failed; all are `autotune.AutotuneError`. KeyboardInterrupt is
    raised again when the running trial has been ended. In all these cases what is recorded stays: `load_study` reads
    it, and the same call goes on. No signal handler is set; any thread may call this.
    """
    begun = time.monotonic()
    file, live_inputs = split_inputs(inputs, more_inputs)
    given = Question.of({**question, "inputs": file})
    studies = studies_at(given.studies_dir, given.storage)
    terms = terms_of(given, begun, studies)
    with _audience(callbacks, progress=progress) as tell, kept_supervisors():
        with named_model(build, live_inputs, given, studies.folder, tell) as named:
            opened = studies.open_or_create(make_manifest(named, terms.limits))
        return _run(opened, terms, tell, on=given.on)


@shown_at_the_call
@taking(AskedAgain)
def resume(
    study: str,
    *,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
    **question: Unpack[AskedAgain],
) -> TuneResult:
    """Continue a study. All its settings are read from it; only a time limit starts again.

    `trials`: most trials of the study, earlier ones included; None: as before. The other arguments, the result and the
    errors are those of `tune`; StoreError also where the model's file or the framework's release has changed.
    """
    begun = time.monotonic()
    given = Question.of(question)
    studies = studies_at(given.studies_dir, given.storage)
    opened, before = reopen(studies, study, given.env)
    with _audience(callbacks, progress=progress) as tell:
        return _run(opened, terms_of(given, begun, studies, before), tell, on=given.on)


@shown_at_the_call
def load_study(
    name: str, *, studies_dir: str | PathLike[str] = DEFAULT_STUDIES_DIR, storage: str | None = None
) -> TuneResult:
    """The result of a recorded study as it is now.

    Raises InputError for an unknown name, StoreError for a broken study.
    """
    with closing(studies_at(studies_dir, storage).open(name)) as study:
        return TuneResult(study)


@contextmanager
def _audience(callbacks: Callback | Sequence[Callback], *, progress: bool) -> Iterator[Notify]:
    """What tells the display, if there is one, and then the callbacks."""
    notify = notify_all(callbacks)
    with _display() if progress else nullcontext() as display:

        def tell(event: Event) -> None:
            if display is not None:
                display(event)
            notify(event)

        yield tell


def _display() -> LiveDisplay:
    return NotebookDisplay() if is_notebook() else LiveDisplay(PlainConsole(stderr=True))


def _run(study: Study, terms: Terms, tell: Notify, *, on: str | None = None) -> TuneResult:
    """Search, prove and read the result."""
    try:
        search(study, terms, tell, on=on)
        return TuneResult(study)
    except KeyboardInterrupt:
        kept = f"study {study.name!r} in {study.folder.parent}/ keeps what is recorded"
        found = answer_so_far(study)
        so_far = "" if found is None else f"; its answer so far is that of autotune.load_study({study.name!r}): {found}"
        raise KeyboardInterrupt(f"{kept}: autotune.resume({study.name!r}) goes on{so_far}") from None
    finally:
        study.close()
