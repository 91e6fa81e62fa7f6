"""A study that chooses a shape strategy, from the command line to the job: on real processes of the fake framework,
whose compiler compiles for each new shape."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

import autotune
from tests.conftest import QUICK_BLOCKS, QUICK_BUDGET

MODEL = """
import numpy as np

def rows(rows=8):
    inputs = np.arange(4.0 * rows).reshape(rows, 4)
    return {"model": lambda x: (x * 2, x.sum(1)), "inputs": inputs, "padding": {"rows": 7}}

def mixed(rows=8):
    return {"model": lambda x: x - x.mean(0), "inputs": np.arange(4.0 * rows).reshape(rows, 4), "padding": {"rows": 7}}
"""

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  shapes:
    doc: "https://example.org/x"
    when: {execution: compile}
    needs: [traffic]
    values: [static, {value: bucketed, needs: [padding]}, eager_rare, {value: chunked, needs: [batch]}]
    default: static
  num_buckets: {doc: "https://example.org/x", when: {shapes: bucketed}, values: [2], default: 2}
  num_compiled: {doc: "https://example.org/x", when: {shapes: eager_rare}, values: [3], default: 3}
  chunk_at: {doc: "https://example.org/x", when: {shapes: chunked}, values: [0.5], default: 0.5}
  most_graphs: {doc: "https://example.org/x", when: {execution: compile}, values: [99], default: 99}
  compile_ms: {doc: "https://example.org/x", when: {execution: compile}, values: [60], default: 60}
  eager_ms: {doc: "https://example.org/x", when: {execution: compile}, values: [3], default: 3}
  latency_ms: {doc: "https://example.org/x", values: [3, 0.5], untuned: 3, default: 0.5}
forbid:
  - {if: {execution: compile, latency_ms: 3}, because: compiled code is quick}
  - {if: {execution: eager, latency_ms: 0.5}, because: what is not compiled is slow}
"""


@pytest.fixture
def tune(tune_fake, budget_file, tmp_path):
    blocks = QUICK_BLOCKS.model_copy(update={"num_rounds": 1})
    budget = QUICK_BUDGET.model_copy(update={"noise_floor": blocks, "confirmation": blocks})
    budget_file.write_text(budget.model_dump_json(exclude={"num_trials", "limits"}))
    (tmp_path / "strategies.yaml").write_text(SPACE)
    (tmp_path / "net.py").write_text(MODEL)

    def tune(model):
        arguments = ("--space", str(tmp_path / "strategies.yaml"), "--shapes", "rows=1..8", "--json")
        result = tune_fake(*arguments, model=f"{tmp_path}/net.py:{model}")
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    return tune


def by_strategy(document):
    return {each["config"].get("shapes"): each["outcome"] for each in document["trials"]}


def test_a_strategy_is_chosen_and_loaded(tune, cli, tmp_path):
    """Each is compiled for what it means to, with right outputs; the cheapest for the whole job is the answer; and the
    job that loads it compiles as often."""
    document = tune("rows")
    outcomes = by_strategy(document)
    assert set(outcomes) == {None, "static", "bucketed", "eager_rare"}
    graphs = {name: each["replay"]["compilations"][-1]["num_graphs"] for name, each in outcomes.items()}
    assert graphs == {None: 0, "static": 8, "bucketed": 2, "eager_rare": 3}
    assert {name: each["relative_error"] for name, each in outcomes.items()} == {**dict.fromkeys(graphs, 0), None: None}
    assert document["best"]["config"]["shapes"] == "bucketed"

    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    content = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert content["shapes"]["padding"] == {"rows": 7.0}
    seen = set()

    def model(x):
        seen.add(x.shape)
        return x * 2, x.sum(1)

    tuned = autotune.load(tmp_path / "best.yaml").apply(model, on_mismatch="apply")
    for number in (1, 8, 3, 5, 2):
        x = np.arange(4.0 * number).reshape(number, 4)
        for got, expected in zip(tuned(x), (x * 2, x.sum(1)), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert len(seen) == graphs["bucketed"]


def test_a_wrong_declaration_fails_its_trial(tune):
    """Rows that are not independent of what is appended: the gate says so, and another strategy is the answer."""
    document = tune("mixed")
    outcomes = by_strategy(document)
    assert outcomes["bucketed"]["reason"] == "wrong_result"
    assert outcomes["static"].get("reason") is None
    assert document["best"]["config"].get("shapes") != "bucketed"
