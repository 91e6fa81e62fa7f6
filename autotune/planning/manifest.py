"""From what a user typed to a `Manifest`: which model, framework, device and space, and the defaults for the rest."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import math
import re
import sys
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import optuna

import autotune
from autotune import models
from autotune.backends.registry import entry_of, framework_names, framework_version
from autotune.config import Scalar
from autotune.environment import num_usable_cores
from autotune.errors import HarnessError, InputError, MissingDeviceError, MissingFrameworkError
from autotune.measure.accuracy import DEFAULT_TOLERANCES, ReferencePrecision
from autotune.measure.constraint import OF_TRAFFIC, Constraint
from autotune.measure.objective import UNDER_TRAFFIC, Objective, parse_objectives
from autotune.models import hub
from autotune.planning.models import models_of, spaces_of
from autotune.schema import Record
from autotune.space.combined import join
from autotune.space.declared import Declaration, with_declared
from autotune.space.load import Circumstances, load_space
from autotune.space.schema import Preset
from autotune.space.shape_knobs import known_of
from autotune.space.space import SearchSpace
from autotune.study.manifest import Manifest, Target
from autotune.study.study import check_name
from autotune.trial.runner.probe import find_devices, read_declaration
from autotune.workload.tiers import TierSpec
from autotune.workload.traffic import Traffic, parse_shapes, read_traffic
from autotune.workload.workload import STREAM_CALLS, Device, Task, Workload, file_reference, split_reference

PREFERRED: dict[str, tuple[str, ...]] = {
    "cpu": ("torch", "mindspore"),
    "gpu": ("torch", "mindspore"),
    "ascend": ("mindspore", "torch"),
}
"""Device -> the frameworks to use for it, the first being what it is without `--framework`."""
BOTH = "both"
"""`--framework both`: every framework, in one study; the preferred one's untuned model is what all is compared with."""


class TuneRequest(Record):
    """What the user asked for, as typed; None where left out."""

    models: tuple[str, ...]
    """One for all frameworks, or FRAMEWORK=MODEL for each."""
    model_arguments: tuple[str, ...] = ()
    framework: str | None = None
    device: str = "auto"
    task: Task = "infer"
    shapes: tuple[str, ...] = ()
    traffic: Path | None = None
    study: str | None = None
    spaces: tuple[Path, ...] = ()
    objectives: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    tolerance: float | None = None
    reference_precision: ReferencePrecision = "model"
    seed: int = 0
    variables: tuple[str, ...] = ()
    preset: Preset = "standard"
    fixed_precision: bool = False
    process_settings: bool = False
    """The job will allow what holds for its whole process."""
    arguments: dict[str, Scalar] = {}
    """Of a tier: they count more than `model_arguments`."""


def make_manifest(wish: TuneRequest) -> Manifest:
    """The question that the wish comes to on this machine. Raises an AutotuneError with a sentence."""
    _require_text(wish)
    frameworks, device = choose_targets(wish.framework, wish.device)
    if wish.task == "train" and len(frameworks) > 1:
        raise InputError(
            f"--task train --framework {wish.framework}: a training step is tuned in one framework at a time, because "
            "what their optimizers keep of a gradient cannot be compared",
            tip="make a study for each",
        )
    traffic = _traffic_of(wish)
    objectives = parse_objectives(wish.objectives or (() if traffic is None else (UNDER_TRAFFIC,)))
    constraints = tuple(Constraint.parse(text) for text in wish.constraints)
    _require_fit_for(traffic, objectives, constraints)
    base, *others = _targets(wish, frameworks, device, traffic, stream_calls(objectives))
    variables = _pairs("--env", wish.variables)
    declared = [_declaration_of(each.workload, variables) for each in (base, *others)]
    spaces = [_space_of(each, wish, said) for each, said in zip((base, *others), declared, strict=True)]
    return Manifest(
        schema=3,
        id=uuid.uuid4().hex,
        name=_study_name(wish, frameworks, device),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        autotune_version=autotune.__version__,
        optuna_version=optuna.__version__,
        workload=base.workload,
        framework_version=base.framework_version,
        space_file=base.space_file,
        others=tuple(others),
        space=join(spaces) if others else spaces[0],
        objectives=objectives,
        constraints=constraints,
        tolerance=wish.tolerance,
        reference_precision=wish.reference_precision,
        variables=variables,
        variants={name: said.variants for name, said in zip(frameworks, declared, strict=True) if said.variants},
    )


