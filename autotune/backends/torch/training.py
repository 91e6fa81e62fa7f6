"""A training step under a config: forward, loss, backward, and the optimizer's step.

What is compiled is the model, or the model with the loss; AOTAutograd makes the backward of it. A step as one graph is
not to be had: dynamo breaks at `backward()`, and with `trace_autograd_ops` at what the loss returns (2.13; three graphs
either way, and no faster). The optimizer's step is a graph of its own.

Rule of this file: a step is made once. What does not compile runs as it is written, where it stands, and the step goes
on. What fails as it runs is made again only if all that it has moved is put back, and by one process alone.
"""

from __future__ import annotations

import importlib
import logging
import re
import textwrap
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from autotune.backends.capabilities import USUAL_LEARNING_RATE, Updates
from autotune.backends.origin import Origin, origin
from autotune.backends.torch.apply import prepare
from autotune.backends.torch.compiler import Compile, CompileAttempts, compiler
from autotune.backends.torch.forward_state import ForwardState
from autotune.backends.torch.given_model import NOT_RECORDED, autocast_around
from autotune.backends.torch.gradients import EarlierGradients, Gradients, UnusedWeights, trained_by
from autotune.backends.torch.knobs import Settings, require_for_training, settings_of
from autotune.backends.torch.optimizer_step import (
    OptimizerStep,
    is_plain,
    needed_by_step,
    place_counts,
    require_steps,
    written,
)
from autotune.backends.torch.parallel import is_one_of_many, is_sharded, watched_for_synchronisation
from autotune.backends.torch.precision import with_attention
from autotune.backends.torch.rehearsal import gradients_instead
from autotune.backends.torch.tensors import device_of, sum_of_squares
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError, UnsuitableCallError, finish_by, let_through
from autotune.workload.regions import Region
from autotune.workload.workload import Task

_log = logging.getLogger("autotune")
_Loss = Callable[..., torch.Tensor]


def training_step(
    model: torch.nn.Module,
    loss: _Loss,
    optimizer: torch.optim.Optimizer,
    config: Config,
    changes: UndoLog,
    *,
    updates: Updates | None = None,
) -> Callable[..., torch.Tensor]:
    """See `Training.training_step`. Gradients are cleared before they are computed, so they can be read afterwards."""
    require_steps(optimizer)
    settings = settings_of(config)
    require_for_training(settings)
    impl = settings.optimizer_impl
    if impl is not None and impl not in optimizer.defaults:
        raise InvalidConfigError(f"knob optimizer_impl: {type(optimizer).__name__} has no {impl} implementation")
    attempts = CompileAttempts()
    setup = prepare(model, settings, changes, attempts=attempts)
    if impl is not None:
        changes.make(lambda: None, lambda: place_counts(optimizer))
    gradients = Gradients(model, optimizer, updates or Updates())
    untuned = PlainStep(partial(loss, model), gradients, gradients.step)
    if not settings.compiles_anything and impl is None and settings.autocast is None:
        return watched_for_synchronisation(model, untuned)
    forward: _Loss = setup.wrap(_forward(model, loss, settings, setup.compile))
    compile_ = compiler({}, [], attempts) if settings.optimizer_compiled else None
    update = OptimizerStep(optimizer, gradients.step, impl, compile_, with_closure=gradients.gives_closure)
    step = TunedStep(PlainStep(forward, gradients, update), untuned, ForwardState(model), attempts, settings)
    return watched_for_synchronisation(model, step)


class PlainStep:
    """The parts of a step, and the step that they make."""

    def __init__(self, forward: _Loss, gradients: Gradients, update: Callable[[], object]) -> None:
        self.forward = forward
        self.gradients = gradients
        self.optimizer = gradients.optimizer
        self.update = update

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rehearsed = gradients_instead()
        if rehearsed is None:
            self.gradients.begin()
        value = self.forward(*args, **kwargs)
        _require_number(value)
        if rehearsed is not None:
            rehearsed(value)
            return value.detach()
        self.gradients.part_of(value).backward()  # type: ignore[no-untyped-call]
        if self.gradients.are_complete(partial(self.forward, *args, **kwargs), value):
            self.update()
        return value.detach()


