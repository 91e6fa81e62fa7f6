"""MindSpore's Model.train with a tuned Cell.

python examples/mindspore_training.py                                              # as it is: nothing is tuned yet
python cli.py tune --task train --model mindspore=examples/mindspore_training.py:build --study mindspore
python cli.py export mindspore -o best.yaml
python examples/mindspore_training.py --tuned best.yaml
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np

from autotune.integrations.mindspore import tuned_callback

BATCH, FEATURES = 64, 16


def loss(network: ms.nn.Cell, batch: ms.Tensor, labels: ms.Tensor) -> ms.Tensor:
    """Of a batch."""
    return ms.ops.cross_entropy(network(batch), labels)


def build(seed: int = 0) -> dict[str, Any]:
    """The parts of a training step, as `tune --task train` asks for them."""
    ms.set_seed(seed)
    layers = ms.nn.Dense(FEATURES, 128), ms.nn.GELU(), ms.nn.Dense(128, 128), ms.nn.GELU(), ms.nn.Dense(128, 2)
    network = ms.nn.SequentialCell(*layers).set_train(False)
    batch, labels = next(points(1))
    return {
        "model": network,
        "inputs": ms.Tensor(batch),
        "targets": ms.Tensor(labels),
        "loss": loss,
        "optimizer": ms.nn.AdamWeightDecay(network.trainable_params(), learning_rate=3e-3),
    }


def points(num_batches: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of points, and whether each lies outside a sphere."""
    generator = np.random.default_rng(0)
    for _ in range(num_batches):
        batch = generator.normal(size=(BATCH, FEATURES)).astype(np.float32)
        yield batch, ((batch**2).sum(axis=1) > FEATURES).astype(np.int32)


class Losses(ms.train.Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[float] = []

    def on_train_step_end(self, run_context: ms.train.RunContext) -> None:
        """Called by MindSpore."""
        self.kept.append(float(run_context.original_args().net_outputs.asnumpy()))


def main() -> None:
    """Train, say how it went, and keep a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", default="best.yaml")
    parser.add_argument("--checkpoint", default="checkpoint.ckpt")
    options = parser.parse_args()

    network = build()["model"].set_train(True)
    optimizer = ms.nn.AdamWeightDecay(network.trainable_params(), learning_rate=3e-3)
    model = ms.train.Model(network, ms.nn.CrossEntropyLoss(), optimizer)

    dataset = ms.dataset.GeneratorDataset(lambda: points(50), ["points", "labels"], shuffle=False)
    losses = Losses()
    # The network is tuned while it trains.
    model.train(1, dataset, callbacks=[losses, tuned_callback(options.tuned)], dataset_sink_mode=False)

    ms.save_checkpoint(network, options.checkpoint)
    print(f"loss {losses.kept[0]:.3f} -> {sum(losses.kept[-10:]) / 10:.3f}, checkpoint in {options.checkpoint}")


if __name__ == "__main__":
    main()
