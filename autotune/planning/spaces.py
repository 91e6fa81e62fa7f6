"""The search space of a framework: the bundled file or the user's own, narrowed to what holds here.

A user's own may have knobs that no bundled one has: options of the compiler (`inductor.NAME`) and environment variables
(`env.NAME`). They are checked before a study is made.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from autotune.backends.registry import bundled_names, entry_of, framework_version
from autotune.bench import probe
from autotune.environment import num_usable_cores
from autotune.errors import InputError, did_you_mean, marked
from autotune.measure.accuracy import DEFAULT_TOLERANCES
from autotune.planning.shapes import known_shapes
from autotune.planning.targets import is_installed
from autotune.question.question import Question
from autotune.space.declared import Declaration, with_declared_knobs
from autotune.space.load import Circumstances, load_space, read_space_file
from autotune.space.schema import UNLESS_LACKING
from autotune.space.space import Knob, SearchSpace
from autotune.trial.deadline import LimitsNow
from autotune.trial.request import Limits
from autotune.workload.process_start import CORES, INSTANCES, MOST_INSTANCES, PREFIX, available, require_variable
from autotune.workload.workload import Device, Task, Workload


def bundled_spaces() -> list[Path]:
    """The space files that come with the tool: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parents[1]
    folder = next((f for f in (package / "search_spaces", package.parent / "search_spaces") if f.is_dir()), None)
    return sorted(folder.glob("*.yaml")) if folder else []


def bundled_space(framework: str) -> Path:
    """The space file of a framework. Raises InputError where there is none."""
    own = entry_of(framework).search_space
    if own is not None:
        return own
    for path in bundled_spaces():
        if path.stem == framework:
            return path
    raise InputError(
        f"there is no bundled search space for {framework}", tip=f"give one with {marked('space', 'FILE')}"
    )


def space_file_of(given: Path | None, framework: str) -> Path:
    """The space file of a framework: the one that is given with `--space`, or the bundled one. Raises InputError."""
    if given is None:
        return bundled_space(framework)
    read_space_file(given)  # A mistake in it is found before the model is built.
    return given


def space_of(
    workload: Workload,
    path: Path,
    question: Question,
    declared: Declaration,
    limits: LimitsNow = Limits,
    *,
    quantities: Collection[str] = (),
) -> SearchSpace:
    """The space of a file as it holds here, with the knobs of what the model declares. `quantities` are those of
    objectives and constraints: without throughput among them a number of instances is the service's, and not searched
    for."""
    circumstances = _circumstances(question, workload, declared)
    space = load_space(path, framework=workload.framework, circumstances=circumstances)
    require_open_knobs(space, str(path), question.env, limits)
    entry = entry_of(workload.framework)
    # Someone's own space file says what is searched; a quick search is for what mattered most elsewhere.
    found_too = entry.shares_compilations and question.effort != "quick" and not question.space
    space = with_declared_knobs(space, declared, dict(entry.compiled), found_too=found_too)
    if question.instances is None:
        return space
    return with_instances(space, instances_asked(question.instances), are_given="throughput" not in quantities)


def instances_asked(text: str) -> list[str]:
    """Values of the knob: as many processes as are asked for, or each number that divides the cores. Raises
    InputError."""
    num_cores, given = num_usable_cores(), marked("instances", text)
    numbers = [number for number in range(2, num_cores + 1) if num_cores % number == 0]
    if text != "auto":
        if not (text.isascii() and text.isdecimal() and int(text) > 1):
            raise InputError(f"{given}: is neither auto nor a number from 2 on", tip="leave it out for one process")
        numbers = [int(text)] if int(text) <= min(num_cores, MOST_INSTANCES) else []
    if not numbers:
        raise InputError(
            f"{given}: this process may use {num_cores} {'core' if num_cores == 1 else 'cores'}, and each instance has "
            "one of its own at least",
            tip=f"give {marked('instances', str(num_cores))} or fewer" if num_cores > 1 else "leave it out",
        )
    return [f"{number}x{num_cores // number}" for number in numbers]


