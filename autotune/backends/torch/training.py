"""A training step under a config: forward, loss, backward, and the optimizer's step.

What is compiled is the model, or the model with the loss; AOTAutograd makes the backward of it. A step as one graph is
not to be had: dynamo breaks at `backward()`, and with `trace_autograd_ops` at what the loss returns (2.13; three graphs
either way, and no faster). The optimizer's step is a graph of its own.

Rule of this file: a step is made once. What does not compile runs as it is written, where it stands, and the step goes
on. What fails as it runs is made again only if all that it has moved is put back, and by one process alone.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from autotune.backends.capabilities import NO_GRADIENT
from autotune.backends.origin import Origin, origin
from autotune.backends.torch.apply import device_of, prepare, with_attention
from autotune.backends.torch.compiler import Attempts, Compile, compiler
from autotune.backends.torch.forward_state import ForwardState, contents_of
from autotune.backends.torch.hints import TRAINING_STEP
from autotune.backends.torch.knobs import Settings, require_for_training, settings_of
from autotune.backends.torch.optimizer_step import OptimizerStep, place_counts, written
from autotune.backends.torch.parallel import is_one_of_many, is_sharded, watched_for_synchronisation
from autotune.backends.torch.unused_weights import UnusedWeights
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError, UnsuitableCallError, finish_by, let_through

_log = logging.getLogger("autotune")
_Loss = Callable[..., torch.Tensor]


def training_step(
    model: torch.nn.Module, loss: _Loss, optimizer: torch.optim.Optimizer, config: Config, changes: UndoLog
) -> Callable[..., torch.Tensor]:
    """See `Training.training_step`. Gradients are cleared before they are computed, so they can be read afterwards."""
    settings = settings_of(config)
    require_for_training(settings)
    _require_implementation(optimizer, settings)
    attempts = Attempts()
    setup = prepare(model, settings, changes, attempts=attempts)
    if settings.optimizer_impl is not None:
        changes.make(lambda: None, lambda: place_counts(optimizer))
    untuned = PlainStep(partial(loss, model), optimizer, OptimizerStep(optimizer, None, None))
    if not settings.compiles_anything and settings.optimizer_impl is None and settings.autocast is None:
        return watched_for_synchronisation(model, untuned)
    forward: _Loss = setup.wrap(_forward(model, loss, settings, setup.compile))
    compile_ = compiler({}, [], attempts) if settings.optimizer_compiled else None
    update = OptimizerStep(optimizer, settings.optimizer_impl, compile_)
    step = TunedStep(PlainStep(forward, optimizer, update), untuned, ForwardState(model), attempts, settings)
    return watched_for_synchronisation(model, step)


class PlainStep:
    """The parts of a step, and the step that they make."""

    def __init__(self, forward: _Loss, optimizer: torch.optim.Optimizer, update: OptimizerStep) -> None:
        self.forward = forward
        self.optimizer = optimizer
        self.update = update

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        value = self.forward(*args, **kwargs)
        _require_number(value)
        value.backward()  # type: ignore[no-untyped-call]
        self.update()
        return value.detach()


class TunedStep:
    """A step under a config. An exception that ends it says how it comes to its end untuned: see `errors.finish_by`."""

    def __init__(
        self, tuned: PlainStep, untuned: PlainStep, state: ForwardState, attempts: Attempts, settings: Settings
    ) -> None:
        self._tuned = tuned
        self._untuned = untuned
        self._state = state
        self._attempts = attempts
        self._settings = settings
        self._unused = UnusedWeights(partial(trained_parameters, tuned.optimizer))
        self._update = tuned.update
        self._changes_optimizer = settings.optimizer_compiled or settings.optimizer_impl is not None
        self._has_updated = False

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        put_back = _nothing if is_one_of_many() else self._state.kept()
        self._tuned.optimizer.zero_grad(set_to_none=True)
        try:
            value = self._with_gradients(put_back, args, kwargs)
        except UnsuitableCallError:
            raise
        except Exception as error:
            finish_by(error, self._made_again(error, put_back, args, kwargs))
            raise
        self._state.note_success()
        self._take_step(value)
        failed = self._attempts.take_error()
        if failed is not None:
            finish_by(failed, value.detach)
            raise failed
        return value.detach()

    def _with_gradients(
        self, put_back: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        value = self._tuned.forward(*args, **kwargs)
        _require_number(value)
        found = self._unused.watched(value) if self._settings.compiled else []
        value.backward()  # type: ignore[no-untyped-call]
        self._unused.clear(found, partial(self._unused_of, put_back, args, kwargs))
        return value

    def _unused_of(
        self,
        put_back: Callable[[], None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weights: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Asks the untuned loss, from where this step began. Many processes would have to ask at once: none does."""
        if is_one_of_many():
            return []
        come_back = ForwardState(self._state.model).kept()
        put_back()
        try:
            value = self._untuned.forward(*args, **kwargs)
            gradients = torch.autograd.grad(value, weights, allow_unused=True)
        finally:
            come_back()
        return [weight for weight, each in zip(weights, gradients, strict=True) if each is None]

    def _take_step(self, value: torch.Tensor) -> None:
        if self._changes_optimizer and is_one_of_many() and not is_sharded(self._state.model):
            self._leave_optimizer()
        before = None if self._has_updated or not self._can_undo_update() else written(self._tuned.optimizer)
        try:
            self._update()
        except Exception as error:
            self._attempts.take_error()
            if origin(error) in (Origin.JOB, Origin.HOOK) or not self._changes_optimizer:
                let_through(error)
            is_as_before = before is not None and before == written(self._tuned.optimizer)
            finish_by(error, partial(self._update_untuned, value) if is_as_before else None)
            raise
        self._has_updated = True

    def _leave_optimizer(self) -> None:
        """One that falls back alone would round otherwise than the others, and nothing brings the weights together."""
        self._changes_optimizer = False
        self._update = self._untuned.update
        _log.warning(
            "autotune: the optimizer steps as the job has it, neither compiled nor in another implementation: several "
            "processes train copies of the same weights, and their steps must be alike"
        )

    def _can_undo_update(self) -> bool:
        return self._changes_optimizer and self._update.is_plain() and not is_one_of_many()

    def _update_untuned(self, value: torch.Tensor) -> torch.Tensor:
        self._untuned.update()
        return value.detach()

    def _made_again(
        self, error: Exception, put_back: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], torch.Tensor] | None:
        """The whole step, untuned, from where it began; None for an exception that the job gets as it is."""
        of = origin(error)
        if self._attempts.take_error() is not None or (of is Origin.JOB and self._settings.autocast is None):
            let_through(error)  # It ran as it is written.
        if is_one_of_many() or of not in (Origin.TUNED, Origin.JOB):
            return None

        def again() -> torch.Tensor:
            put_back()
            return self._untuned(*args, **kwargs)

        return again


