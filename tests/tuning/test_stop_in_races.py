"""When the search of a race ends after a portfolio, on recorded tables in virtual time: held to the published table."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from autotune.space.portfolio import recorded
from benchmarks.portfolio import TABLES_OF
from benchmarks.tables import read_table
from tests.stand_ins.virtual_machine import race_on

DECISION = Path(__file__).parents[2] / "docs" / "decisions" / "0011-early-stop.md"
NUM_RACES = {"resnet18_torch_exhaustive": 3, "small_mlp_torch": 2, "vit_torch": 2}


def published(name):
    """Seconds to the end, trials and regret of the table's row."""
    row = next(line for line in DECISION.read_text().splitlines() if line.startswith(f"| `{name}`"))
    cells = [cell.strip(" *%") for cell in row.split("|")]
    return float(cells[5].removesuffix(" s")), float(cells[6]), float(cells[7]) / 100


def without_kind(table, kind):
    """The package's portfolio as it is for a model of a kind that it does not know."""
    kept = [number for number, other in enumerate(table.kinds) if other != kind]

    def of_kept(values):
        return tuple(values[number] for number in kept)

    entries = tuple(entry.model_copy(update={"gains": of_kept(entry.gains)}) for entry in table.entries)
    return table.model_copy(update={"models": of_kept(table.models), "kinds": of_kept(table.kinds), "entries": entries})


@pytest.mark.fast_cases("vit_torch", "small_mlp_torch")
@pytest.mark.parametrize("name", NUM_RACES)
def test_races_end_as_published(name, tmp_path, monkeypatch):
    """Within a tenth of the seconds, two trials and 1.5 points of regret: which of equal configs a search takes differs
    between processors."""
    tables = [without_kind(table, TABLES_OF["torch"][name]) for table in recorded()]
    monkeypatch.setattr("autotune.space.portfolio.recorded", lambda: tables)
    table = read_table(name)
    races = [race_on(table, seed, tmp_path / str(seed)) for seed in range(NUM_RACES[name])]
    end_s, num_trials, regret = published(name)
    assert statistics.fmean(race.end_s for race in races) == pytest.approx(end_s, rel=0.1)
    assert statistics.fmean(race.num_trials for race in races) == pytest.approx(num_trials, abs=2)
    assert statistics.fmean(race.regret for race in races) <= regret + 0.015
