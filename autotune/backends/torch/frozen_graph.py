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

import functools
import hashlib
import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor
from torch._inductor import codecache, compile_fx
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.fx_passes import mkldnn_fusion

from autotune.backends.torch.compiler import Entry
from autotune.backends.torch.given_model import has_packing
from autotune.errors import InvalidConfigError

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
    """A pass of inductor over a graph, after constants were folded and before it looks for what oneDNN can fuse.

    `packs_for_onednn`: linear layers in float32 were packed for oneDNN (see `packing_entries`).
    """

    def __init__(self, *, packs_for_onednn: bool = False) -> None:
        self.packs_for_onednn = packs_for_onednn

    def __call__(self, graph: torch.fx.Graph) -> None:
        _keep_nan(graph)
        _return_no_constants(graph)

    def uuid(self) -> Any:
        """Part of the key under which inductor caches what it compiled."""
        return get_hash_for_files((str(Path(__file__)),), "packed for oneDNN" if self.packs_for_onednn else "")


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


# The library that linear layers in float32 are packed for.
#
# Inductor packs them for MKL, and for oneDNN where products may be rounded (2.9 to 2.14): it looks at
# `torch.backends.mkldnn.matmul.fp32_precision` while it packs, and the kernels look at it again at each call. Here that
# setting stays as the job has it, so that no call of any model rounds: the two methods that it decides for are told to
# pack for oneDNN. They ask the pass of the graph at hand, which is in the key of its code, too.

_PACKERS = ("pack_linear_weight", "pack_linear")


def packing_entries() -> list[Entry]:
    """What is set while a graph is compiled whose linear layers are packed for oneDNN. Raises InvalidConfigError where
    there is no MKL to choose in place of, or in a release that packs otherwise."""
    packing = getattr(mkldnn_fusion, "CpuMkldnnDeviceOp", None)
    known = [getattr(packing, name, None) for name in _PACKERS]
    is_known = all(pack is not None and "is_lp_weight" in inspect.signature(pack).parameters for pack in known)
    if not (is_known and has_packing()):
        raise InvalidConfigError(f"knob packed_linear: torch {torch.__version__} packs for one library only here")
    return [(packing, name, _for_onednn(pack)) for name, pack in zip(_PACKERS, known, strict=True)]


def _for_onednn(pack: Any) -> Any:
    @functools.wraps(pack)
    def packed(device_op: Any, graph: torch.fx.Graph, is_lp_weight: bool, *args: Any, **kwargs: Any) -> Any:
        own = inductor.post_grad_custom_pre_pass
        asked = isinstance(own, FrozenGraphPass) and own.packs_for_onednn
        return pack(device_op, graph, asked or is_lp_weight, *args, **kwargs)

    return packed


# Inductor's cache of compiled graphs, for frozen ones: found again with other weights, and only where that is right.
#
# The code of a frozen graph names its constants, and inductor takes their values from the model at hand, so what is in
# the cache serves all weights of the same shapes. Left alone (2.13), it serves too few graphs and some wrongly:
#
# * Graphs with constants that are packed for oneDNN cannot be cached, so that a model with a convolution or a linear
#   layer is compiled anew in every process. Their values come from the model too, and the code depends on their shapes.
# * A constant without dimensions is a number in the code, and not in the key: a model whose scale was trained on would
#   answer with the former one. Such numbers are part of the key here.
# * Two constants that are the same memory are one in the code. Which ones are is part of the key here.
# * What inductor computes from weights while it writes the code (templates of max-autotune pack them in a way of their
#   own) is cached with its values, whatever the weights are then. Here such a graph is found by the very same weights
#   alone: its key has their values.

_KNOWN = {
    "CacheabilityValidator": ("check_tensor",),
    "FxGraphCachePickler": ("_reduce_tensor",),
    "FxGraphCache": ("load_with_key", "_save_graph", "_get_tmp_dir_for_key"),
}
_is_frozen: Any = getattr(codecache, "is_frozen_param", None)
"""PyTorch's own mark of what freezing made a constant, which inductor takes from the model at hand."""


