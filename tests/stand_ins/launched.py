"""A job as people start it: `torchrun tests/stand_ins/launched.py TRAINER FILE OUTCOMES`.

Each rank trains without and with the tuned config, by the trainer that is named, and leaves what came of it in a file
`OUTCOMES/RANK.json`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import mse_loss

import autotune
from tests.stand_ins.ranks import Kept

BATCH, NUM_STEPS = 4, 20


class Regression(torch.nn.Module):
    """A model with its own loss, as Hugging Face's Trainer takes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": mse_loss(self.layers(x), labels)}


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """So many that two ranks take twenty steps."""

    def __len__(self) -> int:
        return 2 * BATCH * NUM_STEPS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return {"x": x, "labels": x.sum(0, keepdim=True)}


def by_accelerate(path: str, is_tuned: bool) -> tuple[Any, Any]:
    from accelerate import Accelerator

    from autotune.integrations.hugging_face import tuned_model

    accelerator = Accelerator(cpu=True)
    model = Regression()
    given = tuned_model(accelerator, model, path) if is_tuned else model
    optimizer = torch.optim.SGD(given.parameters(), lr=0.05, momentum=0.9)
    batches = torch.utils.data.DataLoader(Points(), batch_size=BATCH)
    wrapped, optimizer, batches = accelerator.prepare(given, optimizer, batches)
    if is_tuned:
        autotune.prepare(wrapped, **next(iter(batches)))
    for batch in batches:
        optimizer.zero_grad()
        accelerator.backward(wrapped(**batch)["loss"])
        optimizer.step()
    return model, given


def by_trainer(path: str, is_tuned: bool) -> tuple[Any, Any]:
    import transformers

    from autotune.integrations.hugging_face import use_tuned

    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=BATCH, num_train_epochs=1, seed=0, report_to=[],
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    model = Regression()
    trainer = transformers.Trainer(model, arguments, train_dataset=Points())
    if is_tuned:
        use_tuned(trainer, path)
    trainer.train()
    return model, trainer.model


def by_lightning(path: str, is_tuned: bool) -> tuple[Any, Any]:
    import pytorch_lightning as lightning

    from autotune.integrations.lightning import tuned_callback

    held: list[Any] = []

    class Task(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Regression()

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            held[:] = [self.model]
            return self.model(**batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    task = Task()
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[tuned_callback(path, "model")] if is_tuned else [],
    ).fit(task, torch.utils.data.DataLoader(Points(), batch_size=BATCH))  # fmt: skip
    return task.model, held[0]


def main(trainer: str, path: str, outcomes: str) -> None:
    torch.set_num_threads(1)
    kept = Kept()
    logging.getLogger("autotune").addHandler(kept)
    outcome: dict[str, Any] = {}
    for which in ("untuned", "tuned"):
        model, given = globals()[f"by_{trainer}"](path, which == "tuned")
        outcome[which] = [weight.detach().flatten().tolist() for weight in model.parameters()]
    found = autotune.stats(given)
    outcome |= {"events": [event.message for event in found.events], "num_compiles": found.num_compiles}
    Path(outcomes, f"{os.environ['RANK']}.json").write_text(json.dumps(outcome | {"warnings": kept.lines}))
    torch.distributed.barrier()  # A rank that goes first tears the other one's connections.
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
