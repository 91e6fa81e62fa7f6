"""Calls of compiled code: what PyTorch's own guards do not see, and what compiled code cannot do, is found here.

Dynamo guards a model's parameters, attributes and modules, attributes and properties of their classes too, but not
methods of classes: one that is replaced (as libraries do that patch models) would not be called. Hooks for all modules
are not guarded either. No trial has compared gradients of inputs; and a checkpoint ends the second run of its forward
pass by an exception, which looks like a failure of the compiled code (PyTorch 2.13). A release that does not tell of a
checkpoint's hooks (2.6) compiles such calls, and the exception is let through.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, itemgetter
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.nn.modules import module as all_modules
from torch.utils import checkpoint

from autotune.backends.read_around import EnvironmentRead, variables_read
from autotune.backends.torch.compiler import Entry, Faults
from autotune.backends.torch.given_model import written_parts
from autotune.backends.torch.parallel import is_one_of_many
from autotune.backends.torch.tensors import DEEPEST, entries, tensors_in
from autotune.errors import UnsuitableCallError, let_through

_has_global_hooks: Callable[[], bool] = all_modules._has_any_global_hook
_is_recording: Callable[[], bool] = torch.is_grad_enabled
_saved_tensor_hooks: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)
_CHECKPOINT = checkpoint.CheckpointFunction.forward.__code__
_EndOfCheckpoint: Any = getattr(checkpoint, "_StopRecomputationError", ())


class CompiledStep:
    """Raises UnsuitableCallError, before anything runs, for a call that is not what was compiled and measured."""

    def __init__(
        self,
        model: torch.nn.Module,
        step: Callable[..., Any],
        faults: Faults | None = None,
        *,
        environment: Callable[[], None] | None = None,
        input_gradients: bool = False,
    ) -> None:
        """`faults`: see there; they come as they are found. `environment` raises UnsuitableCallError once the process
        is another one than the code was compiled for. `input_gradients`: it was measured with gradients of its inputs
        recorded."""
        self._model = model
        self._faults: Faults = [] if faults is None else faults
        self._environment = environment
        self._step = step
        self._unrecorded: Callable[..., Any] = getattr(step, "unrecorded", step)
        self._again = again(step)
        self._input_gradients = input_gradients
        self._methods = ClassMethods(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._faults or self._environment is not None:
            self._require_no_fault()
        if self._methods.have_changed():
            raise UnsuitableCallError(
                "a class of the model's modules was given another method after the config was applied",
                tip="apply the config again once the model is as it is to be used",
                lasting=True,
            )
        values = (*args, *kwargs.values()) if kwargs else args
        for value in values:
            if type(value) is not torch.Tensor and hasattr(type(value), "__next__"):
                raise UnsuitableCallError("an input is an iterator: a call that fails would have consumed part of it")
        if _has_global_hooks():
            raise _hooks_are_registered()
        step = self._unrecorded
        if _is_recording():
            self._require_measured(values)
            step = self._step
        elif self._model.training and _is_checkpointed():
            raise UnsuitableCallError("the call is made again for its gradients (checkpoint), untuned, and draws alike")
        try:
            return step(*args, **kwargs)
        except _EndOfCheckpoint as end:
            let_through(end)
            raise

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """A call without gradients that follows one like it, of the same task: that one was looked at."""
        if self._faults or self._environment is not None:
            self._require_no_fault()
        if _has_global_hooks():
            raise _hooks_are_registered()
        return self._again(*args, **kwargs)

    def _require_no_fault(self) -> None:
        if self._faults:
            raise self._faults[0]()
        if self._environment is not None:
            self._environment()

    def _require_measured(self, values: Iterable[Any]) -> None:
        """A call that is recorded for gradients is one that was measured so."""
        if not self._input_gradients and any(tensor.requires_grad for tensor in tensors_in(values)):
            raise UnsuitableCallError(
                "the call's inputs require gradients, and the config was measured without gradients",
                tip="tune with inputs that require gradients (requires_grad_())",
            )
        if _saved_tensor_hooks(True) is not None:
            raise UnsuitableCallError("what the call saves for gradients goes through hooks, as in a checkpoint")


def again(step: Callable[..., Any]) -> Callable[..., Any]:
    """What a step has for a call that follows one like it (`CompiledStep.again`), or the step itself."""
    found: Callable[..., Any] = getattr(step, "again", step)
    return found


def _hooks_are_registered() -> UnsuitableCallError:
    return UnsuitableCallError("hooks for all modules are registered, and compiled code would not call them")


def _is_checkpointed() -> bool:
    """A reentrant checkpoint calls without gradients first, and with them in the backward pass: from the same state of
    the generator compiled code would drop out other numbers than the model does then."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _CHECKPOINT:
        frame = frame.f_back
    return frame is not None


