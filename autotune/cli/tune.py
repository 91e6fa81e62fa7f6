"""The commands that run a study."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.app import (
    DEFAULT_STUDIES_DIR,
    AsJson,
    BudgetFlag,
    On,
    ReportFlag,
    Storage,
    StudiesDir,
    app,
    one_of,
    print_line,
    say,
    with_exit_status,
)
from autotune.cli.running import run_study
from autotune.cli.team_defaults import ConfigFile, ignored_lines, sources_line
from autotune.errors import InputError

EarlyStop = Annotated[
    bool | None,
    typer.Option(
        "--early-stop/--no-early-stop",
        help="Stop when no remaining config is likely to improve the result. [early stop; of `resume`: as before]",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        envvar="AUTOTUNE_JOBS",
        help="Trials that are compiled at the same time, on a CPU; each is timed alone. "
        "[as many as there are cores and memory for; of `resume`: as before]",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", envvar="AUTOTUNE_QUIET", help="Print nothing on stderr while the study runs.")
]


@app.command()
@with_exit_status
def tune(
    context: typer.Context,
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            help="Bundled name, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, hf:TYPE or timm:NAME; "
            "FRAMEWORK=MODEL, once for each framework.",
        ),
    ],
    task: Annotated[
        str, typer.Option("--task", help="infer: tune calls of the model; train: tune training steps.")
    ] = "infer",
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            help='Input shapes of the job, e.g. "batch=1:60%,4:30%,8:10%" or "seq=16..128"; separate dimensions by ; '
            "or repeat the option. The default objective is total:1000 then.",
        ),
    ] = None,
    traffic: Annotated[
        Path | None,
        typer.Option("--traffic", help='Input shapes as a log: JSON lines like {"batch": 4, "count": 120}.'),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            help="File of real calls (torch.save of a list, or autotune.record): results are compared on them, and the "
            "first is timed where the model's function gives no inputs.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", envvar="AUTOTUNE_DEVICE", help="auto, cpu, gpu or ascend.")
    ] = "auto",
    framework: Annotated[str | None, typer.Option("--framework", help="torch, mindspore or both. [by device]")] = None,
    study: Annotated[
        str | None,
        typer.Option("--study", help="Study name; an existing study is resumed. [MODEL-FRAMEWORK-DEVICE]"),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", min=1, help="Most trials of the study, earlier ones included. [24; no limit with a time]"
        ),
    ] = None,
    early_stop: EarlyStop = None,
    jobs: Jobs = None,
    on: On = None,
    quiet: Quiet = False,
    model_arg: Annotated[
        list[str] | None, typer.Option("--model-arg", help="NAME=VALUE for the model's function; repeatable.")
    ] = None,
    space: Annotated[
        list[Path] | None,
        typer.Option("--space", help="Search-space file in place of the bundled one; one for each framework."),
    ] = None,
    preset: Annotated[
        str, typer.Option("--preset", help="How deep to search the space: quick, standard or exhaustive.")
    ] = "standard",
    fixed_precision: Annotated[
        bool, typer.Option("--fixed-precision", help="Do not try settings that change numerics.")
    ] = False,
    process_settings: Annotated[
        bool,
        typer.Option(
            "--process-settings",
            help="Also try settings of the whole process (threads, allocator, matmul precision, ...); the job has to "
            "allow them with apply(model, process_settings=True).",
        ),
    ] = False,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            help="latency (the median), p90, p99, throughput, memory, compile or total:CALLS; repeatable: the verdict "
            "is about the first, the Pareto front about all. [latency; with shapes total:1000]",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option("--constraint", help='E.g. "peak_memory <= 2GiB" or "throughput >= 100"; repeatable.'),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", min=1e-12, max=1e3, help="Largest relative error allowed in an output. [by precision]"
        ),
    ] = None,
    reference: Annotated[
        str, typer.Option("--reference", help="Precision of the reference outputs: model (its own), float32, float64.")
    ] = "model",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of weights, inputs and the order of trials.")
    ] = 0,
    prior: Annotated[
        list[str] | None,
        typer.Option("--prior", help="STUDY or exported YAML whose best configs are tried first; repeatable."),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler",
            help="An Optuna sampler in place of the tool's own: tpe, random, gp, ... or PACKAGE.MODULE:CLASS.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="Environment variable NAME=VALUE for every measured process; repeatable."),
    ] = None,
    compile_timeout: Annotated[
        float | None,
        typer.Option(
            "--compile-timeout",
            min=1,
            max=1e6,
            help="Longest compile, in seconds. [300, or ten times the others' median]",
        ),
    ] = None,
    trial_timeout: Annotated[
        float | None, typer.Option("--trial-timeout", min=1, max=1e6, help="Longest trial, in seconds. [900]")
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="At the end, profile the untuned model and the best config operator by operator."
        ),
    ] = False,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            help="E.g. 50ms: tune each tier that the model declares, and write which tiers meet the deadline.",
        ),
    ] = None,
    report: ReportFlag = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run is expected to take, and at most, then exit.")
    ] = False,
    budget: BudgetFlag = None,
    config: ConfigFile = None,  # noqa: ARG001 - read before the others, see there
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    as_json: AsJson = False,
) -> int:
    """Search for the fastest correct config of a model, confirm it, and report the result."""
    begun = time.monotonic()  # A time budget is that of the whole command.
    from autotune.api.both import is_both, require_plain
    from autotune.api.running import parse_budget, require_on
    from autotune.api.studies import studies_at
    from autotune.cli.expected_cost import say_cost, say_plan
    from autotune.planning.manifest import make_manifest
    from autotune.planning.request import TuneRequest
    from autotune.space.schema import PRESETS
    from autotune.trial.deadline import Deadline
    from autotune.tuning.priors import read_prior

    for sentence in ignored_lines(context):
        say(sentence)
    if report is not None:
        from autotune.cli.report import require_report

        require_report(report, deadline)
    if dry_run and deadline is not None:
        raise InputError("--dry-run and --deadline: each tier is a study of its own", tip="leave out --deadline")
    require_on(on, deadline, profiled=profile)
    require_plain(framework, {"deadline": deadline, "dry_run": dry_run, "on": on})
    request = TuneRequest(
        models=tuple(model),
        model_arguments=tuple(model_arg or ()),
        framework=framework,
        device=device,
        task=one_of("--task", task, "infer", "train"),
        shapes=tuple(shapes or ()),
        traffic=traffic,
        inputs=inputs,
        study=study,
        spaces=tuple(space or ()),
        objectives=tuple(objective or ()),
        constraints=tuple(constraint or ()),
        tolerance=tolerance,
        reference_precision=one_of("--reference", reference, "model", "float32", "float64"),
        sampler=sampler,
        seed=seed,
        variables=tuple(env or ()),
        preset=one_of("--preset", preset, *PRESETS),
        fixed_precision=fixed_precision,
        process_settings=process_settings,
    )
    wanted = parse_budget(budget).but(
        num_trials=trials,
        stop_early=early_stop,
        num_jobs=jobs,
        compile_s=compile_timeout,
        total_s=trial_timeout,
    )
    studies = studies_at(studies_dir, storage)
    sources = [read_prior(text, studies) for text in dict.fromkeys(prior or ())]
    if deadline is not None:
        from autotune.cli.tune_tiers import tune_tiers

        return tune_tiers(request, deadline, wanted, studies, as_json, begun, sources, profiled=profile, quiet=quiet)
    if is_both(framework):
        from autotune.cli.tune_both import tune_both

        return tune_both(
            request, wanted, studies, as_json, begun, sources, profiled=profile, quiet=quiet, report=report
        )
    within = Deadline.after(wanted.wall_s, begun)
    manifest = make_manifest(request, partial(within.cap, wanted.limits))
    if dry_run:
        if not as_json and (said := sources_line(context)):
            print_line(said)
        say_plan(manifest, wanted, studies, as_json=as_json)
        return 0
    opened = studies.open_or_create(manifest)
    if not quiet:
        say_cost(opened, wanted)
    return run_study(opened, wanted, as_json, begun, sources, profiled=profile, quiet=quiet, report=report, on=on)


@app.command()
@with_exit_status
def resume(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Most trials of the study, earlier ones included. [as before]")
    ] = None,
    budget: BudgetFlag = None,
    early_stop: EarlyStop = None,
    jobs: Jobs = None,
    on: On = None,
    quiet: Quiet = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    as_json: AsJson = False,
) -> int:
    """Continue a study. All settings are read from it; only a time limit starts again."""
    begun = time.monotonic()
    from autotune.api.running import parse_budget, reopen, require_on
    from autotune.api.studies import studies_at

    require_on(on)
    opened, before = reopen(studies_at(studies_dir, storage), study)
    wanted = parse_budget(budget, before).but(num_trials=trials, stop_early=early_stop, num_jobs=jobs)
    return run_study(opened, wanted, as_json, begun, quiet=quiet, on=on)
