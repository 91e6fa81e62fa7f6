"""A plain training job with a library's trainer, untuned or under an exported file; writes its losses and step time.

    python benchmarks/trainers_job.py trainer hf:bert --argument head=classification --output seen.json
    python benchmarks/trainers_job.py lightning timm:vit_tiny_patch16_224 --settings best.yaml --output seen.json

Of the tool it uses what a job uses, `autotune.integrations`, and what makes the models that `hf:` and `timm:` name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import yaml

from benchmarks.zoo_job import HUBS

NUM_ITEMS = 32
LEARNING_RATE = 5e-4
WARM_STEPS = 20
"""The first ones compile, and the job's guard times some."""


def built(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The parts of a training step."""
    scheme, _, name = model.partition(":")
    made: dict[str, Any] = importlib.import_module(HUBS[scheme]).build_to_train(name, **arguments)
    if not isinstance(made["inputs"], dict):
        made["inputs"] = {"x": made["inputs"], "targets": made["targets"]}
    return made


class Items(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Few items, made of the example batch, so that a model can learn them by heart."""

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self._batch = batch
        self._size = len(next(iter(batch.values())))

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        item = {name: values[number % self._size] for name, values in self._batch.items()}
        return {
            name: value.roll(number // self._size, -1) if value.ndim and name != "attention_mask" else value
            for name, value in item.items()
        }


class WithLoss(torch.nn.Module):
    """A model whose loss is a function beside it, as one that returns it."""

    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__()
        self.network = parts["model"]
        self._loss = parts.get("loss")

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        if self._loss is None:
            value: torch.Tensor = self.network(**batch).loss
        else:
            value = self._loss(self.network, batch["x"], batch["targets"])
        return value


class Seen:
    """What the steps gave, and when they ended."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._ended: list[float] = []

    def note(self, loss: Any) -> None:
        self.losses.append(float(loss))
        self._ended.append(time.perf_counter())

    def step_s(self) -> float:
        """Median seconds from one step's end to the next one's, once all is warm."""
        ended = self._ended[WARM_STEPS:]
        return statistics.median(after - before for before, after in pairwise(ended))


def trainer(parts: dict[str, Any], settings: str | None, steps: int, seed: int) -> Seen:
    """Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from autotune.integrations.hugging_face import use_tuned

    seen = Seen()

    class Noting(TrainerCallback):
        def on_log(self, *_: Any, **told: Any) -> None:
            if "loss" in told["logs"]:
                seen.note(told["logs"]["loss"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=steps, learning_rate=LEARNING_RATE, lr_scheduler_type="constant",
            max_grad_norm=0.0, per_device_train_batch_size=len(next(iter(parts["inputs"].values()))), logging_steps=1,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, seed=seed,
        )  # fmt: skip
        made = Trainer(model=parts["model"], args=arguments, train_dataset=Items(parts["inputs"]), callbacks=[Noting()])
        (made if settings is None else use_tuned(made, settings)).train()
    return seen


def accelerate(parts: dict[str, Any], settings: str | None, steps: int, seed: int) -> Seen:
    """A loop with Hugging Face's accelerate."""
    library: Any = importlib.import_module("accelerate")

    from autotune.integrations.hugging_face import tuned_model

    library.utils.set_seed(seed)
    accelerator, seen = library.Accelerator(cpu=True), Seen()
    if settings is not None:
        parts["model"] = tuned_model(accelerator, parts["model"], settings)
    model = WithLoss(parts)
    model, optimizer, loader = accelerator.prepare(model, _optimizer(model), _loader(parts))
    for batch in _endless(loader, steps):
        optimizer.zero_grad()
        loss = model(**batch)
        accelerator.backward(loss)
        optimizer.step()
        seen.note(loss)
    return seen


def lightning(parts: dict[str, Any], settings: str | None, steps: int, seed: int) -> Seen:
    """PyTorch Lightning."""
    import pytorch_lightning as pl

    from autotune.integrations.lightning import tuned_callback

    pl.seed_everything(seed, verbose=False)
    seen = Seen()

    class Learner(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = WithLoss(parts)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.inner(**batch)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _optimizer(self)

    class Noting(pl.Callback):
        def on_train_batch_end(self, _: Any, __: Any, outputs: Any, *___: Any) -> None:
            seen.note(outputs["loss"])

    callbacks = [Noting(), *([] if settings is None else [tuned_callback(settings, "inner.network")])]
    pl.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Learner(), _loader(parts))  # fmt: skip
    return seen


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def _loader(parts: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    batch = parts["inputs"]
    return torch.utils.data.DataLoader(Items(batch), batch_size=len(next(iter(batch.values()))), shuffle=True)


def _endless(loader: Any, steps: int) -> Iterator[Any]:
    done = 0
    while True:
        for batch in loader:
            if done == steps:
                return
            done += 1
            yield batch


TRAINERS = {"trainer": trainer, "accelerate": accelerate, "lightning": lightning}


class Warned(logging.Handler):
    """What the tool said of its config: a job that fell back is no tuned one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    """Build, train, and write what was seen."""
    parser = argparse.ArgumentParser(description="Train one model with a library's trainer, in a plain job.")
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("model", help="as `tune --model` takes it")
    parser.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE", help="of the model")
    parser.add_argument("--settings", help="an exported YAML")
    parser.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of shuffling and dropout (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    warned = Warned()
    logging.getLogger("autotune").addHandler(warned)
    arguments = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in given.argument)}
    parts = built(given.model, arguments)
    seen = TRAINERS[given.trainer](parts, given.settings, given.steps, given.seed)
    told = {"losses": seen.losses, "step_s": seen.step_s(), "warnings": warned.messages}
    given.output.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
