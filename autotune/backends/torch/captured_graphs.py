"""Graphs that dynamo captured, before they are compiled: what compiled code would leave out of them.

**Calls of operators of `torch.library`** that are not PyTorch's own. One may do something beside its result: count,
record, send. To the compiler it is a function. A call whose result nobody uses is dropped, with `mutates_args` too
where nobody reads what it writes, and equal calls are made once where gradients are recorded (2.13, aot_eager and
inductor alike). Outputs are right, and what it did is missing. So a graph with a call that nobody uses runs as it was
captured. Of another the calls are counted as it runs for the first time, whatever compiled it, and whether it was
compiled now or lay in a cache. Where any are left out, the next call is refused, before any of it runs. Not counted
are operators that consist of others (CompositeImplicitAutograd, triton_op, decompositions and lowerings of inductor):
their calls are meant to go.

**NaN and infinities in a product with zero.** Inductor makes zeros of `x * 0` (2.13), also of a float's, which is NaN
where `x` is not finite: an old test for such numbers. It does so for a whole number alone: in a graph with such a
product it is made a 0.0, which costs nothing.

**Numbers whose sign is a bit beside them**, as the imaginary part of a conjugate is. Inductor reads past the bit
(2.13). A graph with such an input runs as it was captured.

**Pictures whose channels come last.** Shapes and strides in a graph are PyTorch's forecast of them, and behind an
attention block it expects channels last where the untuned model gives a contiguous picture (2.13; the decoder of
Stable Diffusion's autoencoder): `view` raises on what compiled code returns. Where no input and no weight has its
channels last, an output that is no view is made contiguous in the graph.
"""

from __future__ import annotations

import functools
import importlib
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.backends.torch.compiler import Entry, Faults
from autotune.errors import UnsuitableCallError

_PYTORCHS = frozenset(
    {"aten", "prim", "prims", "rngprims", "debugprims", "higher_order", "inductor", "inductor_prims", "profiler"}
    | {
        "mkl",
        "mkldnn",
        "mkldnn_prepacked",
        "onednn",
        "quantized",
        "quantized_decomposed",
        "sparse",
        "xnnpack",
        "prepacked",
    }
    | {
        "c10d",
        "c10d_functional",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "symm_mem",
        "fsdp",
        "_dtensor",
        "dtensor",
    }
    | {"_quantized", "bsr", "cuda", "npu", "torchvision", "torchaudio", "image", "video_reader", "streams", "mtia"}
    | {"static_runtime", "export", "flex_lib", "debug_mode_ops", "onnx", "quantization"}
)
"""Namespaces of PyTorch, its libraries of images and sound, and torch_npu."""
_GRAPH, _COMPILE = "torch._dynamo.output_graph", "call_user_compiler"


class CallsLeftOut:
    """Calls of operators that compiled code of one model lacks."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._names: dict[str, None] = {}

    def _note(self, names: Iterable[str]) -> None:
        if found := dict.fromkeys(names):
            self._names |= found
            self._faults.append(self._fault)

    def _fault(self) -> UnsuitableCallError:
        names = ", ".join(self._names)
        return UnsuitableCallError(
            f"the model calls {names}, and compiled code leaves a call out: what it does beside its result is lost",
            tip="let the model use its result, or register its effect with torch.library",
            lasting=True,
        )

    def entries(self) -> list[Entry]:
        """What is set while the model is compiled."""
        owner: Any = getattr(sys.modules.get(_GRAPH), "OutputGraph", None)
        compile_graph = getattr(owner, _COMPILE, None)
        if compile_graph is None:
            return []

        def looked_at(self_: Any, graph: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
            made = _calls_in(graph.graph)
            unused = [name for module in graph.modules() for name in _unused_calls(module)]
            self._note(unused)
            if unused or _takes_negated(graph):
                return graph
            make_outputs_contiguous(graph)
            with _keeping_nan() if multiplies_by_zero(graph) else nullcontext():
                compiled = compile_graph(self_, graph, *args, **kwargs)
            return self._counted_once(compiled, made) if made else compiled

        return [(owner, _COMPILE, looked_at)]

    def _counted_once(self, compiled: Callable[..., Any], expected: Counter[str]) -> Callable[..., Any]:
        is_counted = False

        @functools.wraps(compiled)  # Dynamo reads attributes of what a compiler gives.
        def call(*args: Any) -> Any:
            nonlocal is_counted
            if is_counted:
                return compiled(*args)
            is_counted = True
            with counting() as made:
                result = compiled(*args)
            self._note(expected - made)
            return result

        return call


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Within: the calls of operators that are not PyTorch's, by their names."""
    mode = _Counting()
    with mode:
        yield mode.made


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What takes care of writes and effects is given the operator that it calls.
        self.made.update(_name_of(each) for each in (func, *args) if _is_foreign(each))
        return func(*args, **(kwargs or {}))


def _calls_in(graph: torch.fx.Graph) -> Counter[str]:
    """The calls that compiled code has to make, those in branches and other graphs within apart."""
    return Counter(_name_of(node.target) for node in graph.nodes if _counts(node.target))