class ClassMethods:
    """The methods of a model's classes and their bases. Of PyTorch's own classes only `forward` is looked at."""

    def __init__(self, model: torch.nn.Module) -> None:
        classes = dict.fromkeys(base for module in model.modules() for base in type(module).__mro__)
        self._called = [kind for kind in classes if isinstance(getattr(kind, "forward", None), FunctionType)]
        self._forwards = [*map(_forward, self._called)]
        """Their own, or a base's: a class that gets one of its own has another one then."""
        self._written = [kind for kind in classes if not _is_pytorchs(kind)]
        self._then = [*map(_methods, self._written)]
        self._held = [*map(vars, self._written)]
        self._asks = [(itemgetter(*then), held) for then, held in zip(self._then, self._held, strict=True) if then]
        self._seen = [ask(held) for ask, held in self._asks]
        self._sizes = [*map(len, self._held)]

    def have_changed(self) -> bool:
        """Whether any was replaced, added or taken away. Quick: it is asked at each call."""
        try:
            if [*map(_forward, self._called)] != self._forwards:
                return True
        except AttributeError:
            return True
        return bool(self._written) and self._have_other_methods()

    def _have_other_methods(self) -> bool:
        try:
            if [ask(held) for ask, held in self._asks] != self._seen:
                return True
        except KeyError:
            return True
        sizes = [*map(len, self._held)]
        if sizes != self._sizes:  # An attribute of another kind may have come.
            if [*map(_methods, self._written)] != self._then:
                return True
            self._sizes = sizes
        return False


def same_environment(model: torch.nn.Module) -> Callable[[], None] | None:
    """Raises UnsuitableCallError once a variable was changed that the code of the model reads. None: it reads none."""
    names = variables_read(written_parts(model))
    if names is None:
        return None
    environment = EnvironmentRead(names)

    def require() -> None:
        changed = environment.changed()
        if changed is not None:
            raise UnsuitableCallError(
                f"the variable {changed} was changed after the first call, and compiled code does not read it again",
                tip="apply the config again once the environment is as it is to be, or let forward() read an attribute",
                lasting=True,
            )

    return require


def _methods(kind: type) -> dict[str, Any]:
    return {name: method for name, method in vars(kind).items() if isinstance(method, (FunctionType, classmethod))}


def _is_pytorchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins")


_forward = attrgetter("forward")


# Gradients through a compiled model: those that compiled code has not are computed by the model itself.
#
# AOTAutograd compiles a backward pass, which has no derivatives of its own, and no batches of gradients
# (`is_grads_batched`). Nobody knows at a call what will be asked of its graph, so the outputs have hooks. For an
# ordinary backward pass they do nothing. Where it is to be derived again, or is batched, the model is called once
# more with the same inputs, uncompiled, and its gradients take the place of the compiled graph's, which is given
# zeros: the job's line gets what it asks for, and calls that record gradients are untuned from then on.
#
# What such a call leaves behind is put back, but for attributes of Python; where it draws random numbers, the
# gradients are those of another draw.
#
# Autograd gives no gradient to a weight on which nothing depends that a loss takes, where a compiled graph gives zeros:
# weight decay moves those. Where outputs of a call have no gradient, zeros are taken away from the weights that the
# model itself, called once more, finds unused.

