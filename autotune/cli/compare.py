"""The commands that measure configs side by side, outside of any study."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.app import (
    DEFAULT_STUDIES_DIR,
    AsJson,
    BudgetFlag,
    StudiesDir,
    app,
    budget_of,
    end_politely,
    plainly,
    print_line,
    say,
)

if TYPE_CHECKING:
    from autotune.trial.runner.runners import Runners
    from autotune.verification.comparison import PairedRun


@app.command()
@plainly
def verify(
    file: Annotated[Path, typer.Argument(help="An exported YAML file.")],
    budget: BudgetFlag = None,
    max_loss: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Share of the promised speed-up that may be lost without being a regression, e.g. 0.05.",
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> int:
    """Measure an exported config again on this machine.

    Exit status: 0 it holds, 1 regressed or wrong, 2 not measurable, 3 too noisy to tell.
    """
    from autotune.report.json import verification_document
    from autotune.report.summary import verification_lines
    from autotune.tuned.tuned_config import load_tuned
    from autotune.verification.verify import paired_run_with_untuned
    from autotune.verification.verify import verify as verify_tuned

    tuned = load_tuned(file)
    with scratch() as folder:
        duel = paired_run_with_untuned(tuned, folder)
        with runners(tuned.environment.variables, folder) as trials:
            say_block = partial(_say_block, tuned.workload.objective)
            verification = verify_tuned(tuned, duel, trials, budget_of(budget), say_block, max_loss=max_loss)
    if as_json:
        print_line(json.dumps(verification_document(verification), indent=2))
    else:
        for line in verification_lines(verification):
            print_line(line)
    return verification.exit_code


@app.command()
@plainly
def compare(
    things: Annotated[list[str], typer.Argument(help="STUDY A B (numbers of two trials), or two exported YAML files.")],
    budget: BudgetFlag = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> int:
    """Compare two configs of a model, with the same method as the verdict of a study."""
    from autotune.report.json import comparison_document
    from autotune.report.summary import comparison_lines
    from autotune.verification.comparison import measure

    with scratch() as folder:
        duel, names = _duel_of(things, studies_dir, folder)
        with runners(duel.variables, folder) as trials:
            result = measure(duel, trials, budget_of(budget), partial(_say_block, duel.objective.name))
    if as_json:
        print_line(json.dumps(comparison_document(result, names), indent=2))
    else:
        for line in comparison_lines(result, names):
            print_line(line)
    if result.comparison is not None:
        return 0
    return 1 if result.blames_config else 2


def _duel_of(things: list[str], studies_dir: Path, folder: Path) -> tuple[PairedRun, tuple[str, str]]:
    """What `compare` was asked to compare, and what to call the two."""
    from autotune.errors import InputError
    from autotune.study.open import open_study
    from autotune.tuned.tuned_config import load_tuned
    from autotune.verification.comparison import paired_run_of_trials
    from autotune.verification.verify import paired_run_of_configs

    match things:
        case [study, first, second] if first.isdecimal() and second.isdecimal():
            opened = open_study(studies_dir, study)
            return paired_run_of_trials(opened, int(first), int(second), folder), (f"trial {first}", f"trial {second}")
        case [first, second]:
            return paired_run_of_configs(load_tuned(first), load_tuned(second), folder), (first, second)
    raise InputError(
        f"compare {' '.join(things)}: not understood", tip="compare STUDY 3 7, or compare first.yaml second.yaml"
    )


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the processes of one command. It stays where one of them failed: it is the evidence."""
    import shutil
    import tempfile

    from autotune.trial.folder import failed_trials

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


def runners(variables: dict[str, str], folder: Path) -> Runners:
    """Trials outside of any study; SIGTERM stops them."""
    from autotune.trial.runner.runners import Runners

    end_politely()
    return Runners(variables, preload=False, log=folder / "supervisor.log")


def _say_block(objective: str, first: float, second: float) -> None:
    from autotune.measure.objective import Objective
    from autotune.report.format import times
    from autotune.report.objectives import shown

    one, other = (shown(Objective.parse(objective), value) for value in (first, second))
    say(f"  {one} / {other} = {times(first / second)}")
