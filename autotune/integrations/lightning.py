"""PyTorch Lightning: `Trainer(callbacks=[tuned_callback("best.yaml", "network")])`.

What is tuned is a module within the LightningModule, which its `training_step` calls; checkpoints have the same names.
It is tuned from the beginning of `fit`, when Lightning has put it on its device, until the end. After some steps the
log says what a step takes and when compiling is paid back.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any

from autotune.errors import InputError
from autotune.integrations.paid_back import PaidBack
from autotune.job.load import Loaded, load

_log = logging.getLogger("autotune")


def tuned_callback(path: str | os.PathLike[str], module: str | None = None, **policy: Any) -> Any:
    """A callback for Lightning's Trainer: while it fits, the module of this name within the LightningModule is under
    the config in the file at `path`. None: the only one that has parameters. `policy` is what `Loaded.apply` takes."""
    # `lightning` and `pytorch_lightning` are one library with two names, and each takes callbacks of its own alone.
    library: Any = import_module("lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning")
    fitting = _Fitting(load(path), module, policy)
    anew = partial(tuned_callback, os.path.abspath(path), module, **policy)

    class TunedCallback(library.Callback):  # type: ignore[misc]
        """Applies a tuned config while the trainer fits."""

        def __reduce__(self) -> tuple[Any, ...]:
            return anew, ()  # A copy, as in a process that a strategy spawns, has begun nothing yet.

        def on_fit_start(self, _: Any, pl_module: Any) -> None:
            fitting.begin(pl_module)

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            fitting.begin_batch(trainer)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            fitting.end_batch(trainer)

        def on_fit_end(self, *_: Any) -> None:
            fitting.end()

        def on_exception(self, *_: Any) -> None:
            fitting.end()

    return TunedCallback()


class _Fitting:
    """The module in the place of which the tuned one stands."""

    def __init__(self, loaded: Loaded, name: str | None, policy: dict[str, Any]) -> None:
        self._loaded = loaded
        self._name = name
        self._policy = policy
        self._until_end = ExitStack()
        self._tuned: Any = None
        self._paid_back: PaidBack | None = None
        self._steps_before = self._num_batches = 0
        """Those of the optimizer before the current step, and the batches that this one has so far."""

    def begin(self, pl_module: Any) -> None:
        """Put the tuned module in the place of the one that was named."""
        if getattr(pl_module, "_compiler_ctx", None) is not None:
            _log.warning(
                "autotune: the LightningModule was compiled as a whole (torch.compile): the tuned config is not used; "
                "give the trainer the LightningModule itself to have it used"
            )
            return
        name = self._name or _only_one(pl_module)
        parent, _, last = name.rpartition(".")
        try:
            owner = pl_module.get_submodule(parent)
            model = owner.get_submodule(last)
        except AttributeError as error:
            raise InputError(f"the {type(pl_module).__name__} has no module {name!r}", tip=str(error)) from None
        self._until_end.callback(setattr, owner, last, model)
        self._tuned = self._until_end.enter_context(self._loaded.applied(model, **self._policy))
        self._paid_back, self._num_batches = PaidBack.of(self._loaded), 0
        setattr(owner, last, self._tuned)

    def begin_batch(self, trainer: Any) -> None:
        """Before a batch, the first of a step or a further one."""
        if self._paid_back is not None and self._num_batches == 0:
            self._steps_before = trainer.global_step
            self._paid_back.begin()
        self._num_batches += 1

    def end_batch(self, trainer: Any) -> None:
        """After a batch, with which a step may end."""
        if self._paid_back is not None and trainer.global_step != self._steps_before:
            self._paid_back.end(self._tuned, lambda: trainer.estimated_stepping_batches, self._num_batches)
            self._num_batches = 0

    def end(self) -> None:
        """Put all back as it was."""
        self._until_end.close()


def _only_one(pl_module: Any) -> str:
    names = [name for name, child in pl_module.named_children() if next(child.parameters(), None) is not None]
    if len(names) == 1 and next(pl_module.parameters(recurse=False), None) is None:
        return str(names[0])
    raise InputError(
        f"the {type(pl_module).__name__} has {len(names)} modules with parameters ({', '.join(names)}), besides those "
        "of its own",
        tip='say which one is called: tuned_callback("best.yaml", "NAME")',
    )