def _unused_calls(module: torch.nn.Module) -> Iterator[str]:
    """Names of the operators in a graph whose results nobody uses, and that are not said to do anything else."""
    if not isinstance(module, torch.fx.GraphModule):
        return
    dead: set[torch.fx.Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op in ("call_function", "call_method") and dead.issuperset(node.users) and not _may_write(node):
            dead.add(node)
            if _counts(node.target):
                yield _name_of(node.target)


def _may_write(node: torch.fx.Node) -> bool:
    if isinstance(node.target, torch._ops.HigherOrderOperator) or "out" in node.kwargs:
        return True
    if _is_operator(node.target):
        return any(overload._schema.is_mutable or _has_effect(overload) for overload in _overloads(node.target))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    return name.endswith("_") or node.target in _IN_PLACE or name.startswith("set")


_IN_PLACE = frozenset(
    getattr(operator, name) for name in dir(operator) if name.startswith("i") and name[1:].strip("_") in dir(operator)
)


def _counts(target: Any) -> bool:
    """It is an operator that is not PyTorch's, and calls of it are calls in compiled code, too."""
    return _is_foreign(target) and not any(map(_is_made_of_others, _overloads(target)))


def _is_foreign(target: Any) -> bool:
    return _is_operator(target) and _name_of(target).partition("::")[0] not in _PYTORCHS


def _is_operator(target: Any) -> bool:
    return isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


def _name_of(target: Any) -> str:
    """`mylib::record`, whichever overload it is."""
    name: str = target._schema.name if isinstance(target, torch._ops.OpOverload) else target._qualified_op_name
    return name


def _overloads(target: Any) -> list[Any]:
    if isinstance(target, torch._ops.OpOverload):
        return [target]
    return [getattr(target, name) for name in target.overloads()]


def _is_made_of_others(overload: Any) -> bool:
    if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"):
        return True
    if _name_of(overload) in getattr(sys.modules.get("torch._library.triton"), "triton_ops_to_kernels", ()):
        return True
    return any(
        overload in getattr(sys.modules.get(module), table, ())
        for module, table in (
            ("torch._decomp", "decomposition_table"),
            ("torch._inductor.decomposition", "decompositions"),
            ("torch._inductor.lowering", "lowerings"),
        )
    )


def _has_effect(overload: Any) -> bool:
    """It is registered as one whose calls stay, in their order."""
    has_effects = getattr(sys.modules.get("torch._higher_order_ops.effects"), "has_effects", None)
    if has_effects is None:
        return False
    try:
        return bool(has_effects(overload))
    except TypeError:  # Releases before 2.10 ask for the arguments.
        return False


def _takes_negated(graph: torch.fx.GraphModule) -> bool:
    """An input, or a weight, is a view of its numbers' negatives."""
    given = (node.meta.get(_VALUE) for node in graph.graph.nodes if node.op == "placeholder")
    return any(isinstance(value, torch.Tensor) and value.is_neg() for value in given)


_MUL = re.compile(r"i?mul(tiply)?_?")
_INDUCTOR, _PASS = "torch._inductor.config", "joint_custom_pre_pass"


def multiplies_by_zero(graph: torch.fx.GraphModule) -> bool:
    """The graph has a product with a whole number that is zero."""
    return any(
        _is_whole_zero(given)
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if _MUL.fullmatch(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
        for given in (*node.args, *node.kwargs.values())
    )


@contextmanager
def _keeping_nan() -> Iterator[None]:
    """Within: inductor multiplies by zero. In a release without such a pass, and where somebody has one, it may not."""
    config: Any = importlib.import_module(_INDUCTOR)
    if getattr(config, _PASS, config) is not None:
        yield
        return
    setattr(config, _PASS, _zero_pass())
    try:
        yield
    finally:
        setattr(config, _PASS, None)


@functools.cache
def _zero_pass() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class KeepNan(CustomGraphPass):
        """A pass of inductor over a graph, before it folds what is the same everywhere."""

        def __call__(self, graph: torch.fx.Graph) -> None:
            for node in graph.nodes:
                value = node.meta.get("val")
                if node.target in _PRODUCTS and isinstance(value, torch.Tensor) and value.is_floating_point():
                    node.args = tuple(0.0 if _is_whole_zero(each) else each for each in node.args)

        def uuid(self) -> Any:
            """Part of the key under which inductor caches what it compiled."""
            return get_hash_for_files((str(Path(__file__)),))

    return KeepNan()


_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar)


def _is_whole_zero(given: Any) -> bool:
    return isinstance(given, int) and given == 0


def make_outputs_contiguous(graph: torch.fx.GraphModule) -> None:
    """Add a copy of each output that is expected to have its channels last although nothing that goes in has."""
    *nodes, output = graph.graph.nodes
    given = (node for node in nodes if node.op in ("placeholder", "get_attr"))
    scattered = [node for node in output.all_input_nodes if _has_channels_last(node)]
    if not scattered or any(map(_has_channels_last, given)):
        return
    for node in scattered:
        if not node.meta[_VALUE]._is_view():
            with graph.graph.inserting_before(output):
                copy = graph.graph.call_method("contiguous", (node,))
            copy.meta = {**node.meta, _VALUE: node.meta[_VALUE].contiguous()}
            output.replace_input_with(node, copy)
    graph.recompile()


_VALUE = "example_value"


def _has_channels_last(node: torch.fx.Node) -> bool:
    value = node.meta.get(_VALUE)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_contiguous():
        return False
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    return value.dim() in forms and value.is_contiguous(memory_format=forms[value.dim()])
