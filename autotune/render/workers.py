"""The workers of a study that ran on several: as a table in a terminal, and as rows of text."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.answer.format import count, percent, seconds
from autotune.answer.result import StudyResult
from autotune.answer.workers import WorkerShares, worker_shares
from autotune.bench.workers import Neighbours

COLUMNS = ("worker", "host", "device", "trials", "lost", "time", "untuned")
TEXTS = frozenset(COLUMNS[:3])


def workers_table(answer: StudyResult) -> Group | None:
    """None for a study of one worker."""
    shares = worker_shares(answer.records, answer.neighbours, answer.lost_trials)
    if shares is None:
        return None
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in TEXTS else "right", no_wrap=name not in TEXTS)
    for row in worker_rows(shares):
        table.add_row(*row)
    lines = [about_workers(shares), *map(about_neighbours, shares.neighbours)]
    return Group(*(Text(each, style="italic") for each in lines), table)


def worker_rows(shares: WorkerShares) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each worker."""
    return [
        (
            *(each.name, each.host, each.device, count(each.num_measured), count(each.num_lost)),
            *(seconds(each.seconds), seconds(each.untuned_s)),
        )
        for each in shares.workers
    ]


def about_workers(shares: WorkerShares) -> str:
    """How many there were, and how many trials were lost with one."""
    lost = f"; {count(shares.num_lost)} trials were lost, their configs tried again" if shares.num_lost else ""
    return f"trials measured by {len(shares.workers)} workers, and the untuned model's latency there{lost}"


def about_neighbours(found: Neighbours) -> str:
    """Whether the workers of a machine were timed side by side, and why."""
    how = "take turns at being timed" if found.disturb else "are timed side by side"
    why = f"running together changes its untuned latency by {100 * found.moved:+.1f} %"
    return f"the {len(found.workers)} workers of {found.host} {how}: {why}, chance explains {percent(found.allowed)}"
