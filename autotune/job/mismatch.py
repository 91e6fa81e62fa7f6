"""What differs between a job and the place where its tuned config was measured.

A latency holds for one release, one device and one model: elsewhere the config may be slow, wrong or refused. Each
difference is a phrase that says what was and what is, for one log line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from autotune import environment
from autotune.apply.config_parts import ConfigParts
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of, framework_version
from autotune.command_line import command
from autotune.environment import Environment
from autotune.measure.measurement import Axis, TensorSpec, structure_sha256
from autotune.measure.objective import LATENCY
from autotune.question.question import Question
from autotune.tuned.tuned_config import TunedConfig


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


def inputs_differ(
    then: Sequence[TensorSpec], backend: Backend, leaves: Sequence[Any], open_axes: Iterable[Axis] = ()
) -> str | None:
    """Whether a call's tensors have other shapes or types than the measured call's, in whatever order they come.

    Tensors of a single number are left out: trainers pass such counts along, and they change no shape. An open axis may
    have any size.
    """
    numbered = [(number, spec) for number, leaf in enumerate(leaves) if (spec := backend.spec(leaf)) is not None]
    # What was no tensor has no place among the recorded inputs.
    places = {number: place for place, (number, _) in enumerate(numbered)}
    left_out = [(places[axis.leaf], axis.axis) for axis in open_axes if axis.leaf in places]
    specs = [spec for _, spec in numbered]
    if Counter(without_axes(specs, left_out)) == Counter(without_axes(then, left_out)):
        return None
    return (
        f"inputs {text_of(spec for spec in then if spec.shape)}, here {text_of(spec for spec in specs if spec.shape)}"
    )


def without_axes(specs: Sequence[TensorSpec], axes: Iterable[tuple[int, int]]) -> list[TensorSpec]:
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
    workload, (sizes, dimensions) = tuned.workload, tuned.sizes_asked
    is_default = workload.objective == LATENCY.name and not sizes
    return {
        "build": workload.model,
        "framework": tuned.framework,
        "device": workload.device,
        "task": workload.task,
        "arguments": {name: value for name, value in workload.arguments.items() if name not in dimensions},
        **sizes,
        "inputs": workload.inputs,
        "objective": None if is_default else workload.objective,
        "constraints": workload.constraints,
        "tolerance": workload.tolerance,
        "reference": workload.reference_precision,
        "seed": workload.seed,
        **tuned.search.asked_of(workload.task),
    }


def retune_command(tuned: TunedConfig) -> str:
    """What a user types to tune the same model here, in the same space."""
    fields = Question.model_fields
    return command(
        "tune", **{name: value for name, value in question_of(tuned).items() if value != fields[name].default}
    )


def _device_differences(tuned: TunedConfig, here: Environment) -> list[str | None]:
    then, compilers = tuned.environment, entry_of(tuned.framework).compilers
    found = [_difference("the device", then.device, here.device)]
    if here.device.lower() == "cpu":
        return [
            *found,
            _difference("a", then.processor, here.processor),
            _known_difference("vector instructions", then.vector_instructions, here.vector_instructions),
            _cores_difference(then, here),
        ]
    found.append(_known_difference("the driver", then.driver, here.driver))
    return [*found, *(_difference(name, then.packages.get(name), here.packages.get(name)) for name in compilers)]


def _cores_difference(then: Environment, here: Environment) -> str | None:
    """Threads that compute decide which config is fastest: further cores that none of them uses do not."""
    as_many = then.num_threads == here.num_threads
    if then.num_cores == here.num_cores or (as_many and min(then.num_cores, here.num_cores) >= here.num_threads):
        return None
    threads = "" if here.num_threads == here.num_cores else f" with OMP_NUM_THREADS={here.num_threads}"
    return f"cores: {then.num_cores}, here {here.num_cores}{threads}"


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


def text_of(specs: Iterable[TensorSpec]) -> str:
    """Types and shapes of tensors."""
    return ", ".join(f"{spec.dtype.lower()}{list(spec.shape)}" for spec in specs) or "none"
