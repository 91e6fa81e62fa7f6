"""A model as it is given: a plain function, one that is compiled already, one with lazy parameters, one that takes
gradients within its calls, one whose calls are recorded for them."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import MethodType
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.backends.contracts.models import WorkOfCall
from autotune.backends.proxy_object import method_of, proxy_of
from autotune.backends.read_around import names_in
from autotune.backends.torch.tensors import tensors_in
from autotune.errors import causes
from autotune.workload.workload import Load


class FunctionModel(torch.nn.Module):
    """A module whose calls are those of a function. The module of a bound method is a part of it; tensors and modules
    that a function takes from around it are not: they stay where they are, and are no parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.owner: torch.nn.Module | None = None
        called = function.func if isinstance(function, functools.partial) else function
        owner = called if isinstance(called, torch.nn.Module) else getattr(called, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            self.owner = owner
            self.training = owner.training
        self.__name__ = getattr(called, "__name__", type(called).__name__)
        self.__doc__ = function.__doc__

    def surroundings(self) -> dict[str, Any]:
        """Variables of its module that a plain function uses, by name: tensors, modules and other data."""
        function = inspect.unwrap(self.function)
        names, module = (function.__code__.co_names, function.__globals__) if inspect.isfunction(function) else ((), {})
        used = {name: module[name] for name in names if name in module}
        return {name: value for name, value in used.items() if not (inspect.isroutine(value) or inspect.isclass(value))}

    def around(self) -> list[Any]:
        """What the function takes from outside of its arguments: globals, variables of enclosing functions, and the
        attributes of the object whose method it is."""
        function = inspect.unwrap(self.function)
        owner = getattr(function, "__self__", None)
        return [*self.surroundings().values(), *enclosed_in(function), *getattr(owner, "__dict__", {}).values()]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def written_parts(model: torch.nn.Module) -> list[Any]:
    """Whose code calls of the model run: its modules and those around a function, and the function."""
    around = [model.function, *model.around()] if isinstance(model, FunctionModel) else []
    models = [model, *(part for part in around if isinstance(part, torch.nn.Module))]
    return [*(module for part in models for module in part.modules()), *around]


def has_modes(model: torch.nn.Module) -> bool:
    """A program that torch.export made has none, and says that it is in training."""
    return "train" not in vars(model)


_LEAST_SHARE = 0.1
"""Share of the weights that linear layers have at least: a network of convolutions may end in one, which hardly
counts."""
_LEAST_OF_CALL = 0.01
"""Share of a call's multiplications that products of matrices have at least, or it is not asked how they are made."""
_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)
_MULTIPLYING = (*_PRODUCTS, torch.ops.aten.convolution)
_NOT_MULTIPLIED = (torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.RNNBase)
"""Layers of PyTorch whose matrices are looked up in, or are multiplied within one operator."""


def has_packing() -> bool:
    """Whether PyTorch is built with both libraries that inductor packs linear layers for."""
    return bool(torch._C.has_mkl and torch._C._has_mkldnn)


def packs_linears(model: torch.nn.Module) -> bool:
    """Whether inductor packs linear layers of the model, or of the modules around a function, if they are frozen: by
    itself for MKL, which PyTorch has on x86 alone. A matrix in float32 is taken for one, be its module of any class."""
    if not has_packing():
        return False
    weights = [
        weight
        for module in _modules_in(model)
        if not isinstance(module, _NOT_MULTIPLIED)
        for weight in module.parameters(recurse=False)
    ]
    packed = sum(weight.numel() for weight in weights if weight.ndim == 2 and weight.dtype is torch.float32)
    return packed > _LEAST_SHARE * sum(weight.numel() for weight in weights)


_READ_AS_LONG = {torch.float64: 5.0, torch.float32: 10.0}
"""Operations for each byte that a product reads and writes, at which an A100 computes as long as it reads: 9.7 and 19.5
TFLOPS beside 2.0 TB/s; of an H100 they are 10 and 20. In float32 that is some 20 rows of numbers for each weight."""
_READ_AS_LONG_IN_HALF = 150.0
"""Types that tensor cores multiply, such as bfloat16, are as long computed at 312 TFLOPS: some 150 rows; of an H100 it
is 295."""


_HALF = (torch.bfloat16, torch.float16)
_CASTS = frozenset({"autocast", "bfloat16", "float16", "half"})
"""Names in the code of a model that may multiply in half precision."""


