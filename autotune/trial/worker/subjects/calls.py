"""`SubjectOfCalls`: a model that is called, with its inputs and one more that is made of the example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.apply.compile_model import place_of
from autotune.backends.protocol import Backend
from autotune.backends.read_around import variables_read
from autotune.errors import AutotuneError, InvalidConfigError
from autotune.measure.accuracy import default_tolerance
from autotune.measure.derived_inputs import derived_inputs
from autotune.measure.hurting_inputs import one_value_of
from autotune.measure.measurement import TensorSpec
from autotune.trial.worker.subject import (
    NUM_IN_A_ROW,
    Subject,
    SubjectOf,
    digests,
    input_specs,
    listed,
    signature_of,
)
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.infer import Infer
from autotune.workload.kinds.work import Work
from autotune.workload.regions import repeated_blocks

if TYPE_CHECKING:
    from autotune.space.declared import Declaration
    from autotune.space.schema import Need


class SubjectOfCalls(SubjectOf):
    """See the module. What other kinds of calls have of their own is a method each."""

    kind: ClassVar[type[Work]] = Infer

    def subject(self) -> Subject:
        built, backend = self._built, self._backend
        model = backend.place(built.model)
        placed = [_mapped(inputs, backend.place) for inputs in (built.inputs, *built.more_inputs)]
        self._set_mode(model)
        backend.materialise(model, partial(placed[0].call, built.called))
        backend.input_gradients = self._records_gradients(model, placed)
        specs = input_specs(backend, placed[0], self._workload.model)
        self._require_inputs(specs)
        work, authors = self._work(model, placed)
        example = authors[0]
        needs_more = bool(specs) and not self._are_enough
        derived = _derived(backend, example, self._workload.seed) if needs_more else None
        inputs = authors if derived is None else [*authors, derived]
        parameters = list(backend.parameters(model))
        method = _method_of(self._given, backend)
        return Subject(
            model=model,
            inputs=[*([example] * (NUM_IN_A_ROW - 1) if built.reset else []), *inputs, example],
            signature=signature_of(
                self._recognised(model), parameters, specs, authors=built.compare, backend=backend, method=method
            ),
            dtypes=frozenset(spec.dtype for spec in (*(spec for _, spec in parameters), *specs)),
            example_sha256=digests(backend, example),
            variants=built.variants,
            work=work,
            authors=built.compare,
            derived=derived,
            constants=_constants(placed, backend),
            not_varied=tuple(self._states(model)),
            assumed=tuple(self._assumed(work)),
            reset=None if built.reset is None else partial(built.reset, self._given),
        )

    def declared(self) -> Declaration:
        from autotune.space.declared import Declaration

        built, backend, model = self._built, self._backend, self._built.model
        regions = backend.regions
        if regions is None:  # Nothing to choose: such a backend compiles a model as a whole.
            return Declaration(padding=tuple(built.padding), met=self._met())
        for region in built.regions or ():
            try:
                regions.check_region(model, region)
            except InvalidConfigError as error:
                raise error.about(self._workload.model) from None
        call = partial(built.inputs.call, model)
        backend.materialise(model, call)
        specs = [spec for _, spec in backend.parameters(model)]
        specs += input_specs(backend, built.inputs, self._workload.model)
        declared = Declaration(
            regions=built.regions,
            repeated=repeated_blocks(regions.modules(model), backend.parameters),
            variants={
                name: {value: place_of(function) for value, function in choices.items()}
                for name, choices in built.variants.items()
            },
            padding=tuple(built.padding),
            records_gradients=self._records_gradients(model, (built.inputs, *built.more_inputs)),
            constant_weights=backend.takes_constant_weights(model),
            met=self._met(),
        )
        # The model is of no use after that. What is tried by the kind of load is for devices alone.
        work = backend.work_of(model, call, asks_load=self._workload.device != "cpu")
        lacks: tuple[Need, ...] = ("matrix products",) if work.lacks_products else ()
        held, needed = default_tolerance(spec.dtype for spec in specs), default_tolerance(work.types)
        facts = {"met": (*declared.met, *work.load), "lacks": lacks, "tolerance": needed if needed > held else None}
        return declared.model_copy(update=facts)

    def _recognised(self, model: Any) -> Any:
        """The object by whose class the model is recognised."""
        return model

    def _set_mode(self, model: Any) -> None:
        """Put the model into the mode that it is called in: that of its author."""

    def _records_gradients(self, model: Any, inputs: Sequence[Arguments]) -> bool:
        """Whether gradients are to be recorded in each call, as for a model that differentiates within itself: its
        author says so, an input requires them, or a call without them shows it."""
        return self._is_declared_differentiable(inputs) or self._backend.differentiates(
            model, partial(inputs[0].call, model)
        )

    def _is_declared_differentiable(self, inputs: Sequence[Arguments]) -> bool:
        leaves = (leaf for arguments in inputs for leaf in arguments.leaves())
        return self._built.gradients or self._backend.records_gradients(None, *leaves)

    def _require_inputs(self, specs: Sequence[TensorSpec]) -> None:
        """Raises AutotuneError for a model without a tensor among its inputs."""
        if not specs:
            raise AutotuneError(
                f"{self._workload.model} returned no tensor among its inputs",
                tip="tensors are looked for in tuples, lists, dicts and dataclasses too, not in other objects",
            )

    def _work(self, model: Any, placed: list[Arguments]) -> tuple[Work, list[Arguments]]:
        """What is done with the model, and the author's inputs that results are checked on, the example first."""
        del model
        return self._built.work, placed

    @property
    def _are_enough(self) -> bool:
        """No further input need be made of the example."""
        return bool(self._built.more_inputs)

    def _acting_in_training(self, model: Any) -> Sequence[str]:
        """Modules that are in training mode, where another one is likely in a job."""
        return self._backend.acting_in_training(model)

    def _assumed(self, work: Work) -> Iterator[str]:
        """A sentence about what was taken where the author gave nothing."""
        del work
        return iter(())

    def _states(self, model: Any) -> Iterator[str]:
        """A sentence about the state of the model that its calls begin in, where another one is likely in a job."""
        backend, acting = self._backend, self._acting_in_training(model)
        if acting:
            verb = "was" if len(acting) == 1 else "were"
            yield (
                f"{listed(acting)} {verb} in training mode in all calls; unless that is meant, call "
                f"{backend.evaluation_call} in the function that builds the model"
            )
        variables = variables_read(backend.written_parts(model))
        if variables is not None:
            named = f" ({listed(variables)})" if variables else ""
            yield (
                f"the model's calls read the environment{named}, which was the same in all of them: compiled code may "
                "be made for that alone"
            )
        if self._built.reset is not None:
            yield (
                "the model keeps state: its calls were timed from the state that reset puts back, and compared up to "
                f"call {NUM_IN_A_ROW} after it"
            )


