"""`Continuations`: text that is generated. A pass over the prompts is one call; what is compared says `text_gate`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import Continuation, require
from autotune.backends.outputs import Observed
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import marked
from autotune.measure.agreement import Array, spread_of
from autotune.measure.diagnosis import Compilations
from autotune.measure.generated import Generated
from autotune.measure.measurement import Samples
from autotune.measure.sampling import Clock, DividedCall, SamplingPlan
from autotune.trial.worker.accuracy_check import Gate, Seen
from autotune.trial.worker.calls.calls import Calls, Step
from autotune.trial.worker.calls.text_gate import MOST_FORCED, TextGate, Texts, Tops, logits_of
from autotune.trial.worker.subject import Subject, describe_dropouts
from autotune.workload.arguments import Arguments
from autotune.workload.generation import EDGE_TOKENS
from autotune.workload.kinds.text import Text
from autotune.workload.workload import Workload

_NUM_NUDGES = 2
_NUDGE = 0.1
"""Weights are nudged by this share of the tolerance, as for other outputs (`one_shape`)."""
_LONGEST_NUDGING_S = 10.0
"""No nudge is begun after so long."""
_FORCED_SEED, _EDGE_SEED = 1, 2
"""What is added to the seed of prompts for the tokens that continue one, and for a prompt at an edge."""


class Continuations(Calls):
    """Continues each prompt of the stream greedily by a forced number of tokens."""

    kind = Text
    has_many_steps = True

    def __init__(self, workload: Workload, subject: Subject, backend: Backend) -> None:
        super().__init__(workload, subject, backend)
        self._generation = require(backend.generation, marked("task", "generate"))
        self._prompts = subject.work_as(Text).prompts
        self._tokens = [given.positional[0] for given in subject.inputs[:-1]]
        self._seed = workload.seed
        self._config: Config | None = None
        self._texts = TextGate(workload.model, lambda _: describe_dropouts(subject, backend))
        self.gate: Gate = self._texts
        self._parts_s: tuple[float, ...] = ()
        self._chosen: list[Array] = []
        """Tokens of the latest pass."""

    @property
    def authors_inputs(self) -> list[Arguments]:
        """None: a prompt is no input of the model's own call."""
        return []

    def recording(self) -> AbstractContextManager[Any]:
        """No gradients are recorded."""
        return self._backend.inference()

    def compile(self, config: Config, changes: UndoLog) -> Step:
        self._config = ConfigParts.of(config).settings
        longest = max(self._prompts.lengths) + self._prompts.new_tokens
        self._generation.tune_generation(self._subject.model, self._config, changes, longest=longest)
        return partial(self._continued, new_tokens=self._prompts.new_tokens)

    def _continued(self, tokens: Any, *, new_tokens: int, **how: Any) -> Continuation:
        return self._generation.generate(self._subject.model, tokens, new_tokens, **how)

    def first(self, step: Step, settings: Config, clock: Clock, begun: float) -> None:
        """One pass over the prompts; making the step counts as part of its first call."""
        del settings
        self._compilations()  # The first reading may set up counters, which is not part of the first call.
        cold_s = [clock() - begun]
        for number, tokens in enumerate(self._tokens):
            start = clock()
            self._chosen.append(step(tokens).tokens)
            self._backend.synchronise()
            cold_s[number:] = [clock() - start + (cold_s[0] if number == 0 else 0.0)]
        self.generated = Generated(
            lengths=self._prompts.lengths,
            new_tokens=self._prompts.new_tokens,
            batch=self._prompts.batch,
            cold_s=tuple(cold_s),
            cold=self._compilations(),
        )

    def _compilations(self) -> Compilations | None:
        shapes = self._backend.shapes
        assert self._config is not None
        return None if shapes is None else shapes.compilations(self._subject.model, self._config)

    def second(self, step: Step, settings: Config, clock: Clock) -> None:
        """What is recorded in a second call of the decode step is part of the first pass."""

    def _observe(self, step: Step, first: Any = None, *, reference_tolerance: float | None = None) -> Texts:
        """The logits of the forced continuations, and the tokens of the first pass. With a `reference_tolerance` also
        what these were chosen by."""
        del first
        calls = [logits_of(length, logits) for length, logits in self._forced()]
        calls.append(logits_of(*next(self._forced())))
        chosen, tops = self._chosen, []
        if reference_tolerance is not None or not chosen:
            greedy = [step(tokens, with_logits=True) for tokens in self._tokens]
            chosen = [made.tokens for made in greedy]
            tops = [Tops.of(made.logits) for made in greedy if made.logits is not None]
        return Texts(Seen(calls, [], framework=self._workload.framework), chosen, tops)

    def _forced(self) -> Iterator[tuple[int, Array]]:
        """Length and logits of the forced continuation of each prompt."""
        num_steps = min(self._prompts.new_tokens, MOST_FORCED)
        for length, tokens in zip(self._prompts.lengths, self._tokens, strict=True):
            yield length, self._logits(tokens, num_steps)

    def _logits(self, tokens: Any, num_steps: int) -> Array:
        shape = (self._prompts.batch, num_steps)
        forced = self._generation.draw(self._subject.model, shape, self._seed + _FORCED_SEED)
        made = self._continued(tokens, new_tokens=num_steps, forced=forced, with_logits=True)
        assert made.logits is not None
        return made.logits

    def sampling(self, plan: SamplingPlan) -> SamplingPlan:
        """Passes are timed one by one."""
        return plan.model_copy(update={"calls_per_sample": 1})

    def one_pass(self, step: Step, times: int = 1) -> list[Callable[[], None]]:
        """One call: all prompts, one after the other."""
        del times

        def call() -> None:
            made = [step(tokens) for tokens in self._tokens]
            self._backend.synchronise()
            self._parts_s = tuple(moment for each in made for moment in (each.first_s, each.last_s))
            self._chosen = [each.tokens for each in made]

        return [DividedCall(call, lambda: self._parts_s)]

    def example(self, step: Step) -> Callable[[], None]:
        return self._waited_for(step, self._subject.inputs[0])

    def launch(self, step: Step) -> None:
        """A pass is many calls, which wait for each other."""

    def compile_s(self, first_call_s: float, second_call_s: float | None, samples: Samples) -> float:
        """Extra time of the first pass."""
        del second_call_s
        return max(first_call_s - float(np.median(samples.latency_s)), 0.0)

    def require_sound(self, step: Step) -> None:
        """Raises WrongResultError where the last pass that was timed gave other tokens, or an edge of a bucket other
        logits. What was compiled until now is the steady passes' account."""
        del step
        assert self.generated is not None
        self.generated = self.generated.model_copy(update={"steady": self._compilations()})
        self._texts.require_same_tokens(self._chosen)
        assert self._config is not None
        buckets = self._generation.buckets(self._config)
        edges = {length for bucket in buckets for length in self._prompts.edges(bucket)} & self._texts.edges
        if edges:
            self._texts.require_edges({length: self._at_edge(length) for length in sorted(edges)})

    def _at_edge(self, length: int) -> Observed:
        return logits_of(length, self._logits(self._edge_tokens[length], EDGE_TOKENS))

    @cached_property
    def _edge_tokens(self) -> Mapping[int, Any]:
        make, batch, seed = self._generation.prompt, self._prompts.batch, self._seed + _EDGE_SEED
        return {
            length: self._backend.place(make(self._subject.model, length, batch, seed))
            for length in self._prompts.all_edges()
        }

    def completed(self, reference: Texts, step: Step, tolerance: float) -> Texts:
        """With the edges of buckets, and how far nudged weights move all logits."""
        del step
        edges = {}
        for length in self._edge_tokens:
            try:
                edges[length] = self._at_edge(length)
            except Exception:
                traceback.print_exc()  # The model has no room for so many tokens: no config is compared there.
        moved: list[list[Array]] = [[] for _ in reference.forced.calls]
        edges_moved: dict[int, list[Array]] = {length: [] for length in edges}
        start = time.monotonic()
        for _ in range(_NUM_NUDGES):
            self._backend.nudge(self._subject.model, _NUDGE * tolerance)
            if time.monotonic() - start > _LONGEST_NUDGING_S:
                break
            for number, (length, logits) in enumerate(self._forced()):
                moved[number].append(logits_of(length, logits).parts[0].array)
            for length in edges:
                edges_moved[length].append(self._at_edge(length).parts[0].array)
        moved[-1] = moved[0]
        spreads = [[_spread_of(call, others)] for call, others in zip(reference.forced.calls, moved, strict=True)]
        return replace(
            reference,
            forced=replace(reference.forced, spreads=spreads),
            edges=edges,
            edge_spreads={length: _spread_of(edges[length], others) for length, others in edges_moved.items()},
        )


def _spread_of(logits: Observed, nudged: list[Array]) -> Array | None:
    part = logits.parts[0]
    return spread_of(part.array, nudged, part.step)