def work_of(model: torch.nn.Module, call: Callable[[], object], *, asks_load: bool) -> WorkOfCall:
    """See `Backend`. Counted on tensors without data, in which a call takes no more than its Python; nothing is known
    where the model needs the numbers."""
    has_products = packs_linears(model) or any(map(_is_a_product, _modules_in(model)))
    products = _Products()
    is_counted = asks_load or not has_products or _may_cast(model)
    counts = _multiplications(call, products) if is_counted else None
    if counts is None:
        return WorkOfCall()
    num_operations = sum(flops for operator, flops in counts.items() if operator in _PRODUCTS)
    lacks_products = num_operations < _LEAST_OF_CALL * sum(counts.values()) or not counts
    load: Load = "few rows" if products.reads_longer else "many rows"
    if counts.get(torch.ops.aten.convolution, 0) > num_operations:
        load = "convolutions"
    types = tuple(str(dtype).removeprefix("torch.") for dtype in _HALF if dtype in products.types)
    return WorkOfCall(lacks_products and not has_products, (load,) if asks_load and counts else (), types)


def _may_cast(model: torch.nn.Module) -> bool:
    """A call may multiply in another type than that of its tensors, by its code or by an autocast around a part."""
    parts = written_parts(model)
    called = (part if inspect.isfunction(part) else getattr(part, "forward", None) for part in parts)
    return bool(_CASTS & names_in(parts)) or any(autocast_around(each) is not None for each in called)


def autocast_around(forward: Any) -> torch.autocast | None:
    """The autocast that a function enters under which somebody has set it, as accelerate and a decorator do."""
    while forward is not None:
        found = next((each for each in enclosed_in(forward) if isinstance(each, torch.autocast)), None)
        if found is not None:
            return found
        forward = getattr(forward, "__wrapped__", None)
    return None


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How long the products of a call compute and read on an A100: each is bound by the longer of the two; and the
    types that it multiplies in."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._computes = self._reads = 0.0
        self.types: set[torch.dtype] = set()

    @property
    def reads_longer(self) -> bool:
        """Whether most of their time goes into reading, as in a decode step, which has one row for each text."""
        return self._reads >= self._computes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", None)
        if packet in _MULTIPLYING:
            self.types.update(each.dtype for each in args if isinstance(each, torch.Tensor))
        if packet in _PRODUCTS:
            first, second = [each for each in args if isinstance(each, torch.Tensor)][-2:]
            moved = sum(each.numel() * each.element_size() for each in (first, second, result))
            operations = 2 * result.numel() * first.shape[-1]
            computes = operations / _READ_AS_LONG.get(first.dtype, _READ_AS_LONG_IN_HALF)
            if moved >= computes:
                self._reads += moved
            else:
                self._computes += computes
        return result


def _modules_in(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Each once."""
    return list(dict.fromkeys(part for part in written_parts(model) if isinstance(part, torch.nn.Module)))


def _multiplications(call: Callable[[], object], products: _Products) -> dict[Any, int] | None:
    """Operator -> operations in a call, without its numbers; None where the model needs them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    try:
        # The counter comes last: it takes operations apart, and what these are made of reaches those before it.
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), products, FlopCounterMode(display=False) as n:
            call()
    except Exception:  # Whatever a model does with numbers that are not there.
        return None
    return dict(n.get_flop_counts().get("Global", {}))


def _is_a_product(module: torch.nn.Module) -> bool:
    """Its weights are those of a convolution of size 1 in steps of 1, which inductor may make a product of matrices."""
    if isinstance(module, torch.nn.modules.conv._ConvNd) and set(module.stride) != {1}:
        return False
    return any(weight.ndim > 2 and set(weight.shape[2:]) == {1} for weight in module.parameters(recurse=False))


def acting_in_training(model: torch.nn.Module) -> list[str]:
    """The modules that are in training mode and act by it, such as `BatchNorm1d 'norm'`, of a model or around a
    function: PyTorch's own, and others whose code reads their mode."""
    around = model.around() if isinstance(model, FunctionModel) else []
    models = [model, *(part for part in around if isinstance(part, torch.nn.Module))]
    named = {module: path for part in models for path, module in part.named_modules() if has_modes(part)}
    return [f"{type(module).__name__} {path or '(the model)'!r}" for module, path in named.items() if _acts(module)]