class TunedStep:
    """A step under a config. An exception that ends it says how it comes to its end untuned: see `errors.finish_by`."""

    def __init__(
        self, tuned: PlainStep, untuned: PlainStep, state: ForwardState, attempts: CompileAttempts, settings: Settings
    ) -> None:
        self._tuned = tuned
        self._untuned = untuned
        self._state = state
        self._attempts = attempts
        self._settings = settings
        self._unused = UnusedWeights(partial(trained_by, tuned.optimizer))
        self._update = tuned.update
        self._changes_optimizer = settings.optimizer_compiled or settings.optimizer_impl is not None
        self._has_updated = False

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        gradients, is_rehearsed = self._tuned.gradients, gradients_instead() is not None
        if is_rehearsed:
            earlier, put_back = EarlierGradients([]), self._state.kept()
        elif is_one_of_many():  # Nothing is made again, and DDP averages what has been added up beside the weights.
            gradients.begin()
            earlier, put_back = EarlierGradients([]), _leave
        else:
            earlier, put_back = gradients.begin_apart(), self._state.kept()
        try:
            value = self._with_gradients(put_back, args, kwargs)
        except Exception as error:
            earlier.bring_back()
            if not isinstance(error, UnsuitableCallError):
                finish_by(error, self._made_again(error, put_back, args, kwargs))
            raise
        if not is_rehearsed:
            self._state.note_success()
            earlier.add()
            if gradients.are_complete(partial(self._untuned.forward, *args, **kwargs), value):
                self._take_step(value)
        failed = self._attempts.take_error()
        if failed is not None:
            self._attempts.are_over = is_one_of_many()
            finish_by(failed, value.detach)
            raise failed
        return value.detach()

    def _with_gradients(
        self, put_back: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        value = self._tuned.forward(*args, **kwargs)
        _require_number(value)
        rehearsed = gradients_instead()
        if rehearsed is not None:
            rehearsed(value)
            return value
        found = self._unused.watched(value) if self._settings.compiled else []
        self._tuned.gradients.part_of(value).backward()  # type: ignore[no-untyped-call]
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
        return [weight for weight, gradient in zip(weights, gradients, strict=True) if gradient is None]

    def _take_step(self, value: torch.Tensor) -> None:
        if self._changes_optimizer and is_one_of_many() and not is_sharded(self._state.model):
            self._leave_optimizer()
        may_undo = not self._has_updated and self._changes_optimizer and not is_one_of_many()
        before = written(self._tuned.optimizer) if may_undo and is_plain(self._tuned.optimizer) else None
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


def _leave() -> None:
    """Nothing is put back."""


def _require_number(value: object) -> None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    if isinstance(value, dict):
        what = f"{what} of {textwrap.shorten(', '.join(map(str, value)), 80)}"
    error = InputError(
        f"the loss gave {what} and not one number",
        tip=f"{TRAINING_STEP}: let the loss return a tensor of one number, its mean or its sum; without a loss it is "
        "what the model returns, which needs labels among its inputs",
    )
    let_through(error)
    raise error


def check_optimizer(optimizer: Any) -> str | None:
    """See `Training`. One that stands around another, and a step that needs more than gradients, are not understood."""
    kind = type(optimizer).__name__
    if not issubclass(type(optimizer), torch.optim.Optimizer):  # A proxy says that it is one.
        return f"a {kind}; the torch backend needs a torch.optim.Optimizer"
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return f"a {kind}, which stands around another optimizer; the torch backend needs that one"
    needed = needed_by_step(optimizer)
    return f"{kind}, whose step() needs a {needed[0]}; {TRAINING_STEP} without one" if needed else None


def usual_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """See `Training`."""
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(trainable, lr=USUAL_LEARNING_RATE)


def set_training(model: torch.nn.Module) -> None:
    """See `Training`."""
    if not model.training:
        model.train()


def of_calls(config: Config) -> Config:
    """See `Training`. Autocast surrounds a step's model and loss: the job's own does so around its calls."""
    return Config({name: value for name, value in config.root.items() if name != "precision"})


def calls_as_compiled(config: Config) -> bool:
    """See `Training`."""
    settings = settings_of(config)
    return settings.scope == "model" and settings.region == Region()


def unlike_the_step(model: torch.nn.Module, config: Config) -> Callable[[], UnsuitableCallError | None]:
    """See `Training`. Under the job's autocast the same is compiled as in a step under the config's."""
    name = settings_of(config).autocast
    dtype = None if name is None else getattr(torch, name)

    def unlike() -> UnsuitableCallError | None:
        if dtype is None:
            return None
        device = device_of(model).type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is dtype:
            return None
        if autocast_of_forward(model) is dtype:
            return None
        return UnsuitableCallError(
            f"the config computes model and loss under autocast of {name}, and the call is not under it",
            tip=f"put `with torch.autocast({device!r}, torch.{name}):` around model and loss, or use training_step",
        )

    return unlike


def autocast_of_forward(model: torch.nn.Module) -> torch.dtype | None:
    """Type of the autocast that the `forward` enters which somebody has set in the model, as accelerate does."""
    found = autocast_around(vars(model).get("forward"))
    return found.fast_dtype if found is not None and found._enabled else None


silence = None


def draws_as_uncompiled(config: Config) -> bool:
    """See `Training`."""
    return config.get("fallback_random") is True


def draw_as_uncompiled() -> None:
    """See `Training`. Inductor has its own kernels for random numbers, and a switch to call PyTorch's."""
    settings: Any = importlib.import_module("torch._inductor.config")
    settings.fallback_random = True
    # A device's dropout draws in the order of its input in memory, which releases up to 2.11 change: the loss of the
    # first step was then 0.9 % off.
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    dropout = torch.ops.aten.native_dropout.default
    if dropout not in lowering._maybe_layout_constraints:
        lowering.add_layout_constraint(dropout, lowering.constrain_to_fx_strides)


def begun_with(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """See `Training`. Gradients are read where they are, whatever the optimizer holds."""
    return [*dict.fromkeys([*model.parameters(), *model.buffers(), *trained(optimizer)])]


def held(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """See `Training.held`."""
    moments = (value for state in optimizer.state.values() for value in state.values())
    return [*begun_with(model, optimizer), *(value for value in moments if isinstance(value, torch.Tensor))]


def trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """See `Training`."""
    return trained_by(optimizer)


def copies(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """See `Training`."""
    return [tensor.detach().clone() for tensor in tensors]


def write(tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor | NDArray[Any]]) -> None:
    """See `Training`."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(torch.as_tensor(value))


def rms(tensor: torch.Tensor, copy: torch.Tensor | None = None) -> float:
    """See `Training`."""
    return float((sum_of_squares(tensor, copy) / max(tensor.numel(), 1)) ** 0.5)


def gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    """See `Training`."""
    return [weight.grad for weight in trained(optimizer)]


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


# What to do about errors of a model's own in a trial, where PyTorch's message does not say it.

TRAINING_STEP = "a training step is `loss(model, *inputs, *targets).backward()` and then `optimizer.step()`"
_HINTS: dict[Task, dict[str, str]] = {
    "infer": {
        NOT_RECORDED: 'a trial calls the model under torch.no_grad(): return "gradients": True beside it to have them '
        "recorded, or let forward() compute what it differentiates under `with torch.enable_grad():`, from a tensor "
        "with requires_grad_()",
    },
    "train": {
        NOT_RECORDED: f"{TRAINING_STEP}: the loss must depend on weights that require gradients",
        r"\bclosure\b": f"{TRAINING_STEP} without a closure: an optimizer that needs one cannot be tuned",
    },
    "generate": {},
}
"""Task -> pattern of a message -> what to do."""


def hint(errors: Iterable[BaseException], task: Task) -> str | None:
    """For an exception and those that it came from, the first that is known."""
    for error in errors:
        for pattern, text in _HINTS[task].items():
            if re.search(pattern, str(error)):
                return text
    return None
