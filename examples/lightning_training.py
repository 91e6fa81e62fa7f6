"""PyTorch Lightning with a tuned model.

python examples/lightning_training.py                                              # as it is: nothing is tuned yet
python cli.py tune --task train --model examples/lightning_training.py:build --study lightning
python cli.py export lightning -o best.yaml
python examples/lightning_training.py --tuned best.yaml
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.integrations.lightning import tuned_callback

BATCH, SIZE = 32, 16


def loss(network: Any, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of a batch."""
    return nn.functional.cross_entropy(network(images), labels)


def build(seed: int = 0) -> dict[str, Any]:
    """The network inside the LightningModule and the parts of its training step, for `tune --task train`."""
    torch.manual_seed(seed)
    convolutions = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * (SIZE // 2) ** 2, 2))
    return {
        "model": network.eval(),
        "inputs": torch.randn(BATCH, 1, SIZE, SIZE),
        "targets": torch.arange(BATCH) % 2,
        "loss": loss,
        "optimizer": torch.optim.AdamW(network.parameters(), lr=3e-3),
    }


class Classifier(lightning.LightningModule):
    """A LightningModule around the network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build()["model"].train()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch of images and labels."""
        value = loss(self.network, *batch)
        self.losses.append(value.item())
        return value

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer for all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def stripes(num_images: int) -> TensorDataset:
    """Noisy images with stripes, either upright or lying."""
    noise = torch.randn(num_images, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    upright = (torch.arange(SIZE) % 2).float().expand(SIZE, SIZE)
    labels = torch.arange(num_images) % 2
    return TensorDataset(noise + torch.where(labels[:, None, None, None] == 1, upright, upright.T), labels)


def main() -> None:
    """Train, say how it went, and keep a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", default="best.yaml")
    parser.add_argument("--checkpoint", default="lightning.ckpt")
    options = parser.parse_args()

    classifier = Classifier()
    trainer = lightning.Trainer(
        max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        # While it fits, `classifier.network` is tuned. Parameters and names in checkpoints stay as they are.
        callbacks=[tuned_callback(options.tuned, "network")],
    )  # fmt: skip
    # Whole batches alone: another shape would be compiled anew.
    trainer.fit(classifier, DataLoader(stripes(20 * BATCH), batch_size=BATCH, shuffle=True))
    trainer.save_checkpoint(options.checkpoint)
    losses = classifier.losses
    print(f"loss {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.3f}, checkpoint in {options.checkpoint}")


if __name__ == "__main__":
    main()
