"""Table of the bundled models: what they are, and which frameworks each one is written for.

Every builder is a function `name(*, sizes..., seed=0) -> (model, example_inputs)`: the model is in evaluation
mode and filled with seeded weights, and the inputs are a tuple of tensors to call it with. Where a model
exists in two frameworks, both builders take the same sizes and give the same function of the same weights.
`training.py` has the builders for training steps: the same models with a loss, targets and an optimizer.

Importing this package imports no framework, so the models can be listed where a framework is not installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

__all__ = ["BUNDLED", "BundledModel", "names", "reference", "source_sha256"]


@dataclass(frozen=True, slots=True)
class BundledModel:
    """One line of the table: what a model is, the frameworks it exists in, and whether it has a loss to train with."""

    description: str
    frameworks: tuple[str, ...]
    trains: bool = False


_BOTH = ("torch", "mindspore")

BUNDLED: Mapping[str, BundledModel] = MappingProxyType(
    {
        "vit": BundledModel("Vision Transformer: patch 16 on a 224 px image, 6 pre-norm blocks", _BOTH, trains=True),
        "tanh_matmul": BundledModel("100 times a 512 x 512 matrix product followed by tanh", _BOTH),
        "resnet18": BundledModel("ResNet-18 with batch norm", _BOTH, trains=True),
        "yolo_tiny": BundledModel("one-stage detector: CSP backbone, feature pyramid, three heads", _BOTH),
        "bert_small": BundledModel("BERT encoder: 4 post-norm blocks on 64 tokens, with a pooler", _BOTH, trains=True),
        "planner": BundledModel("decision network that breaks graphs on purpose", ("torch",)),
    }
)


def names(framework: str | None = None, task: Literal["infer", "train"] = "infer") -> tuple[str, ...]:
    """The names of the bundled models for a task, of those that exist in `framework` where one is given."""
    return tuple(
        name
        for name, model in BUNDLED.items()
        if (framework is None or framework in model.frameworks) and (task == "infer" or model.trains)
    )


def reference(name: str, framework: str, task: Literal["infer", "train"] = "infer") -> str:
    """The import reference `module:function` of a model's builder; `KeyError` if there is no such model.

    To train, that is the one in `training.py`, which adds loss, targets and optimizer.
    """
    if name not in names(framework, task):
        raise KeyError(name, framework, task)
    return f"{__name__}.{framework}.{name if task == 'infer' else 'training'}:{name}"


def source_sha256(name: str, framework: str, task: Literal["infer", "train"] = "infer") -> str:
    """Digest of the files that a model is written in: it tells whether two studies tuned the same code."""
    files = [f"{name}.py"] if task == "infer" else [f"{name}.py", "training.py"]
    return hashlib.sha256(
        b"".join((Path(__file__).parent / framework / file).read_bytes() for file in files)
    ).hexdigest()
