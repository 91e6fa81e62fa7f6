"""A training step under a config: PyNative, ms.jit around all of it or a part, or TrainOneStepCell in graph mode.

A step is made once. What fails before anything was written, as a compilation does, leaves the step to the untuned one;
anything else that fails is raised. "Measured" means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.communication import GlobalComm, get_group_size
from numpy.typing import NDArray

from autotune.backends.capabilities import USUAL_LEARNING_RATE, Updates
from autotune.backends.mindspore.apply import prepare
from autotune.backends.mindspore.call_values import call_key
from autotune.backends.mindspore.compiled_cell import CompiledCell, Compiling, jitted, whole_graph
from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.proxy import proxy
from autotune.backends.mindspore.regions import note_compiled
from autotune.backends.mindspore.state import Snapshot, initialise
from autotune.backends.mindspore.tensors import array_of
from autotune.backends.origin import Origin, origin
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError, UnsuitableCallError, finish_by, let_through
from autotune.measure.agreement import rms_of
from autotune.workload.regions import Region

_DROPOUTS = tuple(
    found
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "DropoutExt", "Dropout2dExt")
    if (found := first(f"mindspore.nn:{name}")) is not None
)
draw_as_uncompiled = None
"""Its dropout keeps the state of its generator in a kernel, or has its seed as a constant of the graph (measured): a
compiled step draws other numbers, and nothing can be set to change that."""


def training_step(
    model: ms.nn.Cell,
    loss: Callable[..., Any],
    optimizer: ms.nn.Optimizer,
    config: Config,
    changes: UndoLog,
    *,
    updates: Updates | None = None,
) -> Callable[..., Any]:
    """See `Training.training_step`. `loss` is compiled along, so it must be a function of its own: MindSpore reads its
    source, and finds no lambda inside an expression."""
    arguments = prepare(model, config, "train", changes)
    update = _updating(optimizer, updates or Updates())
    untuned = _pynative_step(_gradients_of(model, loss, optimizer), update)
    if arguments.mixed_precision is not None:
        raise InvalidConfigError("knob amp_level: half precision needs a loss scale, which a training step has not")
    scope = config.get("scope", "step") if arguments.jit is not None else None
    if (arguments.whole_graph or scope == "step") and update is not optimizer:
        raise InvalidConfigError(
            "the config compiles the whole step, optimizer included, which adds up no gradients and clips none",
            tip="leave out accumulate and clip_grad_norm, or tune with a space whose knob scope has gradients or model",
        )
    if arguments.whole_graph:
        cell = ms.nn.TrainOneStepCell(WithLoss(model, loss), optimizer)
        if arguments.jit_config:
            cell.set_jit_config(ms.JitConfig(**arguments.jit_config))
        note_compiled(model, cell)
        whole = SameState(Compiling(whole_graph(cell), arguments.compiling), model, optimizer)
        return BeforeAnyWrite(whole, untuned, model, optimizer)
    if scope is None:
        return untuned
    called = proxy(model, None, CompiledCell(model, arguments), changes) if scope == "model" else model
    gradients = _gradients_of(called, loss, optimizer)
    if scope == "step":
        step = jitted(_pynative_step(gradients, optimizer), arguments)
        whole = SameState(Compiling(step, arguments.compiling), model, optimizer)
        return BeforeAnyWrite(whole, untuned, model, optimizer)
    if scope == "gradients":
        gradients = SameState(Compiling(jitted(gradients, arguments), arguments.compiling), model)
    return _pynative_step(BeforeAnyWrite(gradients, untuned, model, optimizer), update)


def _gradients_of(model: ms.nn.Cell, loss: Callable[..., Any], optimizer: ms.nn.Optimizer) -> Callable[..., Any]:
    trained_by = getattr(optimizer, "parameters", None)
    weights = model.trainable_params() if trained_by is None else trained_by
    gradients: Callable[..., Any] = ms.value_and_grad(WithLoss(model, loss), None, weights)
    return gradients


def _pynative_step(value_and_gradients: Callable[..., Any], update: Callable[[Any], object]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        value, gradients = value_and_gradients(*args)
        update(gradients)
        return value

    return step


def _updating(optimizer: ms.nn.Optimizer, updates: Updates) -> Callable[[Any], object]:
    """What takes the gradients of each call; the optimizer itself where it steps by them as they are. Raises InputError
    for an object that is no optimizer at all."""
    if not callable(optimizer):
        raise InputError(
            f"training_step() was given as the optimizer a {type(optimizer).__name__}, which cannot be called",
            tip="call it as training_step(model, loss, optimizer)",
        )
    if updates.are_plain:
        plain: Callable[[Any], object] = optimizer
        return plain

    def take(gradients: Sequence[ms.Tensor]) -> None:
        held = updates.held if updates.num_made else None
        updates.held = tuple(gradients) if held is None else tuple(map(ms.ops.add, held, gradients))
        if updates.note_call():
            update()

    def update() -> None:
        number, gradients = updates.num_made, updates.held
        updates.num_made, updates.held = 0, None
        if number > 1:
            gradients = tuple(gradient / number for gradient in gradients)
        if updates.clip_grad_norm is not None:
            gradients = ms.ops.clip_by_global_norm(gradients, updates.clip_grad_norm)
        optimizer(tuple(gradients))

    updates.update = update
    return take


class BeforeAnyWrite:
    """The compiled part of a step. Where it fails at its first call of a form, and has written to no Parameter and set
    no attribute, the untuned step is made in its place: see `errors.finish_by`."""

    def __init__(self, part: Callable[..., Any], untuned: Callable[..., Any], *cells: ms.nn.Cell) -> None:
        self._part = part
        self._untuned = untuned
        self._cells = cells
        self._succeeded: set[Hashable] = set()

    def __call__(self, *args: Any) -> Any:
        key = call_key(args)
        before = None if key in self._succeeded else self._written()
        try:
            result = self._part(*args)
        except UnsuitableCallError:
            raise
        except Exception as error:
            if origin(error) is Origin.JOB:
                let_through(error)
            is_as_before = before is not None and self._is_as(before) and not _is_one_of_many()
            finish_by(error, partial(self._untuned, *args) if is_as_before else None)
            raise
        self._succeeded.add(key)
        return result

    def _written(self) -> tuple[Snapshot, list[float]]:
        for cell in self._cells:
            initialise(cell)
        parameters = [parameter for cell in self._cells for parameter in cell.get_parameters()]
        return Snapshot(*self._cells), [float(parameter.asnumpy().sum(dtype=np.float64)) for parameter in parameters]

    def _is_as(self, before: tuple[Snapshot, list[float]]) -> bool:
        state, sums = self._written()
        return before[0].means(state) and before[1] == sums


def _is_one_of_many() -> bool:
    """Others take part in this process's steps."""
    return bool(GlobalComm.INITED) and int(get_group_size()) > 1


