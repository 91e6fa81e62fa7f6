"""`Models`: what a framework tells of a model before it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.measure.measurement import TensorSpec
from autotune.workload.workload import Load


@dataclass(frozen=True)
class WorkOfCall:
    """What a call of a model multiplies, as far as that is known."""

    lacks_products: bool = False
    """It multiplies matrices so little that it does not count how."""
    load: tuple[Load, ...] = ()
    """The kind of load that it is to a device; empty where that is not known, or was not asked."""
    types: tuple[str, ...] = ()
    """Types of half precision that it multiplies in, by an autocast of its author's for example."""


class Models(Protocol):
    """A model of the framework as its author made it, or what a user gives as one."""

    evaluation_call: str
    """What a user writes to turn a model's dropout off."""

    call_without_gradients: str = ""
    """What a user does so that a call records no gradients."""

    input_gradients: bool = False
    """Set before `compile`: calls are measured, and may be made, while gradients are recorded."""

    already_compiled: str | None = None
    """What is compiled already of what `as_model` was given, in a sentence for the user."""

    def as_model(self, given: Any) -> Any:
        """What is compiled for what a user gives as the model: a backend may wrap a plain function, and takes a model
        that is compiled already as it is uncompiled."""
        return given

    def check_model(self, model: Any) -> str | None:
        """A sentence if `model` is nothing that this framework can compile, else None."""

    def called(self, model: Any) -> Callable[..., Any]:
        """The function behind a model, whose parameters are those of a call."""
        function: Callable[..., Any] = model
        return function

    def materialise(self, model: Any, call: Callable[[], object]) -> None:
        """Make the parameters that a model gets in its first call, where it is of that kind, by one untuned `call`."""
        return

    def differentiates(self, model: Any, call: Callable[[], object]) -> bool:
        """Whether the model takes gradients within its own calls, so that they have to be recorded there. Where the
        code of its classes leaves that open, by one untuned `call`."""
        return False

    def records_gradients(self, model: Any, *values: Any) -> bool:
        """Whether a call made now is recorded so that gradients can be taken: of the model's parameters, or of a tensor
        in `values`. Quick: it is asked at each call of a job. `model` None: of `values` alone."""
        return False

    def is_model(self, value: Any) -> bool:
        """It is a module of the framework, which holds weights and code."""
        return False

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        """Names and shapes of the model's parameters and buffers, in a stable order."""
        return ()

    def active_dropout(self, model: Any) -> list[str]:
        """The model's dropout layers that drop when it is called, e.g. `Dropout 'blocks.0.drop' (p=0.1)`."""
        return []

    def acting_in_training(self, model: Any) -> Sequence[str]:
        """The model's modules that act as in training when it is called as it stands, e.g. `BatchNorm1d 'norm'`."""
        return ()

    def moves_at_calls(self, model: Any) -> bool:
        """Whether the model's weights come to the device for each call, as a library that offloads them does."""
        return False

    def written_parts(self, model: Any) -> Sequence[Any]:
        """The objects and functions whose code a call of the model runs."""
        return (model,)

    def takes_constant_weights(self, model: Any) -> bool:
        """Whether a config may make constants of the model's weights, as far as the model as it stands tells: one in
        training mode is no such model."""
        return True

    def work_of(self, model: Any, call: Callable[[], object], *, asks_load: bool) -> WorkOfCall:
        """What a call of the model multiplies; with `asks_load` the kind of load that it is to a device, too. `call`
        makes one; the model is not to be used afterwards."""
        return WorkOfCall()

    def packs_linears(self, model: Any) -> bool:
        """Whether a compiler here packs linear layers whose weights are constants, and the model has so many of them
        that it counts how."""
        return False
