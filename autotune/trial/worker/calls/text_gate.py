"""What two runs that generate text must agree in: logits first, then the tokens that were chosen by them.

* **Logits of forced continuations.** Each prompt is continued by the same seeded tokens in every run, so that all steps
  have the same context: logits of the prefill and of each decode step are compared as any output is (`OutputGate`).
  Tokens of a run's own choice would hide a fault, or show one where there is none: after the first token that differs
  everything does.
* **Greedy tokens.** They are equal, or at the first difference the untuned model's own logits of the two tokens are so
  near to each other that rounding decides: nearer than `TIES` times what the run's logits were off. What comes after
  that has another context, and is not compared.
* **Edges of buckets**, after all that is timed, where a config rounds lengths up (see `Prompts.edges`): a mask or a
  cache that is wrong by one shows where a length is one below a bucket's size, that size, or one above.

Of a large vocabulary so many logits are compared as `MOST_LOGITS` says, at equal distances, and of a long text the
first `MOST_FORCED` steps: what is wrong in a decode step moves all of its logits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.backends.outputs import Observed
from autotune.measure.agreement import Array
from autotune.measure.parts import Part
from autotune.trial.worker.accuracy_check import OutputGate, Seen, WrongResultError, heading_of

MOST_LOGITS = 4096
MOST_FORCED = 64
TOPS = 8
"""Largest logits of each greedy step that a reference keeps: a token that is none of them is no tie."""
TIES = 4.0
ROUNDING = 1e-6
"""Share of the largest logit by which two are equal, however exact the run was."""


@dataclass(frozen=True)
class Tops:
    """The largest logits of each greedy step, (steps, batch, `TOPS`), the largest first."""

    tokens: Array
    logits: Array

    @classmethod
    def of(cls, logits: Array) -> Tops:
        """From all of them, (steps, batch, vocabulary)."""
        order = np.argsort(-logits, axis=-1, kind="stable")[..., :TOPS]
        return cls(order, np.take_along_axis(logits, order, axis=-1))

    def behind(self, step: int, row: int, token: int) -> float:
        """By how much the token's logit is less than that of the one that was chosen; infinite for one that is none of
        these."""
        place = np.flatnonzero(self.tokens[step, row] == token)
        return float(self.logits[step, row, 0] - self.logits[step, row, place[0]]) if place.size else float("inf")


@dataclass(frozen=True)
class Texts:
    """What one run gave."""

    forced: Seen
    """Logits of the forced continuations, the first prompt's once more at the end."""
    chosen: list[Array]
    """Greedy tokens of each prompt, (batch, new tokens)."""
    tops: list[Tops] = field(default_factory=list)
    """In a reference: of each prompt."""
    edges: Mapping[int, Observed] = field(default_factory=dict)
    """In a reference: length of a prompt -> logits of its forced continuation."""
    edge_spreads: Mapping[int, Array | None] = field(default_factory=dict)


def logits_of(length: int, logits: Array) -> Observed:
    """Logits of a continuation, as what is compared of them."""
    size = logits.shape[-1]
    kept = np.unique(np.linspace(0, size - 1, min(size, MOST_LOGITS)).astype(int))
    return Observed([Part(f"logits after {length} tokens", "float32", logits[:MOST_FORCED, :, kept])])


