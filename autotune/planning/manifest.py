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
from autotune.command_line import asked
from autotune.config import Scalar
from autotune.errors import InputError
from autotune.measure.constraint import OF_TRAFFIC, Constraint
from autotune.measure.objective import UNDER_TRAFFIC, Objective, parse_objectives
from autotune.planning.models import digest_of_inputs, make_workload, models_of, resolve_model
from autotune.planning.request import TuneRequest, check_text, parse_arguments, parse_pairs, study_name
from autotune.planning.spaces import bundled_space, space_of, spaces_of
from autotune.planning.targets import choose_target
from autotune.space.declared import Declaration
from autotune.study.manifest import Manifest
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
    framework, device = choose_target(request.framework, request.device, limits)
    traffic = _parse_traffic(request)
    if traffic is not None and request.inputs is not None:
        raise InputError(
            f"{asked('inputs')} with {asked('shapes')} or {asked('traffic')}: results are compared on shapes of the "
            "traffic",
            tip="leave one of the two out",
        )
    objectives = parse_objectives(request.objectives or (() if traffic is None else (UNDER_TRAFFIC,)))
    constraints = tuple(Constraint.parse(text) for text in request.constraints)
    sampler = None if request.sampler is None else sampler_name(request.sampler)
    _check_quantities(traffic, objectives, constraints)
    workload = _make_workload(request, framework, device, traffic, stream_calls(objectives))
    space_file = spaces_of(request.spaces, (framework,)).get(framework) or bundled_space(framework)
    variables = parse_pairs(asked("env"), request.variables)
    declared = _read_declaration(workload, variables, limits)
    return Manifest(
        schema=4,
        id=uuid.uuid4().hex,
        name=study_name(request, framework, device),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        autotune_version=autotune.__version__,
        optuna_version=optuna.__version__,
        workload=workload,
        framework_version=framework_version(framework),
        space_file=str(space_file),
        space=space_of(workload, space_file, request, declared, limits),
        objectives=objectives,
        constraints=constraints,
        tolerance=request.tolerance,
        reference_precision=request.reference_precision,
        variables=variables,
        variants=declared.variants,
        sampler=sampler,
    )


def tier_requests(request: TuneRequest, limits: LimitsNow = Limits) -> dict[str, TuneRequest]:
    """Tier -> the request of its study, the best tier first. A model that declares no tiers is one, `full`.

    The objective is the 99th percentile unless the request names another. `limits`: as of `make_manifest`.
    Raises an AutotuneError.
    """
    check_text(request)
    framework, device = choose_target(request.framework, request.device, limits)
    if request.task == "train":
        raise InputError(
            f"{asked('deadline')} is for calls of a model, not for training steps",
            tip=f"leave out {asked('task', 'train')}",
        )
    if request.shapes or request.traffic is not None:
        raise InputError(
            f"{asked('deadline')} with {asked('shapes')} or {asked('traffic')}: a 99th percentile is promised for one "
            "shape",
            tip=f"leave one of the two out; the size of a deadline's inputs is a {asked('arguments')}",
        )
    workload = _make_workload(request, framework, device, None, STREAM_CALLS)
    declared = _read_declaration(workload, parse_pairs(asked("env"), request.variables), limits)
    name = study_name(request, framework, device)
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
        raise InputError(
            f"{asked('shapes')} and {asked('traffic')}: give one of them", tip="a file has the shapes in it"
        )
    if not request.shapes and request.traffic is None:
        return None
    if request.task == "train":
        given = asked("shapes" if request.shapes else "traffic")
        raise InputError(
            f"{asked('task', 'train')} {given}: a training step is tuned for one shape, because where its steps lead "
            "is "
            "compared",
            tip="tune it for the most frequent shape",
        )
    return parse_shapes(request.shapes) if request.traffic is None else read_traffic(request.traffic)


def _check_quantities(
    traffic: Traffic | None, objectives: Iterable[Objective], constraints: Iterable[Constraint]
) -> None:
    """Some quantities exist under traffic only, and throughput does not. Raises InputError."""
    given = [asked("objective", each.name) for each in objectives if each.quantity == "throughput"]
    given += [asked("constraints", each.text) for each in constraints if each.quantity == "throughput"]
    if traffic is not None and given:
        raise InputError(
            f"{given[0]}: calls of many shapes hold different numbers of items", tip="use latency or total:CALLS"
        )
    alone = next((each for each in constraints if each.quantity in OF_TRAFFIC), None)
    if traffic is None and alone is not None:
        raise InputError(
            f"{asked('constraints', alone.text)}: {alone.quantity} are counted over many shapes",
            tip=f"give them with {asked('shapes')} or {asked('traffic')}; for one shape there is `recompiles`",
        )


def _model_arguments(request: TuneRequest, traffic: Traffic | None) -> dict[str, Scalar]:
    """What the model's function is called with: each dimension of the traffic at its largest size."""
    typed = parse_arguments(asked("arguments"), request.model_arguments)
    arguments = {**typed, **request.arguments}
    largest = {} if traffic is None else traffic.largest
    twice = next((name for name in largest if name in arguments), None)
    if twice is not None:
        raise InputError(f"{asked('arguments')} {twice}: the traffic says its sizes", tip="leave one of the two out")
    return {**arguments, **largest}


def _make_workload(
    request: TuneRequest, framework: str, device: Device, traffic: Traffic | None, num_calls: int
) -> Workload:
    return make_workload(
        models_of(request.models, (framework,))[framework],
        _model_arguments(request, traffic),
        framework,
        device,
        request.seed,
        task=request.task,
        traffic=traffic,
        num_calls=num_calls,
        search_path=request.search_path,
        inputs=request.inputs,
    )


def _read_declaration(workload: Workload, variables: dict[str, str], limits: LimitsNow) -> Declaration:
    """What the model declares, nothing for training. Raises like `read_declaration`.

    A bundled model is known without building it, unless it is given arguments, which padding depends on, or traffic.
    """
    is_known = workload.model in models.names() and workload.traffic is None and not workload.arguments
    if not is_known:
        declaration = read_declaration(workload, variables, limits)
    else:
        declaration = Declaration.model_validate(models.declared(workload.model))
    return Declaration() if workload.task == "train" else declaration


def require_same_question(manifest: Manifest) -> None:
    """Raises StoreError if a framework's release or a model's file is not what the study was made with."""
    workload = manifest.workload
    _, digest = resolve_model(workload.model, workload.framework, workload.task, Path(workload.search_path))
    inputs = None if workload.inputs is None else digest_of_inputs(Path(workload.inputs))
    now = {
        "framework_version": framework_version(workload.framework),
        "workload": workload.model_copy(update={"source_sha256": digest, "inputs_sha256": inputs}),
    }
    manifest.require_same(manifest.model_copy(update=now))
