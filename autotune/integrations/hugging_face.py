"""Hugging Face's Trainer and accelerate: `trainer = use_tuned(Trainer(...), "best.yaml", record="step")`.

Trainer calls the model that it has when `train()` begins, and a callback cannot give it another one: `use_tuned` takes
the trainer itself, before. What `accelerate` puts around a model (autocast, DistributedDataParallel) it puts around
the tuned one.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from os import PathLike
from typing import Any, TypeVar

from autotune.command_line import command
from autotune.doors import USES
from autotune.errors import AutotuneError, InputError
from autotune.integrations.paid_back import PaidBack
from autotune.job.load import Loaded, load

_log = logging.getLogger("autotune")
T = TypeVar("T")


def use_tuned(trainer: T, path: str | PathLike[str], *, record: str | PathLike[str] | None = None, **policy: Any) -> T:
    """The trainer, a `transformers.Trainer` or one of its subclasses, which trains the model under the config in the
    file at `path`. Before `train()`. After some steps its log says what a step takes and when compiling is paid back.

    `record`: a folder; as long as there is no file at `path`, the first steps are watched, and what they are is written
    there for `tune FOLDER`. `policy` is what `Loaded.apply` takes.
    """
    of: Any = trainer
    if _compiles_by_itself(of.accelerator):
        return trainer
    loaded = load(path)
    if record is not None and not os.path.exists(path):
        of.add_callback(_recording(os.fspath(record), os.fspath(path)))
        nothing = InputError(f"there is no {os.fspath(path)} yet, and {os.fspath(record)} records the first steps")
        loaded = Loaded(loaded.path, None, nothing)
    if (paid_back := PaidBack.of(loaded)) is not None:
        of.add_callback(_timed(of, paid_back))
    if of.model_init is None:
        of.model = of.model_wrapped = of.callback_handler.model = loaded.apply(of.model, **policy)
        return trainer
    of.call_model_init = _ModelInit(of, loaded, policy)
    return trainer


STEPS_RECORDED = 4
"""Enough to tell how many batches a step has."""


def _recording(folder: str, path: str) -> Any:
    """A callback of a trainer that keeps its first steps in the folder, as `watch` does, on every rank. What keeps it
    from that is said, and stops no job. `path`: where the answer is to be."""
    from transformers import TrainerCallback

    watching = ExitStack()

    class Recording(TrainerCallback):
        """Watches steps of the trainer."""

        def __init__(self) -> None:
            self._num_left = STEPS_RECORDED

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            try:
                self._num_left *= watching.enter_context(USES.require("watch")(folder))  # False: all of the job is.
            except (AutotuneError, OSError) as error:
                self._num_left = 0
                _log.warning("autotune: the training steps are not recorded: %s", error)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self._num_left -= 1
            if self._num_left == 0:
                self._end(state)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if self._num_left > 0:
                self._end(state)

        def _end(self, state: Any) -> None:
            watching.close()
            if state.is_world_process_zero:
                name = os.path.basename(os.path.abspath(folder))
                tune, export = command("tune", folder, study=name), command("export", name, output=path)
                _log.warning("autotune: the training steps are recorded; to tune them: %s && %s", tune, export)

    return Recording()


def _timed(trainer: Any, paid_back: PaidBack) -> Any:
    """A callback of the trainer that says once, after some steps, what they take and when compiling is paid back."""
    from transformers import TrainerCallback

    class Timed(TrainerCallback):
        """Times steps of the trainer."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            paid_back.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            paid_back.end(trainer.model, lambda: state.max_steps, args.gradient_accumulation_steps)

    return Timed()


class _ModelInit:
    """What a trainer makes its models by: `train()` begins with a new one, and so does each trial of a search, which
    may be made in another process."""

    def __init__(self, trainer: Any, loaded: Loaded, policy: dict[str, Any]) -> None:
        self._trainer = trainer
        self._loaded = loaded
        self._policy = policy
        self._before = vars(trainer).get("call_model_init")

    def __call__(self, trial: Any = None) -> Any:
        of = self._trainer
        model = type(of).call_model_init(of, trial) if self._before is None else self._before(trial)
        return self._loaded.apply(model.to(of.args.device) if of.place_model_on_device else model, **self._policy)


def tuned_model(accelerator: Any, model: Any, path: str | PathLike[str], **policy: Any) -> Any:
    """The model under the config in the file at `path`, on the device of an `accelerate.Accelerator`, to be given to
    its `prepare`. `policy` is what `Loaded.apply` takes."""
    if _compiles_by_itself(accelerator):
        return model
    return load(path).apply(model.to(accelerator.device) if accelerator.device_placement else model, **policy)


def _compiles_by_itself(accelerator: Any) -> bool:
    """Says so once: what compiles around the tuned model gets all of it, and nothing of the config is used."""
    backend = str(accelerator.state.dynamo_plugin.backend.value).lower()
    if backend == "no":
        return False
    _log.warning(
        "autotune: accelerate compiles the model by itself (backend %s, by torch_compile=True of TrainingArguments, "
        "dynamo_plugin, or ACCELERATE_DYNAMO_BACKEND): the tuned config is not used; leave that out to have it used",
        backend,
    )
    return True