def with_instances(space: SearchSpace, values: Sequence[str], *, are_given: bool = False) -> SearchSpace:
    """The space with a knob for these numbers of processes and cores, which say how many threads each has. Where they
    `are_given` there is one number, and the untuned model is measured in as many processes as any other config. Raises
    InputError if it has a knob of that name."""
    if any(known.name == INSTANCES for known in space.knobs):
        raise InputError(f"the search space has a knob {INSTANCES}, which {marked('instances')} adds")
    offered = (*values,) if are_given else (None, *values)
    knob = Knob(name=INSTANCES, doc=_DOC, values=offered, when={}, default=offered[0], untuned=offered[0])
    rules = [
        ({INSTANCES: [*values], known.name: [value for value in known.values if value is not None]}, _BECAUSE)
        for known in space.knobs
        if known.name in _OF_THREADS
    ]
    return space.model_copy(update={"knobs": (*space.knobs, knob), "forbid": (*space.forbid, *rules)})


_DOC = "docs/serving.md"
_OF_THREADS = (CORES, "threads", "kernel_threads")
_BECAUSE = "each instance has as many threads as cores"
"""Knobs about the threads of a process, and why they have no value beside instances."""


def _circumstances(question: Question, workload: Workload, declared: Declaration) -> Circumstances:
    """Without `--tolerance` a model is taken for a float32 one, which no half-precision setting leaves as right."""
    tolerance = question.tolerance or DEFAULT_TOLERANCES["float32"]
    return Circumstances(
        version=framework_version(workload.framework),
        device=workload.device,
        task=question.task,
        preset=question.scope.preset,
        tolerance=0.0 if question.fixed_precision else tolerance,
        num_cores=num_usable_cores(),
        num_processors=os.cpu_count(),
        known=known_shapes(workload, declared.padding) | {*declared.met} | (UNLESS_LACKING - {*declared.lacks}),
        process_settings=question.process_settings,
        starts=available() if question.process_settings else frozenset(),
        own_loop=question.scope.own_loop,
        records_gradients=declared.records_gradients,
        constant_weights=declared.constant_weights,
    )


def require_open_knobs(space: SearchSpace, path: str, variables: Mapping[str, str], limits: LimitsNow = Limits) -> None:
    """Raises InputError, with file and knob, for one that no config may set, that the installed release does not have,
    or whose values it does not take. `variables` are those of the study."""
    groups = entry_of(space.framework).options
    options = {knob.name: knob for knob in space.knobs if knob.name.partition(".")[0] in groups and "." in knob.name}
    try:
        for knob in space.knobs:
            if knob.name.startswith(PREFIX):
                for value in knob.values:
                    require_variable(knob.name, value)
            elif "." in knob.name and knob.name not in options:
                raise _unknown_group(knob.name, (*groups, PREFIX.rstrip(".")))
        _require_compiled(space, options)
        if options:
            offered = {name: knob.values for name, knob in options.items()}
            probe.require_options(space.framework, offered, variables, limits)
    except InputError as error:
        raise error.about(str(path)) from None


def _unknown_group(name: str, groups: tuple[str, ...]) -> InputError:
    group, _, option = name.partition(".")
    return InputError(
        f"knob {name}: there are no options of {group!r}",
        tip=did_you_mean(name, [f"{group_name}.{option}" for group_name in groups])
        + f"options begin with {' or '.join(f'{group_name}.' for group_name in groups)}",
    )


def _require_compiled(space: SearchSpace, options: Mapping[str, Knob]) -> None:
    for name in space.untuned().knobs():
        if name in options:
            raise InputError(
                f"knob {name}: the untuned model has no compiler whose option it could be",
                tip="give it a condition: when: {execution: compile, backend: inductor}",
            )


def describe_spaces(device: str, framework: str | None = None, task: Task = "infer") -> list[dict[str, Any]]:
    """The bundled spaces, narrowed to the installed releases, to `device` and to the task, as plain data.

    One for each installed framework, or that of the one that is named.
    """
    if device not in get_args(Device):
        raise InputError(f"{marked('device', device)}: unknown", tip="choose cpu, gpu or ascend")
    names = (framework,) if framework else tuple(sorted(filter(is_installed, bundled_names())))
    described = []
    for name in names:
        file, version = bundled_space(name), framework_version(name)
        here = Circumstances(version=version, device=device, task=task, process_settings=True)  # type: ignore[arg-type]
        space = load_space(file, framework=name, circumstances=here)
        num_configs, knobs = sum(1 for _ in space.configs()), [knob.model_dump(mode="json") for knob in space.knobs]
        described.append(
            {"file": str(file), "framework": name, "version": version, "num_configs": num_configs, "knobs": knobs}
        )
    return described
