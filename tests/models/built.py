"""The bundled models and the demonstrations of `examples/models`, each built by its name."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import models

os.environ.setdefault("GLOG_v", "3")  # MindSpore reads its log level once, when it is imported

DEMONSTRATIONS: dict[str, dict[str, str]] = {
    **{
        name: {framework: f"examples.models.{name}_{framework}" for framework in models.FRAMEWORKS}
        for name in ("swiglu", "yolo_tiny", "tanh_matmul")
    },
    **{
        name: {"torch": f"examples.models.{name}"}
        for name in ("planner", "intersection", "temporal_decision", "branching")
    },
    "mixed_attention": {"mindspore": "examples.models.mixed_attention"},
}
"""Name -> framework -> its module."""
MODELS = {**dict.fromkeys(models.BUNDLED, models.FRAMEWORKS), **{name: tuple(m) for name, m in DEMONSTRATIONS.items()}}
"""Name -> the frameworks that it is written for."""
IN_TORCH = [name for name, frameworks in MODELS.items() if "torch" in frameworks]
SMALL: dict[str, dict[str, int]] = {
    "vit": {"image": 32, "patch": 8, "dim": 32, "depth": 2, "heads": 2, "classes": 10, "batch": 2},
    "tanh_matmul": {"size": 32, "repeats": 10},
    "resnet18": {"image": 32, "width": 8, "classes": 10, "batch": 2},
    "yolo_tiny": {"image": 64, "width": 8, "depth": 2, "classes": 3, "batch": 2},
    "bert_small": {"seq": 16, "dim": 32, "depth": 2, "heads": 2, "vocab": 50, "batch": 3},
    "swiglu": {"length": 8, "dim": 32, "depth": 2, "heads": 2, "hidden": 48, "batch": 2},
    "planner": {"features": 8, "hidden": 16, "horizon": 3, "actions": 4, "batch": 2},
    "intersection": {"agents": 5, "history": 4, "horizon": 3, "dim": 16, "batch": 2},
    "temporal_decision": {"features": 8, "history": 6, "dim": 16, "depth": 1, "heads": 2, "actions": 3, "batch": 2},
    "branching": {"length": 16, "features": 8, "dim": 16, "classes": 5, "batch": 2},
    "mixed_attention": {"length": 8, "dim": 16, "heads": 2, "batch": 3},
}
torch_only = pytest.mark.torch
mindspore_only = pytest.mark.mindspore


def mark(framework: str) -> pytest.MarkDecorator:
    return torch_only if framework == "torch" else mindspore_only


every_model = pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(name, framework, marks=mark(framework))
        for name, frameworks in MODELS.items()
        for framework in frameworks
    ],
)
every_common_model = pytest.mark.parametrize(
    "name", [name for name, frameworks in MODELS.items() if set(frameworks) == {"torch", "mindspore"}]
)


def module_of(name: str, framework: str) -> Any:
    """The module that a model is written in."""
    known = DEMONSTRATIONS.get(name)
    return importlib.import_module(known[framework] if known else models.reference(name, framework).partition(":")[0])


def builder(name: str, framework: str) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    pytest.importorskip(framework)
    build = getattr(module_of(name, framework), name)

    @functools.wraps(build)
    def pair(**sizes: int) -> tuple[Any, tuple[Any, ...]]:
        built = build(**sizes)
        return (built["model"], built["inputs"]) if isinstance(built, dict) else built

    return pair


def further_inputs(name: str, framework: str, **sizes: int) -> list[tuple[Any, ...]]:
    """The `more_inputs` of a builder, none where it gives none."""
    built = builder(name, framework).__wrapped__(**sizes)  # type: ignore[attr-defined]
    return list(built.get("more_inputs", [])) if isinstance(built, dict) else []


def call(framework: str, model: Any, inputs: tuple[Any, ...]) -> list[NDArray[np.float32]]:
    if framework == "torch":
        import torch

        with torch.no_grad():
            outputs = model(*inputs)
    else:
        outputs = model(*inputs)
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return [tensor.numpy() if framework == "torch" else tensor.asnumpy() for tensor in tensors]


def outputs_of(name: str, framework: str, **sizes: int) -> list[NDArray[np.float32]]:
    return call(framework, *builder(name, framework)(**sizes))


def relative_difference(outputs: list[NDArray[np.float32]], references: list[NDArray[np.float32]]) -> float:
    """The largest absolute difference over the largest absolute reference, at the worst output."""
    assert [output.shape for output in outputs] == [reference.shape for reference in references]
    pairs = zip(outputs, references, strict=True)
    return max(float(np.abs(one - reference).max() / np.abs(reference).max()) for one, reference in pairs)
