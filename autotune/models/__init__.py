"""Table of the bundled models: what they are, and which frameworks each one is written for.

Every builder is a function `name(*, sizes..., seed=0) -> (model, example_inputs)`, or gives a dict with `model`,
`inputs` and what else it declares (`variants`, `regions`, `tiers`, `padding`, `more_inputs`; see `workload`):
the model is in evaluation mode and filled with seeded weights, and the inputs are a tuple of tensors to call it with.
Where a model exists in two frameworks, both builders take the same sizes and give the same function of the same
weights.
`training.py` has the builders for training steps: the same models with a loss, targets and an optimizer.

Importing this package imports no framework, so the models can be listed where a framework is not installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["BUNDLED", "BundledModel", "declared", "names", "reference", "source_sha256"]


@dataclass(frozen=True, slots=True)
class BundledModel:
    """One line of the table: what a model is, the frameworks it exists in, and whether it has a loss to train with."""

    description: str
    frameworks: tuple[str, ...]
    repeated: str | None = None
    """The region of its repeated blocks."""
    regions: tuple[str, ...] | None = None
    """The regions that it declares."""
    variants: Mapping[str, Mapping[str, Mapping[str, str | None]]] = field(default_factory=dict)
    """Framework -> what it declares there; values, and where their functions are."""
    padding: tuple[str, ...] = ()
    """Dimensions that may be padded, by its default arguments."""
    tiers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Its grades of quality, the best first: the arguments of each."""
    trains: bool = False


_BOTH = ("torch", "mindspore")


def _swiglu(framework: str) -> dict[str, str | None]:
    return {"plain": None, "fused": f"{__name__}.{framework}.swiglu:use_fused_swish"}


BUNDLED: Mapping[str, BundledModel] = MappingProxyType(
    {
        "vit": BundledModel(
            "Vision Transformer: patch 16 on a 224 px image, 6 pre-norm blocks",
            _BOTH,
            "blocks.*",
            padding=("batch",),
            trains=True,
        ),
        "tanh_matmul": BundledModel("100 times a 512 x 512 matrix product followed by tanh", _BOTH),
        "resnet18": BundledModel("ResNet-18 with batch norm", _BOTH, padding=("batch",), trains=True),
        "yolo_tiny": BundledModel(
            "one-stage detector: CSP backbone, feature pyramid, three heads", _BOTH, padding=("batch",)
        ),
        "bert_small": BundledModel(
            "BERT encoder: 4 post-norm blocks on 64 tokens, with a pooler",
            _BOTH,
            "blocks.*",
            padding=("batch",),
            trains=True,
        ),
        "swiglu": BundledModel(
            "encoder: 4 pre-norm blocks with gated feed-forward; declares variants and tiers",
            _BOTH,
            "blocks.*",
            variants={
                "torch": {
                    "activation": _swiglu("torch"),
                    "attention": {"sdpa": None, "math": f"{__name__}.torch.swiglu:use_math_attention"},
                },
                "mindspore": {"activation": _swiglu("mindspore")},
            },
            tiers={"full": {}, "half_depth": {"depth": 2}, "one_block": {"depth": 1}},
        ),
        "planner": BundledModel("decision network that breaks graphs on purpose", ("torch",)),
        "intersection": BundledModel(
            "decides at an intersection: fixed rules, a scene with an eager middle, GRU trajectories",
            ("torch",),
            regions=("rules, scene.encode, scene.decode, predictor.roll_out", "whole but scene"),
        ),
        "temporal_decision": BundledModel("decides at each tick on a history buffer that fills and rolls", ("torch",)),
        "branching": BundledModel("branches on tensors, work on active ticks alone, dynamic pooling", ("torch",)),
        "mixed_attention": BundledModel("attention, half PyNative and half under jit; ragged lengths", ("mindspore",)),
    }
)


def names(framework: str | None = None, task: Literal["infer", "train"] = "infer") -> tuple[str, ...]:
    """The names of the bundled models for a task, of those that exist in `framework` where one is given."""
    return tuple(
        name
        for name, model in BUNDLED.items()
        if (framework is None or framework in model.frameworks) and (task == "infer" or model.trains)
    )


def declared(name: str, framework: str) -> dict[str, Any]:
    """What a process that builds the model would find declared (see `autotune.space.declared`), as plain data."""
    model = BUNDLED[name]
    return {
        "repeated": model.repeated,
        "regions": model.regions,
        "variants": model.variants.get(framework, {}),
        "padding": model.padding,
        "tiers": {tier: {"arguments": arguments} for tier, arguments in model.tiers.items()},
    }


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