def _mapped(arguments: Arguments, change: Callable[[Any], Any]) -> Arguments:
    """The arguments with other leaves. One object that is there twice stays one: compilers look at that."""
    changed: dict[int, Any] = {}
    leaves = arguments.leaves()
    for leaf in leaves:
        if id(leaf) not in changed:
            changed[id(leaf)] = change(leaf)
    return arguments.with_leaves([changed[id(leaf)] for leaf in leaves])


def _derived(backend: Backend, inputs: Arguments, seed: int) -> Arguments:
    leaves = inputs.leaves()
    arrays = derived_inputs([backend.to_array(leaf) for leaf in leaves], seed)
    made = {id(leaf): array for leaf, array in zip(leaves, arrays, strict=True)}

    def other(leaf: Any) -> Any:
        array = made[id(leaf)]
        return leaf if array is None else backend.like(array, leaf)

    return _mapped(inputs, other)


def _constants(given: Sequence[Arguments], backend: Backend) -> dict[str, str]:
    """Numbers, texts and flags, and tensors of one value, that are the same in all of the author's inputs."""
    example, *others = [{name: _constant(leaf, backend) for name, leaf in one.named_leaves()} for one in given]
    return {
        name: value
        for name, value in example.items()
        if value is not None and all(other.get(name) == value for other in others)
    }


def _constant(leaf: Any, backend: Backend) -> str | None:
    """A value, or the one that a tensor has throughout; None for what has several, or is no value."""
    if isinstance(leaf, (bool, int, float, str)):
        return f"{leaf!r:.40}"
    value = one_value_of(backend.to_array(leaf)) if backend.opened(leaf) is None else None
    return None if value is None else f"{value!r:.40} throughout"


def _method_of(given: Any, backend: Backend) -> str | None:
    """The name by which a model has what was given, if that is a method of it."""
    owner, name = getattr(given, "__self__", None), getattr(given, "__name__", "")
    return name if backend.is_model(owner) and getattr(owner, name, None) == given else None
