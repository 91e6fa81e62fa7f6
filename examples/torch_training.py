"""A plain PyTorch training loop with a tuned model.

python examples/torch_training.py                                              # as it is: nothing is tuned yet
python cli.py tune --model examples/torch_training.py:build --study training
python cli.py export training -o best.yaml
python examples/torch_training.py --tuned best.yaml
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import autotune

BATCH, FEATURES = 64, 16


def build(seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and its inputs, as `tune --model` asks for them."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 2))
    return model.eval(), (torch.randn(BATCH, FEATURES),)


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
    model = build()[0].to(device).train()
    # On its device and in its mode; then the optimizer. What comes back has the model's parameters and names.
    model = autotune.load(options.tuned).apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(100):
        points, labels = batch(generator)
        loss = nn.functional.cross_entropy(model(points.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, options.checkpoint)
    print(f"loss {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.3f}, checkpoint in {options.checkpoint}")


if __name__ == "__main__":
    main()
