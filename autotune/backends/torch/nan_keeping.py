"""Frozen code that keeps NaN.

For frozen weights inductor calls oneDNN, with the activation that follows a convolution or a linear layer fused into
the call. oneDNN's relu, and whatever else clamps (relu6, hardtanh, hardsigmoid), makes a number of NaN (measured on
2.13): what went wrong in the model would come out as a plausible answer. Inductor's own kernels keep NaN, as the model
does, so these activations are theirs. Fused sigmoid, tanh, gelu, silu, hardswish and leaky relu keep it (measured).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

_aten = torch.ops.aten
_CLAMPS = (_aten.relu.default, _aten.clamp_min.default)
"""What the patterns of these activations have next to the layer."""


class NanKeeping(CustomGraphPass):
    """A pass of inductor over a graph, before it looks for what oneDNN can fuse: a product with one between a layer and
    its activation is in none of the patterns, and costs nothing in the kernel of the activation."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in [*graph.nodes]:
            given: Any = node.args[0] if node.args else None
            if node.target in _CLAMPS and _is_floating(given) and not _is_hardswish(given):
                with graph.inserting_before(node):
                    same = graph.call_function(_aten.mul.Tensor, (given, 1.0))
                same.meta.update(given.meta)
                node.replace_input_with(given, same)

    def uuid(self) -> Any:
        """Part of the key under which inductor caches what it compiled."""
        return get_hash_for_files((str(Path(__file__)),))


def _is_floating(argument: Any) -> bool:
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_hardswish(shifted: Any) -> bool:
    """`x * clamp(x + 3)`, whose product keeps NaN. A hardsigmoid is fused only where nothing else uses `x`."""
    return bool(shifted.target == _aten.add.Tensor and len(shifted.args[0].users) > 1)
