"""The gradients of a training step, which PyTorch adds up beside the weights: those of a group of calls, until they are
complete; and those that compiled code gives to weights that have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from autotune.backends.capabilities import Updates
from autotune.backends.torch.compiled_step import graph_nodes, is_compiled, is_zero
from autotune.backends.torch.optimizer_step import takes_closure


def trained_by(optimizer: Any) -> list[torch.Tensor]:
    """The parameters of all groups of an optimizer, in order."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


class Gradients:
    """The gradients of a group of calls, which PyTorch adds up beside the weights, and the step by them."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, updates: Updates) -> None:
        self.optimizer = optimizer
        self.gives_closure = takes_closure(optimizer)
        """The untuned step gives the optimizer a closure, by which it may compute the loss of the group anew."""
        self._model = model
        self._updates = updates
        updates.update = self._of_an_incomplete_group

    def begin(self) -> None:
        """Before a call: the gradients of the group before it are done with."""
        if self._updates.num_made == 0:
            self.optimizer.zero_grad()
            self._updates.held = []

    def begin_apart(self) -> EarlierGradients:
        """`begin`, with the gradients that are there set aside: those of earlier calls of the group, or zeros."""
        self.begin()
        return EarlierGradients([weight for weight in self._weights() if weight.grad is not None])

    def part_of(self, value: torch.Tensor) -> torch.Tensor:
        """What a loss adds to the mean of the group's."""
        return value if self._updates.accumulate == 1 else value / self._updates.accumulate

    def are_complete(self, untuned: Callable[[], torch.Tensor], value: torch.Tensor) -> bool:
        """After a call, which gave this value: whether the optimizer is to step, and the gradients are as it takes
        them. `untuned` computes the value anew."""
        if self.gives_closure:
            self._updates.held.append((untuned, value.detach()))
        complete = self._updates.note_call()
        if complete:
            self._close()
        return complete

    def step(self) -> None:
        """The step of a group by its gradients, as the job has it."""
        if not self.gives_closure:
            self.optimizer.step()
            return
        calls, self._updates.held = self._updates.held, []
        fresh = [self._state()]

        def closure() -> torch.Tensor:
            """The mean loss of the group. Its gradients are there until the optimizer has moved anything."""
            if not fresh or fresh.pop() != self._state():
                self.optimizer.zero_grad()
                with torch.enable_grad():
                    for number, (untuned, _) in enumerate(calls):
                        value = untuned()
                        (value / len(calls)).backward()
                        calls[number] = (untuned, value.detach())
                self._clip()
            return torch.stack([value for _, value in calls]).mean()

        self.optimizer.step(closure)  # type: ignore[arg-type]

    def _state(self) -> list[tuple[int, int, int | None]]:
        """Another value once a weight or a gradient was written to."""
        states = ((weight, weight.grad) for weight in self._weights())
        return [(weight._version, id(grad), None if grad is None else grad._version) for weight, grad in states]

    def _weights(self) -> list[torch.Tensor]:
        """Those that the optimizer has; the model's where it does not say so."""
        try:
            return trained_by(self.optimizer)
        except Exception:
            return list(getattr(self._model, "parameters", list)())

    def _close(self) -> None:
        self._updates.num_made = 0
        self._clip()

    def _clip(self) -> None:
        if self._updates.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._weights(), self._updates.clip_grad_norm)

    def _of_an_incomplete_group(self) -> None:
        gradients = [weight.grad for weight in self._weights() if weight.grad is not None]
        with torch.no_grad():
            torch._foreach_mul_(gradients, self._updates.accumulate / self._updates.num_made)
        self._close()
        self.step()


class EarlierGradients:
    """Those that are there while a call computes its own: a call that fails leaves them as they were."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._held = [(weight, weight.grad) for weight in weights]
        for weight in weights:
            weight.grad = None

    def bring_back(self) -> None:
        """What the call has computed is thrown away."""
        for weight, gradient in self._held:
            weight.grad = gradient

    def add(self) -> None:
        """What the call has computed is added to them."""
        with torch.no_grad():
            for weight, gradient in self._held:
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else gradient.add_(weight.grad)


# Weights that a loss does not depend on, since it leaves an output of the model alone.
#
# Untuned, autograd gives them no gradient, and an optimizer passes them by. A compiled graph gives them zeros: autograd
# hands it zeros for the outputs that have no gradients, and it computes on (2.13). Weight decay and momentum would move
# such weights then. Their gradients are taken away.

_Pattern = tuple[tuple[type, tuple[int, ...]], ...]
"""Graphs, and which of their outputs had no gradient."""


class UnusedWeights:
    """Those of one training step."""

    def __init__(self, trained: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._trained = trained
        self._known: dict[_Pattern, list[torch.Tensor]] = {}

    def watched(self, value: torch.Tensor) -> list[tuple[type, tuple[int, ...]]]:
        """Before the backward pass of `value`. Filled by it: the graphs that got no gradients for some outputs."""
        found: list[tuple[type, tuple[int, ...]]] = []
        for node in graph_nodes(value.grad_fn):
            if is_compiled(node):
                node.register_prehook(partial(self._note, type(node), found))
        return found

    @staticmethod
    def _note(
        graph: type, found: list[tuple[type, tuple[int, ...]]], gradients: tuple[torch.Tensor | None, ...]
    ) -> None:
        missing = tuple(place for place, gradient in enumerate(gradients) if gradient is None)
        if missing:
            found.append((graph, missing))

    def clear(
        self, found: list[tuple[type, tuple[int, ...]]], unused_of: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    ) -> None:
        """After it: take the gradients away. `unused_of` tells, of weights whose gradients are zeros, those that the
        loss does not depend on; it is asked once for a pattern."""
        if not found:
            return
        pattern = tuple(found)
        if pattern not in self._known:
            zeros = [weight for weight in self._trained() if is_zero(weight.grad)]
            self._known[pattern] = unused_of(zeros) if zeros else []
        for weight in self._known[pattern]:
            weight.grad = None