def dropped_share(module: torch.nn.Module) -> float:
    """The share that a module of PyTorch's own drops when it is called as it stands."""
    if not module.training:
        return 0.0
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return float(module.p)
    # A recurrent layer drops between its layers only.
    if isinstance(module, torch.nn.MultiheadAttention) or (
        isinstance(module, torch.nn.RNNBase) and module.num_layers > 1
    ):
        return float(module.dropout)
    return 0.0


def _acts(module: torch.nn.Module) -> bool:
    if not module.training or isinstance(module, FunctionModel):
        return False
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) or dropped_share(module):
        return True
    own = (vars(kind).values() for kind in type(module).__mro__ if kind.__module__.partition(".")[0] != "torch")
    functions = (inspect.unwrap(each) for held in own for each in held if inspect.isfunction(each))
    return any("training" in each.__code__.co_names for each in functions if inspect.isfunction(each))


def problem_of(given: Any) -> str | None:
    """Why it is no model that can be compiled, with a way out; None if it is one."""
    kind = type(given).__name__
    if isinstance(given, torch.jit.ScriptModule):
        return f"a {kind}, which torch.compile does not take; return the module that was scripted or traced"
    if isinstance(given, torch.nn.Module):
        empty = next((name for name, each in given.named_parameters() if each.is_meta), None)
        return empty and f"a {kind} without data in its weights ({empty} is on the meta device); load them first"
    if kind == "ExportedProgram":
        return f"an {kind}, which cannot be called; return its .module()"
    return f"a {kind}; the torch backend needs a torch.nn.Module or a function{_ways_out(given)}"


def _ways_out(given: Any) -> str:
    """What to return in place of an object that holds modules, such as a pipeline."""
    held = getattr(given, "components", None) or getattr(given, "__dict__", None) or {}
    modules = [f"{name} ({type(part).__name__})" for name, part in held.items() if isinstance(part, torch.nn.Module)]
    if not modules:
        return ""
    one = modules[0].partition(" ")[0]
    return (
        f". It holds {', '.join(modules)}: return one of them with inputs of its own, and in the job set it back "
        f"(`pipe.{one} = autotune.load(...).apply(pipe.{one})`); or return a function around the object"
    )


def enclosed_in(function: Any) -> Iterator[Any]:
    """Variables of enclosing functions that it uses, as far as they are set."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):
            yield cell.cell_contents


# A model that is compiled already when it is given: what it is without that, which is what is tuned.
#
# `torch.compile(model)`, `model.compile()`, and a `forward` or a function under `@torch.compile`. Compiled once more it
# would be the baseline of its own tuning. TorchScript and exported programs are not taken apart.

_IN_PLACE = "_compiled_call_impl"
_MARK = "get_compiler_config"


def uncompiled(given: Any) -> tuple[Any, str | None]:
    """A model or a function as it is without the compiler, and a sentence if that is another one. Nothing is changed
    in what is given."""
    if not isinstance(given, torch.nn.Module):
        function = _plain_function(given)
        return function, None if function is given else _sentence("the function", "torch.compile")
    if _is_optimized(given):
        model, _ = uncompiled(given._orig_mod)
        return model, _sentence("the model", "torch.compile(model)")
    decorated = method_of(type(given), "forward")
    forward = _plain_function(decorated)
    if forward is not decorated:
        return _called_by(given, forward=forward), _sentence("the model", "@torch.compile at its forward()")
    if vars(given).get(_IN_PLACE) is not None:
        return _called_by(given), _sentence("the model", "model.compile()")
    parts = [path for path, module in given.named_modules() if path and _is_compiled(module)]
    if not parts:
        return given, None
    return given, f"parts of the model are compiled already, and so they are in the untuned model: {', '.join(parts)}"


def _sentence(what: str, by: str) -> str:
    return f"{what} is compiled already, by {by}: what is tuned, and called untuned, is the uncompiled one"


def _is_compiled(module: torch.nn.Module) -> bool:
    return (
        hasattr(method_of(type(module), "forward"), _MARK)
        or vars(module).get(_IN_PLACE) is not None
        or _is_optimized(module)
    )


def _is_optimized(module: torch.nn.Module) -> bool:
    """Dynamo takes a second to import, and has compiled nothing before."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _plain_function(function: Any) -> Any:
    """The function behind what `torch.compile` made; `torch.compiler.disable` leaves the same mark, and stays."""
    while hasattr(function, _MARK):
        owner, inner = getattr(function, "__self__", None), getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None:
            break
        function = inner if owner is None else MethodType(inner, owner)
    return function


