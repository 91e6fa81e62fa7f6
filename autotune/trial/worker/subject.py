"""`Subject`: the workload's model with its inputs on the device, in the child, before any config touches it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.backends.capabilities import USUAL_LEARNING_RATE, require
from autotune.backends.contracts.models import Models
from autotune.backends.protocol import Backend
from autotune.backends.read_around import variables_read
from autotune.command_line import asked
from autotune.errors import AutotuneError
from autotune.measure.accuracy import WideType
from autotune.measure.derived_inputs import derived_inputs
from autotune.measure.hurting_inputs import one_value_of
from autotune.measure.measurement import Signature, TensorSpec, structure_sha256
from autotune.measure.parts import AuthorsWord
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import num_compared
from autotune.trial.worker.calls.stream_inputs import Given, StreamInputs
from autotune.trial.worker.kept_state import kept_state
from autotune.workload.arguments import Arguments
from autotune.workload.build import Built, TrainingRecipe, Variants, build, own_loss
from autotune.workload.components import pipeline_of
from autotune.workload.generation import Prompts
from autotune.workload.workload import Workload


@dataclass(frozen=True)
class Subject:
    """`inputs` are the example first, then those that results are checked on, then the example again. `derived` is the
    one among them that the tool made of the example, if any: the model need not take it.

    With a `stream` the example has its most frequent shape, and the others have shapes of it, so that no check shows a
    compiler a shape that is not in the stream.
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
    stream: StreamInputs | None = None
    """The calls of many shapes, with what is known of these; None: there is one shape."""
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
    prompts: Prompts | None = None
    """What is generated; `inputs` are the tokens of each prompt then. None for any other task."""

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
    "were compared on the author's inputs alone; give real ones (more_inputs, a file of inputs, autotune.record)"
)


def built_for(workload: Workload, backend: Backend) -> Built:
    """A workload with the real calls of its file, if it has one. Raises InputError for a file that cannot be used."""
    if workload.inputs is None:
        return build(workload)
    calls = require(backend.calls_file, asked("inputs")).read(Path(workload.inputs))
    return build(workload, calls)


def build_subject(workload: Workload, backend: Backend) -> Subject:
    """Build the workload's model and inputs and put them on the device. Raises InputError or AutotuneError."""
    built = built_for(workload, backend)
    given_model = built.model
    built = replace(built, model=backend.as_model(given_model))
    problem = backend.check_model(built.model)
    if problem is not None:
        raise AutotuneError(f"{workload.model} returned as the model {problem}")
    model = backend.place(built.model)
    if built.prompts is not None:
        return _generating(workload, built.prompts, model, backend)
    placed = [_mapped(inputs, backend.place) for inputs in (built.inputs, *built.more_inputs)]
    if built.recipe is not None:
        require(backend.training, asked("task", "train")).set_training(model)
    backend.materialise(model, partial(placed[0].call, built.called))
    backend.input_gradients = records_gradients(built, model, placed, backend)
    specs = _specs(workload, model, placed[0], backend)
    given = Given.of(workload, built, model, placed, backend)
    example = given.inputs[0]
    derived = None if given.is_enough or not specs else _derived(backend, example, workload.seed)
    inputs = given.inputs if derived is None else [*given.inputs, derived]
    parameters = list(backend.parameters(model))
    recipe = None if built.recipe is None else _with_optimizer(built.recipe, workload, model, backend)
    return Subject(
        model=model,
        inputs=[*([example] * (NUM_IN_A_ROW - 1) if built.reset else []), *inputs, example],
        signature=signature_of(
            model, parameters, specs, authors=built.compare, backend=backend, method=_method_of(given_model, backend)
        ),
        dtypes=frozenset(spec.dtype for spec in (*(spec for _, spec in parameters), *specs)),
        example_sha256=_digests(backend, example),
        variants=built.variants,
        authors=built.compare,
        recipe=recipe,
        stream=given.stream,
        derived=derived,
        constants=_constants(placed, backend),
        not_varied=tuple(_states(built, model, backend)),
        assumed=() if recipe is None or built.recipe is None else tuple(_assumed(built.recipe, recipe)),
        reset=None if built.reset is None else partial(built.reset, given_model),
    )


def _generating(workload: Workload, prompts: Prompts, model: Any, backend: Backend) -> Subject:
    """The subject of task `generate`. Raises AutotuneError for a model that generates nothing."""
    generation = require(backend.generation, asked("task", "generate"))
    problem = generation.check_generating(model)
    if problem is not None:
        raise AutotuneError(f"{workload.model} returned as the model {problem}")
    given = [
        Arguments((backend.place(generation.prompt(model, prompt, prompts.batch, workload.seed)),))
        for prompt in prompts.prompts
    ]
    parameters = list(backend.parameters(model))
    specs = input_specs(backend, given[0], workload.model)
    signature = signature_of(model, parameters, specs, backend=backend)
    return Subject(
        model=model,
        inputs=[*given, given[0]],
        signature=signature.model_copy(update={"items_per_call": prompts.num_tokens}),
        dtypes=frozenset(spec.dtype for _, spec in parameters),
        example_sha256=_digests(backend, given[0]),
        variants={},
        prompts=prompts,
    )


