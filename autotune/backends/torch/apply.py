"""A model under a config: what a trial runs, and what `autotune.load(...).apply(model)` gives a job.

Everything is checked before anything is set. Nothing is changed in the model: what has to be rewritten is a copy
(`regions`). Settings of the whole process (threads, float32 matmul precision, allocator) are noted in `changes`; a
job gets them only if it asks for them.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from autotune.backends.torch import npu, precision, regions, third_party
from autotune.backends.torch.captured_graphs import CallsLeftOut
from autotune.backends.torch.compiled_step import (
    ClonedOutputs,
    CompiledStep,
    DerivableStep,
    backward_entries,
    same_environment,
)
from autotune.backends.torch.compiler import (
    Compile,
    CompileAttempts,
    ConstantsSeen,
    Entry,
    Faults,
    compiler,
    setting_name,
)
from autotune.backends.torch.frozen import FrozenStep, FrozenWeights
from autotune.backends.torch.knobs import Settings, compile_arguments, require_option, settings_of
from autotune.backends.torch.parallel import MadeOnce, WholeWeights, is_one_of_many, is_sharded, num_local_ranks
from autotune.backends.torch.precision import require_order, with_precision
from autotune.backends.torch.recompiles import watched
from autotune.backends.torch.tensors import device_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import InvalidConfigError
from autotune.measure.diagnosis import BreakKind

_INDUCTOR, _DYNAMO, _FUNCTORCH = "torch._inductor.config", "torch._dynamo.config", "torch._functorch.config"
_PASS = "post_grad_custom_pre_pass"
_WORKERS = "compile_threads"
"""How many processes compile: by itself one for each processor in sight, within a quota, and in each rank, too."""
_WORKERS_VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"
_NO_HOOK_GUARDS = "skip_nnmodule_hook_guards"
"""True, as PyTorch has it: hooks that a job adds to a module after the first call are never called."""
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3), from malloc.h: https://man7.org/linux/man-pages/man3/mallopt.3.html"""
_TRIM_THRESHOLD, _MMAP_MAX = 128 * 1024, 65536
"""Their values when a process starts."""


def apply(model: torch.nn.Module, config: Config, changes: UndoLog, *, input_gradients: bool = False) -> Any:
    """The model under `config`, compiled at its first call; the very same object where nothing wraps it.

    `input_gradients`: it takes calls for whose inputs gradients are recorded.

    A config that compiles or leaves out parts (knob `region`) rewrites the modules of `model`, which has to be a copy.
    Raises InvalidConfigError for what this release or system does not take, before anything is changed.
    """
    settings = settings_of(config)
    regions.chosen(model, settings.region)
    attempts = CompileAttempts() if is_one_of_many() else None
    setup = prepare(model, settings, changes, input_gradients=input_gradients, attempts=attempts, derivable=True)
    plain: Any = with_precision(model, settings)
    if setup.compile is None:
        return setup.wrap(plain)
    step = regions.compile_region(model, plain, settings.region, setup.compile)
    # What a compiled module wraps: the wrapper looks for hooks of its own, and sets a flag for them: 2 us (2.13).
    step = setup.wrap(step if step is plain else DerivableStep(plain, step.forward))
    return step if attempts is None else MadeOnce(step, attempts)


@dataclass(frozen=True)
class ModelSetup:
    """What a config's settings mean for one model."""

    compile: Compile | None
    """None: the config compiles nothing."""
    wrap: Callable[[Any], Any]
    """Puts what the settings need around a compiled step."""


def _require_constants(model: torch.nn.Module, settings: Settings) -> None:
    """Raises InvalidConfigError for sharded weights that are to become constants: they are put together for each call
    anew."""
    if settings.freezes and is_sharded(model):
        knob = "backend" if settings.is_unknown else "freezing"
        raise InvalidConfigError(
            f"knob {knob}: the model's weights are sharded over several processes (FSDP), and cannot become constants",
            tip=f"apply a config without this {knob}, or one to the model before it is sharded",
        )


