"""Weights that a loss does not depend on, since it leaves an output of the model alone.

Untuned, autograd gives them no gradient, and an optimizer passes them by. A compiled graph gives them zeros: autograd
hands it zeros for the outputs that have no gradients, and it computes on (2.13). Weight decay and momentum would move
such weights then. Their gradients are taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_COMPILED = "CompiledFunctionBackward"
"""The node of a compiled graph, by the name of its class; each graph has a class of its own."""
_Pattern = tuple[tuple[type, tuple[int, ...]], ...]
"""Graphs, and which of their outputs had no gradient."""


class UnusedWeights:
    """Of one training step. `used`: of some weights, those that the untuned loss depends on."""

    def __init__(self, trained: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._trained = trained
        self._known: dict[_Pattern, list[torch.Tensor]] = {}

    def watched(self, value: torch.Tensor) -> list[tuple[type, tuple[int, ...]]]:
        """Before the backward pass of `value`. Filled by it: the graphs that got no gradients for some outputs."""
        found: list[tuple[type, tuple[int, ...]]] = []
        for node in _compiled_nodes(value.grad_fn):
            node.register_prehook(_noting(type(node), found))
        return found

    def clear(
        self, found: list[tuple[type, tuple[int, ...]]], unused_of: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    ) -> None:
        """After it: take the gradients away. `unused_of` tells, of weights whose gradients are zeros, those that the
        loss does not depend on; it is asked once for a pattern."""
        if not found:
            return
        pattern = tuple(found)
        if pattern not in self._known:
            zeros = [each for each in self._trained() if _is_zero(each.grad)]
            self._known[pattern] = unused_of(zeros) if zeros else []
        for each in self._known[pattern]:
            each.grad = None


def _noting(kind: type, found: list[tuple[type, tuple[int, ...]]]) -> Callable[[Any], None]:
    def note(gradients: tuple[torch.Tensor | None, ...]) -> None:
        missing = tuple(place for place, each in enumerate(gradients) if each is None)
        if missing:
            found.append((kind, missing))

    return note


def _compiled_nodes(root: Any) -> list[Any]:
    found, seen, nodes = [], set(), [root]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == _COMPILED:
            found.append(node)
        nodes += [each for each, _ in node.next_functions]
    return found


def _is_zero(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.layout is torch.strided and not bool(gradient.any())
