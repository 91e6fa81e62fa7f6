"""The zoo: what its models are, what a record says of a run, and how runs are judged. Nothing is tuned here."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import replace

import pytest

from benchmarks import evidence, zoo
from benchmarks.evidence import REPOSITORY
from benchmarks.processes import Product, Ratio
from benchmarks.zoo import AnswerStep, Record, Study
from benchmarks.zoo_job import arrays, with_inputs
from benchmarks.zoo_models import FUNCTIONS, LIBRARIES, MODELS

STUDY = Study("faster", None, 2e-3, Ratio(2.0, 1.9, 2.1), 2.2, num_trials=5, num_blocks=4)


def record_of(name: str, budget: str = "120s", **told) -> Record:
    return Record(name, budget, "0123", **{"seconds": 50.0, "study": STUDY, **told})


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


def test_a_model_is_installed_where_its_library_can_be_found(tmp_path, monkeypatch):
    """In its own folder, without being imported."""
    model = replace(MODELS[0], library="no_such_library", folder="somewhere")
    monkeypatch.setattr("benchmarks.zoo_models.LIBRARIES", tmp_path)
    assert not model.is_installed
    (tmp_path / "somewhere").mkdir()
    (tmp_path / "somewhere" / "no_such_library.py").write_text("raise RuntimeError\n")
    importlib.invalidate_caches()
    assert model.is_installed
    assert LIBRARIES == REPOSITORY / "build" / "zoo"


def test_a_models_library_is_on_the_path_of_the_product(tmp_path, monkeypatch):
    """Beside what was there, but for another checkout."""
    told = {}
    (tmp_path / "checkout" / "autotune").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'checkout'}:/elsewhere")
    monkeypatch.setattr(
        "benchmarks.processes.subprocess.run",
        lambda *_, env, **__: told.update(env) or type("Done", (), {"stdout": "{}"}),
    )
    for libraries, path in ((tmp_path, f"{tmp_path}:/elsewhere"), (None, "/elsewhere")):
        with Product(libraries) as product:
            assert product.tune("bert", "torch", study="zoo", budget="60s") == {}
        assert told["PYTHONPATH"] == path


# A run


def test_a_missing_library_is_a_record():
    model = replace(MODELS[0], library="no_such_library")
    found = zoo.run(zoo.Case(model, "60s", pairs=1))
    assert found.is_missing
    assert not found.is_answered
    assert not zoo.holds(found)


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


def test_a_proof_comes_first_or_at_the_end():
    proven = replace(STUDY, answers=[AnswerStep(21.0, 1.7, 2), AnswerStep(40.0, 2.0, 3)])
    assert record_of("bert").first_proof_s == 50.0
    assert record_of("bert", study=proven).first_proof_s == 21.0
    assert record_of("bert", study=replace(STUDY, verdict="tie")).first_proof_s is None


@pytest.mark.parametrize(
    ("tuned_s", "is_kept"), [((1.0, 1.02), True), ((1.05, 1.06), True), ((1.3, 1.31), False), ((), None)]
)
def test_a_promise_is_kept_as_it_is_for_other_models(tuned_s, is_kept):
    """Within 3 % of 2x, or within 1.9 to 2.1x."""
    assert record_of("bert", pairs_s=[(2.02, each) for each in tuned_s]).is_kept is is_kept


def test_a_job_that_fails_breaks_the_promise():
    assert record_of("bert", job_failure="ImportError").is_kept is False
    assert record_of("bert", study=None, refusal="no").is_kept is None


def test_a_record_holds_at_its_commit_alone(monkeypatch):
    monkeypatch.setattr(evidence, "commit", lambda: "0123")
    assert zoo.holds(record_of("bert"))
    assert not zoo.holds(replace(record_of("bert"), commit="4567"))
    monkeypatch.setattr(evidence, "commit", lambda: "0123 with uncommitted changes")
    assert not zoo.holds(replace(record_of("bert"), commit="0123 with uncommitted changes"))


def test_cases_go_by_budget_and_are_those_that_were_asked_for():
    parser = zoo.BENCHMARK.parser()
    names = [case.name for case in zoo.cases(parser.parse_args(["--model", "mlp", "bert", "--budget", "none", "60s"]))]
    assert names == ["bert 60s", "mlp 60s", "bert none", "mlp none"]
    assert len(zoo.cases(parser.parse_args([]))) == 3 * len(MODELS)
    assert [case.name for case in zoo.cases(parser.parse_args(["--quick"]))] == ["bert 60s", "mlp 60s"]


# Judging


def test_goals_count_answers_gains_ends_and_promises():
    """All are met by a zoo in which every model is answered, in time, and gets what it was promised."""
    fine = [record_of(model.name, budget, pairs_s=[(2.0, 1.0)] * 2) for model in MODELS for budget in zoo.BUDGETS]
    goals = zoo.judge(fine)
    assert [goal.met for goal in goals] == [True] * 5
    assert [goal.found for goal in goals] == ["24 of 24", "24 of 24", "24 of 24", "48 of 48", "72 of 72 promises"]


def test_goals_name_what_fell_short():
    undecided = replace(STUDY, verdict="undecided", why="noise")
    records = [
        record_of("bert", "60s", study=undecided, seconds=70.0),
        record_of("bert", "120s", study=replace(undecided, speedup=None, searched=1.4)),
        record_of("gcn", "120s", study=None, is_missing=True),
        record_of("mlp", "120s", study=replace(undecided, verdict="tie", searched=1.1)),
        record_of("mlp", "none", pairs_s=[(2.0, 1.6)] * 2),
        record_of("t5", "120s", study=None, refusal="cannot"),
    ]
    found = {goal.text.partition(" at least")[0]: goal.found for goal in zoo.judge(records) if not goal.met}
    assert found == {
        "with 60 s": "0 of 1 (not bert); 23 were not run",
        "with 120 s": "1 of 4 (not bert, t5); not installed: gcn; 20 were not run",
        "with 120 s every gain of 1.3x and more is proven": "0 of 2 (not bert, mlp)",
        "a run ends within its budget": "3 of 4 (not bert 70 of 60 s)",
        "delivered within 3 % of the promise, or inside the promised interval": "0 of 1 promises (not mlp none)",
    }
    text = zoo.section(records)
    for words in ("not installed", "refused, 50 s", "`undecided` (1.40), end 50 s", "not run", "* bert, 60 s: noise"):
        assert words in text
    assert "* t5, 120 s: cannot" in text


def test_the_section_says_of_which_code_records_are():
    one, other = record_of("bert"), replace(record_of("mlp"), commit="4567")
    assert "Records by commit" not in zoo.section([one, one])
    assert "Records by commit: 2 at 0123, 1 at 4567." in zoo.section([one, one, other])


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