_FUNCTORCH = "torch._functorch.config"
_COMPILED_ALONG = {"force_non_lazy_backward_lowering": True}
"""The backward pass is compiled in the call, where a failure can still be answered untuned."""
_TWICE = {"donated_buffer": False}
"""Memory of what the forward pass saved is used for nothing else: a graph can be gone through twice (`retain_graph`),
also after ordinary passes."""
_is_batched: Callable[[Any], bool] = getattr(torch._C._functorch, "is_batchedtensor", lambda _: False)
_is_legacy_batched: Callable[[Any], bool] = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda _: False)
_is_transformed: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_keeps_graph: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: False)
_task_id: Callable[[], int] = torch._C._current_graph_task_id


def backward_entries(*, twice: bool) -> list[Entry]:
    """What is set while code is compiled whose gradients are taken. `twice`: a job may go through its graph again."""
    config = importlib.import_module(_FUNCTORCH)
    settings = _COMPILED_ALONG | _TWICE if twice else _COMPILED_ALONG
    return [(config, name, value) for name, value in settings.items() if hasattr(config, name)]


class DerivableStep:
    """Calls of a compiled model, of which any gradients can be taken. Raises UnsuitableCallError for calls that record
    them, once some were taken that compiled code has not."""

    def __init__(self, model: torch.nn.Module, step: Callable[..., Any]) -> None:
        """`model` is what was compiled."""
        self.model = model
        self.unused: dict[tuple[type, frozenset[int]], frozenset[int]] = {}
        """Compiled graph, and the outputs that have gradients -> which of its weights have none, by their places."""
        self.unrecorded = step
        """What calls come to that record no gradients."""
        self.is_over = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _is_recording():
            return self.unrecorded(*args, **kwargs)
        if self.is_over:
            raise UnsuitableCallError(
                "gradients of gradients (create_graph) or batches of them (is_grads_batched) were taken through the "
                "tuned model, and compiled code has none"
            )
        if _is_transformed() or not {*map(type, self.model.parameters())}.issubset(_plain_types()):
            raise UnsuitableCallError(
                "the call is under torch.func, or has other weights than the model's, as by functional_call"
            )
        result = self.unrecorded(*args, **kwargs)
        outputs = tensors_in((result,))
        if any(output.requires_grad for output in outputs):
            _Recorded(self, args, kwargs).watch(outputs)
        return result


def _plain_types() -> tuple[type, ...]:
    """Classes of a model's own weights: a sharded one has that of sharded tensors."""
    sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", torch.nn.Parameter)
    return torch.nn.Parameter, sharded