def _require_text(wish: TuneRequest) -> None:
    """Before anything takes time: the study's name is one, and what is written down can be written down."""
    if wish.study is not None:
        check_name(wish.study)
    given = (("--model", wish.models), ("--model-arg", wish.model_arguments), ("--env", wish.variables))
    for flag, texts in given:
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InputError(f"{flag} {text}: is not text (UTF-8)") from None


def tier_requests(wish: TuneRequest) -> dict[str, TuneRequest]:
    """Tier -> the wish of its study, the best tier first. A model that declares no tiers is one, `full`.

    What is minimised is the 99th percentile, unless the user wants something else. Raises an AutotuneError.
    """
    _require_text(wish)
    frameworks, device = choose_targets(wish.framework, wish.device)
    if wish.task == "train" or len(frameworks) > 1:
        raise InputError(
            "--deadline is for calls of a model in one framework",
            tip="leave out --task train and name one framework: a job holds all tiers side by side",
        )
    if wish.shapes or wish.traffic is not None:
        raise InputError(
            "--deadline with --shapes or --traffic: a 99th percentile is promised for one shape",
            tip="leave one of the two out; the size of a deadline's inputs is a --model-arg",
        )
    (target,) = _targets(wish, frameworks, device, None, STREAM_CALLS)
    declared = _declaration_of(target.workload, _pairs("--env", wish.variables))
    name = _study_name(wish, frameworks, device)
    return {
        tier: wish.model_copy(
            update={
                "study": f"{name}-{tier}",
                "arguments": grade.arguments,
                "tolerance": grade.tolerance or wish.tolerance,
                "objectives": wish.objectives or ("p99",),
            }
        )
        for tier, grade in (declared.tiers or {"full": TierSpec()}).items()
    }


def stream_calls(objectives: Iterable[Objective]) -> int:
    """Calls of the stream that a trial replays under traffic: no more than the job has that is to be made short."""
    return min([STREAM_CALLS, *(each.num_calls for each in objectives if each.num_calls is not None)])


def _traffic_of(wish: TuneRequest) -> Traffic | None:
    """None: the model is called with one shape. Raises InputError."""
    if wish.shapes and wish.traffic is not None:
        raise InputError("--shapes and --traffic: give one of them", tip="a file has the shapes in it")
    if not wish.shapes and wish.traffic is None:
        return None
    if wish.task == "train":
        flag = "--shapes" if wish.shapes else "--traffic"
        raise InputError(
            f"--task train {flag}: a training step is tuned for one shape, because where its steps lead is compared",
            tip="tune it for the most frequent shape",
        )
    return parse_shapes(wish.shapes) if wish.traffic is None else read_traffic(wish.traffic)


def _require_fit_for(
    traffic: Traffic | None, objectives: Iterable[Objective], constraints: Iterable[Constraint]
) -> None:
    """Some quantities there are under traffic only, and one there is not."""
    flags = [f"--objective {each.name}" for each in objectives if each.quantity == "throughput"]
    flags += [f"--constraint {each.text!r}" for each in constraints if each.quantity == "throughput"]
    if traffic is not None and flags:
        raise InputError(
            f"{flags[0]}: calls of many shapes hold different numbers of items", tip="use latency or total:CALLS"
        )
    alone = next((each for each in constraints if each.quantity in OF_TRAFFIC), None)
    if traffic is None and alone is not None:
        raise InputError(
            f"--constraint {alone.text!r}: {alone.quantity} are counted over many shapes",
            tip="give them with --shapes or --traffic; for one shape there is `recompiles`",
        )


def _arguments_of(wish: TuneRequest, traffic: Traffic | None) -> dict[str, Scalar]:
    """What the model's function is called with: each dimension of the traffic at its largest size."""
    typed = typed_arguments("--model-arg", wish.model_arguments)
    arguments = {**typed, **wish.arguments}
    largest = {} if traffic is None else traffic.largest
    twice = next((name for name in largest if name in arguments), None)
    if twice is not None:
        raise InputError(f"--model-arg {twice}: the traffic says its sizes", tip="leave one of the two out")
    return {**arguments, **largest}