def _specs(workload: Workload, model: Any, example: Arguments, backend: Backend) -> tuple[TensorSpec, ...]:
    """As of `input_specs`. Raises AutotuneError for a model without a tensor among its inputs, too: only a pipeline
    takes texts and numbers."""
    specs = input_specs(backend, example, workload.model)
    if not specs and pipeline_of(model) is None:
        raise AutotuneError(
            f"{workload.model} returned no tensor among its inputs",
            tip="tensors are looked for in tuples, lists, dicts and dataclasses too, not in other objects",
        )
    return specs


def records_gradients(built: Built, model: Any, inputs: Sequence[Arguments], backend: Backend) -> bool:
    """Whether gradients are to be recorded in each call, as for a model that differentiates within itself: its author
    says so, an input requires them, or a call without them shows it."""
    leaves = (leaf for arguments in inputs for leaf in arguments.leaves())
    if built.gradients or backend.records_gradients(None, *leaves):
        return True
    return built.recipe is None and backend.differentiates(model, partial(inputs[0].call, model))


def _with_optimizer(recipe: TrainingRecipe, workload: Workload, model: Any, backend: Backend) -> TrainingRecipe:
    """With the author's optimizer, or the usual one for weights that are there. Raises AutotuneError for another's."""
    training = require(backend.training, asked("task", "train"))
    if recipe.optimizer is None:
        return replace(recipe, optimizer=training.usual_optimizer(model))
    problem = training.check_optimizer(recipe.optimizer)
    if problem is not None:
        raise AutotuneError(f"{workload.model} returned as the optimizer {problem}")
    return recipe


def _assumed(given: TrainingRecipe, taken: TrainingRecipe) -> Iterator[str]:
    if given.loss is own_loss:
        yield "the loss is what the model returns as such, or first: its function gave none"
    if given.optimizer is None:
        name = type(taken.optimizer).__name__
        yield f"the optimizer is {name} with a learning rate of {USUAL_LEARNING_RATE:g}: the model's function gave none"


def subject_of(request: TrialRequest, backend: Backend) -> Subject:
    """The subject of a trial, with the inputs for which the reference holds outputs: without the derived one if the
    untuned model did not take it. Raises as `build_subject` does."""
    subject = build_subject(request.workload, backend)
    num_inputs = num_compared(Path(request.reference)) if request.judged else None
    if num_inputs is None:
        return subject
    paired = subject.without_derived() if num_inputs == len(subject.inputs) - 1 else subject
    return replace(paired, derived_may_fail=False)


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
        example_sha256=_digests(backend, inputs[0]),
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
    return f"{_listed(dropouts)} {'is' if len(dropouts) == 1 else 'are'}"


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


_MAX_NAMED = 3


def _written_inputs(subject: Subject, backend: Backend) -> list[str]:
    named = subject.inputs[0].named_leaves()
    now = _digests(backend, subject.inputs[0])
    return [name for (name, _), old, new in zip(named, subject.example_sha256, now, strict=True) if old != new]


def _digests(backend: Backend, inputs: Arguments) -> tuple[str | None, ...]:
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


def same_in_all(constants: Mapping[str, str], varied: Collection[str] = ()) -> tuple[str, ...]:
    """A sentence about what was the same in all calls, if anything was."""
    same = [f"{name} ({value})" for name, value in constants.items() if name not in varied]
    if not same:
        return ()
    verb = "was" if len(same) == 1 else "were"
    return (f"{_listed(same)} {verb} the same in all calls: compiled code may be made for that alone",)


def _states(built: Built, model: Any, backend: Backend) -> Iterator[str]:
    """A sentence about the state of the model that its calls begin in, where another one is likely in a job."""
    acting = [] if built.recipe else backend.acting_in_training(model)
    if acting:
        verb = "was" if len(acting) == 1 else "were"
        yield (
            f"{_listed(acting)} {verb} in training mode in all calls; unless that is meant, call "
            f"{backend.evaluation_call} in the function that builds the model"
        )
    variables = variables_read(backend.written_parts(model))
    if variables is not None:
        named = f" ({_listed(variables)})" if variables else ""
        yield (
            f"the model's calls read the environment{named}, which was the same in all of them: compiled code may be "
            "made for that alone"
        )
    if built.reset is not None:
        yield (
            "the model keeps state: its calls were timed from the state that reset puts back, and compared up to call "
            f"{NUM_IN_A_ROW} after it"
        )


def _derived(backend: Backend, inputs: Arguments, seed: int) -> Arguments:
    leaves = inputs.leaves()
    arrays = derived_inputs([backend.to_array(leaf) for leaf in leaves], seed)
    made = {id(leaf): array for leaf, array in zip(leaves, arrays, strict=True)}

    def other(leaf: Any) -> Any:
        array = made[id(leaf)]
        return leaf if array is None else backend.like(array, leaf)

    return _mapped(inputs, other)


def _mapped(arguments: Arguments, change: Callable[[Any], Any]) -> Arguments:
    """With other leaves. One object that is there twice stays one: compilers look at that."""
    changed: dict[int, Any] = {}
    leaves = arguments.leaves()
    for leaf in leaves:
        if id(leaf) not in changed:
            changed[id(leaf)] = change(leaf)
    return arguments.with_leaves([changed[id(leaf)] for leaf in leaves])


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
    pipeline = pipeline_of(model)
    kind = type(model) if pipeline is None else type(pipeline.holder)
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


def _method_of(given: Any, backend: Backend) -> str | None:
    """The name by which a model has what was given, if that is a method of it."""
    owner, name = getattr(given, "__self__", None), getattr(given, "__name__", "")
    return name if backend.is_model(owner) and getattr(owner, name, None) == given else None
