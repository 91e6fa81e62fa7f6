"""Hugging Face's Trainer and accelerate: `trainer = use_tuned(Trainer(...), "best.yaml")`.

Trainer calls the model that it has when `train()` begins, and a callback cannot give it another one: `use_tuned` takes
the trainer itself, before. What `accelerate` puts around a model (autocast, DistributedDataParallel) it puts around
the tuned one.
"""

from __future__ import annotations

import logging
from os import PathLike
from typing import Any, TypeVar

from autotune.job.load import Loaded, load

_log = logging.getLogger("autotune")
T = TypeVar("T")


def use_tuned(trainer: T, path: str | PathLike[str], **policy: Any) -> T:
    """The trainer, a `transformers.Trainer` or one of its subclasses, which trains the model under the config in the
    file at `path`. Before `train()`. `policy` is what `Loaded.apply` takes."""
    of: Any = trainer
    if _compiles_by_itself(of.accelerator):
        return trainer
    loaded = load(path)
    if of.model_init is None:
        of.model = of.model_wrapped = of.callback_handler.model = loaded.apply(of.model, **policy)
        return trainer
    of.call_model_init = _ModelInit(of, loaded, policy)
    return trainer


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
