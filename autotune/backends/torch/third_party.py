"""Backends of torch.compile that other packages bring: zentorch, OpenVINO, and any that is registered with dynamo.

Dynamo asks little of a backend: a function that makes a callable of a graph. A job asks for more, and inductor gives
it. What no backend promises, and a trial does not see, since it drops each output, changes no weight and has one
thread:

* The weights may be constants of what it made. They are watched as those of frozen code (`frozen`), and once they
  change, calls are made untuned.
* Outputs may lie where the next call writes its own. OpenVINO's do (2026.4). They are copied, within the call that is
  timed.
* Two threads may not call it at once. One waits for the other, until its outputs are copied.
* Its kernels may make a number of NaN, so that what is wrong comes out as a plausible answer. OpenVINO's do. A graph of
  its that is given NaN runs as it was captured. What becomes NaN within a graph is not seen.
* There may be no gradients. Calls that record any are made untuned, and no training step takes such a backend.

zentorch rewrites a graph and hands it to inductor, which does the rest as ever: nothing of this is needed for it.
Settings that a package changes for the whole process, when it is imported or whenever it compiles, are put back.
"""

from __future__ import annotations

import importlib
import operator
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from autotune.backends.torch.compiler import ConstantsSeen, Entry
from autotune.backends.torch.frozen import FrozenWeights
from autotune.backends.torch.given_model import FunctionModel
from autotune.backends.torch.knobs import BROUGHT_BY, Settings
from autotune.environment import package_version
from autotune.errors import InvalidConfigError, quoted
from autotune.measure.diagnosis import Diagnosis

_DYNAMO, _INDUCTOR = "torch._dynamo.config", "torch._inductor.config"
_INLINE = "inline_inbuilt_nn_modules"
"""Whether dynamo makes weights inputs of a graph. OpenVINO turns it off for the whole process when it is imported;
from 2.13 on nothing reads it, and whoever touches it is warned."""
_OPENVINO = "openvino.frontend.pytorch.torchdynamo"
_JOINT_PASS = "joint_custom_post_pass"
"""Where zentorch puts its own pass whenever it compiles, for whatever inductor compiles from then on."""
_LATE_PASS = "post_grad_custom_pre_pass"

CompileGraph = Callable[..., Callable[..., Any]]
"""A backend as dynamo has it: makes a callable of a graph and example inputs."""


