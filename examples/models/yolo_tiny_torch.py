"""A small one-stage detector in the manner of YOLO: three heads on a feature pyramid.

Sources: cross-stage partial blocks (CSPNet, arXiv:1911.11929), feature pyramid (arXiv:1612.03144), heads at
strides 8, 16 and 32 with three anchors each (YOLOv3, arXiv:1804.02767). Decoding and suppression of boxes are
left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotune.models import weights
from autotune.models.torch.filling import fill, in_type

__all__ = ["yolo_tiny"]

_ANCHORS = 3
_BOX = 5  # four coordinates and objectness
_COARSEST_STRIDE = 32
_NORM_EPS = 1e-3

# SiLU shrinks its input, so with a gain of 1 the image fades from layer to layer until the heads see little
# but biases; from 1.4 on, the outputs of deep variants run into the hundreds. This lies between the two.
_GAIN = 1.3


def yolo_tiny(
    *,
    image: int = 128,
    width: int = 16,
    depth: int = 1,
    classes: int = 80,
    batch: int = 1,
    dtype: str = "float32",
    seed: int = 0,
) -> dict[str, Any]:
    """The detector, and one input of (batch, 3, image, image).

    `width` is the number of channels of the stem, `depth` the number of bottlenecks in a block.
    """
    if image % _COARSEST_STRIDE:
        raise ValueError(f"image={image} is not a multiple of {_COARSEST_STRIDE}")
    model = _YoloTiny(width, depth, classes).eval()
    fill(model, seed, gain=_GAIN)
    images = torch.from_numpy(weights.normal_input((batch, 3, image, image), seed))
    model, inputs = in_type(model, (images,), dtype)
    return {"model": model, "inputs": inputs, "padding": {"batch": 0}}


class _ConvUnit(nn.Module):
    """Convolution, norm and SiLU: (batch, channels_in, h, w) to (batch, channels, h/stride, w/stride)."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(channels, eps=_NORM_EPS)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.norm(self.conv(features)))


class _Bottleneck(nn.Module):
    """A 1 x 1 and a 3 x 3 unit with a shortcut; keeps the shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = _ConvUnit(channels, channels, 1)
        self.mix = _ConvUnit(channels, channels, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = features + self.mix(self.reduce(features))
        return result


class _CspBlock(nn.Module):
    """Half of the channels pass the bottlenecks, half go around: (batch, channels_in, h, w) to channels."""

    def __init__(self, channels_in: int, channels: int, depth: int) -> None:
        super().__init__()
        half = channels // 2
        self.through = _ConvUnit(channels_in, half, 1)
        self.around = _ConvUnit(channels_in, half, 1)
        self.bottlenecks = nn.Sequential(*(_Bottleneck(half) for _ in range(depth)))
        self.join = _ConvUnit(2 * half, channels, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        halves = (self.bottlenecks(self.through(features)), self.around(features))
        result: torch.Tensor = self.join(torch.cat(halves, dim=1))
        return result


class _YoloTiny(nn.Module):
    """(batch, 3, image, image) to maps of (batch, 3 * (5 + classes), image/s, image/s) for s = 8, 16, 32."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        outputs = _ANCHORS * (_BOX + classes)
        self.stem = _ConvUnit(3, width, 3, stride=2)
        self.stage4 = _stage(width, 2 * width, depth)
        self.stage8 = _stage(2 * width, 4 * width, depth)
        self.stage16 = _stage(4 * width, 8 * width, depth)
        self.stage32 = _stage(8 * width, 16 * width, depth)
        self.lateral32 = _ConvUnit(16 * width, 8 * width, 1)
        self.merge16 = _CspBlock(16 * width, 8 * width, depth)
        self.lateral16 = _ConvUnit(8 * width, 4 * width, 1)
        self.merge8 = _CspBlock(8 * width, 4 * width, depth)
        self.head8 = nn.Conv2d(4 * width, outputs, 1)
        self.head16 = nn.Conv2d(4 * width, outputs, 1)
        self.head32 = nn.Conv2d(8 * width, outputs, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        fine = self.stage8(self.stage4(self.stem(images)))
        middle = self.stage16(fine)
        coarse = self.lateral32(self.stage32(middle))
        middle = self.lateral16(self.merge16(torch.cat((_upsample(coarse), middle), dim=1)))
        fine = self.merge8(torch.cat((_upsample(middle), fine), dim=1))
        return self.head8(fine), self.head16(middle), self.head32(coarse)


def _stage(channels_in: int, channels: int, depth: int) -> nn.Sequential:
    """Halves the resolution, then one cross-stage partial block."""
    return nn.Sequential(_ConvUnit(channels_in, channels, 3, stride=2), _CspBlock(channels, channels, depth))


def _upsample(features: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(features, scale_factor=2.0, mode="nearest")
