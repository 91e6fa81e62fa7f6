"""The command line: parse, one call, print. Exit status: 0 done, 1 nothing usable, 2 a mistake with a tip, 130 Ctrl-C.

What people read goes to stdout, progress and errors to stderr; with `--json` stdout holds one document and no more.
Only typer is imported here at the top, so that `--help` is quick.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.answer import Answer
    from autotune.budget import Budget
    from autotune.duel import Duel
    from autotune.runner import Runner
    from autotune.study import Study

app = typer.Typer(
    help="Find, prove and ship the best compile configuration of a deep-learning model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

P = ParamSpec("P")
StudiesDir = Annotated[Path, typer.Option("--studies-dir", help="Folder that holds the studies.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
BudgetFile = Annotated[
    Path | None, typer.Option("--budget", help="YAML file that says how much to measure (docs/measurement.md).")
]

DEFAULT_STUDIES_DIR = Path("studies")


def main() -> None:
    """Entry point of `python cli.py` and of the installed command."""
    if sys.stdout is None:  # Started with it closed.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (for as long as we run)
    app(prog_name="python cli.py" if sys.argv[0].endswith("cli.py") else None)


def _plainly(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turn the ends of a command into an exit status and a sentence; a bug keeps its traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except AutotuneError as error:
            _say(f"error: {error}")
            if error.tip:
                _say(f"tip: {error.tip}")
            code = error.exit_code
        except KeyboardInterrupt:
            _say("interrupted")
            code = 130
        except BrokenPipeError:
            # The reader of our output went away (`| head`): nothing is wrong, and nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        raise typer.Exit(code or 0)

    return run


@app.command()
@_plainly
def tune(
    model: Annotated[str, typer.Option("--model", help="Bundled name, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION.")],
    device: Annotated[str, typer.Option("--device", help="auto, cpu, gpu or ascend.")] = "auto",
    framework: Annotated[
        str | None, typer.Option("--framework", help="torch or mindspore; by default what suits the device.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--study", help="Name; the same name goes on where it stopped. [MODEL-FRAMEWORK-DEVICE]"),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Trials of the whole study, earlier ones included. [12]")
    ] = None,
    model_arg: Annotated[
        list[str] | None, typer.Option("--model-arg", help="NAME=VALUE for the model's function; repeatable.")
    ] = None,
    space: Annotated[Path | None, typer.Option("--space", help="Your own search-space file.")] = None,
    objective: Annotated[str, typer.Option("--objective", help="latency (the median), p90 or p99.")] = "latency",
    constraint: Annotated[
        list[str] | None, typer.Option("--constraint", help='E.g. "peak_memory <= 2GiB"; repeatable.')
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=1e-12, max=1e3, help="Largest relative error of an output. [by precision]"),
    ] = None,
    reference: Annotated[
        str, typer.Option("--reference", help="Precision of the reference outputs: model (as it is), float32, float64.")
    ] = "model",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of weights, inputs and the order of trials.")
    ] = 0,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE set in every measured process; repeatable.")
    ] = None,
    compile_timeout: Annotated[
        float | None, typer.Option("--compile-timeout", min=1, max=1e6, help="Seconds one compile may take. [300]")
    ] = None,
    trial_timeout: Annotated[
        float | None, typer.Option("--trial-timeout", min=1, max=1e6, help="Seconds one trial may take in all. [900]")
    ] = None,
    budget: BudgetFile = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> int:
    """Search for the fastest correct config of a model, confirm it, and say what to do."""
    from autotune.plan import Wish, make_manifest
    from autotune.study import open_or_create

    wish = Wish(
        model=model,
        model_arguments=tuple(model_arg or ()),
        framework=framework,
        device=device,
        study=study,
        space=space,
        objective=_one_of("--objective", objective, "latency", "p90", "p99"),
        constraints=tuple(constraint or ()),
        tolerance=tolerance,
        reference_precision=_one_of("--reference", reference, "model", "float32", "float64"),
        seed=seed,
        variables=tuple(env or ()),
    )
    wanted = _budget(budget).but(num_trials=trials, compile_s=compile_timeout, total_s=trial_timeout)
    return _tune(open_or_create(studies_dir, make_manifest(wish)), wanted, studies_dir, as_json)


@app.command()
@_plainly
def resume(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Trials of the whole study. [as before]")
    ] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> int:
    """Go on with a study where it stopped; everything but the budget is read from it."""
    from autotune.budget import Budget
    from autotune.plan import require_same_question
    from autotune.study import open_study

    opened = open_study(studies_dir, study)
    require_same_question(opened.manifest)
    return _tune(opened, Budget.model_validate(opened.budget or {}).but(num_trials=trials), studies_dir, as_json)


@app.command()
@_plainly
def show(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> None:
    """Table of trials, best, failures by reason, verdict."""
    from rich.console import Console

    from autotune.answer import answer_of
    from autotune.report.terminal import summary, trials_table
    from autotune.study import open_study, studies_dir_flag

    opened = open_study(studies_dir, study)
    answer = answer_of(opened)
    if as_json:
        _print_document(opened, answer)
        return
    # A pipe has no width; wide enough for a whole row there.
    console = Console(width=None if sys.stdout.isatty() else 240, soft_wrap=not sys.stdout.isatty())
    console.print(trials_table(answer))
    console.print(
        "* times as fast as trial 0, one process each; the verdict rests on fresh processes side by side", style="dim"
    )
    console.print(summary(answer, studies_dir_flag(studies_dir)))


@app.command()
@_plainly
def run(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    trial: Annotated[int, typer.Argument(help="Number of the trial.")],
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
) -> int:
    """Run one trial again, alone, its output shown; the study's record stays as it is."""
    from autotune.again import run_again
    from autotune.measurement import Measurement
    from autotune.report.units import seconds
    from autotune.study import open_study

    outcome, command = run_again(open_study(studies_dir, study), trial)
    if isinstance(outcome, Measurement):
        latency = outcome.latency
        typer.echo(
            f"median {seconds(latency.p50)}, p99 {seconds(latency.p99)}, first call {seconds(outcome.first_call_s)}"
        )
    else:
        typer.echo(f"{outcome.reason} at {outcome.stage}: {outcome.error}")
    typer.echo(f"the plain command: {command}")
    return 0 if isinstance(outcome, Measurement) else 1


