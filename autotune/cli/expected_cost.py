"""What a run will cost, said before its first trial; with `--dry-run` that is all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.app import print_json, print_line, say

if TYPE_CHECKING:
    from autotune.study.budget import Budget
    from autotune.study.manifest import Manifest
    from autotune.study.shared.url import StorageUrl


def say_cost(
    manifest: Manifest,
    budget: Budget,
    studies_dir: Path,
    shared: StorageUrl | None,
    *,
    as_json: bool,
    dry_run: bool,
    quiet: bool,
) -> bool:
    """Say it; returns whether that was all that was asked for. Nothing is written."""
    from autotune.report.expected_cost import cost_lines, plan_document, plan_lines
    from autotune.results.expected_cost import expected_cost
    from autotune.tuning.busy_machine import how_busy

    if quiet and not dry_run:
        return False
    cost = expected_cost(manifest, budget, studies_dir, shared)
    if not dry_run:
        for line in cost_lines(cost)[1:]:
            say(line)
        return False
    busy = how_busy(budget.quiet)
    if as_json:
        print_json(plan_document(manifest, cost, busy))
    else:
        for line in plan_lines(manifest, cost, busy):
            print_line(line)
    return True
