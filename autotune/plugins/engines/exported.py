"""A model of PyTorch that was exported and runs in another engine, called as the model is.

The graph is that of `torch.export`, for the shapes of one call. Inputs are handed over without a copy. Engines are
asked for float32 and for PyTorch's number of threads; all else is their default.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from autotune.errors import InvalidConfigError
from autotune.workload.arguments import Arguments

Run = Callable[[list[NDArray[Any]]], Sequence[NDArray[Any]]]
"""Takes the tensors among the inputs, in their order, and gives the outputs."""


def exported(
    model: torch.nn.Module, example: Arguments, load: Callable[[torch.export.ExportedProgram], Run]
) -> Callable[..., Any]:
    """The model as `load` runs its graph. Raises whatever `torch.export` and the engine raise, and in a call
    InvalidConfigError where an output is no tensor."""
    program = torch.export.export(model, example.positional, dict(example.keyword or {}), strict=False)
    spec = program.call_spec.out_spec
    run = load(program)

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        given = [leaf.detach().numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        outputs = [torch.from_numpy(output) for output in run(given)]
        if len(outputs) != spec.num_leaves:
            raise InvalidConfigError(f"the exported graph gives {len(outputs)} of the {spec.num_leaves} outputs")
        return pytree.tree_unflatten(outputs, spec)

    return call


def openvino(program: torch.export.ExportedProgram) -> Run:
    """OpenVINO's own conversion of the graph, compiled for a CPU."""
    # Its package of telemetry would start a process that tells its maker of the conversion, beside what is timed.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    library = importlib.import_module("openvino")
    asked = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = library.Core().compile_model(library.convert_model(program), "CPU", asked)
    outputs = range(len(compiled.outputs))

    def run(given: list[NDArray[Any]]) -> list[NDArray[Any]]:
        found = compiled(given, share_inputs=True)
        return [found[place] for place in outputs]

    return run


def onnxruntime(program: torch.export.ExportedProgram) -> Run:
    """ONNX Runtime on the graph as PyTorch exports it to ONNX."""
    library = importlib.import_module("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # It tells of each library that it could also export.
    made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None, "it was given a program"
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    content = made.model_proto.SerializeToString()
    session = library.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(given: list[NDArray[Any]]) -> list[NDArray[Any]]:
        feeds = dict(zip(names, map(np.ascontiguousarray, given), strict=True))
        found: list[NDArray[Any]] = session.run(None, feeds)
        return found

    return run