@app.command()
@_plainly
def export(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="YAML file to write.")] = Path("best.yaml"),
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
) -> None:
    """Write the answer as the YAML file that a job loads in two lines."""
    from autotune import answer
    from autotune.study import open_study

    tuned = answer.export(open_study(studies_dir, study), output)
    typer.echo(f"{output}: {tuned.verdict.value}; {tuned.config}")
    if tuned.is_untuned:
        typer.echo("apply() will return the model untouched")


@app.command()
@_plainly
def verify(
    file: Annotated[Path, typer.Argument(help="An exported YAML file.")],
    budget: BudgetFile = None,
    as_json: AsJson = False,
) -> int:
    """Measure an exported answer again, here and today. Exit status: 0 it holds, 1 regressed or wrong, 2 unclear."""
    import autotune
    from autotune.report.document import verification_document
    from autotune.report.terminal import verification_lines
    from autotune.verify import duel_with_untuned
    from autotune.verify import verify as verify_tuned

    tuned = autotune.load(file)
    with _scratch() as folder:
        duel = duel_with_untuned(tuned, folder)
        with _runner(tuned.framework, tuned.environment.variables, folder) as runner:
            verification = verify_tuned(tuned, duel, runner, _budget(budget), _say_block)
    if as_json:
        typer.echo(json.dumps(verification_document(verification), indent=2))
    else:
        for line in verification_lines(verification):
            typer.echo(line)
    return verification.exit_code


