"""What differs between a job and the place where its tuned config was measured.

A latency holds for one release, one device and one model: elsewhere the config may be slow, wrong or refused. Each
difference is a phrase that says what was and what is, for one log line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from autotune import environment
from autotune.apply.config_parts import ConfigParts
from autotune.apply.shape_strategies import sizes_in
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of, framework_version
from autotune.command_line import asked, command
from autotune.environment import Environment
from autotune.job.admission import MANY_LEARNED, Admission, Numbered
from autotune.job.stats import StatsRecorder
from autotune.measure.measurement import TensorSpec, structure_sha256
from autotune.measure.objective import LATENCY
from autotune.question.question import Question
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.arguments import Arguments
from autotune.workload.traffic import Shapes


def differences(tuned: TunedConfig, backend: Backend, model: Any) -> list[str]:
    """What is known before the first call: the framework's release, the device with its driver, the model. Empty: all
    is as it was when the config was measured."""
    here = environment.describe(device=backend.device_name(), variables={})
    release = framework_version(tuned.framework)
    found = [_difference(tuned.framework, tuned.environment.framework_version, release)]
    found += _device_differences(tuned, here)
    found.append(_compiler_difference(tuned, here))
    peak_bytes = (tuned.evidence.best.peak_memory_bytes or 0) // ConfigParts.of(tuned.config).start.instances
    if here.device.lower() == "cpu" and peak_bytes > here.memory_bytes:
        found.append(f"up to {peak_bytes / 2**20:,.0f} MiB of memory, here {here.memory_bytes / 2**20:,.0f} MiB")
    if structure_sha256(backend.parameters(model)) != tuned.workload.signature.structure_sha256:
        found.append(f"a {tuned.workload.signature.model_class} with other parameters than this {type(model).__name__}")
    return [difference for difference in found if difference is not None]


def inputs_differ(tuned: TunedConfig, backend: Backend, arguments: Arguments) -> str | None:
    """Whether a call's tensors have other shapes or types than the measured call's, in whatever order they come.

    Tensors of a single number are left out: trainers pass such counts along, and they change no shape. Under traffic a
    dimension may have any size from its smallest to its largest.
    """
    leaves = arguments.leaves()
    numbered = [(number, spec) for number, leaf in enumerate(leaves) if (spec := backend.spec(leaf)) is not None]
    specs, then = [spec for _, spec in numbered], tuned.workload.signature.inputs
    open_axes: list[tuple[int, int]] = []
    if tuned.shapes is not None:
        outside = _size_out_of_range(tuned.shapes, leaves)
        if outside is not None:
            return outside
        # What was no tensor has no place among the recorded inputs.
        places = {number: place for place, (number, _) in enumerate(numbered)}
        open_axes = [(places[axis.leaf], axis.axis) for axis in tuned.shapes.inputs if axis.leaf in places]
    if Counter(_without_axes(specs, open_axes)) == Counter(_without_axes(then, open_axes)):
        return None
    return (
        f"inputs {_text_of(spec for spec in then if spec.shape)}, here {_text_of(spec for spec in specs if spec.shape)}"
    )


class CallsWithinAStep:
    """Why a call of the model is not for a config of training steps, whose trials compared the step as a whole: it has
    tensors that are no inputs of that. Where the step makes others of its inputs, the first call that records gradients
    shows which."""

    def __init__(self, tuned: TunedConfig, backend: Backend, model: Any) -> None:
        self._inputs = Counter(_without_axes(tuned.workload.signature.inputs, ()))
        self._backend = backend
        self._model = model
        self._first: Counter[TensorSpec] | None = None

    def __call__(self, arguments: Arguments) -> str | None:
        leaves = arguments.leaves()
        specs = [spec for leaf in leaves if (spec := self._backend.spec(leaf)) is not None]
        here = Counter(_without_axes(specs, ()))
        if self._first is None and self._backend.records_gradients(self._model, *leaves):
            self._first = here
        if here == self._first or not here - self._inputs:
            return None
        if self._first is not None:
            return f"inputs {_text_of(self._first.elements())}, here {_text_of(here.elements())}"
        # A later call may still show that such inputs are the step's.
        then = f"inputs {_text_of(self._inputs.elements())}, or those" if self._inputs else "the inputs"
        return f"{then} of the first call that records gradients, here {_text_of(here.elements())} before it"


def admission_of(
    tuned: TunedConfig,
    backend: Backend,
    model: Any,
    loss: Callable[..., Any] | None,
    recorder: StatsRecorder,
    *,
    path: str,
    takes_misfits: bool,
    is_component: bool,
) -> Admission:
    """Which calls of a model, or steps with a `loss`, are for the config in the file. A component's single numbers are
    its pipeline's own, such as the time of a step."""
    is_measured = (loss is not None) == (tuned.workload.task == "train")
    differ = partial(inputs_differ, tuned, backend) if is_measured else CallsWithinAStep(tuned, backend, model)

    def misfit(arguments: Arguments) -> str | None:
        found = differ(arguments)
        return None if found is None else f"{path} was tuned for {found}"

    def tell(name: str) -> None:
        numbers = f"{MANY_LEARNED} calls had whole numbers in {name} that no call before had"
        tip = "a file of this release of autotune says which of them the model takes"
        recorder.note("mismatch", f"{numbers}, and were made untuned, as such calls are; {tip}")

    numbered = None
    if backend.device_name().lower() == "cpu":
        open_axes = () if tuned.shapes is None else tuned.shapes.inputs
        numbered = Numbered(
            backend,
            backend.called(model) if loss is None else loss,
            (tuned.limits or ()) if is_measured else (),
            frozenset((axis.leaf, axis.axis) for axis in open_axes),
            num_own=0 if loss is None else 1,
            takes_single=is_component,
        )
    return Admission(misfit, numbered, takes_misfits=takes_misfits, keeps_misfits=is_measured, tell=tell)


