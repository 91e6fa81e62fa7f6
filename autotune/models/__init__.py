"""Table of the bundled models: each is written for both frameworks, as the same function of the same weights.

Every builder is a function `name(*, sizes..., seed=0) -> (model, example_inputs)`, or gives a dict with `model`,
`inputs` and `padding` (see `workload`): the model is in evaluation mode and filled with seeded weights, and the inputs
are a tuple of tensors to call it with. Both builders take the same sizes.
`training.py` has the builders for training steps: the same models with a loss, targets and an optimizer.

Importing this package imports no framework, so the models can be listed where a framework is not installed.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["BUNDLED", "FRAMEWORKS", "BundledModel", "declared", "names", "reference", "source_sha256"]


FRAMEWORKS = ("torch", "mindspore")
"""Frameworks that every bundled model is written for."""


@dataclass(frozen=True, slots=True)
class BundledModel:
    """One line of the table: what a model is, and whether it has a loss to train with."""

    description: str
    repeated: str | None = None
    """The region of its repeated blocks."""
    padding: tuple[str, ...] = ()
    """Dimensions that may be padded, by its default arguments."""
    trains: bool = False
    has_linears: bool = False
    """Linear layers hold a part of its weights that counts."""
    lacks_products: bool = False
    """Its calls hardly multiply matrices, nor what is made of them."""
    load: Literal["convolutions", "many rows"] = "many rows"
    """What a call is to a device."""


_PACKING = ("x86_64", "AMD64")
"""Processors for which PyTorch has the library that linear layers are packed for."""
_BATCH = ("batch",)
BUNDLED: Mapping[str, BundledModel] = MappingProxyType(
    {
        "vit": BundledModel(
            "Vision Transformer: patch 16 on a 224 px image, 6 pre-norm blocks",
            "blocks.*",
            _BATCH,
            trains=True,
            has_linears=True,
        ),
        "resnet18": BundledModel(
            "ResNet-18 with batch norm", None, _BATCH, trains=True, lacks_products=True, load="convolutions"
        ),
        "bert_small": BundledModel(
            "BERT encoder: 4 post-norm blocks on 64 tokens, with a pooler",
            "blocks.*",
            _BATCH,
            trains=True,
            has_linears=True,
        ),
    }
)


def names(framework: str | None = None, task: Literal["infer", "train", "generate"] = "infer") -> tuple[str, ...]:
    """The names of the bundled models for a task; none for a framework that they are not written for."""
    if framework is not None and framework not in FRAMEWORKS:
        return ()
    return tuple(name for name, model in BUNDLED.items() if task == "infer" or (task == "train" and model.trains))


def declared(
    name: str, task: Literal["infer", "train", "generate"] = "infer", *, on_device: bool = False
) -> dict[str, Any]:
    """What a process that builds the model would find declared (see `autotune.space.declared`), as plain data; with the
    kind of load that a call is where it is `on_device`."""
    if task == "train":
        return {}
    model = BUNDLED[name]
    met = ("linear layers",) if model.has_linears and platform.machine() in _PACKING else ()
    lacks = ("matrix products",) if model.lacks_products else ()
    load = (model.load,) if on_device else ()
    return {"repeated": model.repeated, "padding": model.padding, "met": (*met, *load), "lacks": lacks}


def reference(name: str, framework: str, task: Literal["infer", "train", "generate"] = "infer") -> str:
    """The import reference `module:function` of a model's builder; `KeyError` if there is no such model.

    To train, that is the one in `training.py`, which adds loss, targets and optimizer.
    """
    if name not in names(framework, task):
        raise KeyError(name, framework, task)
    return f"{__name__}.{framework}.{name if task == 'infer' else 'training'}:{name}"


def source_sha256(name: str, framework: str, task: Literal["infer", "train", "generate"] = "infer") -> str:
    """Digest of the files that a model is written in: it tells whether two studies tuned the same code."""
    files = [f"{name}.py"] if task == "infer" else [f"{name}.py", "training.py"]
    return hashlib.sha256(
        b"".join((Path(__file__).parent / framework / file).read_bytes() for file in files)
    ).hexdigest()