def _targets(
    wish: TuneRequest, frameworks: tuple[str, ...], device: Device, traffic: Traffic | None, num_calls: int
) -> list[Target]:
    """The model in each framework. All take the same arguments, the same seed and the same traffic."""
    arguments = _arguments_of(wish, traffic)
    wanted, files = models_of(wish.models, frameworks), spaces_of(wish.spaces, frameworks)
    return [
        Target(
            workload=make_workload(
                wanted[name], arguments, name, device, wish.seed, task=wish.task, traffic=traffic, num_calls=num_calls
            ),
            framework_version=framework_version(name),
            space_file=str(files.get(name) or bundled_space(name)),
        )
        for name in frameworks
    ]


def _declaration_of(workload: Workload, variables: dict[str, str]) -> Declaration:
    """What the model declares, for inference. That of a bundled one is known without building it, but for what may be
    padded: that depends on its arguments."""
    if workload.task == "train":
        return Declaration()
    if workload.model in models.names() and workload.traffic is None:
        return Declaration.model_validate(models.declared(workload.model, workload.framework))
    return read_declaration(workload, variables)


def _space_of(target: Target, wish: TuneRequest, declared: Declaration) -> SearchSpace:
    """The space of one framework as it holds here, with the knobs of what the model declares."""
    workload = target.workload
    circumstances = _circumstances(wish, target, declared)
    space = load_space(Path(target.space_file), framework=workload.framework, circumstances=circumstances)
    entry = entry_of(workload.framework)
    # Someone's own space file says what is searched; a quick search is for what mattered most elsewhere.
    found_too = entry.shares_compilations and wish.preset != "quick" and not wish.spaces
    return with_declared(space, declared, dict(entry.compiled), found_too=found_too)


def _circumstances(wish: TuneRequest, target: Target, declared: Declaration) -> Circumstances:
    """Without `--tolerance` a model is taken for a float32 one, which no half-precision setting leaves as right."""
    tolerance = wish.tolerance or DEFAULT_TOLERANCES["float32"]
    return Circumstances(
        version=target.framework_version,
        device=target.workload.device,
        task=wish.task,
        preset=wish.preset,
        tolerance=0.0 if wish.fixed_precision else tolerance,
        num_cores=num_usable_cores(),
        known=known_of(target.workload.traffic, declared.padding),
        process_settings=wish.process_settings,
    )


def make_workload(
    model: str,
    arguments: dict[str, Scalar],
    framework: str,
    device: Device,
    seed: int,
    *,
    task: Task = "infer",
    traffic: Traffic | None = None,
    num_calls: int = STREAM_CALLS,
) -> Workload:
    """The workload as it is seen from the current folder; `num_calls` of its traffic are replayed in a trial. Raises
    InputError for a model that is not there."""
    search_path = Path.cwd()
    reference, digest = _resolve_model(model, framework, task, search_path)
    if model.startswith(hub.SCHEME):
        arguments = {**arguments, "name": hub.name_of(model, search_path)}
    return Workload(
        model=model,
        reference=reference,
        arguments=arguments,
        framework=framework,
        device=device,
        task=task,
        traffic=traffic,
        stream_calls=num_calls,
        seed=seed,
        search_path=str(search_path),
        source_sha256=digest,
    )


def choose_targets(framework: str | None, device: str) -> tuple[tuple[str, ...], Device]:
    """Frameworks, the base of the study first, and the device that all of them use. Raises like `choose_target`.

    `both` puts the one that is preferred for the device first, `A+B` the one that was written first.
    """
    names = _named(framework or "")
    if len(names) == 1:
        name, chosen = choose_target(framework, device)
        return (name,), chosen
    (chosen,) = {_common_device(names)} if device == "auto" else {choose_target(name, device)[1] for name in names}
    return tuple(sorted(names, key=PREFERRED[chosen].index)) if framework == BOTH else names, chosen


def _named(framework: str) -> tuple[str, ...]:
    """The frameworks that a value of `--framework` stands for."""
    names = framework_names() if framework == BOTH else tuple(framework.split("+"))
    if len(set(names)) < len(names):
        raise InputError(f"--framework {framework}: names one twice")
    return names


def _common_device(names: tuple[str, ...]) -> Device:
    """A GPU if all of these frameworks find one, else an Ascend card, else the CPU."""
    found = [find_devices(name).devices for name in names]
    accelerators: tuple[Device, ...] = ("gpu", "ascend")
    return next((device for device in accelerators if all(device in each for each in found)), "cpu")


