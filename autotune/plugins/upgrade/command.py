"""`verify_against`, and `verify --against`: what another environment changes for an exported config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.answer.format import seconds, short_interval
from autotune.answer.objectives import shown
from autotune.api.callbacks import notify_all
from autotune.api.events import BothMeasured, Callback, Event
from autotune.api.running import BudgetLike, parse_budget
from autotune.api.scratch import bench_in, scratch
from autotune.api.side_by_side import Exported, read_exported, require_share
from autotune.cli.app import print_result, say, stop_on_sigterm
from autotune.cli.compare import MaxLoss
from autotune.cli.flags import AsJson, BudgetFlag, EnvAgain, variables_of
from autotune.errors import shown_at_the_call
from autotune.measure.objective import Objective
from autotune.measure.statistics import Speedup
from autotune.plugins.upgrade.environment import OtherEnvironment
from autotune.plugins.upgrade.upgrade import BothEnvironments, Upgrade, upgrade


@shown_at_the_call
def verify_against(
    file: Exported,
    environment: str | PathLike[str],
    *,
    max_loss: float = 0.0,
    budget: BudgetLike | None = None,
    env: Mapping[str, str] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
) -> Upgrade:
    """Measure an exported config and the untuned model here and under the releases of another environment.

    `environment`: the folder of a virtual environment, or its interpreter, where this package and the framework are
    installed. `max_loss` as of `verify`, of the speed here; `budget` and `env` too; `callbacks` receive a
    `BothMeasured` for each block.

    Returns an `Upgrade`: `outcome` is `"holds"`, `"regressed"`, `"wrong"` (something fails there, or gives other
    outputs) or `"unclear"`; `untuned` and `tuned` are the `Speedup` of either model there over that here, `gains` those
    of the config here and there. Raises InputError for a file or an environment that
    is of no use, else like `verify`.
    """
    require_share(max_loss)
    limits, notify = parse_budget(budget), notify_all(callbacks)
    tuned = read_exported(file, env)
    other = OtherEnvironment.of(environment, tuned.framework)
    objective, variables = Objective.parse(tuned.workload.objective), tuned.environment.variables
    with (
        scratch() as folder,
        bench_in(folder, variables) as here,
        bench_in(folder, variables, other.python) as there,
    ):
        return upgrade(
            tuned,
            other.framework_version,
            BothEnvironments(here, there),
            limits,
            folder,
            on_block=lambda values: notify(BothMeasured(objective, dict(values))),
            max_loss=max_loss,
        )


def main(
    file: Annotated[Path, typer.Argument(help="An exported YAML file.")],
    environment: Annotated[Path, typer.Argument(help="Another virtual environment, or its Python.")],
    max_loss: MaxLoss = 0.0,
    budget: BudgetFlag = None,
    env: EnvAgain = None,
    as_json: AsJson = False,
) -> int:
    """Measure an exported config here and under the releases of another environment, as `verify --against` does."""

    def say_values(event: Event) -> None:
        if isinstance(event, BothMeasured):
            say("  " + ", ".join(f"{name} {shown(event.objective, value)}" for name, value in event.values.items()))

    stop_on_sigterm()
    found = verify_against(
        file, environment, max_loss=max_loss, budget=budget, env=variables_of(env), callbacks=say_values
    )
    print_result(upgrade_document(found), upgrade_lines(found), as_json=as_json)
    return found.exit_code


def upgrade_lines(upgrade: Upgrade) -> list[str]:
    """What another environment changes, as a table of both."""
    lines = [f"{upgrade.outcome}: {upgrade.why}"]
    if upgrade.values is None or upgrade.measured is None:
        return lines
    objective, values, measured = upgrade.objective, upgrade.values, upgrade.measured

    def row(what: str, words: Callable[[str], str], change: str = "") -> tuple[str, str, str, str]:
        return what, words(""), words("-there"), change

    def interval(speedup: Speedup | None) -> str:
        return "" if speedup is None else short_interval(speedup)

    def number(things: Sequence[object] | None) -> str:
        return "-" if things is None else str(len(things))

    last = "tuned" if "tuned" in values else "untuned"
    of_last = {place: measured[f"{last}{place}"] for place in ("", "-there")}
    rows = [
        ("", upgrade.here, upgrade.there, "change"),
        row("untuned", lambda place: shown(objective, values[f"untuned{place}"]), interval(upgrade.untuned)),
    ]
    if last == "tuned":
        here, there = (interval(gain) for gain in upgrade.gains)
        rows.append(row("tuned", lambda place: shown(objective, values[f"tuned{place}"]), interval(upgrade.tuned)))
        rows.append(("gain", here, there, ""))
    rows += [
        row("compile", lambda place: seconds(of_last[place].compile_s)),
        row("graph breaks", lambda place: number(of_last[place].diagnosis.graph_breaks)),
        row("recompiles", lambda place: number(of_last[place].diagnosis.recompiles)),
    ]
    programs = {each.program for each in of_last.values()}
    if None not in programs:
        rows.append(("program", "", "", "the same" if len(programs) == 1 else "another"))
    widths = [max(len(each[column]) for each in rows) for column in range(4)]
    for cells in rows:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {'  '.join(padded)}".rstrip())
    return lines


def upgrade_document(upgrade: Upgrade) -> dict[str, Any]:
    """What another environment changes for an exported answer."""
    measured = upgrade.measured or {}
    here, there = upgrade.gains
    return {
        "outcome": upgrade.outcome,
        "why": upgrade.why,
        "here": upgrade.here,
        "there": upgrade.there,
        "objective": upgrade.objective.name,
        "untuned": upgrade.untuned and upgrade.untuned.model_dump(),
        "tuned": upgrade.tuned and upgrade.tuned.model_dump(),
        "gain_here": here and here.model_dump(),
        "gain_there": there and there.model_dump(),
        "values": upgrade.values and dict(upgrade.values),
        "measured": {name: outcome.model_dump(mode="json") for name, outcome in measured.items()},
    }
