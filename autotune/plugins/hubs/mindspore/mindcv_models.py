"""Models of MindCV: from a name to a Cell and the image to call it with. Checked with 0.3.0 beside MindSpore 2.10."""

from __future__ import annotations

from typing import Any

import mindcv
import mindspore
import numpy as np
from mindcv.models.registry import is_model, list_models

from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, marked
from autotune.models import weights
from autotune.models.mindspore.training import cross_entropy
from autotune.plugins.hubs.hubs import MINDCV, MINDCV_EXAMPLES, require_count, what_it_refuses

__all__ = ["build", "build_to_train"]


def build(
    name: str, *, batch: int = 1, image_size: int = 224, seed: int = 0, **arguments: Scalar
) -> tuple[mindspore.nn.Cell, mindspore.Tensor]:
    """The Cell in evaluation mode, and its input of (batch, channels, image_size, image_size).

    `arguments` are those of `mindcv.create_model`. The parameters are seeded. Raises InputError for what MindCV does
    not have or does not take.
    """
    require_count("batch", batch)
    require_count("image_size", image_size)
    if not is_model(name):
        raise InputError(
            f"{marked('build', MINDCV + name)}: mindcv {mindcv.__version__} has no such model",
            tip=f"{did_you_mean(name, list_models())}for example: {', '.join(MINDCV_EXAMPLES)}",
        )
    with what_it_refuses(MINDCV + name):
        model: Any = mindcv.create_model(name, pretrained=False, **arguments)
    model.set_train(False)
    for parameter in model.get_parameters():
        made = weights.value(parameter.name, tuple(parameter.shape), seed)
        parameter.set_data(mindspore.Tensor(made, parameter.dtype))
    pixels = weights.normal_input((batch, int(arguments.get("in_channels", 3) or 3), image_size, image_size), seed)
    return model, mindspore.Tensor(pixels)


def build_to_train(
    name: str, *, batch: int = 4, num_classes: int = 1000, seed: int = 0, **arguments: Any
) -> dict[str, Any]:
    """The Cell in training mode, its image, a class for each, and smoothed cross-entropy. Arguments are those of
    `build`."""
    require_count("num_classes", num_classes)
    model, pixels = build(name, batch=batch, seed=seed, num_classes=num_classes, **arguments)
    labels = mindspore.Tensor(weights.labels(batch, num_classes, seed).astype(np.int32))
    return {"model": model.set_train(), "inputs": pixels, "targets": labels, "loss": cross_entropy}
