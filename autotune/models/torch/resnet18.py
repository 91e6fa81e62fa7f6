"""ResNet-18 (He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotune.models import weights
from autotune.models.torch.filling import fill, in_type

__all__ = ["resnet18"]


def resnet18(
    *, image: int = 96, width: int = 64, classes: int = 1000, batch: int = 1, dtype: str = "float32", seed: int = 0
) -> dict[str, Any]:
    """ResNet-18 (the paper's at width 64), and one input of (batch, 3, image, image).

    The default image is smaller than the paper's 224 px because a call of the MindSpore model, which has the
    same defaults, takes seconds there on a CPU.
    """
    model = _ResNet18(width, classes).eval()
    fill(model, seed)
    images = torch.from_numpy(weights.normal_input((batch, 3, image, image), seed))
    model, inputs = in_type(model, (images,), dtype)
    return {"model": model, "inputs": inputs, "padding": {"batch": 0}}


class _BasicBlock(nn.Module):
    """Convolutions and a shortcut: (batch, channels_in, h, w) to (batch, channels, h/stride, w/stride)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        residual = functional.relu(self.bn1(self.conv1(features)))
        residual = self.bn2(self.conv2(residual))
        return functional.relu(residual + self.shortcut(features))


class _ResNet18(nn.Module):
    """(batch, 3, h, w) to class scores of (batch, classes)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(functional.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        scores: torch.Tensor = self.head(features.mean(dim=(2, 3)))
        return scores


def _stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_BasicBlock(channels_in, channels, stride), _BasicBlock(channels, channels, 1))