@dataclass(frozen=True)
class _Package:
    """What is known of a backend whose package has the same name."""

    problem: Callable[[Settings], str | None]
    """Why it is of no use here, once it is imported."""
    arguments: Callable[[Settings], dict[str, Any]]
    """What it takes beside a graph and inputs, when a graph is compiled."""
    entries: Callable[[], list[Entry]]
    """What is set while a model is compiled, and put back."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """In which a graph is given to it."""


def function_of(settings: Settings) -> CompileGraph:
    """The backend itself, whose package is imported if it is known here, or names it by an entry point. Raises
    InvalidConfigError."""
    name, package = settings.backend, _PACKAGES.get(settings.backend)
    if package is not None:
        _import(name)
        problem = package.problem(settings)
        if problem is not None:
            raise InvalidConfigError(f"knob {problem}")
    import torch._dynamo
    from torch._dynamo.backends.registry import lookup_backend

    known = torch._dynamo.list_backends(exclude_tags=())
    if name not in known:
        raise InvalidConfigError(
            f"knob backend: torch {torch.__version__} has no {name!r}, only {', '.join(known)}",
            tip=f"import what registers {name!r} before the config is applied, in the model's file for a study",
        )
    try:
        function: CompileGraph = lookup_backend(name)
    except Exception as error:  # An entry point is loaded now, whatever its package does then.
        raise InvalidConfigError(f"knob backend: {name} cannot be loaded: {quoted(error)}") from error
    return function


def backend_for(
    settings: Settings, function: CompileGraph, model: torch.nn.Module, weights: FrozenWeights | None
) -> CompileGraph:
    """What torch.compile is given: the backend, with what it does not promise. `weights` of None: those of the model
    stay inputs of the code."""
    package = _PACKAGES.get(settings.backend)

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if package is None:
            compiled = function(graph, inputs)
        else:
            with package.around():
                compiled = function(graph, inputs, **package.arguments(settings))
        if settings.through_inductor:
            return compiled
        return _one_by_one(compiled, None if package is None else graph)

    if weights is None:
        return compile_graph
    held = [] if settings.through_inductor else list(_held_by(model))
    return ConstantsSeen(compile_graph, lambda constants: weights.add([*constants, *held]))


def entries_of(settings: Settings) -> list[Entry]:
    """What is set while a model is compiled with this backend."""
    package = _PACKAGES.get(settings.backend)
    entries = [] if package is None else package.entries()
    if settings.through_inductor and settings.freezes:
        from autotune.backends.torch.frozen_graph import WITHOUT_ADDRESSES, FrozenGraphPass

        inductor = importlib.import_module(_INDUCTOR)
        # That inductor's cache of frozen graphs mixes no weights up is known without passes of others only.
        entries += [*WITHOUT_ADDRESSES, (inductor, _LATE_PASS, FrozenGraphPass()), (inductor, "fx_graph_cache", False)]
    return entries


def as_told(settings: Settings, said: Diagnosis) -> Diagnosis:
    """What dynamo said of the capture, and of the rest what the backend tells."""
    if not settings.is_unknown:
        return said
    told, has_run = _parts_of_openvino() if settings.backend == "openvino" else (None, said.compiled)
    silent = f"{settings.backend} does not tell of kernels, fusions and caches"
    note = "; ".join(filter(None, [said.note, told, silent]))
    unknown = {"cache_hits": None, "num_kernels": None, "num_fused": None}
    return said.model_copy(update={**unknown, "compiled": said.compiled and has_run, "note": note})


def _import(name: str) -> None:
    """Import its package. What that sets in dynamo's settings is put back."""
    release = package_version(name)
    if release is None:
        raise InvalidConfigError(
            f"knob backend: {name} is not installed", tip=f"pip install {name} (docs/other-backends.md)"
        )
    dynamo = importlib.import_module(_DYNAMO)
    before = {setting: getattr(dynamo, setting) for setting in _live(dynamo)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            importlib.import_module(BROUGHT_BY[name])
    except Exception as error:  # A library of it may be of another release of PyTorch.
        raise InvalidConfigError(
            f"knob backend: {name} {release} cannot be imported here: {quoted(error)}",
            tip="docs/other-backends.md says which release of it fits which of PyTorch",
        ) from error
    finally:
        for setting, value in before.items():
            setattr(dynamo, setting, value)


def _live(dynamo: Any) -> list[str]:
    """The setting that OpenVINO turns off, in a release that reads it."""
    entry = dynamo._config.get(_INLINE)
    return [] if entry is None or getattr(entry, "deprecated", False) else [_INLINE]


def _one_by_one(compiled: Callable[..., Any], captured: Callable[..., Any] | None) -> Callable[..., Any]:
    """One call after the other, each with outputs of its own; what a call was given is returned as it is. `captured`:
    what runs in place of it where NaN is given; None: the backend may have changed that."""
    lock = threading.Lock()

    def call(*args: Any) -> Any:
        if captured is not None and any(map(_has_nan, args)):
            return captured(*args)
        given = set(map(id, args))
        with lock:
            return [
                output.clone() if isinstance(output, torch.Tensor) and id(output) not in given else output
                for output in compiled(*args)
            ]

    return call


def _has_nan(value: Any) -> bool:
    """NaN is among the numbers, or infinities of both signs are: a sum needs no tensor of that size beside it."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.sum().isnan())


def _held_by(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Weights and buffers, of a function those around it."""
    around = model.around() if isinstance(model, FunctionModel) else []
    for holder in (model, *around):
        if isinstance(holder, torch.nn.Module):
            yield from holder.parameters()
            yield from holder.buffers()
        elif isinstance(holder, torch.Tensor):
            yield holder


# zentorch: https://github.com/amd/ZenDNN-pytorch-plugin
#
# It is built for one minor release of PyTorch, and its import fails under another.


def _without_avx512(settings: Settings) -> str | None:
    native = importlib.import_module("zentorch._C")
    if native.is_avx512_supported():
        return None
    return "backend: zentorch changes nothing on a processor without AVX-512, and this is one"


def _entries_of_zentorch() -> list[Entry]:
    inductor = importlib.import_module(_INDUCTOR)
    return [(inductor, _JOINT_PASS, getattr(inductor, _JOINT_PASS))]


# OpenVINO: https://docs.openvino.ai/2026/openvino-workflow/torch-compile.html
#
# Its backend cuts a graph into parts that OpenVINO runs and operators that PyTorch runs. The weights are to be
# attributes of the graph, as they are for inductor when it freezes, so that OpenVINO can pack them. It compiles a part
# at the first call of it, and where that fails runs it eagerly from then on, without a word; a graph that it cannot
# cut it gives to inductor, without a word.
#
# Its own `model_caching` is never used: the key of what it keeps has the code of a graph and the shapes, and not the
# weights, which are in what it keeps (2026.4). OpenVINO's own cache below it, `CACHE_DIR`, is another one.


def _without_device(settings: Settings) -> str | None:
    device = settings.openvino.get("device", "CPU")
    devices: list[str] = importlib.import_module("openvino").Core().available_devices
    return None if device in devices else f"openvino_device: there is no {device!r} here, only {', '.join(devices)}"


def _arguments_of_openvino(settings: Settings) -> dict[str, Any]:
    """Its threads are not PyTorch's, and would be as many as there are cores."""
    asked = settings.openvino
    config: dict[str, Any] = {}
    if asked.get("device", "CPU") == "CPU":
        config["INFERENCE_NUM_THREADS"] = torch.get_num_threads()
    if asked.get("precision") is not None:
        config["INFERENCE_PRECISION_HINT"] = asked["precision"]
    if asked.get("cache"):
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        config["CACHE_DIR"] = f"{cache_dir()}/openvino"
    return {"options": {"device": asked.get("device", "CPU"), "config": config}}


def _entries_of_openvino() -> list[Entry]:
    dynamo = importlib.import_module(_DYNAMO)
    return [
        *((dynamo, setting, True) for setting in _live(dynamo)),
        (importlib.import_module(_INDUCTOR), "freezing", True),
        (importlib.import_module(f"{_OPENVINO}.backend"), "compile_fx", _refused),
    ]


def _traced_apart() -> AbstractContextManager[Any]:
    """It traces the graph once more. In dynamo's own tracing a weight may be no attribute."""
    apart: AbstractContextManager[Any] = torch._guards.tracing(None)
    return apart


def _refused(*_: Any, **__: Any) -> Any:
    """In place of inductor, to which OpenVINO's backend would give the graph."""
    error = sys.exc_info()[1]
    why = "" if error is None else f": {quoted(error)}"
    raise InvalidConfigError(f"knob backend: OpenVINO cannot compile a graph of this model{why}")


def _parts_of_openvino() -> tuple[str, bool]:
    """A sentence on the parts that it runs, and whether it runs any."""
    execute = sys.modules.get(f"{_OPENVINO}.execute")
    graphs = [*execute.partitioned_modules.values()] if execute is not None else []
    parts = [part for graph in graphs for part in graph.modules() if type(part).__name__ == "OpenVINOGraphModule"]
    failed = sum(part.perm_fallback for part in parts)
    nodes = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    left = sum(node.target is not operator.getitem for node in nodes)
    told = f"OpenVINO runs {len(parts) - failed} of {len(parts)} parts"
    told += "; the others failed in it and run in PyTorch" if failed else ""
    told += f"; {left} operators beside them run in PyTorch" if left else ""
    return told, failed < len(parts)


_PACKAGES: dict[str, _Package] = {
    "zentorch": _Package(_without_avx512, lambda _: {}, _entries_of_zentorch),
    "openvino": _Package(_without_device, _arguments_of_openvino, _entries_of_openvino, _traced_apart),
}
