"""The tiers of a model under a deadline, as a table."""

from __future__ import annotations

from rich.table import Table

from autotune.answer.format import seconds
from autotune.tuned.tier_file import Tiers


def tiers_table(tiers: Tiers) -> Table:
    """Each tier with what it promises, how that is known, and whether it keeps the deadline."""
    table = Table(box=None, header_style="bold", pad_edge=False, title=f"deadline {seconds(tiers.deadline_s)}")
    table.title_justify = "left"
    for name in ("tier", "keeps it", "p99", "of all", "median", "samples", "processes", "verdict"):
        table.add_column(name, justify="left" if name in ("tier", "keeps it", "verdict") else "right", no_wrap=True)
    for each in tiers.tiers:
        fits, evidence = tiers.fits(each), each.evidence
        table.add_row(
            each.name,
            "yes" if fits else "no",
            seconds(each.p99_s),
            seconds(evidence.p99_s),
            seconds(evidence.p50_s),
            str(evidence.num_samples),
            str(len(evidence.process_p99_s)),
            each.verdict.value,
            style=None if fits else "yellow",
        )
    return table