class _Recorded:
    """One call that recorded gradients. The hooks of its outputs hold it, so that it must hold none of its graph."""

    def __init__(self, step: DerivableStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._step = step
        self._arguments = (args, kwargs)
        self._autocast = _autocast_of(args, kwargs)
        self._outputs: list[torch.Tensor] = []
        """Outputs of the second call, once it was made."""
        self._task = -1
        self._replaced: dict[int, _Replaced] = {}
        """By the identity of a node, in the backward pass of this number."""
        self._used: set[int] = set()
        """Outputs that have a gradient in that backward pass, so far."""
        self._num_outputs = 0

    def watch(self, outputs: list[torch.Tensor]) -> None:
        recorded = {number: output for number, output in enumerate(outputs) if output.grad_fn is not None}
        self._num_outputs = len(recorded)
        for number, output in recorded.items():
            register: Callable[..., Any] = output.register_hook
            register(partial(self._checked, number, partial(torch.zeros, output.shape, dtype=output.dtype)))
        if len(recorded) > 1 and not is_one_of_many():  # Others would wait for the model's further call in vain.
            for node in graph_nodes(*(output.grad_fn for output in recorded.values())):
                if is_compiled(node):
                    node.register_hook(self._without_unused)

    def _checked(
        self, number: int, zeros: Callable[..., torch.Tensor], gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        """What takes the place of an output's gradient; None: nothing does, or there is none."""
        if _keeps_graph():
            _allow_again(graph_nodes(torch._C._current_autograd_node()))
        self._begin_task()
        if gradient is not None:
            self._used.add(number)
        if gradient is None or not (torch.is_grad_enabled() or _is_batched(gradient) or _is_legacy_batched(gradient)):
            return None
        self._step.is_over = True
        self._derive(number, gradient)
        return zeros(device=gradient.device)

    def _derive(self, number: int, gradient: torch.Tensor) -> None:
        """The gradients of the weights by this output, on their way to the weights in place of the compiled ones."""
        places: dict[torch.Tensor, tuple[_Replaced, int]] = {}
        for node in graph_nodes(torch._C._current_autograd_node()):
            replaced = self._replacing(node)
            for index, (function, _) in enumerate(node.next_functions):
                if hasattr(function, "variable"):
                    places.setdefault(function.variable, (replaced, index))
        output = self._recomputed()[number]
        if not (places and output.requires_grad):
            return
        found = torch.autograd.grad(
            output, list(places), gradient, create_graph=torch.is_grad_enabled(), retain_graph=True, allow_unused=True
        )
        for (replaced, index), found_gradient in zip(places.values(), found, strict=True):
            if found_gradient is not None:
                replaced.add(index, found_gradient)

    def _begin_task(self) -> None:
        if self._task != _task_id():
            self._task, self._replaced, self._used = _task_id(), {}, set()

    def _without_unused(self, found: tuple[torch.Tensor | None, ...], _: Any) -> tuple[torch.Tensor | None, ...] | None:
        """What a compiled graph gives its weights, once all outputs that come of them have given it their gradients."""
        if len(self._used) == self._num_outputs:
            return None
        node: Any = torch._C._current_autograd_node()
        key = type(node), frozenset(self._used)
        if key not in self._step.unused:
            self._step.unused[key] = self._found_unused(node, found)
        unused = [index for index in self._step.unused[key] if is_zero(found[index])]
        return tuple(None if index in unused else each for index, each in enumerate(found)) if unused else None

    def _found_unused(self, node: Any, found: tuple[torch.Tensor | None, ...]) -> frozenset[int]:
        zeros = {
            index: function.variable
            for index, (function, _) in enumerate(node.next_functions)
            if hasattr(function, "variable") and is_zero(found[index])
        }
        if not zeros:
            return frozenset()
        outputs = [output for output in map(self._recomputed().__getitem__, self._used) if output.requires_grad]
        gradients = torch.autograd.grad(
            outputs, [*zeros.values()], [*map(torch.zeros_like, outputs)], retain_graph=True, allow_unused=True
        )
        if not self._step.is_over:
            self._outputs = []
        return frozenset(index for index, gradient in zip(zeros, gradients, strict=True) if gradient is None)

    def _replacing(self, node: Any) -> _Replaced:
        if id(node) not in self._replaced:
            self._replaced[id(node)] = _Replaced(node, self._task)
        return self._replaced[id(node)]

    def _recomputed(self) -> list[torch.Tensor]:
        if not self._outputs:
            args, kwargs = self._arguments
            with torch.enable_grad(), self._autocast(), _left_as_it_is(self._step.model):
                self._outputs = tensors_in((self._step.model(*args, **kwargs),))
        return self._outputs


class _Replaced:
    """The gradients that a node of a compiled call's graph gives, in one backward pass: zeros, and what takes their
    place."""

    def __init__(self, node: Any, task: int) -> None:
        self._task = task
        self._is_compiled = is_compiled(node)
        self._gradients: dict[int, torch.Tensor] = {}
        """By the number of what the node is a function of."""
        self._handle = node.register_hook(self._hook)

    def add(self, index: int, gradient: torch.Tensor) -> None:
        self._gradients[index] = self._gradients[index] + gradient if index in self._gradients else gradient

    def _hook(self, found: tuple[torch.Tensor | None, ...], _: Any) -> tuple[torch.Tensor | None, ...] | None:
        self._handle.remove()
        if _task_id() != self._task:
            return None
        own = [gradient.detach() if self._is_compiled and gradient is not None else gradient for gradient in found]
        for index, gradient in self._gradients.items():
            if (zeros := own[index]) is not None:
                own[index] = zeros + gradient
        return tuple(own)


def _allow_again(nodes: list[Any]) -> None:
    """A graph that donates no memory says nothing of it, which PyTorch takes for some (2.13)."""
    for node in nodes:
        metadata: Any = getattr(getattr(type(node), "_forward_cls", None), "metadata", None)
        if getattr(metadata, "bw_donated_idxs", ()) is None:
            metadata.bw_donated_idxs = []


def graph_nodes(*ends: Any) -> list[Any]:
    """The nodes of a recorded graph from these on, but for those that hand gradients to the weights."""
    found: dict[int, Any] = {}
    nodes = [*ends]
    while nodes:
        node = nodes.pop()
        if node is not None and id(node) not in found and not hasattr(node, "variable"):
            found[id(node)] = node
            nodes += [function for function, _ in node.next_functions]
    return list(found.values())


def is_compiled(node: Any) -> bool:
    """It is the backward pass of a compiled graph; each has a class of its own."""
    return "CompiledFunction" in type(node).__name__


def is_zero(gradient: torch.Tensor | None) -> bool:
    """Every element is."""
    return gradient is not None and gradient.layout is torch.strided and not bool(gradient.any())


def _autocast_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    device = next((tensor.device.type for tensor in tensors_in((*args, *kwargs.values()))), "cpu")
    return partial(
        torch.autocast, device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
    )


@contextmanager
def _left_as_it_is(model: torch.nn.Module) -> Iterator[None]:
    """Buffers, and the states of random generators, are afterwards what they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {buffer.device for buffer, _ in before} | {weight.device for weight in model.parameters()}
    others = [device for device in devices if device.type != "cpu"]
    with torch.random.fork_rng(others, device_type=others[0].type if others else "cuda"):
        yield
    for buffer, content in before:
        buffer.data.copy_(content)  # Not counted as a write, which would end the backward pass of what was saved.


# Captured graphs (CUDA's, and NPU graphs alike): a replay writes its outputs where the replay before it wrote them.
#
# What a trial times and what a job calls is the same `ClonedOutputs`, so that the price of the copies is in every
# latency of a config with such graphs (docs/decisions/0026-captured-graphs.md).


class ClonedOutputs:
    """A step whose outputs are the caller's own, so that a job may keep them.

    PyTorch's advice for outputs that outlive the next call:
    https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(self._step, args, kwargs)

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """See `CompiledStep`."""
        return self._made(again(self._step), args, kwargs)

    def _made(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return _Copies(tensors_in((args, kwargs))).of(step(*args, **kwargs))


def copied(outputs: Any) -> Any:
    """The outputs of one call with tensors of their own, as `ClonedOutputs` gives them."""
    return _Copies(()).of(outputs)


class _Copies:
    """Copies of the tensors in one call's outputs, one of each; the caller's own tensors stay what they are."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        self._seen: dict[int, tuple[Any, Any]] = {id(tensor): (tensor, tensor) for tensor in given}
        """Id of an object -> the object itself, so that no other one gets the id, and what stands for it."""

    def of(self, value: Any, depth: int = 0) -> Any:
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        if isinstance(value, torch.Tensor):
            return self._note(value, value.clone())
        if isinstance(value, tuple) and depth < DEEPEST:
            parts = [self.of(part, depth + 1) for part in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return self._note(value, value._make(parts) if hasattr(value, "_make") else type(value)(parts))
        held = entries(value)
        if held is not None and depth < DEEPEST:
            # Not a new one: libraries have classes of their own, with attributes beside the items.
            self._note(value, value)
            for name, part in held:
                new = self.of(part, depth + 1)
                if new is part:
                    continue
                if isinstance(value, (MutableMapping, list)):
                    value[name] = new
                else:
                    object.__setattr__(value, name, new)  # It may have slots, or be frozen.
        return value

    def _note(self, value: Any, copy: Any) -> Any:
        self._seen[id(value)] = value, copy
        return copy
