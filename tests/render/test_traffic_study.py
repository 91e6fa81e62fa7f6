"""A study under traffic, from the command line to the export: on real child processes of the fake framework, whose
compiler compiles for each new shape up to a limit."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from autotune.job.mismatch import retune_command
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.traffic import parse_shapes
from tests.conftest import QUICK_BLOCKS, QUICK_BUDGET, REPOSITORY

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  most_graphs: {doc: "https://example.org/x", when: {execution: compile}, values: [null, 2, 9], default: 9}
  compile_ms: {doc: "https://example.org/x", when: {execution: compile}, values: [40], default: 40}
  eager_ms: {doc: "https://example.org/x", when: {execution: compile}, values: [3], default: 3}
  latency_ms: {doc: "https://example.org/x", values: [3, 0.5], untuned: 3, default: 0.5}
forbid:
  - {if: {execution: compile, latency_ms: 3}, because: compiled code is quick}
  - {if: {execution: eager, latency_ms: 0.5}, because: what is not compiled is slow}
"""
"""One graph for all shapes, two and then eager execution, or one for each: cold, they take 40, 80 and 160 ms longer."""

SHAPES = ("--shapes", "rows=1:40%,2:30%,3:20%,5:10%")


BUDGET = QUICK_BUDGET.model_copy(
    update={
        # A pass of the stream takes as long as many turns, and the effects are large.
        "noise_floor": QUICK_BLOCKS.model_copy(update={"num_rounds": 1}),
        "confirmation": QUICK_BLOCKS.model_copy(update={"num_rounds": 1, "first_look": 4}),
    }
)


@pytest.fixture
def tune_shapes(tune_fake, budget_file, tmp_path):
    budget_file.write_text(BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
    space = tmp_path / "shapes.yaml"
    space.write_text(SPACE)
    return lambda *arguments: tune_fake(*arguments, "--space", str(space))


def document_of(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def by_limit(document):
    """Knob `most_graphs` -> the trial, of the configs that compile."""
    return {
        each["config"]["most_graphs"]: each for each in document["trials"] if each["config"]["execution"] == "compile"
    }


@pytest.mark.slow
def test_a_study_of_shapes(tune_shapes, cli, tmp_path, budget_file):
    """Every config replays the same stream; compilations and fallbacks are counted, the whole job decides, and what is
    exported, verified and run again is under the same traffic."""
    document = document_of(tune_shapes(*SHAPES, "--json"))
    assert document["objectives"] == ["total:1000"]
    trials = by_limit(document)
    replays = {limit: each["outcome"]["replay"] for limit, each in trials.items()}
    assert {limit: len(each["stream"]) for limit, each in replays.items()} == dict.fromkeys((None, 2, 9), 64)
    assert len({tuple(each["stream"]) for each in replays.values()}) == 1
    last = {limit: each["compilations"][-1] for limit, each in replays.items()}
    assert {limit: (each["num_graphs"], each["num_given_up"]) for limit, each in last.items()} == {
        None: (1, 0), 2: (2, 1), 9: (4, 0),
    }  # fmt: skip
    assert document["verdict"] == "faster"
    assert document["best"]["config"]["most_graphs"] in (None, 9)
    told = document["traffic"]
    assert (told["asked"], told["num_calls"]) == ("rows=1:40%,2:30%,3:20%,5:10%", 64)
    assert [(each["sizes"]["rows"], each["num_calls"]) for each in told["shapes"]] == [
        (1, 26),
        (2, 19),
        (3, 13),
        (5, 6),
    ]
    assert all(each["latency_s"]["tuned"] < each["latency_s"]["untuned"] for each in told["shapes"])

    shown = cli("show", "s", "--why").stdout
    assert "traffic rows=1:40%,2:30%,3:20%,5:10%, a stream of 64 calls:" in shown
    assert re.search(r"rows=1 +40\.0 % +26 +", shown)
    assert re.search(r"untuned +first pass .*, then .*; 0 graphs compiled", shown)
    assert "graphs compiled" in cli("run", "s", str(trials[2]["number"])).stdout

    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    shapes = yaml.safe_load((tmp_path / "best.yaml").read_text())["shapes"]
    assert [each["sizes"]["rows"] for each in shapes["traffic"]["loads"]] == [1, 2, 3, 5]
    assert shapes["inputs"] == [{"dimension": "rows", "leaf": 0, "axis": 0}]
    verified = cli("verify", "best.yaml", "--budget", str(budget_file), "--json")
    assert (verified.returncode, json.loads(verified.stdout)["outcome"]) == (0, "holds"), verified.stderr
    refused = cli("export", "s", "-o", "best.yaml", "--with-cache")
    assert refused.returncode == 1
    assert "no artifact: it would save too little" in refused.stderr
    another = tune_shapes("--shapes", "rows=1..3")
    assert re.search(r"shapes: rows=1:40%,2:30%,3:20%,5:10% \(\w+\) before, rows=1\.\.3 \(\w+\) now", another.stderr)


def test_the_hint_to_tune_again_asks_for_the_traffic(tmp_path):
    """Its dimensions are no arguments of their own there."""
    shapes = {"traffic": parse_shapes(["rows=1:40%,2:60%"]).model_dump(mode="json"), "inputs": [], "outputs": []}
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["workload"] |= {"arguments": {"rows": 2, "width": 3}, "objective": "latency"}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump({**content, "shapes": shapes}))
    command = retune_command(load_tuned(tmp_path / "best.yaml"))
    assert "--shapes rows=1:40%,2:60%" in command
    assert "--model-arg width=3" in command
    assert "--model-arg rows" not in command
    assert "--objective latency" in command  # By default it would be a job's total.


def test_a_log_and_constraints_on_what_is_counted(tune_shapes, tmp_path):
    """`--traffic FILE` asks the same; a config that leaves shapes to eager execution, or compiles too often, can be
    ruled out; the stream is no longer than the job."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"rows": 1, "count": 3}\n{"rows": 2}\n{"rows": 3}\n{"rows": 4}\n')
    bounds = ("--constraint", "fallbacks == 0", "--constraint", "compilations <= 3")
    document = document_of(tune_shapes("--traffic", str(log), "--objective", "total:60", *bounds, "--json"))
    trials = by_limit(document)
    assert trials[2]["violations"] == {"fallbacks == 0": 1}
    assert trials[9]["violations"] == {"compilations <= 3": 1}
    assert trials[None]["state"] == "measured"
    assert document["excluded_by"] == {"fallbacks == 0": 1, "compilations <= 3": 1}
    assert [trials[each]["number"] in document["confirmation"]["contestants"] for each in (None, 2, 9)] == [
        True, False, False,
    ]  # fmt: skip
    assert document["traffic"]["num_calls"] == 60


@pytest.mark.parametrize(
    ("shapes", "words"),
    [("columns=1..3", "--shapes columns: "), ("seed=1..3", "--shapes seed: the inputs of ")],
)
def test_a_dimension_must_be_one_of_the_models(tune_shapes, shapes, words):
    """What its function does not take, or does not show in its inputs, ends the study with a sentence."""
    result = tune_shapes("--shapes", shapes)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
