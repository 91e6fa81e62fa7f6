"""From a `TuneRequest` to a `Manifest`: the model, frameworks, device, space, and defaults for the rest."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import optuna

import autotune
from autotune import models
from autotune.backends.registry import framework_version
from autotune.bench.probe import read_declaration
from autotune.config import Scalar
from autotune.errors import InputError
from autotune.measure.constraint import OF_TRAFFIC, Constraint
from autotune.measure.objective import UNDER_TRAFFIC, Objective, parse_objectives
from autotune.planning.models import digest_of_inputs, make_workload, models_of, resolve_model
from autotune.planning.request import TuneRequest, check_text, parse_arguments, parse_pairs, study_name
from autotune.planning.spaces import bundled_space, space_of, spaces_of
from autotune.planning.targets import choose_targets
from autotune.space.combined import join_spaces
from autotune.space.declared import Declaration
from autotune.study.manifest import Manifest, Target
from autotune.study.sampler.optuna_sampler import sampler_name
from autotune.trial.deadline import LimitsNow
from autotune.trial.request import Limits
from autotune.workload.tiers import TierSpec
from autotune.workload.traffic import Traffic, parse_shapes, read_traffic
from autotune.workload.workload import STREAM_CALLS, Device, Workload


def make_manifest(request: TuneRequest, limits: LimitsNow = Limits) -> Manifest:
    """The manifest of the study that is asked for, as it holds on this machine. Raises an AutotuneError.

    `limits` are those of the processes that are asked for devices, and for what the model declares.
    """
    check_text(request)
    frameworks, device = choose_targets(request.framework, request.device, limits)
    if request.task == "train" and len(frameworks) > 1:
        raise InputError(
            f"--task train --framework {request.framework}: a training step is tuned in one framework at a time, "
            "because the gradients that two optimizers keep cannot be compared",
            tip="make a study for each",
        )
    traffic = _parse_traffic(request)
    if traffic is not None and request.inputs is not None:
        raise InputError(
            "--inputs with --shapes or --traffic: results are compared on shapes of the traffic",
            tip="leave one of the two out",
        )
    objectives = parse_objectives(request.objectives or (() if traffic is None else (UNDER_TRAFFIC,)))
    constraints = tuple(Constraint.parse(text) for text in request.constraints)
    sampler = None if request.sampler is None else sampler_name(request.sampler)
    _check_quantities(traffic, objectives, constraints)
    base, *others = _make_targets(request, frameworks, device, traffic, stream_calls(objectives))
    variables = parse_pairs("--env", request.variables)
    declared = [_read_declaration(each.workload, variables, limits) for each in (base, *others)]
    spaces = [space_of(each, request, said, limits) for each, said in zip((base, *others), declared, strict=True)]
    return Manifest(
        schema=3,
        id=uuid.uuid4().hex,
        name=study_name(request, frameworks, device),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        autotune_version=autotune.__version__,
        optuna_version=optuna.__version__,
        workload=base.workload,
        framework_version=base.framework_version,
        space_file=base.space_file,
        others=tuple(others),
        space=join_spaces(spaces) if others else spaces[0],
        objectives=objectives,
        constraints=constraints,
        tolerance=request.tolerance,
        reference_precision=request.reference_precision,
        variables=variables,
        variants={name: said.variants for name, said in zip(frameworks, declared, strict=True) if said.variants},
        sampler=sampler,
    )


def tier_requests(request: TuneRequest, limits: LimitsNow = Limits) -> dict[str, TuneRequest]:
    """Tier -> the request of its study, the best tier first. A model that declares no tiers is one, `full`.

    The objective is the 99th percentile unless the request names another. `limits`: as of `make_manifest`.
    Raises an AutotuneError.
    """
    check_text(request)
    frameworks, device = choose_targets(request.framework, request.device, limits)
    if request.task == "train" or len(frameworks) > 1:
        raise InputError(
            "--deadline is for calls of a model in one framework",
            tip="leave out --task train and name one framework: a job holds all tiers side by side",
        )
    if request.shapes or request.traffic is not None:
        raise InputError(
            "--deadline with --shapes or --traffic: a 99th percentile is promised for one shape",
            tip="leave one of the two out; the size of a deadline's inputs is a --model-arg",
        )
    (target,) = _make_targets(request, frameworks, device, None, STREAM_CALLS)
    declared = _read_declaration(target.workload, parse_pairs("--env", request.variables), limits)
    name = study_name(request, frameworks, device)
    return {
        tier: request.model_copy(
            update={
                "study": f"{name}-{tier}",
                "arguments": grade.arguments,
                "tolerance": grade.tolerance or request.tolerance,
                "objectives": request.objectives or ("p99",),
            }
        )
        for tier, grade in (declared.tiers or {"full": TierSpec()}).items()
    }


def stream_calls(objectives: Iterable[Objective]) -> int:
    """How many calls a trial replays under traffic: at most the number of calls of a `total:CALLS` objective."""
    return min([STREAM_CALLS, *(each.num_calls for each in objectives if each.num_calls is not None)])


def _parse_traffic(request: TuneRequest) -> Traffic | None:
    """None: the model is called with one shape. Raises InputError."""
    if request.shapes and request.traffic is not None:
        raise InputError("--shapes and --traffic: give one of them", tip="a file has the shapes in it")
    if not request.shapes and request.traffic is None:
        return None
    if request.task == "train":
        flag = "--shapes" if request.shapes else "--traffic"
        raise InputError(
            f"--task train {flag}: a training step is tuned for one shape, because where its steps lead is compared",
            tip="tune it for the most frequent shape",
        )
    return parse_shapes(request.shapes) if request.traffic is None else read_traffic(request.traffic)


def _check_quantities(
    traffic: Traffic | None, objectives: Iterable[Objective], constraints: Iterable[Constraint]
) -> None:
    """Some quantities exist under traffic only, and throughput does not. Raises InputError."""
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


def _model_arguments(request: TuneRequest, traffic: Traffic | None) -> dict[str, Scalar]:
    """What the model's function is called with: each dimension of the traffic at its largest size."""
    typed = parse_arguments("--model-arg", request.model_arguments)
    arguments = {**typed, **request.arguments}
    largest = {} if traffic is None else traffic.largest
    twice = next((name for name in largest if name in arguments), None)
    if twice is not None:
        raise InputError(f"--model-arg {twice}: the traffic says its sizes", tip="leave one of the two out")
    return {**arguments, **largest}


