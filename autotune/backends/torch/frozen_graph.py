"""What inductor must not do to a frozen graph: lose NaN, return its constants, and write it down anew in every process.

For frozen weights inductor calls oneDNN, with the activation that follows a convolution or a linear layer fused into
the call. oneDNN's relu, and whatever else clamps (relu6, hardtanh, hardsigmoid), makes a number of NaN (measured on
2.13): what went wrong in the model would come out as a plausible answer. Inductor's own kernels keep NaN, as the model
does, so these activations are theirs. Fused sigmoid, tanh, gelu, silu, hardswish and leaky relu keep it (measured).

What is computed from weights alone is folded into a constant, and a graph that returns it returns the constant itself,
the same memory at each call (measured on 2.13): a job that writes to such an output would change all later ones.

The C++ wrapper of a graph names each constant in a comment, by the address of its Python object. No process finds the
file of another then, and each runs the C++ compiler for the same code: 19 in place of 11 seconds for a ViT whose
kernels are all there. The constants themselves are arguments of the compiled function, which keeps nothing between
calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from autotune.backends.torch.compiler import Entry

_aten = torch.ops.aten
_CLAMPS = (_aten.relu.default, _aten.clamp_min.default)
"""What the patterns of these activations have next to the layer."""
_CALLS = ("call_function", "call_method")


def _write_name(wrapper: CppWrapperCpu, name: str, _address: str) -> None:
    wrapper.header.writeline(f"// {name}")


WITHOUT_ADDRESSES: list[Entry] = (
    [(CppWrapperCpu, "write_constant", _write_name)] if hasattr(CppWrapperCpu, "write_constant") else []
)
"""What is set while a frozen graph is compiled."""


class FrozenGraphPass(CustomGraphPass):
    """A pass of inductor over a graph, after constants were folded and before it looks for what oneDNN can fuse."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        _keep_nan(graph)
        _return_no_constants(graph)

    def uuid(self) -> Any:
        """Part of the key under which inductor caches what it compiled."""
        return get_hash_for_files((str(Path(__file__)),))


def _keep_nan(graph: torch.fx.Graph) -> None:
    """A product with one between a layer and its activation is in none of the patterns, and costs nothing in the kernel
    of the activation."""
    for node in [*graph.nodes]:
        given: Any = node.args[0] if node.args else None
        if node.target in _CLAMPS and _is_floating(given) and not _is_hardswish(given):
            with graph.inserting_before(node):
                same = _same_numbers(graph, given)
            node.replace_input_with(given, same)


def _return_no_constants(graph: torch.fx.Graph) -> None:
    """Each call computes the output anew. A `clone` would be optimised away."""
    constants: set[torch.fx.Node] = set()
    for node in graph.nodes:
        given = node.all_input_nodes
        if node.op == "get_attr" or (node.op in _CALLS and given and constants.issuperset(given)):
            constants.add(node)
    for output in graph.find_nodes(op="output"):
        for node in output.all_input_nodes:
            if node in constants and isinstance(node.meta.get("val"), torch.Tensor):
                with graph.inserting_before(output):
                    same = _same_numbers(graph, node)
                output.replace_input_with(node, same)


def _same_numbers(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """Computes what is there already, which inductor does not see."""
    dtype: torch.dtype = node.meta["val"].dtype
    if dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1):
        same = graph.call_function(_aten.mul.Tensor, (node, 1.0))
    elif dtype.is_floating_point:
        # Types of eight bits have no arithmetic.
        bits = graph.call_function(_aten.view.dtype, (node, torch.uint8))
        bits.meta["val"] = node.meta["val"].view(torch.uint8)
        same = graph.call_function(_aten.view.dtype, (_same_numbers(graph, bits), dtype))
    else:
        same = graph.call_function(_aten.bitwise_or.Tensor, (node, node))
    same.meta.update(node.meta)
    return same


def _is_floating(argument: Any) -> bool:
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_hardswish(shifted: Any) -> bool:
    """`x * clamp(x + 3)`, whose product keeps NaN. A hardsigmoid is fused only where nothing else uses `x`."""
    return bool(shifted.target == _aten.add.Tensor and len(shifted.args[0].users) > 1)