@functools.cache
def cache_entries() -> tuple[Entry, ...]:
    """What is set while a frozen graph is compiled. A release that is made otherwise caches none."""
    is_known = all(
        hasattr(getattr(codecache, owner, None), method) for owner, methods in _KNOWN.items() for method in methods
    )
    if not is_known or _is_frozen is None:
        return ((inductor, "fx_graph_cache", False),)
    return (
        (codecache, "CacheabilityValidator", _validator()),
        (codecache, "FxGraphCachePickler", _pickler()),
        (compile_fx, "FxGraphCache", _cache()),
    )


def _validator() -> type:
    class Validator(codecache.CacheabilityValidator):
        @staticmethod
        def check_tensor(t: torch.Tensor) -> None:
            if not _is_frozen(t):
                super(Validator, Validator).check_tensor(t)

    return Validator


def _pickler() -> type:
    class Pickler(codecache.FxGraphCachePickler):
        """Makes one key."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._seen: dict[Any, int] = {}

        def _reduce_tensor(self, t: torch.Tensor) -> Any:
            if not _is_frozen(t):
                return super()._reduce_tensor(t)
            known: Any
            if t.is_mkldnn:
                known, memory = (t.dtype, tuple(t.shape)), torch.ops.mkldnn.data_ptr(t)
            else:
                known, memory = super()._reduce_tensor(t), (t.untyped_storage().data_ptr(), t.storage_offset())
            number = t.tolist() if t.ndim == 0 else None
            return tuple, ((known, number, self._seen.setdefault(memory, len(self._seen))),)

    return Pickler


def _cache() -> type:
    keys: dict[str, str] = {}
    """Graphs that are being compiled: the usual key -> that with the values of the weights."""

    class Cache(codecache.FxGraphCache):
        @staticmethod
        def load_with_key(key: str, *args: Any, **kwargs: Any) -> Any:
            if not _is_kept(key):
                digest = _digest(kwargs["constants"].gm)
                if digest is not None:
                    keys[key] = f"{key}-{digest}"
                    if _is_kept(keys[key]):
                        key = keys.pop(key)
            return codecache.FxGraphCache.load_with_key(key, *args, **kwargs)

        @staticmethod
        def _save_graph(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> None:
            """`constants` holds those that are not taken from the model."""
            with_values = keys.pop(key, None)
            own = compiled_graph.constants
            if not own:
                codecache.FxGraphCache._save_graph(key, compiled_graph, *args, **kwargs)
            elif with_values is not None and all(map(_is_plain, own.values())):
                codecache.FxGraphCache._save_graph(with_values, compiled_graph, *args, **kwargs)

    return Cache


def _is_kept(key: str) -> bool:
    return Path(codecache.FxGraphCache._get_tmp_dir_for_key(key)).is_dir()


def _is_plain(value: Any) -> bool:
    """Can be written to a file and read back as it is."""
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided


def _digest(graph: torch.fx.GraphModule) -> str | None:
    """Digest of the values of all constants, whose types and shapes are in every key; None: they cannot be read."""
    digest = hashlib.sha256()
    try:
        for tensor in _constants(graph):
            dense = tensor.detach().to_dense() if tensor.is_mkldnn else tensor.detach()
            digest.update(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    except (RuntimeError, TypeError):
        return None
    return digest.hexdigest()


def _constants(graph: torch.fx.GraphModule) -> Iterator[torch.Tensor]:
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            value = attrgetter(node.target)(module) if node.op == "get_attr" else None
            if isinstance(value, torch.Tensor) and not _is_packed_for_mkl(node):
                yield value


def _is_packed_for_mkl(node: Any) -> bool:
    """Its unused bytes differ from process to process. The weight that it was made of is a constant beside it."""
    return all(
        str(user.target).startswith("mkl._mkl_linear") and user.args[1] is node and user.args[2].op == "get_attr"
        for user in node.users
    )
