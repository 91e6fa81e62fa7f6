"""`Train`: training steps. The author's function returns `loss` and `optimizer`, and `targets` if the loss takes any.

A training step is `loss(model, *inputs, *targets)`, its gradients, and the optimizer's step. Without `loss` the model
returns it itself (`own_loss`), without `optimizer` it is the framework's usual one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from autotune.errors import InputError
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.work import Work, noun_of
from autotune.workload.workload import Workload

_OF_CALLS = "it is for calls of a model"


def own_loss(model: Any, *inputs: Any, **named: Any) -> Any:
    """Loss that a model returns itself, given labels among its inputs: `loss` of an object or a dict, or the first of
    several outputs; else all that it returns. Compilers read this function: it keeps to what each of them takes."""
    returned = model(*inputs, **named)
    if isinstance(returned, dict):
        return returned.get("loss", returned)
    if isinstance(returned, (tuple, list)):
        return returned[0]
    return returned.loss if hasattr(returned, "loss") else returned


@dataclass(frozen=True)
class Train(Work):
    """How a model is trained: `loss(model, *inputs, *targets)` gives one number, `optimizer` changes the weights."""

    loss: Callable[..., Any]
    optimizer: Any | None
    """None: the usual one, see `Training.usual_optimizer`."""

    task = "train"
    words = "training steps"
    trains = True
    named = ("train",)
    lacking = ("loss", "train")
    keys = ("targets", "loss", "optimizer")
    unsuitable = {
        "compare": "losses, gradients and weights are compared, not outputs",
        "regions": "what is compiled of a step is a knob of its own",
        "variants": _OF_CALLS,
        "padding": "a step has one shape",
        "reset": "the loss can do that: it is called with the model in each step",
    }

    @classmethod
    def of(cls, parts: Mapping[str, Any], workload: Workload) -> Self:
        loss = parts.get("loss", own_loss)
        if not callable(loss):
            raise InputError(f"{workload.model} returned {noun_of(loss)} as the loss, which cannot be called")
        return cls(loss, parts.get("optimizer"))

    @classmethod
    def inputs_of(
        cls, parts: Mapping[str, Any], own: Sequence[Arguments], calls: Sequence[Arguments]
    ) -> list[Arguments]:
        """With the targets, which are those of each of the author's inputs. Real calls hold theirs."""
        targets = Arguments.of(parts.get("targets", ()))
        return [*(inputs.extended_by(targets) for inputs in own), *calls]

    @classmethod
    def why_no_artifact(cls, framework: str, *, is_exact: bool) -> str | None:
        if is_exact:
            return None
        return (
            f"what comes from {framework}'s cache has to be checked, and a training step cannot be: made twice, it "
            "trains twice"
        )

    def called(self, model: Any) -> Callable[..., Any]:
        """The loss of the model."""
        return partial(self.loss, model)
