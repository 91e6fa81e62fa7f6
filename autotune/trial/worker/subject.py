"""`Subject`: the workload's model with its inputs on the device, in the child, before any config touches it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from autotune.backends.capabilities import require
from autotune.backends.protocol import Backend
from autotune.errors import AutotuneError
from autotune.measure import accuracy
from autotune.measure.accuracy import WideType
from autotune.measure.measurement import Signature, TensorSpec, structure_sha256
from autotune.measure.parts import AuthorsWord
from autotune.trial.worker.traffic_inputs import Stream, find_shapes
from autotune.workload.arguments import Arguments
from autotune.workload.build import TrainingRecipe, Variants, build
from autotune.workload.shapes import Shapes
from autotune.workload.workload import Workload


@dataclass(frozen=True)
class Subject:
    """`inputs` are the example first, then those that results are checked on, then the example again.

    Under traffic the example has the most frequent shape, and the others have shapes of the stream, so that no check
    shows a compiler a shape that is not in the stream.
    """

    model: Any
    inputs: list[Arguments]
    signature: Signature
    dtypes: frozenset[str]
    """Element types of parameters and example inputs."""
    example_sha256: tuple[str | None, ...]
    """Digest of each leaf of the example inputs before any call; None for a leaf that is no tensor."""
    variants: Variants
    """Other implementations of parts of the model, as its author declared them."""
    authors: AuthorsWord | None = None
    """What the model's author says of how its outputs are compared."""
    is_wide: bool = False
    """Model and inputs have other types than their author gave them (`widen_subject`)."""
    recipe: TrainingRecipe | None = None
    """How the model is trained; None for inference."""
    shapes: Shapes | None = None
    """What is known of the shapes of its inputs; None: there is one shape."""
    stream: Stream | None = None
    """The calls of a trial under traffic; given if and only if there are `shapes`."""


def build_subject(workload: Workload, backend: Backend) -> Subject:
    """Build the workload's model and inputs and put them on the device. Raises InputError or AutotuneError."""
    built = build(workload)
    built = replace(built, model=backend.as_model(built.model))
    problem = backend.check_model(built.model)
    if problem is not None:
        raise AutotuneError(f"{workload.model} returned as the model {problem}")
    model = backend.place(built.model)
    if built.recipe is not None:
        training = require(backend.training, "--task train")
        problem = training.check_optimizer(built.recipe.optimizer)
        if problem is not None:
            raise AutotuneError(f"{workload.model} returned as the optimizer {problem}")
        training.set_training(model)
    given = [_placed(backend, each) for each in (built.inputs, *built.more_inputs)]
    backend.materialise(model, partial(given[0].call, built.called))
    specs = tuple(spec for leaf in given[0].leaves() if (spec := backend.spec(leaf)) is not None)
    if not specs:
        raise AutotuneError(
            f"{workload.model} returned no tensor among its inputs", tip="inside a list or dict none is found"
        )
    shapes = stream = None
    if workload.traffic is not None:
        shapes = find_shapes(workload, built, model, given[0], backend)
        stream = Stream.of(workload, given[0], shapes, backend)
        given = [*stream.checked, _derived(backend, stream.checked[0], workload.seed)]
    elif not built.more_inputs:
        given.append(_derived(backend, given[0], workload.seed))
    parameters = list(backend.parameters(model))
    return Subject(
        model=model,
        inputs=[*given, given[0]],
        signature=_signature(model, parameters, specs, built.compare),
        dtypes=frozenset(spec.dtype for spec in (*(spec for _, spec in parameters), *specs)),
        example_sha256=_digests(backend, given[0]),
        variants=built.variants,
        authors=built.compare,
        recipe=built.recipe,
        shapes=shapes,
        stream=stream,
    )


def widen_subject(subject: Subject, backend: Backend, dtype: WideType) -> Subject:
    """Model and inputs with their floats in `dtype`. Changes the model: do not use `subject` afterwards."""
    inputs = [each.with_leaves([backend.widen(leaf, dtype) for leaf in each.leaves()]) for each in subject.inputs[:-1]]
    return replace(
        subject,
        model=backend.widen(subject.model, dtype),
        inputs=[*inputs, inputs[0]],
        is_wide=True,
        example_sha256=_digests(backend, inputs[0]),
    )


def why_unrepeatable(subject: Subject, backend: Backend) -> str | None:
    """Why the model gives different outputs for the same input, if its parts or one more call show it."""
    dropouts = describe_dropouts(subject, backend)
    if dropouts is not None:
        return f"{dropouts} active: call {backend.evaluation_call}"
    before = backend.random_state()
    subject.inputs[0].call(subject.model)
    backend.synchronise()
    if backend.random_state() != before:
        return "it draws random numbers when it is called (sampling, or dropout as a function): turn that off"
    written = _written_inputs(subject, backend)
    return f"it writes into its input ({', '.join(written)}): let it work on a copy" if written else None


def describe_dropouts(subject: Subject, backend: Backend) -> str | None:
    """Subject and verb of a sentence about the model's active dropout; None if there is none."""
    dropouts = backend.active_dropout(subject.model)
    if not dropouts:
        return None
    more = f" and {len(dropouts) - _MAX_NAMED} more" if len(dropouts) > _MAX_NAMED else ""
    return f"{', '.join(dropouts[:_MAX_NAMED])}{more} {'is' if len(dropouts) == 1 else 'are'}"


_MAX_NAMED = 3


def _written_inputs(subject: Subject, backend: Backend) -> list[str]:
    example = subject.inputs[0]
    names = [*(f"argument {n + 1}" for n in range(len(example.positional))), *(example.keyword or {})]
    now = _digests(backend, example)
    return [name for name, old, new in zip(names, subject.example_sha256, now, strict=True) if old != new]


def _digests(backend: Backend, inputs: Arguments) -> tuple[str | None, ...]:
    arrays = [backend.to_array(leaf) for leaf in inputs.leaves()]
    return tuple(
        None if array is None else hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() for array in arrays
    )


def _placed(backend: Backend, arguments: Arguments) -> Arguments:
    return arguments.with_leaves([backend.place(leaf) for leaf in arguments.leaves()])


def _derived(backend: Backend, inputs: Arguments, seed: int) -> Arguments:
    leaves = inputs.leaves()
    arrays = accuracy.derived_inputs([backend.to_array(leaf) for leaf in leaves], seed)
    return inputs.with_leaves(
        [leaf if array is None else backend.like(array, leaf) for leaf, array in zip(leaves, arrays, strict=True)]
    )


def _signature(
    model: Any,
    parameters: list[tuple[str, TensorSpec]],
    inputs: tuple[TensorSpec, ...],
    authors: AuthorsWord | None,
) -> Signature:
    return Signature(
        model_class=f"{type(model).__module__}.{type(model).__qualname__}",
        num_parameters=sum(int(np.prod(spec.shape)) for _, spec in parameters),
        structure_sha256=structure_sha256(parameters),
        inputs=inputs,
        items_per_call=inputs[0].shape[0] if inputs[0].shape else 1,
        compare=None if authors is None else authors.described(),
    )
