"""MindSpore's Model.train with a tuned Cell.

python examples/mindspore_training.py                                              # as it is: nothing is tuned yet
python cli.py tune --framework mindspore --model examples/mindspore_training.py:build --study mindspore
python cli.py export mindspore -o best.yaml
python examples/mindspore_training.py --tuned best.yaml
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import mindspore as ms
import numpy as np

import autotune

BATCH, FEATURES = 64, 16


def build(seed: int = 0) -> tuple[ms.nn.Cell, tuple[ms.Tensor, ...]]:
    """The network and its inputs, as `tune --model` asks for them."""
    ms.set_seed(seed)
    layers = ms.nn.Dense(FEATURES, 128), ms.nn.GELU(), ms.nn.Dense(128, 128), ms.nn.GELU(), ms.nn.Dense(128, 2)
    network = ms.nn.SequentialCell(*layers).set_train(False)
    return network, (ms.Tensor(np.random.default_rng(seed).normal(size=(BATCH, FEATURES)).astype(np.float32)),)


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

    network = build()[0].set_train(True)
    # Before the optimizer and the Model: a config may choose MindSpore's mode for the whole process.
    network = autotune.load(options.tuned).apply(network)
    optimizer = ms.nn.AdamWeightDecay(network.trainable_params(), learning_rate=3e-3)
    model = ms.train.Model(network, ms.nn.CrossEntropyLoss(), optimizer)

    dataset = ms.dataset.GeneratorDataset(lambda: points(50), ["points", "labels"], shuffle=False)
    losses = Losses()
    model.train(1, dataset, callbacks=losses, dataset_sink_mode=False)

    ms.save_checkpoint(network, options.checkpoint)
    print(f"loss {losses.kept[0]:.3f} -> {sum(losses.kept[-10:]) / 10:.3f}, checkpoint in {options.checkpoint}")


if __name__ == "__main__":
    main()
