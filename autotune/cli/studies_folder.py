"""The commands on a folder of studies: list them, and remove some."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.app import app, print_json, print_line, say, with_exit_status
from autotune.cli.flags import AsJson, Storage, StudiesDir
from autotune.command_line import command
from autotune.errors import AutotuneError, InputError
from autotune.question.question import DEFAULT_STUDIES_DIR

if TYPE_CHECKING:
    from rich.table import Table

    from autotune.study.study import Studies

group = typer.Typer(rich_markup_mode=None)
app.add_typer(group, name="studies")


@group.callback(invoke_without_command=True)
def studies(
    context: typer.Context,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """List the studies in the folder; `rm` removes some."""
    context.obj = (studies_dir, storage)
    if context.invoked_subcommand is None:
        _list(studies_dir, storage, as_json=as_json)


@with_exit_status
def _list(studies_dir: Path, storage: str | None, *, as_json: bool) -> None:
    from autotune.api.studies import studies_at
    from autotune.render.console import console

    studies = studies_at(studies_dir, storage)
    rows = [_row(name, studies) for name in studies.names()]
    if as_json:
        print_json(rows)
    elif rows:
        console(160).print(_table(rows))
    else:
        print_line(f"no studies in {studies}; start with: {command('tune', '--model', 'vit')}")


@group.command("rm")
@with_exit_status
def remove(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Studies to remove.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    studies_dir: Annotated[
        Path | None, typer.Option("--studies-dir", help="Folder that holds the studies. [as given before the verb]")
    ] = None,
    storage: Storage = None,
) -> int:
    """Remove studies and the files that the tool made for them. Other files in their folders are kept.

    Exit status: 1 if the answer is no.
    """
    from autotune.answer.format import num_bytes
    from autotune.api.studies import studies_at
    from autotune.own_folders import size_bytes

    folder_before, storage_before = context.obj
    studies = studies_at(studies_dir or folder_before, storage_before if storage is None else storage)
    names = list(dict.fromkeys(names))
    for name in names:
        studies.require(name)
    for name in names:
        say(f"{studies.folder / name}: {num_bytes(size_bytes(studies.folder / name))}")
    if not yes and not _is_agreed(f"remove {len(names)} {'study' if len(names) == 1 else 'studies'}?"):
        say("nothing was removed")
        return 1
    for name in names:
        kept = studies.remove(name)
        stays = f"; not removed: {', '.join(map(_where, kept))}" if kept else ""
        print_line(f"removed {name}{stays}")
    return 0


def _where(path: Path) -> str:
    """What stays: in the study's folder its name, elsewhere where it is."""
    return path.name if os.path.lexists(path) else str(path)


def _is_agreed(question: str) -> bool:
    """Raises InputError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise InputError("no terminal to ask on; nothing was removed", tip="give --yes to remove without asking")
    return typer.confirm(question, err=True)


def _row(name: str, studies: Studies) -> dict[str, Any]:
    """What is quickly read of a study: not the whole result, which would read every sample of every study."""
    from autotune.own_folders import size_bytes
    from autotune.study.glance import glance

    size = size_bytes(studies.folder / name)
    try:
        found = glance(studies, name)
        confirmation, workload = found.confirmation, found.manifest.workload
        speedup = confirmation and confirmation.speedup
        return {
            "study": name,
            "model": workload.model,
            "framework": found.manifest.framework,
            "device": workload.device,
            "trials": found.num_recorded,
            "verdict": confirmation.verdict.value if confirmation else None,
            "speedup": speedup.median if speedup else None,
            "created": found.manifest.created,
            "size_bytes": size,
            **({} if found.host is None else {"host": found.host}),
        }
    except AutotuneError as error:
        # One broken study must not hide the others.
        return {"study": name, "error": str(error), "size_bytes": size}


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from autotune.answer.format import num_bytes, times

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("study", "created", "trials", "size", "verdict", "speed-up", "model"):
        table.add_column(title, justify="right" if title in ("trials", "size", "speed-up") else "left", overflow="fold")
    for row in rows:
        size = num_bytes(row["size_bytes"])
        if "error" in row:
            table.add_row(row["study"], "-", "-", size, "broken", "-", row["error"])
            continue
        ratio = "-" if row["speedup"] is None or row["verdict"] == "undecided" else times(row["speedup"])
        verdict = (row["verdict"] or "no verdict").replace("_", " ")
        table.add_row(row["study"], row["created"][:10], str(row["trials"]), size, verdict, ratio, row["model"])
    return table
