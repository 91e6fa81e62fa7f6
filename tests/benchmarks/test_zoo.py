"""The zoo: what its models are, what a record says of a run, and how runs are judged. Nothing is tuned here."""

from __future__ import annotations

import ast
import re

import pytest

from benchmarks import zoo
from benchmarks.processes import Ratio
from benchmarks.zoo import AnswerStep, Study
from benchmarks.zoo_job import arrays, with_inputs
from benchmarks.zoo_models import FUNCTIONS, MODELS


def trial(number: int, seconds: float | None) -> dict:
    outcome = None if seconds is None else {"samples": {"latency_s": [seconds, 9 * seconds, seconds]}}
    return {"number": number, "state": "lost" if seconds is None else "measured", "outcome": outcome}


def document(**told) -> dict:
    """What `tune --json` prints, as far as it is read."""
    return {
        "verdict": "undecided",
        "baseline": {"trial": 0, "latency_s": {"p50": 3.0}},
        "speedup": None,
        "trials": [trial(0, 3.0), trial(1, 2.0), trial(2, 1.5), trial(3, None)],
        "confirmation": None,
        **told,
    }


# The models


def test_models_are_named_once_and_are_where_they_are_said_to_be():
    """Files and functions are there, and what a library needs is pinned."""
    assert len({model.name for model in MODELS}) == len(MODELS) == 24
    for model in MODELS:
        place, _, function = model.model.rpartition(":")
        if place in ("hf", "timm"):
            continue
        tree = ast.parse((FUNCTIONS / place).read_text())
        defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {*model.arguments} <= {argument.arg for argument in defined[function].args.args}
    for folder in {model.folder for model in MODELS} - {None}:
        lines = (FUNCTIONS / f"{folder}.txt").read_text().splitlines()
        pinned = {line.partition("==")[0].replace("-", "_") for line in lines if not line.startswith("#")}
        assert {model.library for model in MODELS if model.folder == folder} <= pinned
        assert all(re.fullmatch(r"#.*|[\w-]+==[\d.]+", line) for line in lines)


# A run


def test_a_study_is_read_from_the_document():
    """The search's figure is that of its best trial; what was proven before the end is listed."""
    found = Study.of(document())
    assert (found.verdict, found.untuned_s, found.speedup, found.searched) == ("undecided", 3.0, None, 2.0)
    assert (found.num_trials, found.num_blocks, found.answers, found.why) == (3, 0, [], None)
    speedup = {"median": 2.0, "low": 1.5, "high": 2.5}
    step = {"after_s": 20.0, "trial": 2, "speedup": {**speedup, "median": 1.8}, "num_blocks": 2}
    confirmation = {"blocks": [[3.0, 1.5]] * 4, "why": None, "note": "small"}
    told = document(verdict="faster", speedup=speedup, answers=[step], confirmation=confirmation)
    found = Study.of(told)
    assert (found.speedup, found.num_blocks, found.why) == (Ratio(2.0, 1.5, 2.5), 4, "small")
    assert found.answers == [AnswerStep(20.0, 1.8, 2)]
    assert Study.of(document(trials=[trial(0, 3.0)])).searched is None


def test_cases_go_by_budget_and_are_those_that_were_asked_for():
    parser = zoo.BENCHMARK.parser()
    names = [case.name for case in zoo.cases(parser.parse_args(["--model", "mlp", "bert", "--budget", "none", "60s"]))]
    assert names == ["bert 60s", "mlp 60s", "bert none", "mlp none"]
    assert len(zoo.cases(parser.parse_args([]))) == 3 * len(MODELS)
    assert [case.name for case in zoo.cases(parser.parse_args(["--quick"]))] == ["bert 60s", "mlp 60s"]


# The job


@pytest.mark.parametrize(
    ("inputs", "seen"), [({"a": 1}, ((), {"a": 1})), ((1, 2), ((1, 2), {})), ([1], (([1],), {})), (1, ((1,), {}))]
)
def test_a_job_calls_with_all_kinds_of_inputs(inputs, seen):
    assert with_inputs(lambda *given, **named: (given, named), inputs)() == seen


def test_outputs_of_mindspore_are_waited_for_wherever_they_are():
    class Tensor:
        def asnumpy(self):
            return "there"

    assert arrays({"a": Tensor(), "b": (Tensor(), [Tensor()])}) == ["there", ["there", ["there"]]]