def choose_target(framework: str | None, device: str) -> tuple[str, Device]:
    """Framework and device to use. Raises InputError, MissingFrameworkError, MissingDeviceError.

    A CPU is taken for granted; any other device is looked for by the framework itself, in a child.
    """
    if framework is not None:
        framework_version(framework)
    if device not in ("auto", *get_args(Device)):
        raise InputError(f"--device {device}: unknown", tip="choose auto, cpu, gpu or ascend")
    if device == "auto":
        return _best_target(framework)
    chosen = framework or _installed_for(device)
    wanted: Device = device  # type: ignore[assignment]
    if wanted != "cpu":
        _require_device(chosen, wanted)
    return chosen, wanted


def bundled_spaces() -> list[Path]:
    """The space files that come with the tool: beside the package in a checkout, inside it when installed."""
    package = Path(autotune.__file__).resolve().parent
    folder = next((f for f in (package / "search_spaces", package.parent / "search_spaces") if f.is_dir()), None)
    return sorted(folder.glob("*.yaml")) if folder else []


def bundled_space(framework: str) -> Path:
    """The space file of a framework. Raises InputError where there is none."""
    for path in bundled_spaces():
        if path.stem == framework:
            return path
    raise InputError(f"there is no bundled search space for {framework}", tip="give one with --space FILE")


def require_same_question(manifest: Manifest) -> None:
    """Raises StoreError if a framework's release or a model's file is not what the study was made with."""
    base, *others = (_as_it_is_now(each) for each in manifest.targets)
    now = manifest.model_copy(
        update={"framework_version": base.framework_version, "workload": base.workload, "others": tuple(others)}
    )
    manifest.require_same(now)


def _as_it_is_now(target: Target) -> Target:
    workload = target.workload
    _, digest = _resolve_model(workload.model, workload.framework, workload.task, Path(workload.search_path))
    return target.model_copy(
        update={
            "framework_version": framework_version(workload.framework),
            "workload": workload.model_copy(update={"source_sha256": digest}),
        }
    )


def describe_spaces(device: str, framework: str | None = None, task: Task = "infer") -> list[dict[str, Any]]:
    """The bundled spaces, narrowed to the installed releases, to `device` and to the task, as plain data.

    Of each installed framework, or of those that are named as in `--framework`: several are one space.
    """
    if device not in get_args(Device):
        raise InputError(f"--device {device}: unknown", tip="choose cpu, gpu or ascend")
    names = _named(framework) if framework else tuple(sorted(filter(_is_installed, framework_names())))
    spaces = []
    for name in names:
        version = framework_version(name)
        here = Circumstances(version=version, device=device, task=task, process_settings=True)  # type: ignore[arg-type]
        spaces.append(load_space(bundled_space(name), framework=name, circumstances=here))
    return [_described(each) for each in ([join(spaces)] if framework and len(spaces) > 1 else spaces)]


def _described(space: SearchSpace) -> dict[str, Any]:
    return {
        "file": " + ".join(str(bundled_space(name)) for name in space.frameworks),
        "framework": space.framework,
        "version": " + ".join(framework_version(name) for name in space.frameworks),
        "num_configs": sum(1 for _ in space.configs()),
        "knobs": [knob.model_dump(mode="json") for knob in space.knobs],
    }


def _best_target(framework: str | None) -> tuple[str, Device]:
    """`auto`: a GPU if there is one, else an Ascend card, else the CPU."""
    candidates = [framework] if framework else [name for name in framework_names() if _is_installed(name)]
    if not candidates:
        raise _no_framework()
    if framework and entry_of(framework).bundled_only_for_tests:
        return framework, "cpu"
    found = _devices_of(candidates, named=framework is not None)
    accelerators: tuple[Device, ...] = ("gpu", "ascend")
    for device in accelerators:
        for name in sorted(candidates, key=PREFERRED[device].index):
            if device in found[name]:
                return name, device
    return next((name for name in candidates if found[name]), candidates[0]), "cpu"


def _devices_of(candidates: list[str], *, named: bool) -> dict[str, dict[Device, str]]:
    """What each framework finds. One that is installed but broken is passed over, unless it is all there is."""
    found: dict[str, dict[Device, str]] = {}
    for name in candidates:
        try:
            found[name] = find_devices(name).devices
        except HarnessError:
            if named or len(candidates) == 1:
                raise
            found[name] = {}
    return found