@app.command()
@_plainly
def compare(
    things: Annotated[list[str], typer.Argument(help="STUDY A B (numbers of two trials), or two exported YAML files.")],
    budget: BudgetFile = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> int:
    """Measure any two configs of a model side by side, as a verdict is made."""
    from autotune.duel import measure
    from autotune.report.document import comparison_document
    from autotune.report.terminal import comparison_lines

    with _scratch() as folder:
        duel, names = _duel_of(things, studies_dir, folder)
        with _runner(duel.workload.framework, duel.variables, folder) as runner:
            result = measure(duel, runner, _budget(budget), _say_block)
    if as_json:
        typer.echo(json.dumps(comparison_document(result, names), indent=2))
    else:
        for line in comparison_lines(result, names):
            typer.echo(line)
    if result.comparison is not None:
        return 0
    return 1 if result.blames_config else 2


@app.command()
@_plainly
def studies(studies_dir: StudiesDir = DEFAULT_STUDIES_DIR, as_json: AsJson = False) -> None:
    """List the studies there are."""
    from autotune.answer import answer_of
    from autotune.study import list_studies, open_study

    rows = []
    for name in list_studies(studies_dir):
        try:
            opened = open_study(studies_dir, name)
            answer = answer_of(opened)
            workload = opened.manifest.workload
            rows.append(
                {
                    "study": name,
                    "model": workload.model,
                    "framework": workload.framework,
                    "device": workload.device,
                    "trials": opened.num_recorded(),
                    "verdict": answer.verdict.value if answer.verdict else None,
                }
            )
        except AutotuneError as error:
            # One broken study must not hide the others.
            rows.append({"study": name, "error": str(error)})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo("  ".join(str(value) if value is not None else "no verdict" for value in row.values()))
    if not rows:
        typer.echo(f"no studies in {studies_dir}/; start with: python cli.py tune --model vit")


@app.command()
@_plainly
def models(as_json: AsJson = False) -> None:
    """List the bundled models."""
    from autotune.models import BUNDLED

    if as_json:
        typer.echo(
            json.dumps({name: {"about": m.description, "frameworks": m.frameworks} for name, m in BUNDLED.items()})
        )
        return
    for name, bundled in BUNDLED.items():
        typer.echo(f"{name:<12} {', '.join(bundled.frameworks):<18} {bundled.description}")
    typer.echo("or your own: --model path/to/file.py:function, a function that returns (model, inputs)")


@app.command()
@_plainly
def spaces(
    device: Annotated[str, typer.Option("--device", help="cpu, gpu or ascend.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """List the search spaces with their knobs, as they hold for the installed releases and a device."""
    from autotune.plan import describe_spaces

    described = describe_spaces(device)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    for each in described:
        typer.echo(f"{each['file']}: {each['framework']} {each['version']} on {device}, {each['num_configs']} configs")
        for knob in each["knobs"]:
            values = ", ".join(json.dumps(value) if not isinstance(value, str) else value for value in knob["values"])
            typer.echo(f"  {knob['name']:<24} {values}")
            typer.echo(f"  {'':<24} {knob['doc']}")


@app.command()
@_plainly
def doctor(studies_dir: StudiesDir = DEFAULT_STUDIES_DIR, as_json: AsJson = False) -> int:
    """Say which frameworks, devices and compilers there are, and what to install."""
    from autotune.doctor import examine

    findings = examine(studies_dir)
    if as_json:
        typer.echo(json.dumps([each.model_dump() for each in findings], indent=2))
    else:
        for each in findings:
            typer.echo(f"{'ok     ' if each.ok else 'missing'} {each.what}: {each.found}")
            if each.cure:
                typer.echo(f"        -> {each.cure}")
    return 0 if any(each.ok for each in findings if each.is_framework) else 1


def _tune(study: Study, budget: Budget, studies_dir: Path, as_json: bool) -> int:
    """Run the loop with a display, then print the verdict."""
    from rich.console import Console

    from autotune.answer import answer_of
    from autotune.report.live import LiveDisplay
    from autotune.report.terminal import failure_lines, summary
    from autotune.runner import Runner
    from autotune.study import studies_dir_flag
    from autotune.tune import Tuner

    _end_politely()
    workload = study.manifest.workload
    try:
        with (
            LiveDisplay(Console(stderr=True)) as display,
            Runner(
                workload.framework,
                study.manifest.variables,
                # Forking is proven safe for CPU runs only: a driver may not survive it (docs/decisions/0002).
                preload=workload.device == "cpu",
                log=study.folder / "supervisor.log",
            ) as runner,
        ):
            Tuner(study, budget, runner, display).run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Once is enough; the end is near.
        _say("interrupted; nothing recorded is lost. Go on with:")
        _say(f"  {study.command('resume')}")
        return 130
    except AutotuneError:
        answer = answer_of(study)
        for line in failure_lines(answer):
            _say(line)
        if as_json:
            _print_document(study, answer)
        raise
    answer = answer_of(study)
    if as_json:
        _print_document(study, answer)
    else:
        Console(soft_wrap=not sys.stdout.isatty()).print(summary(answer, studies_dir_flag(studies_dir)))
    study.close()
    return 0 if answer.best is not None else 1


def _budget(file: Path | None) -> Budget:
    """What the file asks for, the usual for the rest."""
    from autotune.budget import Budget
    from autotune.files import parse_as, read_yaml

    return Budget() if file is None else parse_as(Budget, read_yaml(file), file)


def _duel_of(things: list[str], studies_dir: Path, folder: Path) -> tuple[Duel, tuple[str, str]]:
    """What `compare` was asked to compare, and what to call the two."""
    import autotune
    from autotune.duel import duel_of_trials
    from autotune.errors import InputError
    from autotune.study import open_study
    from autotune.verify import duel_of_answers

    match things:
        case [study, first, second] if first.isdecimal() and second.isdecimal():
            opened = open_study(studies_dir, study)
            return duel_of_trials(opened, int(first), int(second), folder), (f"trial {first}", f"trial {second}")
        case [first, second]:
            return duel_of_answers(autotune.load(first), autotune.load(second), folder), (first, second)
    raise InputError(
        f"compare {' '.join(things)}: not understood", tip="compare STUDY 3 7, or compare first.yaml second.yaml"
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for the processes of one command. It stays where one of them failed: it is the evidence."""
    import shutil
    import tempfile

    from autotune.trial import failed_trials

    folder = Path(tempfile.mkdtemp(prefix="autotune-"))
    interrupted = False
    try:
        yield folder
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if interrupted or not failed_trials(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _runner(framework: str, variables: dict[str, str], folder: Path) -> Runner:
    from autotune.runner import Runner

    _end_politely()
    return Runner(framework, variables, preload=False, log=folder / "supervisor.log")


def _say_block(first_s: float, second_s: float) -> None:
    from autotune.report.units import seconds, times

    _say(f"  {seconds(first_s)} / {seconds(second_s)} = {times(first_s / second_s)}")


def _end_politely() -> None:
    """A polite kill, or a terminal that is closed, ends a run as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` means it.
            signal.signal(number, _interrupt)


def _one_of(flag: str, text: str, *choices: str) -> Any:
    from autotune.errors import InputError

    if text not in choices:
        raise InputError(f"{flag} {text}: unknown", tip=f"choose {', '.join(choices[:-1])} or {choices[-1]}")
    return text


def _print_document(study: Study, answer: Answer) -> None:
    from autotune.report.document import document

    typer.echo(json.dumps(document(study.manifest, answer), indent=2))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    typer.echo(text, err=True)
