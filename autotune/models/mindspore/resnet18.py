"""ResNet-18 (He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385)."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import fill

__all__ = ["resnet18"]


def resnet18(*, image: int = 96, width: int = 64, classes: int = 1000, batch: int = 1, seed: int = 0) -> dict[str, Any]:
    """ResNet-18 (the paper's at width 64), and one input of (batch, 3, image, image).

    The default image is smaller than the paper's 224 px, at which a call takes seconds on a CPU.
    """
    model = _ResNet18(width, classes).set_train(False)
    fill(model, seed)
    return {
        "model": model,
        "inputs": (Tensor(weights.normal_input((batch, 3, image, image), seed)),),
        "padding": {"batch": 0},
    }


class _BasicBlock(nn.Cell):
    """Convolutions and a shortcut: (batch, channels_in, h, w) to (batch, channels, h/stride, w/stride)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(channels_in, channels, kernel=3, stride=stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, kernel=3, stride=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.SequentialCell(
                _conv(channels_in, channels, kernel=1, stride=stride), nn.BatchNorm2d(channels)
            )

    def construct(self, features: Tensor) -> Tensor:
        residual = ops.relu(self.bn1(self.conv1(features)))
        residual = self.bn2(self.conv2(residual))
        return ops.relu(residual + self.shortcut(features))


class _ResNet18(nn.Cell):
    """(batch, 3, h, w) to class scores of (batch, classes)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = _conv(3, width, kernel=7, stride=2)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.head = nn.Dense(8 * width, classes)

    def construct(self, images: Tensor) -> Tensor:
        features = self.pool(ops.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        return self.head(features.mean((2, 3)))


def _conv(channels_in: int, channels: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, kernel, stride=stride, pad_mode="pad", padding=kernel // 2)


def _stage(channels_in: int, channels: int, stride: int) -> nn.SequentialCell:
    return nn.SequentialCell(_BasicBlock(channels_in, channels, stride), _BasicBlock(channels, channels, 1))
