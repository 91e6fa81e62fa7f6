"""How the portfolio is made from records."""

from __future__ import annotations

import json

import pytest

from benchmarks import portfolio
from benchmarks.portfolio import DESIGN, HALF, MODELS, WRAPPED, design, readings_of, space_for, table_of, text_of


@pytest.mark.parametrize(("framework", "task"), DESIGN, ids="-".join)
def test_all_of_the_design_can_be_said(framework, task):
    """A setting that is on offer no more would be left out in silence."""
    space = space_for(framework, task)
    configs = [config for _, config in design(framework, task, space)]
    assert len(configs) == len(set(configs)) == len(DESIGN[framework, task])
    assert space.untuned() not in configs


def row(settings, call_s, error=1e-6, program="", **more):
    measured = {"call_s": call_s, "trial_s": 5.0, "error": error, "program": program, "beside_s": 1.0}
    return {"model": "vit", "round": 1, "config": settings, **measured, **more}


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Readings of what is written."""

    def written(*rows):
        monkeypatch.setattr(portfolio, "TABLES_OF", {"torch": {}})
        file = tmp_path / "records.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
        return readings_of("torch", "infer", file)

    return written


def test_a_gain_is_the_median_over_processes_and_what_is_wrong_has_none(known):
    half = {**WRAPPED, **HALF}
    (one,) = known(
        row(WRAPPED, 0.5), row(WRAPPED, 0.4), row(WRAPPED, 0.25), row({"execution": "compile"}, 0.1, error=2e-3),
        row(half, 0.2, error=2e-3), {"model": "vit", "round": 1, "config": half, "failure": "crash", "error": "x"},
    )  # fmt: skip
    assert one.gain(WRAPPED) == 2.5
    assert one.gain({"execution": "compile"}) is None
    assert one.gain(half) == 5.0
    assert one.seconds[text_of(WRAPPED)] == [5.0, 5.0, 5.0]


def test_what_was_read_between_readings_that_differ_is_not_kept(tmp_path, monkeypatch):
    """A ratio to one slow reading of the untuned model would be told as the config's. The next run reads it again."""
    file, untuned = tmp_path / "records.jsonl", iter([1.0, 1.2, 1.0, 3.0])

    class Trials:
        def __init__(self, *_):
            pass

        def untuned(self):
            return next(untuned)

        def row(self, settings, config, number):
            return {"model": "vit", "round": number, "config": settings, "call_s": 0.5, "trial_s": 1.0}

    monkeypatch.setattr(portfolio, "_Trials", Trials)
    monkeypatch.setattr(portfolio, "PAIR", 1)
    one = next(one for one in MODELS if one.name == "vit")
    portfolio.Recorder(file, tmp_path, 3, "cpu").record(one, 1)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["config"] for row in rows] == list(DESIGN["torch", "infer"][:2])
    untuned = iter([1.0, 1.0])
    portfolio.Recorder(file, tmp_path, 3, "cpu").record(one, 1)
    assert len(file.read_text().splitlines()) == 3


def test_a_table_names_the_models_on_which_a_config_was_best(known):
    half = {**WRAPPED, **HALF}
    made = table_of("torch", "infer", known(row(WRAPPED, 0.5), row({"execution": "compile"}, 0.6), row(half, 0.2)))
    best = {text_of(entry.config.root): entry.best_on for entry in made.entries}
    assert best == {text_of(WRAPPED): ("vit",), text_of({"execution": "compile"}): (), text_of(half): ("vit",)}