def prepare(
    model: torch.nn.Module,
    settings: Settings,
    changes: UndoLog,
    *,
    input_gradients: bool = False,
    attempts: CompileAttempts | None = None,
    derivable: bool = False,
    guards_hooks: bool = True,
) -> ModelSetup:
    """Set what holds for the process, and make ready what compiles. Raises like `apply`, before anything is changed.

    `attempts`: what does not compile runs as it is written; the backward is compiled along, so that it is known before
    anything runs. `derivable`: what is compiled gets a `DerivableStep` around it. `guards_hooks` False: the caller sees
    to hooks of modules that come and go.
    """
    _require_constants(model, settings)
    arguments = _arguments(settings)
    weights = FrozenWeights() if settings.freezes else None
    faults: Faults = []
    left_out, recompiles = CallsLeftOut(faults), watched()
    compile_ = None
    if arguments is not None:
        entries = [*_entries(model, settings, guards_hooks), *left_out.entries()]
        entries += [] if recompiles is None else recompiles.entries(faults)
        if derivable or attempts is not None:
            entries += backward_entries(twice=derivable)
        if settings.is_third_party:
            entries += third_party.entries_of(settings)
            arguments["backend"] = third_party.backend_for(settings, arguments["backend"], model, weights)
        compile_ = _compiler(settings, arguments, entries, weights, attempts)
    _set_in_process(settings, changes)

    def wrap(step: Any) -> Any:
        if weights is not None:
            step = WholeWeights(model, FrozenStep(model, step, weights))
        if compile_ is not None:
            environment = same_environment(model)
            step = CompiledStep(model, step, faults, environment=environment, input_gradients=input_gradients)
        return ClonedOutputs(step) if captures_graphs(model, settings) else step

    return ModelSetup(compile_, wrap)


def _compiler(
    settings: Settings,
    arguments: dict[str, Any],
    entries: list[Entry],
    weights: FrozenWeights | None,
    attempts: CompileAttempts | None,
) -> Compile:
    if weights is not None and not settings.is_third_party:
        # Imports the compiler, which the first compile pays.
        from autotune.backends.torch.frozen_graph import (
            WITHOUT_ADDRESSES,
            FrozenGraphPass,
            cache_entries,
            packing_entries,
        )

        packing = packing_entries() if settings.packs_for_onednn else []
        entries = [*entries, *WITHOUT_ADDRESSES, *cache_entries(), *packing]
        own_pass = FrozenGraphPass(packs_for_onednn=settings.packs_for_onednn)
        options = {**mode_options(settings.mode), **settings.options, _PASS: own_pass}
        arguments = {name: value for name, value in arguments.items() if name not in ("mode", "options")}
        arguments["backend"] = ConstantsSeen(partial(_by_inductor, options), weights.add)
    return compiler(arguments, entries, attempts)


