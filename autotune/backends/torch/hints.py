"""What to do about errors of a model's own in a trial, where PyTorch's message does not say it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.workload.workload import Task

TRAINING_STEP = "a training step is `loss(model, *inputs, *targets).backward()` and then `optimizer.step()`"
_NO_GRADIENT = r"does not require grad"
_HINTS: dict[Task, dict[str, str]] = {
    "infer": {
        _NO_GRADIENT: "a trial calls the model under torch.no_grad(): let forward() compute what it differentiates "
        "under `with torch.enable_grad():`, from a tensor with requires_grad_()",
    },
    "train": {
        _NO_GRADIENT: f"{TRAINING_STEP}: the loss must depend on weights that require gradients",
        r"\bclosure\b": f"{TRAINING_STEP} without a closure: an optimizer that needs one cannot be tuned",
    },
}
"""Task -> pattern of a message -> what to do."""


def hint(errors: Iterable[BaseException], task: Task) -> str | None:
    """For an exception and those that it came from, the first that is known."""
    for error in errors:
        for pattern, text in _HINTS[task].items():
            if re.search(pattern, str(error)):
                return text
    return None
