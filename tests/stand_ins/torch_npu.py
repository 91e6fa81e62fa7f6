"""A stand-in for torch_npu and the TorchAir in it.

Written from, as of 2026-11:
    https://gitcode.com/ascend/pytorch            torch_npu/dynamo/__init__.py, torch_npu/_inductor/config.py
    https://gitcode.com/Ascend/torchair           docs/zh/npugraph_ex/quick_start.md, basic/memory_reuse.md,
                                                  docs/zh/overview.md, the pages of CompilerConfig and get_npu_backend

It records every call, and refuses what the release refuses. Captured graphs write their outputs where the call before
wrote them, as the documentation says.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
from types import ModuleType
from typing import Any

import torch

EX_OPTIONS = {
    "force_eager", "inplace_pass", "input_inplace_pass", "pattern_fusion_pass", "use_graph_pool",
    "reuse_graph_pool_in_same_fx", "clone_input", "clone_output", "static_kernel_compile", "remove_noop_ops",
    "frozen_parameter", "capture_limit", "remove_cat_ops",
}  # fmt: skip


class StandIn:
    """torch_npu in a release. `modes` is what its CompilerConfig takes; None: it has no `mode` yet (6.0 and older)."""

    def __init__(self, modes: tuple[str, ...] | None = ("max-autotune", "reduce-overhead")) -> None:
        self.modes = modes
        self.calls: list[tuple[Any, ...]] = []

    def install(self, monkeypatch: Any) -> None:
        """It can be imported from now on, as if it were installed, until the test has ended."""
        for name in ("torch_npu", "torch_npu._inductor", "torch_npu._inductor.config", "torchair"):
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]
        monkeypatch.setattr(sys, "meta_path", [self, *sys.meta_path])
        from torch._dynamo.backends import registry

        monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
        monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
        of_torch = torch.get_device_module

        @functools.wraps(of_torch)
        def device_module(device: Any = None) -> ModuleType:
            # A build for CUDA asks for the module of `cuda` while it compiles, with no GPU there either.
            return self.device_module() if str(device).startswith("npu") else of_torch(device)

        monkeypatch.setattr(torch, "get_device_module", device_module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Part of Python's protocol for finders. TorchAir cannot be found: it is no package of its own."""
        if not name.startswith("torch_npu"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Part of the protocol for loaders: a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """What the import of each module does."""
        self.calls.append(("import", module.__name__))
        if module.__name__ == "torch_npu":
            sys.modules["torchair"] = self.torchair()
            for name, backend in (("npugraphs", self.captured), ("npugraph_ex", self.captured_ex)):
                torch._dynamo.register_backend(functools.partial(backend), name)
        if module.__name__ == "torch_npu._inductor.config":
            module.auto_fallback = os.environ.get(  # type: ignore[attr-defined]
                "INDUCTOR_ASCEND_AUTO_FALLBACK",
                True,  # noqa: PLW1508 - as torch_npu has it: a text, "0" included, is true
            )

    def device_module(self) -> ModuleType:
        """`torch.npu`, which is there once torch_npu was imported."""
        if "torch_npu" not in sys.modules:
            raise RuntimeError("Device 'npu' does not have a corresponding module registered as 'torch.npu'.")
        module: Any = ModuleType("torch.npu")
        module.is_available = lambda: True
        module.get_device_name = lambda number: f"Ascend910B{number}"
        return module

    def torchair(self) -> ModuleType:
        """The module that torch_npu puts into `sys.modules`."""
        module: Any = ModuleType("torchair")
        stand_in = self

        class CompilerConfig:
            def __setattr__(self, name: str, value: Any) -> None:
                if stand_in.modes is None or name != "mode":
                    raise AttributeError(f"CompilerConfig has no option {name}")
                if value not in stand_in.modes:
                    raise ValueError(f"{value} is not in optional list {stand_in.modes}")
                object.__setattr__(self, name, value)

        def get_npu_backend(*, compiler_config: CompilerConfig | None = None) -> Any:
            assert compiler_config is None or isinstance(compiler_config, CompilerConfig)
            stand_in.calls.append(("get_npu_backend", getattr(compiler_config, "mode", None)))
            return stand_in.captured if getattr(compiler_config, "mode", None) == "reduce-overhead" else _plain

        module.CompilerConfig, module.get_npu_backend = CompilerConfig, get_npu_backend
        return module

    def captured(self, graph: Any, inputs: Any, **arguments: Any) -> Any:
        """Backend npugraphs, and TorchAir's reduce-overhead: no argument, and the same memory for all outputs."""
        self.calls.append(("npugraphs", arguments))
        if arguments:
            raise TypeError(f"unexpected arguments {sorted(arguments)}")
        return _same_memory(graph)

    def captured_ex(self, graph: Any, inputs: Any, **arguments: Any) -> Any:
        """Backend npugraph_ex: no mode, and these options only. Outputs are copied where `clone_output` says so."""
        self.calls.append(("npugraph_ex", dict(arguments)))
        options = dict(arguments.pop("options", None) or {})
        if arguments or not EX_OPTIONS.issuperset(options):
            raise ValueError(f"npugraph_ex takes no {sorted(set(arguments) | set(options) - EX_OPTIONS)}")
        return graph.forward if options.get("clone_output") else _same_memory(graph)


def _plain(graph: Any, inputs: Any) -> Any:
    return graph.forward


def _same_memory(graph: Any) -> Any:
    memory: list[torch.Tensor] = []

    def replay(*args: Any) -> tuple[torch.Tensor, ...]:
        outputs = graph.forward(*args)
        if not memory:
            memory.extend(each.clone() for each in outputs)
        for place, each in zip(memory, outputs, strict=True):
            place.copy_(each)
        return tuple(memory)

    return replay