def _require_number(value: object) -> None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    error = InputError(
        f"the loss gave {what} and not one number",
        tip=f"{TRAINING_STEP}: let the loss return a tensor of one number, its mean or its sum",
    )
    let_through(error)
    raise error


def _nothing() -> None:
    """What is put back where nothing was kept."""


def why_unsuitable(optimizer: torch.optim.Optimizer) -> str | None:
    """A sentence about an optimizer whose step needs more than gradients, such as LBFGS; None for any other."""
    parameters = inspect.signature(optimizer.step).parameters.values()
    needed = [
        each.name for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    if not needed:
        return None
    return f"{type(optimizer).__name__}, whose step() needs a {needed[0]}; {TRAINING_STEP} without one"


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """See `Training.snapshot`. What the optimizer holds is left as it is: its gradients can be read without."""
    return contents_of([*dict.fromkeys([*model.parameters(), *model.buffers(), *trained_parameters(optimizer)])])


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in order."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def set_weights(optimizer: torch.optim.Optimizer, arrays: Iterable[NDArray[Any]]) -> None:
    """See `Training.set_weights`."""
    with torch.no_grad():
        for parameter, array in zip(trained_parameters(optimizer), arrays, strict=True):
            parameter.copy_(torch.as_tensor(array))


def gradients(optimizer: torch.optim.Optimizer, to_array: Callable[[Any], NDArray[Any]]) -> list[NDArray[Any]]:
    """See `Training.gradients`."""
    found = (each.grad for each in trained_parameters(optimizer))
    return [NO_GRADIENT if each is None else to_array(each).copy() for each in found]


def _forward(
    model: torch.nn.Module, loss: Callable[..., torch.Tensor], settings: Settings, compile_: Compile | None
) -> Callable[..., torch.Tensor]:
    """The loss of a batch, under autocast as a whole: a loss must not be computed in bfloat16."""
    called: Any = with_attention(model, settings)
    if compile_ is not None and settings.scope == "model":
        called = compile_(called)
    dtype = None if settings.autocast is None else getattr(torch, settings.autocast)
    device = device_of(model).type

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        with nullcontext() if dtype is None else torch.autocast(device, dtype=dtype):
            return loss(called, *args, **kwargs)

    return compile_(forward) if compile_ is not None and settings.scope == "loss" else forward


def _require_implementation(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    impl = settings.optimizer_impl
    if impl is not None and impl not in optimizer.defaults:
        raise InvalidConfigError(f"knob optimizer_impl: {type(optimizer).__name__} has no {impl} implementation")
