"""Labels for a model of transformers, with which it returns the loss of its own head.

What the labels have to be hangs on the head: a class for each image or text, a token for each token, a class for each
pixel. The name of the model's class says it. So, as for the inputs, there may be several calls, the likeliest first.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from autotune.models import weights

Inputs = dict[str, Any]
PAIRED = "return_loss"
"""What a model of two towers takes, such as CLIP: the pairs of a batch are its labels."""
_SPOKEN = 8
"""Tokens of what is said in a sound."""


def labelled(model: torch.nn.Module, calls: Iterable[Mapping[str, torch.Tensor]], seed: int) -> Iterator[Inputs]:
    """The calls with labels, the likeliest first; none for a model that takes no labels."""
    taken = inspect.signature(model.forward).parameters
    for call in calls:
        # A decoder reads its labels, one place later.
        read = {name: value for name, value in call.items() if name != "decoder_input_ids"}
        for inputs in (read, call) if "labels" in taken and len(read) < len(call) else (call,):
            for labels in _labels(model, call, taken, seed):
                yield {**inputs, **labels}
                if "token_type_ids" in taken and "input_ids" in inputs:  # Some want it in training alone.
                    yield {**inputs, **labels, "token_type_ids": torch.zeros_like(inputs["input_ids"])}


def require_loss(returned: Any) -> None:
    """Raises ValueError where a model returned no loss, or one that is no number."""
    loss = getattr(returned, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(f"it returned a {type(returned).__name__} without a loss")
    if not loss.isfinite():
        raise ValueError(f"its loss is {loss.item()}")


def _labels(
    model: torch.nn.Module, call: Mapping[str, torch.Tensor], taken: Mapping[str, object], seed: int
) -> Iterator[Inputs]:
    batch = len(next(iter(call.values())))
    if "labels" in taken:
        more = {"next_sentence_label": torch.zeros(batch, dtype=torch.long)} if "next_sentence_label" in taken else {}
        yield from ({"labels": labels, **more} for labels in _values(model, call, batch, seed))
    if {"start_positions", "end_positions"} <= taken.keys():
        places = torch.zeros(batch, dtype=torch.long)
        yield {"start_positions": places, "end_positions": places + 1}
    if PAIRED in taken:
        yield {PAIRED: True}


def _values(model: torch.nn.Module, call: Mapping[str, torch.Tensor], batch: int, seed: int) -> Iterator[torch.Tensor]:
    """What `labels` may be."""
    kind, config = type(model).__name__, _Config(model.config)
    tokens = call.get("input_ids", call.get("decoder_input_ids"))
    pixels = call.get("pixel_values")
    if "CTC" in kind:
        yield torch.from_numpy(weights.token_input((batch, _SPOKEN), config.vocab_size, seed))
    if "Segmentation" in kind and pixels is not None:
        yield pixels[:, 0].abs().mul(config.num_labels).long() % config.num_labels
    if "TokenClassification" in kind and tokens is not None:
        yield tokens % config.num_labels
    classes = _classes(config, batch, seed)
    is_of_each = "Classification" in kind and "Token" not in kind
    if is_of_each:
        yield classes
    if tokens is not None:
        yield tokens.clone()
    if not is_of_each:
        yield classes


def _classes(config: _Config, batch: int, seed: int) -> torch.Tensor:
    """A class for each row of the batch; of a regression numbers, and of several labels a yes or no for each."""
    num_labels = config.num_labels
    if config.problem_type == "multi_label_classification":
        return torch.from_numpy(weights.labels(batch * num_labels, 2, seed)).view(batch, num_labels).float()
    if config.problem_type == "regression" or num_labels == 1:
        shape = (batch,) if num_labels == 1 else (batch, num_labels)
        return torch.from_numpy(weights.normal_input(shape, seed))
    return torch.from_numpy(weights.labels(batch, num_labels, seed))


class _Config:
    """What labels need of a configuration, which need not have it."""

    def __init__(self, config: Any) -> None:
        self.num_labels: int = getattr(config, "num_labels", None) or 2
        self.vocab_size: int = getattr(config, "vocab_size", None) or 2
        self.problem_type: str | None = getattr(config, "problem_type", None)
