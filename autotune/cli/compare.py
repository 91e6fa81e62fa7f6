"""The commands that measure configs side by side, outside of any study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.app import COMMANDS, app, print_result, say, stop_on_sigterm, with_exit_status
from autotune.cli.flags import AsJson, BudgetFlag, EnvAgain, Storage, StudiesDir, variables_of
from autotune.errors import InputError
from autotune.question.question import DEFAULT_STUDIES_DIR

if TYPE_CHECKING:
    from autotune.api.events import Event
    from autotune.api.side_by_side import Comparison

MaxLoss = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        min=0.0,
        max=1.0,
        help="Share of the promised speed-up, or with --against of the speed here, that may be lost, e.g. 0.05.",
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="ENVIRONMENT",
        help="Another virtual environment, or its Python, e.g. with the next release of torch: what changes?",
    ),
]


@app.command()
@with_exit_status
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported YAML file.")],
    budget: BudgetFlag = None,
    max_loss: MaxLoss = 0.0,
    against: Against = None,
    env: EnvAgain = None,
    as_json: AsJson = False,
) -> int:
    """Measure an exported config again on this machine, or under another release.

    Exit status: 0 it holds, 1 regressed or wrong, 2 not measurable, 3 too noisy to tell.
    """
    if against is not None:
        measure = COMMANDS.require("verify-against")
        status: int = measure(file, against, max_loss=max_loss, budget=budget, env=env, as_json=as_json)
        return status
    from autotune.api.side_by_side import verify as verify_export
    from autotune.render.json import verification_document
    from autotune.render.terminal import verification_lines

    stop_on_sigterm()
    verification = verify_export(file, max_loss=max_loss, budget=budget, env=variables_of(env), callbacks=say_block)
    print_result(verification_document(verification), verification_lines(verification), as_json=as_json)
    return verification.exit_code


@app.command()
@with_exit_status
def compare(
    operands: Annotated[
        list[str],
        typer.Argument(
            metavar="STUDY A B | FIRST.yaml SECOND.yaml",
            help="STUDY A B (numbers of two trials), or two exported YAML files.",
        ),
    ],
    budget: BudgetFlag = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    env: EnvAgain = None,
    as_json: AsJson = False,
) -> int:
    """Compare two trials, or two YAML files.

    By the method of a study's verdict.
    """
    from autotune.render.json import comparison_document
    from autotune.render.terminal import comparison_lines

    stop_on_sigterm()
    more = {"budget": budget, "env": variables_of(env), "callbacks": say_block}
    result = _compared(operands, more, {"studies_dir": studies_dir, "storage": storage})
    print_result(comparison_document(result, result.names), comparison_lines(result, result.names), as_json=as_json)
    if result.comparison is not None:
        return 0
    return 1 if result.blames_config else 2


def _is_number(text: str) -> bool:
    """Whether it can be the number of a trial."""
    return text.isdecimal() and len(text) < 10


def _compared(things: list[str], more: dict[str, Any], place: dict[str, Any]) -> Comparison:
    from autotune.api.side_by_side import compare as compare_configs

    match things:
        case [study, first, second] if _is_number(first) and _is_number(second):
            return compare_configs(int(first), int(second), study=study, **place, **more)
        case [study, number] if _is_number(number) and not Path(number).exists():
            other = "1" if number == "0" else "0"
            raise InputError(
                f"compare {study} {number}: two trials are needed", tip=f"write e.g. compare {study} {other} {number}"
            )
        case [first, second]:
            return compare_configs(first, second, **more)
    raise InputError(
        f"compare {' '.join(things)}: not understood", tip="write compare STUDY 3 7, or compare first.yaml second.yaml"
    )


def say_block(event: Event) -> None:
    """Say the values of one block on stderr."""
    from autotune.answer.format import times
    from autotune.answer.objectives import shown
    from autotune.api.events import PairMeasured

    if isinstance(event, PairMeasured):
        one, other = (shown(event.objective, value) for value in (event.first, event.second))
        say(f"  {one} / {other} = {times(event.first / event.second)}")
