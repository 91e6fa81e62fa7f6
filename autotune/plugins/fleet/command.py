"""The commands of a fleet: `fleet tune`, `fleet verify` and `fleet show`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.api.running import parse_budget
from autotune.api.side_by_side import read_exported, verify
from autotune.api.studies import studies_at
from autotune.cli.app import print_json, print_line, say, stop_on_sigterm, with_exit_status
from autotune.cli.compare import Against, MaxLoss, say_block
from autotune.cli.flags import (
    AsJson,
    BudgetFlag,
    EnvAgain,
    GroupedCommand,
    ReportFlag,
    Storage,
    StudiesDir,
    examples,
    option,
    require_report,
    variables_of,
)
from autotune.cli.team_defaults import flags_in
from autotune.command_line import flag, options
from autotune.doors import USES
from autotune.errors import AutotuneError, InputError, marked
from autotune.files import require_place
from autotune.plugins.fleet.night import Night
from autotune.plugins.fleet.row import (
    FAILED,
    INTERRUPTED,
    NOT_BEGUN,
    UNCLEAR,
    UNMEASURED,
    Row,
    notes_of,
    row_of_file,
    row_of_study,
    table_of,
    why_retune,
    worst,
)
from autotune.plugins.fleet.shared_time import SharedTime
from autotune.plugins.fleet.spec import read_spec
from autotune.plugins.fleet.written import headline, write_fleet_page, write_junit
from autotune.question.question import DEFAULT_STUDIES_DIR
from autotune.study.budget import Budget
from autotune.tuned.tuned_config import load_tuned
from autotune.verification.comparison import TooLittleTimeError
from autotune.verification.verify import Verification

FLEET = typer.Typer(
    name="fleet",
    help="Many models at a time: tune them in a night, verify their files, show all in one table.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Junit = Annotated[
    Path | None,
    typer.Option(flag("junit"), metavar="FILE", help="At the end, write a JUnit file, with a test a model."),
]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Exported YAML files.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        flag("output"),
        metavar="FOLDER",
        help="Export each answer to FOLDER/NAME.yaml, the prior of a new study.",
    ),
]
Anew = Annotated[
    bool,
    typer.Option(
        flag("anew"),
        help="Begin a study anew that cannot go on here (of a machine that is gone, of another release or model), "
        "under its name, with what was best in it.",
    ),
]
Quiet = Annotated[bool, option("quiet", "Print nothing on stderr about trials.")]


@FLEET.command(
    cls=GroupedCommand,
    epilog=examples(
        "fleet tune night.yaml -o tuned", f"fleet tune night.yaml -o tuned{options(anew=True, junit='night.xml')}"
    ),
)
@with_exit_status
def tune(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="YAML file: models, and what `tune` takes for each.")],
    budget: Annotated[str | None, option("budget", "Time that all models share, in place of the file's.")] = None,
    dry_run: Annotated[bool, option("dry_run", "Print what would be tuned, and in which time, then exit.")] = False,
    output: Output = None,
    anew: Anew = False,
    quiet: Quiet = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    report: ReportFlag = None,
    junit: Junit = None,
    as_json: AsJson = False,
) -> int:
    """Tune all models of a file, one after the other.

    One that fails ends no other. The same command goes on where it was interrupted, and leaves what is tuned as it is.
    Exit status: 0 each has an answer, 1 one has none, 2 one could not be tuned, 3 the time was over before one.
    """
    _require_places(report, junit)

    members = read_spec(spec, partial(flags_in, spec), budget)
    night = Night(studies_at(studies_dir, storage), output, anew, quiet)
    stop_on_sigterm()
    if dry_run:
        return _told(night.plan(members), "fleet tune", None, None, as_json=as_json)
    if output is not None:
        _make(output)
    return _told(night.tune(members), "fleet tune", report, junit, as_json=as_json)


@FLEET.command(
    "verify",
    cls=GroupedCommand,
    epilog=examples(f"fleet verify tuned/*.yaml{options(budget='2h', junit='verify.xml')}"),
)
@with_exit_status
def verify_all(
    files: Files,
    against: Against = None,
    max_loss: MaxLoss = 0.0,
    budget: BudgetFlag = None,
    env: EnvAgain = None,
    report: ReportFlag = None,
    junit: Junit = None,
    as_json: AsJson = False,
) -> int:
    """Measure exported configs again, one after the other, as `verify` measures one.

    They share the time of the budget. Exit status: that of the worst, of 1 (regressed or wrong), 2 (not measurable), 3
    (too noisy to tell, or the time was over before it) and 0 (all hold).
    """
    _require_places(report, junit)
    limits, variables = parse_budget(budget), variables_of(env)
    stop_on_sigterm()

    def measured(path: Path, share: Budget) -> Row:
        row = row_of_file(str(path), read_exported(path, variables))
        try:
            if against is None:
                return _verified(row, verify(path, max_loss=max_loss, budget=share, env=variables, callbacks=say_block))
            function = USES.require("verify_against")
            return _upgraded(row, function(path, against, max_loss=max_loss, budget=share, env=variables))
        except AutotuneError as error:
            failed = Row.of_error(row.name, error)
            short = isinstance(error, TooLittleTimeError)
            return replace(
                row, outcome=failed.outcome, why=failed.why, exit_status=UNMEASURED, speedups={}, was_short=short
            )

    return _told(_measured(files, limits, measured), "fleet verify", report, junit, as_json=as_json)


@FLEET.command(
    cls=GroupedCommand, epilog=examples("fleet show", f"fleet show tuned/*.yaml{options(report='fleet.html')}")
)
@with_exit_status
def show(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Exported YAML files. [all studies]")
    ] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    report: ReportFlag = None,
    junit: Junit = None,
    as_json: AsJson = False,
) -> int:
    """Show all studies, or exported files, with release, verdict, latency and age, and which to tune again.

    Exit status: 0, or 1 where one is to be tuned again here, or 2 where one cannot be read.
    """
    _require_places(report, junit)
    if files:
        rows = [_read(path) for path in files]
    else:
        studies = studies_at(studies_dir, storage)
        rows = [row_of_study(name, studies) for name in studies.names()]
    judged = (row if row.exit_status or not (why := why_retune(row)) else _failing(row, why) for row in rows)
    return _told(judged, "fleet show", report, junit, as_json=as_json)


def _failing(row: Row, why: str) -> Row:
    return replace(row, exit_status=FAILED, why=why)


def _read(path: Path) -> Row:
    try:
        return row_of_file(str(path), load_tuned(path))
    except AutotuneError as error:
        return Row.of_error(str(path), error)


def _measured(files: Sequence[Path], limits: Budget, measure: Callable[[Path, Budget], Row]) -> list[Row]:
    """A row for each file. All have the same share of the time, and of what the ones before left over; those whose
    share held no comparison are measured again, if what is left in the end is more than they had."""
    shared, rows, had_s = SharedTime(), dict[int, Row](), dict[int, float]()
    waiting = dict(enumerate(files))
    while waiting:
        for place, (number, path) in enumerate(waiting.items()):
            share = shared.share_of(limits, len(waiting) - place)
            if share is None:
                rows.setdefault(number, Row(str(path), NOT_BEGUN, UNCLEAR, "the time was over"))
                continue
            say(f"{path} ({number + 1} of {len(files)})")
            before_s, earlier_s = shared.spent_s, rows[number].seconds if number in rows else 0.0
            with shared.taken():
                row = _row_of(path, share, measure)
            rows[number] = replace(row, seconds=earlier_s + shared.spent_s - before_s)
            had_s[number] = share.wall_s or 0.0
            if row.exit_status == INTERRUPTED:
                return [rows[each] for each in sorted(rows)]
        short = {number: path for number, path in waiting.items() if rows[number].was_short}
        more = shared.share_of(limits, len(short)) if short else None
        more_s = 0.0 if more is None else more.wall_s or 0.0
        waiting = {number: path for number, path in short.items() if had_s[number] < more_s}
    return [rows[each] for each in sorted(rows)]


def _row_of(path: Path, share: Budget, measure: Callable[[Path, Budget], Row]) -> Row:
    try:
        return measure(path, share)
    except KeyboardInterrupt:
        return Row(str(path), "interrupted", INTERRUPTED)
    except AutotuneError as error:
        return replace(Row.of_error(str(path), error), exit_status=UNMEASURED)


def _verified(row: Row, found: Verification) -> Row:
    today = None if found.result is None else found.result.speedup
    untuned, tuned = found.result.values if found.result is not None and today is not None else (None, None)
    speedups = {"promised": found.promised, "today": today}
    return replace(
        row,
        outcome=found.outcome,
        why=found.why,
        exit_status=found.exit_code,
        untuned=untuned,
        tuned=tuned,
        speedups=speedups,
    )


def _upgraded(row: Row, found: Any) -> Row:
    """`found`: what `autotune.verify_against` returns."""
    here, there = found.gains
    speedups = {"untuned there": found.untuned, "tuned there": found.tuned, "gain here": here, "gain there": there}
    release = f"{row.release.partition(' ')[0]} {found.here}, there {found.there}"
    values = dict(found.values or {})
    return replace(
        row,
        release=release,
        outcome=found.outcome,
        why=found.why,
        exit_status=found.exit_code,
        untuned=values.get("untuned"),
        tuned=values.get("tuned"),
        speedups=speedups,
    )


def _told(rows: Iterable[Row], what: str, report: Path | None, junit: Path | None, *, as_json: bool) -> int:
    """Print the rows as a table, write what was asked for, and return the exit status of the worst."""
    from autotune.render.console import console
    from autotune.render.terminal import drawn

    told = list(rows)
    if as_json:
        print_json([row.document() for row in told])
    elif told:
        console(240).print(drawn(table_of(told)))
        print_line(headline(told))
        for name, why in notes_of(told):
            print_line(f"  {name}: {why}")
    else:
        print_line("no studies here")
    if report is not None:
        say(f"report: {write_fleet_page(report, told, what)}")
    if junit is not None:
        say(f"junit: {write_junit(junit, told, what)}")
    return worst(row.exit_status for row in told)


def _require_places(report: Path | None, junit: Path | None) -> None:
    """Raises InputError, before anything is measured, where one of the two could not be written at the end."""
    require_report(report)
    if junit is not None:
        require_place(junit)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{marked('output', folder)}: no folder can be made there: {error.strerror}") from None