class SameState:
    """A compiled step of Cells that have to stay as they were at the first step: see `mindspore.state`.

    It is not compiled again for another state, as a model's call is: steps take long to compile, and a learning rate
    that is given by `set_data` would be another state each time.
    """

    def __init__(self, step: Callable[..., Any], *cells: ms.nn.Cell) -> None:
        self._step = step
        self._cells = cells
        self._seen: Snapshot | None = None
        self._was_called = False

    def __call__(self, *args: Any) -> Any:
        if self._seen is None or not self._seen.holds():
            for cell in self._cells:
                initialise(cell)
            now = Snapshot(*self._cells)
            if self._seen is not None and not self._seen.means(now):
                raise UnsuitableCallError(
                    "the model or its optimizer was changed after the first compiled step (values by set_data or "
                    "load_param_into_net, buffers, attributes, or modes), which a compiled step does not see",
                    tip="load before the first step, or change Parameters in place with ops.assign",
                    lasting=True,
                )
            self._seen = now if self._seen is None else now.with_live_buffers_of(self._seen)
        result = self._step(*args)
        if not self._was_called:
            self._was_called = True
            self._seen.note_live_buffers()
        return result


class WithLoss(ms.nn.Cell):  # type: ignore[misc]
    """A batch to its loss. Around the model, whose parameters keep their names."""

    def __init__(self, model: ms.nn.Cell, loss: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.loss = loss

    def construct(self, *batch: Any) -> Any:
        return self.loss(self.model, *batch)


def check_optimizer(optimizer: Any) -> str | None:
    """See `Training`."""
    if issubclass(type(optimizer), ms.nn.Optimizer):
        return None
    return f"a {type(optimizer).__name__}; the mindspore backend needs a mindspore.nn.Optimizer"


def usual_optimizer(model: ms.nn.Cell) -> ms.nn.Optimizer:
    """See `Training`."""
    return ms.nn.AdamWeightDecay(model.trainable_params(), learning_rate=USUAL_LEARNING_RATE)


def set_training(model: ms.nn.Cell) -> None:
    """See `Training`."""
    if not model.training:
        model.set_train()


def of_calls(config: Config) -> Config:
    """See `Training`. Half precision is not for training steps."""
    return config


def unlike_the_step(model: ms.nn.Cell, config: Config) -> Callable[[], None]:
    """See `Training`."""
    return lambda: None


def draws_as_uncompiled(config: Config) -> bool:
    """See `Training`."""
    return False


def calls_as_compiled(config: Config) -> bool:
    """See `Training`."""
    return config.get("execution") == "jit" and config.get("scope") == "model" and Region.of(config).is_whole


def silence(model: ms.nn.Cell) -> Callable[[], None]:
    """See `Training`: a dropout layer that is not in training mode passes on what it is given."""
    dropping = [cell for _, cell in model.cells_and_names() if dropped_share(cell)]
    for cell in dropping:
        cell.set_train(False)

    def put_back() -> None:
        for cell in dropping:
            cell.set_train()

    return put_back


def dropped_share(cell: Any) -> float:
    """The share that a Cell of MindSpore's own drops when it is called as it stands."""
    if not cell.training:
        return 0.0
    if isinstance(cell, _DROPOUTS):
        # The share is `p`, in Dropout1d `prob`; Dropout2d, Dropout3d and an old Dropout have what they keep (measured).
        share = getattr(cell, "p", getattr(cell, "prob", None))
        return 1 - float(cell.keep_prob) if share is None else float(share)
    return float(cell.dropout) if isinstance(cell, ms.nn.MultiheadAttention) else 0.0


def begun_with(model: ms.nn.Cell, optimizer: ms.nn.Optimizer) -> list[ms.Parameter]:
    """See `Training`: moments tell of the gradients."""
    return held(model, optimizer)


def held(model: ms.nn.Cell, optimizer: ms.nn.Optimizer) -> list[ms.Parameter]:
    """See `Training.held`."""
    return list({id(each): each for each in [*model.get_parameters(), *optimizer.get_parameters()]}.values())


def trained(optimizer: ms.nn.Optimizer) -> list[ms.Parameter]:
    """See `Training`."""
    return list(optimizer.parameters)


def copies(tensors: Iterable[ms.Parameter]) -> list[NDArray[Any]]:
    """See `Training`. On the host, one after the other."""
    return [array_of(parameter).copy() for parameter in tensors]


def write(tensors: Iterable[ms.Parameter], values: Iterable[ms.Tensor | NDArray[Any]]) -> None:
    """See `Training`. They are assigned in place: what `set_data` gives a Parameter, a graph compiled before does not
    see (measured)."""
    for parameter, value in zip(tensors, values, strict=True):
        ms.ops.assign(parameter, ms.Tensor(value, dtype=parameter.dtype))


def rms(tensor: ms.Tensor, copy: NDArray[Any] | None = None) -> float:
    """See `Training`. On the host."""
    array = array_of(tensor)
    return rms_of(array if copy is None else array.astype(np.float64) - copy)


def gradients(optimizer: ms.nn.Optimizer) -> list[ms.Parameter]:
    """See `Training`. What the optimizer keeps of the gradients, for each weight: its clones of them, such as
    `moment1.head.weight`.

    The gradients themselves never leave a compiled step. After the first one Adam's first moment is a tenth of them.
    """
    suffixes = tuple(f".{parameter.name}" for parameter in optimizer.parameters)
    state = [kept for kept in optimizer.get_parameters() if kept.name.endswith(suffixes) and kept.is_floating_point()]
    trained_ids = {id(parameter) for parameter in optimizer.parameters}
    return [kept for kept in state if id(kept) not in trained_ids]