def _make_targets(
    request: TuneRequest, frameworks: tuple[str, ...], device: Device, traffic: Traffic | None, num_calls: int
) -> list[Target]:
    """The model in each framework. All take the same arguments, the same seed and the same traffic."""
    arguments = _model_arguments(request, traffic)
    wanted, files = models_of(request.models, frameworks), spaces_of(request.spaces, frameworks)
    return [
        Target(
            workload=make_workload(
                wanted[name],
                arguments,
                name,
                device,
                request.seed,
                task=request.task,
                traffic=traffic,
                num_calls=num_calls,
                search_path=request.search_path,
                inputs=request.inputs,
            ),
            framework_version=framework_version(name),
            space_file=str(files.get(name) or bundled_space(name)),
        )
        for name in frameworks
    ]


def _read_declaration(workload: Workload, variables: dict[str, str], limits: LimitsNow) -> Declaration:
    """What the model declares, nothing for training. Raises like `read_declaration`.

    A bundled model is known without building it, unless it is given arguments, which padding depends on, or traffic.
    """
    is_known = workload.model in models.names() and workload.traffic is None and not workload.arguments
    if not is_known:
        declaration = read_declaration(workload, variables, limits)
    else:
        declaration = Declaration.model_validate(models.declared(workload.model, workload.framework))
    return Declaration() if workload.task == "train" else declaration


def require_same_question(manifest: Manifest) -> None:
    """Raises StoreError if a framework's release or a model's file is not what the study was made with."""
    base, *others = (_current_target(each) for each in manifest.targets)
    now = manifest.model_copy(
        update={"framework_version": base.framework_version, "workload": base.workload, "others": tuple(others)}
    )
    manifest.require_same(now)


def _current_target(target: Target) -> Target:
    workload = target.workload
    _, digest = resolve_model(workload.model, workload.framework, workload.task, Path(workload.search_path))
    return target.model_copy(
        update={
            "framework_version": framework_version(workload.framework),
            "workload": workload.model_copy(
                update={
                    "source_sha256": digest,
                    "inputs_sha256": None if workload.inputs is None else digest_of_inputs(Path(workload.inputs)),
                }
            ),
        }
    )