def _installed_for(device: str) -> str:
    """The preferred framework for a device among those installed; for a CPU any will do."""
    names = PREFERRED[device] if device == "cpu" else PREFERRED[device][:1]
    for name in names:
        if _is_installed(name):
            return name
    if device == "cpu":
        raise _no_framework()
    framework_version(names[0])  # Raises, with how to install it.
    raise AssertionError("unreachable")


def _is_installed(framework: str) -> bool:
    try:
        framework_version(framework)
    except MissingFrameworkError:
        return False
    return True


def _no_framework() -> MissingFrameworkError:
    commands = " or ".join(entry_of(name).install for name in framework_names())
    return MissingFrameworkError("neither torch nor mindspore is installed in this Python", tip=f"run: {commands}")


def _require_device(framework: str, device: Device) -> None:
    found = find_devices(framework)
    if device in found.devices:
        return
    reasons = [note for note in found.notes if note.startswith(f"{device}:")]
    raise MissingDeviceError(
        f"--device {device}: {framework} {found.version} finds only {', '.join(found.devices)} on this machine",
        tip=reasons[0].removeprefix(f"{device}:").strip() if reasons else "run `python cli.py doctor`",
    )


def _resolve_model(model: str, framework: str, task: Task, search_path: Path) -> tuple[str, str | None]:
    """What to import for a model, and the SHA-256 of its file where that is known without importing it."""
    if model in models.names():
        if model not in models.names(framework):
            others = ", ".join(models.names(framework)) or "none"
            raise InputError(f"--model {model}: not there for {framework}", tip=f"bundled for {framework}: {others}")
        if model not in models.names(framework, task):
            known = ", ".join(models.names(framework, task)) or "none"
            raise InputError(f"--task {task} --model {model}: it has no loss", tip=f"bundled to train: {known}")
        return models.reference(model, framework, task), models.source_sha256(model, framework, task)
    if model.startswith(hub.SCHEME):
        return hub.reference(model, framework)
    if ":" not in model:
        raise InputError(
            f"--model {model}: unknown",
            tip=f"bundled: {', '.join(models.names())}; or give hf:TYPE, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION",
        )
    place, function = split_reference(model)
    return (
        file_reference(place, function, search_path) if place.endswith(".py") else (model, _digest(place, search_path))
    )


def _digest(module: str, search_path: Path) -> str | None:
    """SHA-256 of the file of a dotted module, found without importing it or its packages; None if it is no file."""
    places: list[str] = [str(search_path), *sys.path]
    spec = None
    for end in range(1, module.count(".") + 2):
        spec = importlib.machinery.PathFinder.find_spec(".".join(module.split(".")[:end]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    origin = spec.origin if spec is not None else None
    return hashlib.sha256(Path(origin).read_bytes()).hexdigest() if origin and Path(origin).is_file() else None


def _study_name(wish: TuneRequest, frameworks: tuple[str, ...], device: Device) -> str:
    """What the user calls it, else after the model (in the first framework), task, frameworks and device."""
    if wish.study is not None:
        return wish.study
    model = models_of(wish.models, frameworks)[frameworks[0]]
    return "-".join([_short_name(model), *_named_kind(wish), *frameworks, device])


def _named_kind(wish: TuneRequest) -> list[str]:
    """What the task and the traffic add to a study's name: inference and one shape go without saying."""
    return [*([] if wish.task == "infer" else [wish.task]), *(["traffic"] if wish.shapes or wish.traffic else [])]


def _short_name(model: str) -> str:
    """A folder's name from a model's: `path/to/file.py:function` gives `file-function`."""
    place, _, function = model.rpartition(":")
    name = f"{Path(place).stem}-{function}" if place else model
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model"


def _pairs(flag: str, texts: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{flag} {text}: expected NAME=VALUE")
        pairs[name.strip()] = value
    return pairs


def typed_arguments(flag: str, texts: Iterable[str]) -> dict[str, Scalar]:
    """Values by name. Raises InputError for an infinity, which neither JSON nor a YAML file holds."""
    values = {name: _scalar(text) for name, text in _pairs(flag, texts).items()}
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{flag} {name}: {value} is no number that can be given")
    return values


def _scalar(text: str) -> Scalar:
    """A number, True, False or None as such; everything else as text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {"true": True, "false": False, "null": None}.get(text, text)
    return value if value is None or isinstance(value, (bool, int, float, str)) else text
