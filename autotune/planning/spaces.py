"""The search space of each framework: the bundled file or the user's own, narrowed to what holds here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import autotune
from autotune.backends.registry import bundled_names, entry_of, framework_version
from autotune.command_line import asked
from autotune.environment import num_usable_cores
from autotune.errors import InputError
from autotune.measure.accuracy import DEFAULT_TOLERANCES
from autotune.planning.options import require_open_knobs
from autotune.planning.targets import is_installed
from autotune.question.question import Question
from autotune.space.declared import Declaration, with_declared_knobs
from autotune.space.load import Circumstances, load_space, read_space_file
from autotune.space.shape_knobs import known_shapes
from autotune.space.space import SearchSpace
from autotune.trial.deadline import LimitsNow
from autotune.trial.request import Limits
from autotune.workload.workload import Device, Task, Workload


def bundled_spaces() -> list[Path]:
    """The space files that come with the tool: beside the package in a checkout, inside it when installed."""
    package = Path(autotune.__file__).resolve().parent
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
    raise InputError(f"there is no bundled search space for {framework}", tip=f"give one with {asked('space', 'FILE')}")


def spaces_of(files: tuple[Path, ...], frameworks: tuple[str, ...]) -> dict[str, Path]:
    """Framework -> its space file, of those given with `--space`: each file says whose it is. Raises InputError."""
    spaces: dict[str, Path] = {}
    for path in files:
        framework = read_space_file(path).framework
        if framework not in frameworks:
            raise InputError(f"{path}: key framework: is {framework!r}, but the study uses {' and '.join(frameworks)}")
        if framework in spaces:
            raise InputError(
                f"{asked('space', path)}: {spaces[framework]} is for {framework} too", tip="give one for each"
            )
        spaces[framework] = path
    return spaces


def space_of(
    workload: Workload, path: Path, question: Question, declared: Declaration, limits: LimitsNow = Limits
) -> SearchSpace:
    """The space of a file as it holds here, with the knobs of what the model declares."""
    circumstances = _circumstances(question, workload, declared)
    space = load_space(path, framework=workload.framework, circumstances=circumstances)
    require_open_knobs(space, str(path), question.env, limits)
    entry = entry_of(workload.framework)
    # Someone's own space file says what is searched; a quick search is for what mattered most elsewhere.
    found_too = entry.shares_compilations and question.preset != "quick" and not question.space
    return with_declared_knobs(space, declared, dict(entry.compiled), found_too=found_too)


def _circumstances(question: Question, workload: Workload, declared: Declaration) -> Circumstances:
    """Without `--tolerance` a model is taken for a float32 one, which no half-precision setting leaves as right."""
    tolerance = question.tolerance or DEFAULT_TOLERANCES["float32"]
    return Circumstances(
        version=framework_version(workload.framework),
        device=workload.device,
        task=question.task,
        preset=question.preset,
        tolerance=0.0 if question.fixed_precision else tolerance,
        num_cores=num_usable_cores(),
        known=known_shapes(workload.traffic, declared.padding),
        process_settings=question.process_settings,
    )


def describe_spaces(device: str, framework: str | None = None, task: Task = "infer") -> list[dict[str, Any]]:
    """The bundled spaces, narrowed to the installed releases, to `device` and to the task, as plain data.

    One for each installed framework, or that of the one that is named.
    """
    if device not in get_args(Device):
        raise InputError(f"{asked('device', device)}: unknown", tip="choose cpu, gpu or ascend")
    names = (framework,) if framework else tuple(sorted(filter(is_installed, bundled_names())))
    spaces = []
    for name in names:
        version = framework_version(name)
        here = Circumstances(version=version, device=device, task=task, process_settings=True)  # type: ignore[arg-type]
        spaces.append(load_space(bundled_space(name), framework=name, circumstances=here))
    return [_as_plain_data(space) for space in spaces]


def _as_plain_data(space: SearchSpace) -> dict[str, Any]:
    return {
        "file": str(bundled_space(space.framework)),
        "framework": space.framework,
        "version": framework_version(space.framework),
        "num_configs": sum(1 for _ in space.configs()),
        "knobs": [knob.model_dump(mode="json") for knob in space.knobs],
    }