def _by_inductor(options: dict[str, Any], graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch._inductor.compile(graph, inputs, options=options)
    return compiled


def captures_graphs(model: torch.nn.Module, settings: Settings) -> bool:
    """The config replays captured graphs, whose outputs lie in memory that the next replay writes to."""
    if not settings.compiled or device_of(model).type == "cpu":
        return False
    options = {**mode_options(settings.mode), **settings.options}
    return settings.backend == "cudagraphs" or npu.captures_graphs(settings) or bool(options.get("triton.cudagraphs"))


def capture_despite(kind: BreakKind, changes: UndoLog) -> None:
    """See `BreakCapture`: dynamo's own switches, so far as this release has them."""
    dynamo = importlib.import_module(_DYNAMO)
    for name in _CAPTURES.get(kind, ()):
        if hasattr(dynamo, name):
            changes.set_attribute(dynamo, name, True)
    if kind is BreakKind.PRINT:
        # Printed after the graph, in the same order; a logger's methods are left out of the compiled code.
        reordered, left_out = ({print, warnings.warn}, {getattr(logging.Logger, name) for name in _LOGS})
        for name, functions in (("reorderable_logging_functions", reordered), (_IGNORED, left_out)):
            if hasattr(dynamo, name):
                changes.set_attribute(dynamo, name, getattr(dynamo, name) | functions)


_CAPTURES: dict[BreakKind, tuple[str, ...]] = {
    BreakKind.SCALAR: ("capture_scalar_outputs",),
    # A count of elements that is taken out of a tensor comes along with the shape.
    BreakKind.DATA_SHAPE: ("capture_dynamic_output_shape_ops", "capture_scalar_outputs"),
}
_IGNORED = "ignore_logger_methods"
_LOGS = ("debug", "info", "warning", "error", "critical", "exception")


def mode_options(mode: str | None) -> dict[str, Any]:
    """Inductor's entries behind a mode. Raises InvalidConfigError if this release has no such mode."""
    import torch._inductor

    modes = torch._inductor.list_mode_options()
    if mode is not None and mode not in modes:
        raise InvalidConfigError(f"knob mode: torch {torch.__version__} has no {mode!r}, only {', '.join(modes)}")
    return dict(modes[mode]) if mode is not None else {}


def _arguments(settings: Settings) -> dict[str, Any] | None:
    """Arguments of torch.compile, None for eager; all that can be refused is refused here."""
    _refuse_unknown_entries(settings)
    _refuse_too_many_threads(settings)
    is_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
    if settings.keeps_memory and not is_glibc:
        raise InvalidConfigError("knob allocator: only glibc on Linux can be told to keep freed memory")
    if not settings.compiled:
        return None
    if settings.attention is not None:
        require_order()
    if settings.is_third_party:
        return {**compile_arguments(settings, {}), "backend": third_party.function_of(settings)}
    if settings.backend != "torchair":  # It has no name in torch.
        _refuse_unknown_backend(settings.backend)
    if settings.backend in ("torchair", "npugraph_ex"):
        return npu.graph_arguments(settings)
    return compile_arguments(settings, mode_options(settings.mode))


def _refuse_too_many_threads(settings: Settings) -> None:
    """Each is a thread of the system, and a process that asks for too many ends."""
    num_cores = num_usable_cores()
    if settings.num_threads is not None and settings.num_threads > num_cores:
        raise InvalidConfigError(f"knob threads: {settings.num_threads} are more than the {num_cores} cores here")


def _refuse_unknown_backend(backend: str) -> None:
    """torch.compile takes any backend and fails only at the first call, with a long story."""
    import torch._dynamo

    known = torch._dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise InvalidConfigError(f"knob backend: torch {torch.__version__} has no {backend!r}, only {', '.join(known)}")


def _refuse_unknown_entries(settings: Settings) -> None:
    """Inductor's and dynamo's settings come and go between releases."""
    for name, value in settings.open_options.items():
        require_option(name, value)
    wanted = {
        _INDUCTOR: {**settings.options, **settings.compiler_options},
        _DYNAMO: settings.dynamo_options,
        _FUNCTORCH: settings.functorch_options,
    }
    for module, entries in wanted.items():
        found = importlib.import_module(module)
        for name in entries:
            # An entry that another package brings, as torch_npu does, may be made when the settings are first copied.
            if not hasattr(found, setting_name(found, name)) and name not in found.get_config_copy():
                raise InvalidConfigError(f"torch {torch.__version__} has no setting {module}.{name}")


def _set_in_process(settings: Settings, changes: UndoLog) -> None:
    if settings.keeps_memory:
        changes.make(lambda: _tell_allocator(-1, 0), lambda: _tell_allocator(_TRIM_THRESHOLD, _MMAP_MAX))
    if settings.num_threads is not None:
        threads, before = settings.num_threads, torch.get_num_threads()
        changes.make(lambda: torch.set_num_threads(threads), lambda: torch.set_num_threads(before))
    if settings.cudnn_benchmark:
        changes.set_attribute(torch.backends.cudnn, "benchmark", True)
    if settings.fp16_accumulation:
        precision.sum_in_float16(changes)
    if settings.blas_library is not None:
        choose, wanted = torch.backends.cuda.preferred_blas_library, settings.blas_library
        library = choose()
        changes.make(lambda: choose(wanted), lambda: choose(library))
    if settings.matmul_precision is not None:
        precision.set_matmul_precision(settings.matmul_precision, changes)


def _entries(model: torch.nn.Module, settings: Settings, guards_hooks: bool = True) -> list[Entry]:
    """What is set while the model is compiled."""
    inductor, dynamo, functorch = map(importlib.import_module, (_INDUCTOR, _DYNAMO, _FUNCTORCH))
    entries: list[Entry] = [
        (module, setting_name(module, name), value)
        for module, options in (
            (inductor, settings.compiler_options),
            (dynamo, settings.dynamo_options),
            (functorch, settings.functorch_options),
        )
        for name, value in options.items()
    ]
    if guards_hooks and hasattr(dynamo, _NO_HOOK_GUARDS):
        entries.append((dynamo, _NO_HOOK_GUARDS, False))
    own_workers = getattr(inductor, _WORKERS, None) or 1
    workers = max(1, min(own_workers, num_usable_cores()) // (num_local_ranks() if is_one_of_many() else 1))
    if workers < own_workers and _WORKERS_VARIABLE not in os.environ:
        entries.insert(0, (inductor, _WORKERS, workers))
    return entries + regions.room_for(model, settings.region, settings.dynamo_options)


def _tell_allocator(trim_threshold: int, mmap_max: int) -> None:
    """With -1 and 0: blocks from the heap only, never from mmap, and a heap that never shrinks: no page is faulted in
    twice."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(_M_MMAP_MAX, mmap_max) and libc.mallopt(_M_TRIM_THRESHOLD, trim_threshold)):
        raise InvalidConfigError("knob allocator: mallopt(3) refused")
