"""Hugging Face's Trainer and accelerate: `trainer = use_tuned(Trainer(...), "best.yaml", record="step")`.

Trainer calls the model that it has when `train()` begins, and a callback cannot give it another one: `use_tuned` takes
the trainer itself, before. What `accelerate` puts around a model (autocast, DistributedDataParallel) it puts around
the tuned one.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import sys
import time
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from autotune.command_line import command
from autotune.errors import AutotuneError, InputError
from autotune.job.load import Loaded, load
from autotune.job.stats import recorder_of
from autotune.tuned.tuned_config import TunedConfig

_log = logging.getLogger("autotune")
T = TypeVar("T")


def use_tuned(trainer: T, path: str | PathLike[str], *, record: str | PathLike[str] | None = None, **policy: Any) -> T:
    """The trainer, a `transformers.Trainer` or one of its subclasses, which trains the model under the config in the
    file at `path`. Before `train()`. After some steps its log says what a step takes and when compiling is paid back.

    `record`: a folder; as long as there is no file at `path`, the first step writes what `tune` asks about it there:
    model, batch, autocast, clipping, optimizer and threads. `policy` is what `Loaded.apply` takes.
    """
    of: Any = trainer
    if _compiles_by_itself(of.accelerator):
        return trainer
    loaded = load(path)
    if record is not None and not os.path.exists(path):
        _Recording(of, Path(record), os.fspath(path)).begin()
        nothing = InputError(f"there is no {os.fspath(path)} yet, and {os.fspath(record)} records a step")
        loaded = Loaded(loaded.path, None, nothing)
    if loaded.answer is not None and not loaded.answer.is_untuned:
        of.add_callback(_paid_back(of, loaded.answer))
    if of.model_init is None:
        of.model = of.model_wrapped = of.callback_handler.model = loaded.apply(of.model, **policy)
        return trainer
    of.call_model_init = _ModelInit(of, loaded, policy)
    return trainer


class _Recording:
    """Keeps a trainer's model and the first batch that it is trained with, and how, as a question for `tune`."""

    def __init__(self, trainer: Any, folder: Path, path: str) -> None:
        """`path`: where the answer is to be."""
        self._of = trainer
        self._folder = folder
        self._path = path

    def begin(self) -> None:
        """Write the model as it is now, and wait for its first step. What cannot be kept is said, and stops no job."""
        if not self._of.is_world_process_zero():
            return
        from autotune.backends.torch.files import save_model

        try:
            if self._of.model_init is not None:
                raise AutotuneError("the trainer makes its model when it begins (model_init)")
            self._folder.mkdir(parents=True, exist_ok=True)
            save_model(self._of.model, None, self._folder / "model.pt")
        except (AutotuneError, OSError) as error:
            _log.warning("autotune: the training step is not recorded: %s", error)
            return
        self._hook = self._of.model.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, model: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not model.training:  # An evaluation.
            return
        self._hook.remove()
        try:
            if args:
                raise AutotuneError("the model is called with inputs that have no name")
            self._write(named)
        except Exception as error:  # Whatever a batch's own pickling raises; the job trains on.
            _log.warning("autotune: the training step is not recorded: %s", error)

    def _write(self, inputs: dict[str, Any]) -> None:
        from autotune.backends.torch.files import save_step

        arguments, precision = self._of.args, str(self._of.accelerator.mixed_precision)
        kind, options = type(self._of).get_optimizer_cls_and_kwargs(arguments, self._of.model)
        save_step(
            self._folder, inputs, precision, os.path.abspath(sys.path[0] or "."),
            optimizer=kind, options=options, clip=arguments.max_grad_norm,
        )  # fmt: skip
        # Under autocast a step is compared with what the trainer's own numbers are worth.
        numbers = {"tolerance": 0.03} if precision in ("bf16", "fp16") else {}
        threads = os.environ.get("OMP_NUM_THREADS")
        question = {
            "model": f"{self._folder.absolute() / 'step.py'}:build",
            "task": "train",
            "framework": "torch",
            "study": self._folder.name,
            # The trainer chooses: a config with autocast of its own would be a second one within the trainer's.
            "fixed-precision": True,
            **numbers,
            **({"env": [f"OMP_NUM_THREADS={threads}"]} if threads else {}),
        }
        file = self._folder / "tune.yaml"
        file.write_text(json.dumps(question, indent=1), encoding="utf-8")
        more = {"batches that are accumulated": arguments.gradient_accumulation_steps, "ranks": arguments.world_size}
        apart = "".join(f"; a study has one of the {number} {what}" for what, number in more.items() if number > 1)
        tune, export = command("tune", config=str(file)), command("export", self._folder.name, output=self._path)
        _log.warning("autotune: the step is recorded%s; to tune it: %s && %s", apart, tune, export)


STEPS_OF_COMPILING, STEPS_TIMED = 5, 15
"""The first steps of a run, in which models compile, and those after them whose median is told."""


def _paid_back(trainer: Any, tuned: TunedConfig) -> Any:
    """A callback of the trainer that says once, after some steps, what they take and when compiling is paid back."""
    from transformers import TrainerCallback

    class PaidBack(TrainerCallback):
        """Times steps of the trainer."""

        def __init__(self) -> None:
            self._durations: list[float] = []
            self._begun = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self._begun = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self._durations.append(time.perf_counter() - self._begun)
            recorder = recorder_of(trainer.model)
            if len(self._durations) != STEPS_OF_COMPILING + STEPS_TIMED or recorder is None:
                return
            if state.is_world_process_zero and recorder.stats().state == "tuned":
                by_study = tuned.evidence.untuned.latency_s.p50 - tuned.evidence.best.latency_s.p50
                saved_s = args.gradient_accumulation_steps * by_study
                _log.info("autotune: %s", told(self._durations, saved_s, state.max_steps))

    return PaidBack()


def told(durations: list[float], saved_s: float, num_steps: int) -> str:
    """What steps of a trainer took (seconds, in order), of which each saves so many seconds by the study, and after
    which of all its steps compiling is paid back."""
    step_s = statistics.median(durations[STEPS_OF_COMPILING:])
    compiling_s = max(sum(durations[:STEPS_OF_COMPILING]) - STEPS_OF_COMPILING * step_s, 0.0)
    took = f"a step takes {1e3 * step_s:.3g} ms"
    if saved_s <= 0:
        return f"{took}, by the study no less than untuned: not worth it"
    took += f", untuned {1e3 * (step_s + saved_s):.3g} ms by the study"
    needed = math.ceil(compiling_s / saved_s)
    paid = f"compiling took {compiling_s:.3g} s, paid back at step {needed:,} of {num_steps:,}"
    return f"{took}; {paid}" + ("" if needed <= num_steps else f": not worth it for {num_steps:,} steps")


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
