"""`Subject`: the workload's model with its inputs on the device, in the child, before any config touches it."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from autotune.backends.contracts.models import Models
from autotune.backends.protocol import Backend
from autotune.errors import AutotuneError
from autotune.measure.accuracy import WideType
from autotune.measure.measurement import Signature, TensorSpec, structure_sha256
from autotune.measure.parts import AuthorsWord
from autotune.trial.worker.kept_state import kept_state
from autotune.workload.arguments import Arguments
from autotune.workload.build import Built, Variants
from autotune.workload.kinds.work import Work
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    # A trial declares nothing, and importing these takes 20 ms.
    from autotune.space.declared import Declaration
    from autotune.space.schema import Need

W = TypeVar("W", bound=Work)


@dataclass(frozen=True)
class Subject:
    """`inputs` are the example first, then those that results are checked on, then the example again. `derived` is the
    one among them that the tool made of the example, if any: the model need not take it.

    In a stream the example has its most frequent shape, and the others have shapes of it, so that no check shows a
    compiler a shape that is not in the stream. Of generated text they are the tokens of each prompt.
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
    work: Work
    """What is done with the model, and what that needs beside the inputs."""
    authors: AuthorsWord | None = None
    """What the model's author says of how its outputs are compared."""
    is_wide: bool = False
    """Model and inputs have other types than their author gave them (`widen_subject`)."""
    derived: Arguments | None = None
    derived_may_fail: bool = True
    """No reference holds outputs for the derived inputs: a call with them that fails is left out."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Inputs that have one value in all of the author's calls: name -> the value."""
    not_varied: tuple[str, ...] = ()
    """What else the inputs leave as it is, each as a sentence."""
    assumed: tuple[str, ...] = ()
    """What was taken where the author gave nothing, each as a sentence."""
    reset: Callable[[], object] | None = None
    """Puts the model into the state that its calls begin in; None: calls do not depend on those before."""

    def work_as(self, kind: type[W]) -> W:
        """The work, which is of this kind."""
        assert isinstance(self.work, kind)
        return self.work

    @property
    def num_in_a_row(self) -> int:
        """So many calls at the beginning of `inputs` go on from each other's state: that a config hands it on, in place
        of what it was when it compiled, shows in no call from a state that was just put back."""
        return 1 if self.reset is None else NUM_IN_A_ROW

    @property
    def authors_inputs(self) -> list[Arguments]:
        """Each once, the example first."""
        given = {id(inputs): inputs for inputs in self.inputs[:-1] if inputs is not self.derived}
        return list(given.values())

    def without_derived(self) -> Subject:
        """This subject with the author's inputs alone."""
        if self.derived is None:
            return self
        kept = [inputs for inputs in self.inputs if inputs is not self.derived]
        return replace(self, inputs=kept, derived=None, not_varied=(*self.not_varied, NOT_TAKEN))


NUM_IN_A_ROW = 3
NOT_TAKEN = (
    "the untuned model fails on the further input that was made of the example, or gives NaN for it, so that results "
    "were compared on the author's inputs alone; give real ones (more_inputs, or a file of inputs)"
)


