"""The components of a pipeline, as an untuned call shows them: what it calls, how often, for how long, with what.

The call has to be one that can be repeated and compared, which is found out here, before a study: it draws no random
numbers but from a generator of its own, and gives numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autotune.backends.capabilities import require
from autotune.backends.outputs import flatten, observed
from autotune.backends.protocol import Backend
from autotune.errors import InputError, marked
from autotune.measure.measurement import Component, Signature, TensorSpec
from autotune.trial.worker.subject import input_specs, signature_of
from autotune.workload.arguments import Arguments
from autotune.workload.components import Pipeline
from autotune.workload.regions import repeated_blocks

_CACHE = "past_key_values"
MOST_SHAPES = 8
"""Sets of shapes that a component is called with. One of more grows with each call, as a text does."""


@dataclass
class _Called:
    """The calls of one module so far."""

    signature: Signature
    is_deep: bool
    """It consists of modules. A layer alone, such as the one before a decoder, is left as it is."""
    shapes: set[tuple[TensorSpec, ...]] = field(default_factory=set)
    has_cache: bool = False
    """It is given keys and values of the calls before, as in each step of a generation."""
    calls: int = 0
    seconds: float = 0.0


class ComponentRecord:
    """Two untuned calls of a pipeline. The second is watched: in the first, modules take long that are called once."""

    def __init__(self, name: str, model: Any, pipeline: Pipeline, backend: Backend) -> None:
        """`name`: of the model in messages; `model`: what the backend made of the pipeline."""
        self._name = name
        self._model = model
        self._pipeline = pipeline
        self._backend = backend
        self._called: dict[str, _Called] = {}
        self._begun_s = 0.0

    def components(self, inputs: Arguments) -> tuple[Component, ...]:
        """What the call with these inputs calls, what takes most of its time first. Raises InputError for a call that
        cannot be compared, or calls none of the models."""
        before = self._backend.random_state()
        with self._backend.inference():
            first = self._numbers(inputs.call(self._model))
            result, total_s = self._watched(partial(inputs.call, self._model))
        self._require_few_shapes()
        is_alike = self._numbers(result) == first
        self._require_repeatable(is_alike or self._backend.random_state() == before)
        self._require_numbers(result)
        if not self._called:
            raise InputError(
                f"{self._name}: the call calls none of {', '.join(self._pipeline.parts)}",
                tip="let it call those that it is given, call(parts, ...), and not others of the same kind",
            )
        found = [
            Component(path=path, calls=called.calls, share=called.seconds / total_s, signature=called.signature)
            for path, called in self._called.items()
            if called.is_deep or not any(other.is_deep for other in self._called.values())
        ]
        return tuple(sorted(found, key=lambda component: -component.share))

    def _watched(self, call: Callable[[], Any]) -> tuple[Any, float]:
        watch = require(self._backend.watch_components, "components")
        end = watch(self._model, self._begun, self._ended)
        start = self._now()
        try:
            return call(), self._now() - start
        finally:
            end()

    def _begun(self, path: str, module: Any, arguments: Arguments) -> None:
        specs = input_specs(self._backend, arguments, path)
        if path not in self._called:
            parameters = self._backend.parameters(module)
            signature = signature_of(module, parameters, specs, backend=self._backend)
            is_deep = len(require(self._backend.regions, "components").modules(module)) > 1
            self._called[path] = _Called(signature, is_deep)
        self._called[path].shapes.add(specs)
        self._called[path].has_cache |= (arguments.keyword or {}).get(_CACHE) is not None
        self._begun_s = self._now()

    def _ended(self, path: str) -> None:
        self._called[path].seconds += self._now() - self._begun_s
        self._called[path].calls += 1

    def _now(self) -> float:
        self._backend.synchronise()
        return self._backend.clock()

    def _numbers(self, result: Any) -> list[bytes]:
        return [part.array.tobytes() for part in observed(self._backend, result).parts]

    def _require_repeatable(self, is_repeatable: bool) -> None:
        if is_repeatable:
            return
        acting = self._backend.acting_in_training(self._model)
        generator = "give it a generator made within the call, such as generator=torch.Generator().manual_seed(0)"
        raise InputError(
            f"{self._name}: the call draws random numbers without a seed of its own, so that no two of its results can "
            "be compared",
            tip=f"call {self._backend.evaluation_call} for its models, of which {acting[0]} acts as in training"
            if acting
            else generator,
        )

    def _require_numbers(self, result: Any) -> None:
        if any(type(leaf).__module__.partition(".")[0] == "PIL" for leaf in flatten(result)):
            raise InputError(
                f"{self._name}: the call returns images of 8 bits, in which no small error shows",
                tip='let it return numbers: output_type="np"',
            )

    def _require_few_shapes(self) -> None:
        for path, called in self._called.items():
            if called.has_cache or len(called.shapes) > MOST_SHAPES:
                how = "a cache of the calls before" if called.has_cache else f"inputs of {len(called.shapes)} shapes"
                raise InputError(
                    f"{self._name}: {path} is called with {how}, as where text grows",
                    tip=f"a model that generates text is tuned as such: {marked('task', 'generate')}",
                )


def require_regions(name: str, regions: tuple[str, ...], components: tuple[Component, ...]) -> None:
    """Raises InputError for a declared region of a pipeline that is none: components by their paths, or modules by a
    pattern within one of them."""
    known = {component.path for component in components}
    for pattern in (pattern.strip() for region in regions for pattern in region.split(",")):
        part = pattern.partition(".")[0] if "*" in pattern else pattern
        if part not in known:
            raise InputError(
                f"{name}: region {pattern!r}: the call calls no {part!r} itself",
                tip=f"it calls: {', '.join(sorted(known))}",
            )


def repeated_in(pipeline: Pipeline, components: tuple[Component, ...], backend: Backend) -> str | None:
    """The region of the repeated blocks in the component that takes most of the time of those that have any; None
    without one."""
    regions, parts = require(backend.regions, "components"), pipeline.parts
    for path in (component.path for component in components if component.path in parts):
        blocks = repeated_blocks(regions.modules(parts[path]), backend.parameters)
        if blocks is not None:
            return ", ".join(f"{path}.{pattern}" for pattern in blocks.split(", "))
    return None
