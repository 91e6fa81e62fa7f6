"""The bundled models with what a training step takes: a loss, targets, and Adam.

Cross-entropy is smoothed (Szegedy et al., arXiv:1512.00567), as the Vision Transformers are trained. A benchmark takes
thousands of steps on one batch: without smoothing the loss would reach zero, and its gradients numbers so small that
processors compute with them in microcode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore import bert_small as bert
from autotune.models.mindspore import resnet18 as resnet
from autotune.models.mindspore import vit as transformer

__all__ = ["bert_small", "resnet18", "vit"]

_LEARNING_RATE = 1e-4
_SMOOTHING = 0.1
_BATCH = 4


def cross_entropy(model: nn.Cell, images: Tensor, labels: Tensor) -> Tensor:
    """Loss of class scores."""
    return ops.cross_entropy(model(images), labels, label_smoothing=_SMOOTHING)


def mean_square(model: nn.Cell, ids: Tensor, wanted: Tensor) -> Tensor:
    """Distance of the pooled output from a given one."""
    return ops.mse_loss(model(ids)[1], wanted)


def _classifier(build: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(build)
    def with_recipe(**sizes: Any) -> dict[str, Any]:
        built = build(**{"batch": _BATCH, **sizes})
        model, (images,) = built["model"], built["inputs"]
        labels = weights.labels(len(images), model.head.out_channels, sizes.get("seed", 0))
        return _parts(model, images, Tensor(labels.astype(np.int32)), cross_entropy)

    return with_recipe


def _encoder(build: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(build)
    def with_recipe(**sizes: Any) -> dict[str, Any]:
        built = build(**{"batch": _BATCH, **sizes})
        model, (ids, *_) = built["model"], built["inputs"]
        wanted = weights.normal_input((len(ids), model.pooler.out_channels), sizes.get("seed", 0))
        return _parts(model, ids, Tensor(wanted), mean_square)

    return with_recipe


def _parts(model: nn.Cell, inputs: Tensor, targets: Tensor, loss: Callable[..., Any]) -> dict[str, Any]:
    optimizer = nn.Adam(model.trainable_params(), learning_rate=_LEARNING_RATE)
    return {"model": model.set_train(), "inputs": inputs, "targets": targets, "loss": loss, "optimizer": optimizer}


vit = _classifier(transformer.vit)
resnet18 = _classifier(resnet.resnet18)
bert_small = _encoder(bert.bert_small)
