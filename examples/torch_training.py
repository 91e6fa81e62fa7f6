"""A plain PyTorch training loop with a tuned training step.

python examples/torch_training.py                                              # as it is: nothing is tuned yet
python cli.py tune --task train --model examples/torch_training.py:build --study training
python cli.py export training -o best.yaml
python examples/torch_training.py --tuned best.yaml
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

import autotune

BATCH, FEATURES = 64, 16


def loss(model: nn.Module, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of a batch; smoothed, or the loss of the one batch that is tuned on reaches zero."""
    return nn.functional.cross_entropy(model(points), labels, label_smoothing=0.1)


def build(seed: int = 0) -> dict[str, Any]:
    """The parts of a training step, as `tune --task train` asks for them."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2))
    points, labels = batch(torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return {"model": model, "inputs": points, "targets": labels, "loss": loss, "optimizer": optimizer}


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, and whether each lies outside a sphere."""
    points = torch.randn(BATCH, FEATURES, generator=generator)
    return points, (points.square().sum(dim=1) > FEATURES).long()


def main() -> None:
    """Train, say how it went, and keep a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", default="best.yaml")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build()["model"].to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Forward, loss, backward and the optimizer's step, as they were measured.
    step = autotune.load(options.tuned).training_step(model, loss, optimizer)

    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(100):
        points, labels = batch(generator)
        losses.append(step(points.to(device), labels.to(device)).item())

    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, options.checkpoint)
    print(f"loss {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.3f}, checkpoint in {options.checkpoint}")


if __name__ == "__main__":
    main()
