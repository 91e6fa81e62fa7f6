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
        r"'(?P<kind>\w+)' object has no attribute 'backward'": f"{TRAINING_STEP}: let the loss return its value, "
        "a tensor of one number, and no {kind}",
        r"grad can be implicitly created only for scalar": f"{TRAINING_STEP}: let the loss return its mean or its sum",
        r"\bclosure\b": f"{TRAINING_STEP} without a closure: an optimizer that needs one cannot be tuned",
    },
}
"""Task -> pattern of a message -> what to do; the pattern's groups by name stand in braces."""


def hint(errors: Iterable[BaseException], task: Task) -> str | None:
    """For an exception and those that it came from, the first that is known."""
    for error in errors:
        for pattern, text in _HINTS[task].items():
            found = re.search(pattern, str(error))
            if found is not None:
                return text.format(**found.groupdict())
    return None