class SubjectOf(ABC):
    """What a process that builds the model makes of it for one kind of work: the subject of a trial, or what is
    declared before a study. See `subjects`."""

    kind: ClassVar[type[Work]]

    def __init__(self, workload: Workload, built: Built, given: Any, backend: Backend) -> None:
        """`built` has the model as the backend takes it, and `given` is that of the author's function."""
        self._workload = workload
        self._built = built
        self._given = given
        self._backend = backend

    @abstractmethod
    def subject(self) -> Subject:
        """Model and inputs on the device. Raises AutotuneError."""

    @abstractmethod
    def declared(self) -> Declaration:
        """What is to know of the model before a study. Raises InputError."""

    def weight_bytes(self) -> int:
        """What parameters and buffers hold."""
        specs = [spec for _, spec in self._backend.parameters(self._built.model)]
        return sum(math.prod(spec.shape) * int(re.sub(r".*?(\d*)$", r"\1", spec.dtype) or 8) // 8 for spec in specs)

    def _met(self) -> tuple[Need, ...]:
        """Needs of a search space that the model meets, whatever it is called for. Asked once its weights are there."""
        return ("linear layers",) if self._backend.packs_linears(self._built.model) else ()


def widen_subject(subject: Subject, backend: Backend, dtype: WideType) -> Subject:
    """Model and inputs with their floats in `dtype`. Changes the model: do not use `subject` afterwards."""
    widened: dict[int, Arguments] = {}
    for given in subject.inputs:
        if id(given) not in widened:
            widened[id(given)] = given.with_leaves([backend.widen(leaf, dtype) for leaf in given.leaves()])
    inputs = [widened[id(given)] for given in subject.inputs]
    return replace(
        subject,
        derived=None if subject.derived is None else widened[id(subject.derived)],
        model=backend.widen(subject.model, dtype),
        inputs=inputs,
        is_wide=True,
        example_sha256=digests(backend, inputs[0]),
    )


def why_unrepeatable(subject: Subject, backend: Backend, changed: Sequence[str]) -> str | None:
    """Why the model gives different outputs for the same input, if its parts or one more call show it. `changed`: what
    was other after its calls than before."""
    dropouts = describe_dropouts(subject, backend)
    if dropouts is not None:
        return f"{dropouts} active: call {backend.evaluation_call}"
    before = backend.random_state()
    subject.inputs[0].call(subject.model)
    backend.synchronise()
    if backend.random_state() != before:
        return "it draws random numbers when it is called (sampling, or dropout as a function): turn that off"
    written = _written_inputs(subject, backend)
    if written:
        return f"it writes into its input ({', '.join(written)}): let it work on a copy"
    return kept_state(subject.model, changed, has_reset=subject.reset is not None)


def describe_dropouts(subject: Subject, backend: Models) -> str | None:
    """Subject and verb of a sentence about the model's active dropout; None if there is none."""
    dropouts = backend.active_dropout(subject.model)
    if not dropouts:
        return None
    return f"{listed(dropouts)} {'is' if len(dropouts) == 1 else 'are'}"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


_MAX_NAMED = 3


def _written_inputs(subject: Subject, backend: Backend) -> list[str]:
    named = subject.inputs[0].named_leaves()
    now = digests(backend, subject.inputs[0])
    return [name for (name, _), old, new in zip(named, subject.example_sha256, now, strict=True) if old != new]


def digests(backend: Backend, inputs: Arguments) -> tuple[str | None, ...]:
    """Digest of each leaf; None for one that is no tensor."""
    arrays = [backend.to_array(leaf) for leaf in inputs.leaves()]
    return tuple(
        None if array is None else hashlib.sha256(np.asarray(array, order="C").data).hexdigest() for array in arrays
    )


def input_specs(backend: Backend, example: Arguments, model: str) -> tuple[TensorSpec, ...]:
    """Shape and type of each tensor among the inputs. Raises AutotuneError for one that cannot be read."""
    specs = []
    for name, leaf in example.named_leaves():
        spec = backend.spec(leaf)
        if spec is None:
            continue
        try:
            backend.to_array(leaf)
        except Exception as error:
            raise AutotuneError(
                f"{model}: {name}, a {type(leaf).__name__} of type {spec.dtype}, cannot be read: {error}",
                tip="let the model make it of a tensor of a plain type",
            ) from error
        specs.append(spec)
    return tuple(specs)


def same_in_all(constants: Mapping[str, str], varied: Collection[str] = ()) -> tuple[str, ...]:
    """A sentence about what was the same in all calls, if anything was."""
    same = [f"{name} ({value})" for name, value in constants.items() if name not in varied]
    if not same:
        return ()
    verb = "was" if len(same) == 1 else "were"
    return (f"{listed(same)} {verb} the same in all calls: compiled code may be made for that alone",)


def signature_of(
    model: Any,
    parameters: Sequence[tuple[str, TensorSpec]],
    inputs: tuple[TensorSpec, ...],
    *,
    backend: Backend,
    authors: AuthorsWord | None = None,
    method: str | None = None,
) -> Signature:
    """What a model with these parameters and inputs is recognised by."""
    kind = type(model)
    return Signature(
        model_class=f"{kind.__module__}.{kind.__qualname__}",
        num_parameters=sum(int(np.prod(spec.shape)) for _, spec in parameters),
        structure_sha256=structure_sha256(parameters),
        inputs=inputs,
        items_per_call=inputs[0].shape[0] if inputs and inputs[0].shape else 1,
        compare=None if authors is None else authors.described(),
        records_gradients=backend.input_gradients,
        method=method,
    )
