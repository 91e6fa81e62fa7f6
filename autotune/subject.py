"""`Subject`: the workload's model with its inputs on the device, in the child, before any config touches it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune import numerics
from autotune.backends import Backend
from autotune.errors import AutotuneError
from autotune.measurement import Signature, TensorSpec
from autotune.workload import Arguments, Workload, build


@dataclass(frozen=True)
class Subject:
    """`inputs` are the example first, then those that results are checked on, then the example again."""

    model: Any
    inputs: list[Arguments]
    signature: Signature
    dtypes: frozenset[str]
    """Element types of parameters and example inputs."""


def put_on_device(workload: Workload, backend: Backend) -> Subject:
    """Build the workload's model and inputs and place them. Raises InputError or AutotuneError for unusable ones."""
    built = build(workload)
    problem = backend.check_model(built.model)
    if problem is not None:
        raise AutotuneError(f"{workload.model} returned as the model {problem}")
    model = backend.place(built.model)
    given = [_placed(backend, each) for each in (built.inputs, *built.more_inputs)]
    specs = tuple(spec for leaf in given[0].leaves() if (spec := backend.spec(leaf)) is not None)
    if not specs:
        raise AutotuneError(
            f"{workload.model} returned no tensor among its inputs", tip="inside a list or dict none is found"
        )
    if not built.more_inputs:
        given.append(_varied(backend, given[0], workload.seed))
    parameters = list(backend.parameters(model))
    return Subject(
        model=model,
        inputs=[*given, given[0]],
        signature=_signature(model, parameters, specs),
        dtypes=frozenset(spec.dtype for spec in (*(spec for _, spec in parameters), *specs)),
    )


def _placed(backend: Backend, arguments: Arguments) -> Arguments:
    return arguments.with_leaves([backend.place(leaf) for leaf in arguments.leaves()])


def _varied(backend: Backend, inputs: Arguments, seed: int) -> Arguments:
    leaves = inputs.leaves()
    arrays = numerics.varied([backend.to_array(leaf) for leaf in leaves], seed)
    return inputs.with_leaves(
        [leaf if array is None else backend.like(array, leaf) for leaf, array in zip(leaves, arrays, strict=True)]
    )


def _signature(model: Any, parameters: list[tuple[str, TensorSpec]], inputs: tuple[TensorSpec, ...]) -> Signature:
    structure = ";".join(f"{name}{spec.shape}{spec.dtype}" for name, spec in parameters)
    return Signature(
        model_class=f"{type(model).__module__}.{type(model).__qualname__}",
        num_parameters=sum(int(np.prod(spec.shape)) for _, spec in parameters),
        structure_sha256=hashlib.sha256(structure.encode()).hexdigest(),
        inputs=inputs,
        items_per_call=inputs[0].shape[0] if inputs[0].shape else 1,
    )
