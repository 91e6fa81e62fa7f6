"""`SeededSteps`: training steps from where a model began, each with the random numbers of its own seed.

`Steps` says which of them are compared, and when. What each tells is found here: its loss, its gradients, and how far
both depend on the random numbers that are drawn, on the direction of the gradients, and on rounding.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from autotune.backends.capabilities import Training
from autotune.backends.outputs import output_arrays, parts_held
from autotune.backends.protocol import Backend
from autotune.errors import AutotuneError
from autotune.measure.agreement import Array
from autotune.trial.worker.calls.calls import Step
from autotune.trial.worker.calls.chance import NUM_DRAWS
from autotune.trial.worker.calls.later_steps import Beginning, Kept
from autotune.trial.worker.calls.step_gate import NUDGE, Gradient, compared, own_distances
from autotune.workload.arguments import Arguments

_SLOPE_STEP = 0.02
"""Share of the loss by which it is to change along the gradient, in each direction."""
_NUM_NUDGES = 4


class SeededSteps:
    """Takes steps of one model and optimizer. Keeps a copy of the weights, where they lie, until `keep`."""

    def __init__(self, backend: Backend, training: Training, model: Any, optimizer: Any, seed: int) -> None:
        """`seed`: the one with which the model was built."""
        self._backend = backend
        self._training = training
        self._model = model
        self._optimizer = optimizer
        self._seed = seed
        self._start: Beginning | None = self._beginning(training.begun_with(model, optimizer))
        self._put_back: Callable[[], None] | None = self._start.put_back

    @property
    def weights(self) -> Sequence[Any]:
        """What the optimizer trains."""
        return self._training.trained(self._optimizer)

    @property
    def start(self) -> Beginning:
        """Where the steps that are compared began."""
        assert self._start is not None, "steps are compared"
        return self._start

    @property
    def can_rewind(self) -> bool:
        """Where they began was kept."""
        return self._put_back is not None

    def rewind(self) -> None:
        """The model is where its steps began. Raises LostStartError for a place that was kept in a file."""
        assert self._put_back is not None, "it was kept"
        self._put_back()

    def begin_anew(self) -> None:
        """Steps are compared once more, from where the model is."""
        self._start = self._beginning(self.weights)

    def keep(self, put_back: Callable[[], None] | None) -> None:
        """No step is compared for now. `put_back` leads to where they began; None: nothing does."""
        self._start, self._put_back = None, put_back

    def contents(self) -> list[Hashable]:
        """A value for each weight, which is another one once the weight was changed."""
        return [self._backend.content(weight, reads_weights=True) for weight in self.weights]

    def kept(self) -> Kept | None:
        """What there is now; None where it cannot be kept."""
        try:
            held = partial(self._training.held, self._model, self._optimizer)
            return Kept(self._backend, held, self._training.write)
        except Exception:  # A full disk, or a tensor that NumPy has no form for.
            traceback.print_exc()
            return None

    def seed(self, number: int) -> None:
        """The random numbers of the step of this number: others than those with which the model was built, which are in
        its weights."""
        self._backend.seed(self._seed + 1 + number)

    def taken(self, step: Step, batch: Arguments, number: int = 0) -> float:
        """The loss of a step on this batch, with the random numbers of the step of this number."""
        self.seed(number)
        return self.loss(batch.call(step))

    def loss(self, returned: Any) -> float:
        """What a step returned, as a number. Raises AutotuneError where it is none."""
        arrays = output_arrays(self._backend, returned)
        if len(arrays) != 1 or arrays[0].size != 1:
            shapes = ", ".join(str(array.shape) for array in arrays) or "no tensor"
            raise AutotuneError(f"the loss gave {shapes} and not one number", tip="let it return its mean or its sum")
        return float(arrays[0].reshape(()))

    def gradients(self) -> list[Gradient]:
        """What is kept of those of the last step."""
        given = self._training.gradients(self._optimizer)
        held = ([] if each is None else parts_held(self._backend, "", each) for each in given)
        return [{part.name: part.array for part in parts or ()} for parts in held]

    def repeated(self, step: Step, example: Arguments) -> tuple[float, bool]:
        """The loss of the first step, taken again from where it began, and whether it draws random numbers."""
        self.rewind()
        self.seed(0)
        random_state = self._backend.random_state()
        loss = self.taken(step, example)
        return loss, self._backend.random_state() != random_state

    def over_draws(self, step: Step, example: Arguments) -> Array:
        """The losses of the first batch over several draws, shape `(NUM_DRAWS,)`, each from where the first step
        began."""
        losses = []
        for number in range(NUM_DRAWS):
            self.rewind()
            losses.append(self.taken(step, example, number))
        return np.array(losses)

    def slope(self, step: Step, example: Arguments) -> float | None:
        """See `StepsTaken.slope`. The first step is taken again for each direction: a copy of its gradients takes as
        much memory as the weights."""
        change = 0.0
        for sign in (1.0, -1.0):
            self.start.put_back()
            by = _SLOPE_STEP * abs(self.taken(step, example))
            if not self.start.go_along(self._training.gradients(self._optimizer), sign * by):
                return None
            change += sign * self.taken(step, example) / (2 * by)
        return change

    def spreads(
        self, step: Step, example: Arguments, gradients: list[Gradient], tolerance: float | None
    ) -> tuple[Array | None, list[Array]]:
        """The largest distance of each gradient of the first step from what it is with weights that are nudged by a
        share of the tolerance, and the same of it and its slices by their own norms. None and nothing without a
        tolerance: no reference is made."""
        if tolerance is None:
            return None, []
        weights, share = self.weights, NUDGE * tolerance
        spread = np.zeros(len(gradients))
        own = [own_distances(gradient, gradient) for gradient in gradients]
        for number in range(_NUM_NUDGES):
            self.start.put_back()
            self.seed(number)
            self._training.write(weights, (self._backend.nudge(weight, share) for weight in weights))
            self.taken(step, example)
            nudged = self.gradients()
            spread = np.maximum(spread, [gradient.distance for gradient in compared(gradients, nudged)])
            own = [np.maximum(*each) for each in zip(own, map(own_distances, gradients, nudged), strict=True)]
        return spread, own

    def _beginning(self, tensors: Sequence[Any]) -> Beginning:
        return Beginning(self._backend, self._training, self._optimizer, tensors)
