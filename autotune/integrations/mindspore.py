"""MindSpore's `Model.train`: `model.train(epochs, dataset, callbacks=[tuned_callback("best.yaml")])`.

A `Model` builds its training step around the network when it is made. The callback puts the tuned network into it
while it trains. Gradients are tuned under configs with `execution=jit` and `scope=model`, as everywhere.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from autotune.integrations.paid_back import PaidBack
from autotune.job.load import Loaded, load

_log = logging.getLogger("autotune")


def tuned_callback(path: str | os.PathLike[str], **policy: Any) -> Any:
    """A callback for `Model.train`: while it trains, the network is under the config in the file at `path`. After some
    steps the log says what a step takes and when compiling is paid back. `policy` is what `Loaded.apply` takes."""
    from mindspore.train import Callback

    training = _Training(load(path), policy)
    anew = partial(tuned_callback, os.path.abspath(path), **policy)

    class TunedCallback(Callback):  # type: ignore[misc]
        """Applies a tuned config while the model trains."""

        def __reduce__(self) -> tuple[Any, ...]:
            return anew, ()  # A copy has begun nothing yet.

        def on_train_begin(self, run_context: Any) -> None:
            training.begin(run_context.original_args())

        def on_train_step_begin(self, _: Any) -> None:
            if training.paid_back is not None:
                training.paid_back.begin()

        def on_train_step_end(self, run_context: Any) -> None:
            run = run_context.original_args()
            if training.paid_back is not None and not run.dataset_sink_mode:  # Else it is called after many steps.
                training.paid_back.end(training.tuned, lambda: run.batch_num * run.epoch_num)

        def on_train_end(self, _: Any) -> None:
            training.end()

        def __exit__(self, *_: Any) -> None:
            training.end()

    return TunedCallback()


class _Training:
    """The Cell that calls the network, with the tuned one in its place."""

    def __init__(self, loaded: Loaded, policy: dict[str, Any]) -> None:
        self._loaded = loaded
        self._policy = policy
        self._until_end = ExitStack()
        self.tuned: Any = None
        """The network under the config, once it trains."""
        self.paid_back: PaidBack | None = None

    def begin(self, run: Any) -> None:
        """Put the tuned network where MindSpore's training step calls the network."""
        places = [
            (cell, name)
            for _, cell in run.train_network.cells_and_names()
            for name in ("_backbone", "network")
            if getattr(cell, name, None) is run.network
        ]
        if not places:
            _log.warning(
                "autotune: the training step of this Model does not call its network as it is (amp_level, boost_level, "
                "or a step of its own): the tuned config is not used; apply it before the Model is made"
            )
            return
        self.tuned = self._until_end.enter_context(self._loaded.applied(run.network, **self._policy))
        self.paid_back = PaidBack.of(self._loaded)
        for cell, name in places:
            self._until_end.callback(setattr, cell, name, run.network)
            setattr(cell, name, self.tuned)

    def end(self) -> None:
        """Put all back as it was."""
        self._until_end.close()
