"""Models of timm, PyTorch Image Models: from a name to a model and the image to call it with. Checked with 1.0.31."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.data import resolve_data_config

from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, marked
from autotune.models import weights
from autotune.models.torch.training import cross_entropy
from autotune.plugins.hubs.hubs import TIMM, TIMM_EXAMPLES, require_count, what_it_refuses

__all__ = ["build", "build_to_train"]


def build(
    name: str, *, batch: int = 1, image_size: int | None = None, seed: int = 0, **arguments: Scalar
) -> tuple[torch.nn.Module, torch.Tensor]:
    """The model in evaluation mode, and its input of (batch, channels, image_size, image_size).

    `image_size` is the edge that its data configuration names unless another is given; `arguments` are those of
    `timm.create_model`. The parameters are seeded: timm's own leave some layers near zero, behind which a wrong result
    would not show. Raises InputError for what timm does not have or does not take.
    """
    for argument, count in (("batch", batch), ("image_size", image_size)):
        if count is not None:
            require_count(argument, count)
    if not timm.is_model(name):
        raise InputError(
            f"{marked('build', TIMM + name)}: timm {timm.__version__} has no such model",
            tip=f"{did_you_mean(name, timm.list_models())}for example: {', '.join(TIMM_EXAMPLES)}",
        )
    model = _create(name, image_size, arguments)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights.value(parameter_name, tuple(parameter.shape), seed)))
    size = resolve_data_config({}, model=model)["input_size"]
    channels, height, width = arguments.get("in_chans", size[0]), image_size or size[1], image_size or size[2]
    pixels = weights.normal_input((batch, channels, height, width), seed)
    return model.eval(), torch.from_numpy(pixels)


def build_to_train(name: str, *, batch: int = 4, seed: int = 0, **arguments: Any) -> dict[str, Any]:
    """The model in training mode, its image, a class for each, and smoothed cross-entropy, as timm trains by default.
    Arguments are those of `build`. Raises InputError for a model without classes too."""
    model, pixels = build(name, batch=batch, seed=seed, **arguments)
    num_classes: Any = getattr(model, "num_classes", 0)
    if not num_classes:
        raise InputError(
            f"{marked('build', TIMM + name)}: it has no classes to train it with",
            tip=f"give {marked('arguments')} num_classes=1000",
        )
    labels = torch.from_numpy(weights.labels(batch, num_classes, seed))
    return {"model": model.train(), "inputs": pixels, "targets": labels, "loss": cross_entropy}


def _create(name: str, image_size: int | None, arguments: dict[str, Scalar]) -> Any:
    """A model that is made for one size of images is told it; the others take any."""
    with what_it_refuses(TIMM + name):
        if image_size is not None:
            try:
                return timm.create_model(name, pretrained=False, **{"img_size": image_size, **arguments})
            except TypeError as error:
                if "img_size" not in str(error):
                    raise
        return timm.create_model(name, pretrained=False, **arguments)
