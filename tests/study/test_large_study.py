"""Synthetic studies are filled with what the product itself would have written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.measure.measurement import Measurement
from autotune.study.folder import FolderStudies
from benchmarks import large_study
from benchmarks.simulated import manifest_of

SPACE = large_study.space_of(num_knobs=3, num_values=3)


def test_written_trials_are_like_told_ones(tmp_path):
    """Distinct configs of the space, each with an outcome, a value and constraints; the next ask finds a new one."""
    made = FolderStudies(tmp_path).create(manifest_of(SPACE, seed=0))
    large_study.fill(made, 20)
    study = FolderStudies(tmp_path).open(made.name)
    records = study.records()
    assert [each.number for each in records] == list(range(20))
    assert len({each.config for each in records}) == 20
    assert {each.config for each in records} <= set(SPACE.configs())
    assert all(each.state == "measured" for each in records)
    assert study.num_recorded() == 20
    told, written = records[0], records[1]
    assert isinstance(told.outcome, Measurement)
    assert isinstance(written.outcome, Measurement)
    assert written.outcome.environment == told.outcome.environment
    trials = study._trials()
    assert trials[1].constraints == trials[0].constraints
    assert set(trials[1].user_attrs) == set(trials[0].user_attrs)
    assert trials[1].value == large_study.latency_of(written.config)
    with study.writing() as lost:
        assert lost == []
        asked = study.ask(60)
    assert asked is not None
    assert asked.config not in {each.config for each in records}
    study.close()


def test_an_empty_study_stays_empty(tmp_path):
    """Nothing is told where nothing was asked for: its ask is the first one."""
    study = FolderStudies(tmp_path).create(manifest_of(SPACE, seed=0))
    large_study.fill(study, 0)
    assert study.records() == []
    study.close()


@pytest.mark.slow
def test_figures_are_taken_of_real_studies(monkeypatch):
    """Every figure of a small one is there; the report judges the largest."""
    monkeypatch.setitem(large_study.SPACES, "tiny", SPACE)
    figures = large_study.run(large_study.Case("tiny", 5, repeats=2))
    assert figures.num_trials == 5
    assert figures.database_bytes > 0
    seconds = (figures.open_s, figures.list_s, figures.show_s, figures.first_ask_s, figures.ask_s, figures.tell_s)
    assert all(each > 0 for each in seconds)
    slow, quick = replace(figures, open_s=2.5, num_trials=6), replace(figures, open_s=1.9, num_trials=7)
    assert not large_study.judge([figures, slow])[0].met
    assert large_study.judge([slow, quick])[0].met