def _size_out_of_range(shapes: Shapes, leaves: Sequence[Any]) -> str | None:
    """The first dimension whose size none of the traffic had, or what lies between its sizes."""
    for dimension, size in (sizes_in(leaves, shapes.inputs) or {}).items():
        sizes = list(shapes.traffic.sizes_of(dimension))
        smallest, largest = sizes[0], sizes[-1]
        if not smallest <= size <= largest:
            return f"calls with {dimension} from {smallest} to {largest}, here {size}"
    return None


def _without_axes(specs: Sequence[TensorSpec], axes: Iterable[tuple[int, int]]) -> list[TensorSpec]:
    """Those with a shape, the sizes of these axes (number of the spec, axis) left out."""
    shapes = [list(spec.shape) for spec in specs]
    for number, axis in axes:
        if number < len(shapes) and axis < len(shapes[number]):
            shapes[number][axis] = 0
    changed = (spec.model_copy(update={"shape": tuple(shape)}) for spec, shape in zip(specs, shapes, strict=True))
    return [spec for spec in changed if spec.shape]


def question_of(tuned: TunedConfig) -> dict[str, Any]:
    """What asks for the same model and the same search again, by the fields of the question. Sizes of traffic are no
    arguments then; where no text says them, `traffic` is a file that is still to be written."""
    workload, traffic = tuned.workload, None if tuned.shapes is None else tuned.shapes.traffic
    is_default = workload.objective == LATENCY.name and traffic is None
    return {
        "build": workload.model,
        "framework": tuned.framework,
        "device": workload.device,
        "task": workload.task,
        "arguments": {
            name: value
            for name, value in workload.arguments.items()
            if traffic is None or name not in traffic.dimensions
        },
        **({} if traffic is None else traffic.asked),
        "inputs": workload.inputs,
        "objective": () if is_default else (workload.objective,),
        "constraints": workload.constraints,
        "tolerance": workload.tolerance,
        "reference": workload.reference_precision,
        "seed": workload.seed,
        **tuned.search.model_dump(),
    }


def retune_command(tuned: TunedConfig) -> str:
    """What a user types to tune the same model here, in the same space."""
    fields = Question.model_fields
    return command(
        "tune", **{name: value for name, value in question_of(tuned).items() if value != fields[name].default}
    )


def hint_of_misfits(tuned: TunedConfig) -> str:
    """What to do about calls of other shapes, after a semicolon."""
    again = f"to tune here: {retune_command(tuned)}"
    takes_shapes = tuned.shapes is None and tuned.workload.task == "infer" and tuned.texts is None
    return f"{again}, with {asked('shapes', 'NAME=SIZES')} for several shapes" if takes_shapes else again


def _device_differences(tuned: TunedConfig, here: Environment) -> list[str | None]:
    then, compilers = tuned.environment, entry_of(tuned.framework).compilers
    found = [_difference("the device", then.device, here.device)]
    if here.device.lower() == "cpu":
        # Cores decide how many threads there are, and with them which config is fastest.
        return [
            *found,
            _difference("a", then.processor, here.processor),
            _known_difference("vector instructions", then.vector_instructions, here.vector_instructions),
            _difference("cores:", then.num_cores, here.num_cores),
        ]
    found.append(_known_difference("the driver", then.driver, here.driver))
    return [*found, *(_difference(name, then.packages.get(name), here.packages.get(name)) for name in compilers)]


def _compiler_difference(tuned: TunedConfig, here: Environment) -> str | None:
    """The package that brings the compiler which the config names, and has the same name."""
    name = str(tuned.config.get("backend"))
    then = tuned.environment.packages.get(name)
    return None if then is None else _difference(name, then, here.packages.get(name, "none"))


def _difference(what: str, then: object, here: object) -> str | None:
    return None if then == here else f"{what} {then}, here {here}"


def _known_difference(what: str, then: str | None, here: str | None) -> str | None:
    """None as well where one of them is not known: a system that does not say."""
    return _difference(what, then, here) if then and here else None


def _text_of(specs: Any) -> str:
    return ", ".join(f"{spec.dtype.lower()}{list(spec.shape)}" for spec in specs) or "none"
