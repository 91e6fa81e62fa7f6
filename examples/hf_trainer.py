"""Hugging Face's Trainer with a tuned ViT, made from its configuration: nothing is downloaded.

python examples/hf_trainer.py                                              # as it is: nothing is tuned yet
python cli.py tune --task train --model examples/hf_trainer.py:build --study trainer
python cli.py export trainer -o best.yaml
python examples/hf_trainer.py --tuned best.yaml
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from autotune.integrations.hugging_face import use_tuned

BATCH, IMAGE = 8, 16


def loss(model: Any, **batch: torch.Tensor) -> torch.Tensor:
    """As the model itself computes it."""
    computed: torch.Tensor = model(**batch).loss
    return computed


def build(seed: int = 0) -> dict[str, Any]:
    """The parts of a training step, with the inputs as the Trainer will give them, for `tune --task train`."""
    torch.manual_seed(seed)
    config = ViTConfig(
        image_size=IMAGE, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, num_labels=2, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    inputs = torch.utils.data.default_collate([Stripes(BATCH)[number] for number in range(BATCH)])
    model = ViTForImageClassification(config).eval()
    return {
        "model": model,
        # The Trainer adds this one to what the data set gives.
        "inputs": {**inputs, "num_items_in_batch": torch.tensor(float(BATCH))},
        "loss": loss,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=2e-3),
    }


class Stripes(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Noisy images with stripes, either upright or lying."""

    def __init__(self, size: int) -> None:
        self._noise = torch.randn(size, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._noise)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        stripes = (torch.arange(IMAGE) % 2).float().expand(IMAGE, IMAGE)
        image = self._noise[number] / 4 + (stripes if number % 2 else stripes.T)
        return {"pixel_values": image, "labels": torch.tensor(number % 2)}


def main() -> None:
    """Train, evaluate, and save what `from_pretrained` loads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", default="best.yaml")
    parser.add_argument("--output", default="trained")
    options = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=options.output, max_steps=40, learning_rate=2e-3, save_strategy="no", report_to="none",
        per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH, disable_tqdm=True, seed=0,
    )  # fmt: skip
    model = build()["model"].train()
    # Whole batches alone: another shape would be compiled anew.
    trainer = Trainer(model=model, args=arguments, train_dataset=Stripes(20 * BATCH), eval_dataset=Stripes(4 * BATCH))
    # Its model is a ViTForImageClassification still: the Trainer finds its labels, and saves it as one.
    trainer = use_tuned(trainer, options.tuned)

    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    print(f"loss {before:.3f} -> {trainer.evaluate()['eval_loss']:.3f}, model in {options.output}")
    trainer.save_model()


if __name__ == "__main__":
    main()