class TextGate:
    """See `Gate`."""

    def __init__(self, model: str, why_unrepeatable: Callable[[Sequence[str]], str | None]) -> None:
        self._logits = OutputGate(model, why_unrepeatable)
        self._reference: Texts | None = None
        self._tie = 0.0
        self._tolerance = 0.0

    @property
    def edges(self) -> frozenset[int]:
        """Lengths of prompts at the edges of buckets with which this run can be compared."""
        return frozenset() if self._reference is None else frozenset(self._reference.edges)

    def refuse_unusable(self, seen: Texts, tolerance: float) -> None:
        self._logits.refuse_unusable(seen.forced, tolerance)

    def errors(self, reference: Texts, seen: Texts, tolerance: float) -> tuple[float, ...]:
        """The largest relative error of the logits of each prompt. Raises WrongResultError."""
        found = self._logits.errors(reference.forced, seen.forced, tolerance)
        arrays = [call.parts[0].array for call in reference.forced.calls]
        scale = max(float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in arrays)
        self._reference, self._tolerance = reference, tolerance
        self._tie = scale * max(TIES * max(found), ROUNDING)
        self.require_same_tokens(seen.chosen)
        return found

    def require_same_tokens(self, chosen: Sequence[Array]) -> None:
        """Raises WrongResultError for greedy tokens that are not the untuned model's. Nothing without a reference."""
        if self._reference is None:
            return
        for expected, got, tops in zip(self._reference.chosen, chosen, self._reference.tops, strict=True):
            if expected.shape != got.shape:
                raise WrongResultError(f"{got.shape} tokens instead of {expected.shape}", float("inf"))
            for row, (wanted, given) in enumerate(zip(expected, got, strict=True)):
                self._require_tie(wanted, given, tops, row)

    def _require_tie(self, wanted: Array, given: Array, tops: Tops, row: int) -> None:
        differing = np.flatnonzero(wanted != given)
        if not differing.size:
            return
        step = int(differing[0])
        behind = tops.behind(step, row, int(given[step]))
        if behind <= self._tie:
            return
        raise WrongResultError(
            f"greedy token {step + 1} is {given[step]} instead of {wanted[step]}, whose logit in the untuned model is "
            f"larger by {behind:.3g}; up to {self._tie:.3g} would be a tie",
            float("inf"),
        )

    def require_edges(self, seen: Mapping[int, Observed]) -> None:
        """Raises WrongResultError for wrong logits at an edge of a bucket."""
        assert self._reference is not None
        lengths = sorted(seen)
        spreads = [[self._reference.edge_spreads.get(length)] for length in lengths]
        expected = replace(
            self._reference.forced,
            calls=[self._reference.edges[length] for length in lengths],
            left=[],
            spreads=spreads,
        )
        got = Seen([seen[length] for length in lengths], [], framework=expected.framework)
        try:
            self._logits.errors(expected, got, self._tolerance)
        except WrongResultError as error:
            raise WrongResultError(f"at the edge of a bucket, {error}", error.relative_error) from None

    def packed(self, seen: Texts) -> list[list[Array]]:
        """A heading, then the forced logits as `OutputGate` packs them, tokens, tops, edges and their spreads."""
        forced = self._logits.packed(seen.forced)
        lengths = sorted(seen.edges)
        heading = {"num_inputs": len(seen.forced.calls), "num_forced": len(forced), "edges": lengths}
        spreads = [seen.edge_spreads.get(length) for length in lengths]
        return [
            [np.asarray(json.dumps(heading))],
            *forced,
            seen.chosen,
            [tops.tokens for tops in seen.tops],
            [tops.logits for tops in seen.tops],
            [seen.edges[length].parts[0].array for length in lengths],
            [np.zeros(0) if spread is None else spread for spread in spreads],
        ]

    def unpacked(self, stored: list[list[Array]]) -> Texts:
        """Raises ValueError for the file of another release."""
        heading = heading_of(stored)
        end = 1 + heading["num_forced"]
        chosen, tokens, logits, edges, spreads = stored[end:]
        lengths = heading["edges"]
        return Texts(
            forced=self._logits.unpacked(stored[1:end]),
            chosen=chosen,
            tops=[Tops(*pair) for pair in zip(tokens, logits, strict=True)],
            edges={length: logits_of(length, array) for length, array in zip(lengths, edges, strict=True)},
            edge_spreads={
                length: spread if spread.size else None for length, spread in zip(lengths, spreads, strict=True)
            },
        )

    def uncompared(self, seen: Texts) -> tuple[str, ...]:
        return self._logits.uncompared(seen.forced)

    def settled(self, reference: Any, seen: Any, tolerance: float) -> None:
        """Logits have one form."""