def _called_by(model: torch.nn.Module, **methods: Callable[..., Any]) -> torch.nn.Module:
    """The model with other methods, whose calls are those of a module that is not compiled in place."""

    def called(*args: Any, **kwargs: Any) -> Any:
        call: Callable[..., Any] = other._call_impl
        return call(*args, **kwargs)

    other: torch.nn.Module = proxy_of(model, called, object.__new__, **methods)
    return other


# Lazy modules (`torch.nn.LazyLinear` and others): their parameters have no shape before the first call.
#
# https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.lazy.LazyModuleMixin.html


def materialise(model: torch.nn.Module, call: Callable[[], object]) -> None:
    """Give every parameter of the model its shape, by one `call` where any lacks it. Buffers, such as the statistics of
    a BatchNorm in training mode, are as the model's first call finds them."""
    if not any(is_lazy(tensor) for tensor in [*model.parameters(), *model.buffers()]):
        return
    kept: dict[torch.Tensor, torch.Tensor] = {}

    def keep(module: torch.nn.Module, _: Any) -> None:
        for buffer in module.buffers():
            if buffer not in kept and not is_lazy(buffer):
                kept[buffer] = buffer.clone()

    # A lazy module's own hook, which makes its buffers, was there first and runs first.
    hooks = [module.register_forward_pre_hook(keep) for module in model.modules()]
    try:
        with torch.no_grad():
            call()
            for buffer, before in kept.items():
                buffer.copy_(before)
    finally:
        for hook in hooks:
            hook.remove()


# A model that differentiates within its forward pass, as interatomic potentials do to get forces of an energy.
#
# Whether one does is found by a call without gradients. Calls cost, and leave something behind in some models: only a
# model one of whose classes stands in a file that speaks of gradients is called.

_SPEAKS_OF_GRADIENTS = re.compile(r"\bautograd\b|\brequires_grad_\(|\.backward\(")
NOT_RECORDED = r"does not require grad"
"""What PyTorch says where a gradient was to be taken of what was not recorded."""


def differentiates(model: torch.nn.Module, call: Callable[[], object]) -> bool:
    """See `Backend`."""
    written = {type(module).__module__ for module in model.modules()}
    if isinstance(model, FunctionModel):
        written.add(getattr(model.function, "__module__", None) or "")
    if not any(map(_may_differentiate, written)):
        return False
    try:
        with torch.no_grad():
            call()
    except Exception as error:  # Any other fails in the trial as well, which says it.
        return any(re.search(NOT_RECORDED, str(cause)) for cause in causes(error))
    return False


def _may_differentiate(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] in ("torch", "autotune"):
        return False
    try:
        return _SPEAKS_OF_GRADIENTS.search(inspect.getsource(module)) is not None
    except (OSError, TypeError):
        return True  # Written in a notebook or in C: who knows.


# Whether a call is recorded for gradients. It is asked at each call of an applied model.
#
# Recording is on by default, so that a job that serves without `torch.no_grad()` comes here at each call: what requires
# gradients may have changed since the last one. 25 µs for 121 modules that hold 144 weights of which none does, where
# `any(each.requires_grad for each in model.parameters())` takes 123 (2.13).


def are_recorded(model: torch.nn.Module | None, *values: Any) -> bool:
    """Whether gradients are recorded now, and a parameter of the model or a tensor in the values requires them."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in tensors_in(values)) or (model is not None and _has_weights(model))


def _has_weights(model: torch.nn.Module) -> bool:
    around = model.around() if isinstance(model, FunctionModel) else []
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in around):
        return True
    return any(map(_requires_gradients, (model, *(value for value in around if isinstance(value, torch.nn.Module)))))


def _requires_gradients(module: torch.nn.Module) -> bool:
    modules, seen = [module], {module}
    while modules:
        held = vars(modules.pop())
        for parameter in held["_parameters"].values():
            if parameter is not None and parameter.requires_grad:
                return True
        new = [module for module in held["_modules"].values() if module is not None and module not in seen]
        seen.update(new)
        modules += new
    return False
