"""What stands behind the door `autotune.engines`. Importing this file imports neither an engine nor a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.backends.engine import Engine
from autotune.workload.arguments import Arguments


def _openvino(model: Any, example: Arguments) -> Callable[..., Any]:
    from autotune.plugins.engines import exported

    return exported.exported(model, example, exported.openvino)


def _onnxruntime(model: Any, example: Arguments) -> Callable[..., Any]:
    from autotune.plugins.engines import exported

    return exported.exported(model, example, exported.onnxruntime)


OPENVINO = Engine("OpenVINO", "torch", ("openvino",), _openvino)
ONNXRUNTIME = Engine("ONNX Runtime", "torch", ("onnxruntime", "onnx", "onnxscript"), _onnxruntime)
