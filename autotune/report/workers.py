"""The workers of a study that ran on several: as a table in a terminal, and as rows of text."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.report.format import count, seconds
from autotune.results.result import StudyResult
from autotune.results.workers import WorkerShares, worker_shares

COLUMNS = ("worker", "host", "device", "trials", "time", "untuned")
TEXTS = frozenset(COLUMNS[:3])


def workers_table(answer: StudyResult) -> Group | None:
    """None for a study of one worker."""
    shares = worker_shares(answer.records)
    if shares is None:
        return None
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in TEXTS else "right", no_wrap=name not in TEXTS)
    for row in worker_rows(shares):
        table.add_row(*row)
    return Group(Text(about_workers(shares), style="italic"), table)


def worker_rows(shares: WorkerShares) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each worker."""
    return [
        (each.name, each.host, each.device, count(each.num_measured), seconds(each.seconds), seconds(each.untuned_s))
        for each in shares.workers
    ]


def about_workers(shares: WorkerShares) -> str:
    """How many there were, and how many trials were lost with one."""
    lost = f"; {count(shares.num_lost)} trials were lost, their configs tried again" if shares.num_lost else ""
    return f"trials measured by {len(shares.workers)} workers, and the untuned model's latency there{lost}"
