"""What goes together in a question: each combination that is refused, with the sentence that says so."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from autotune.errors import InputError
from autotune.question.allows import APART, BY_WORK, Facts, Target, require_allowed
from autotune.question.question import Question
from autotune.workload.workload import Task

CPU = Target("torch", "cpu", generates=True, sets_cores=True)
GPU = Target("torch", "gpu", generates=True, sets_cores=True)
MINDSPORE = Target("mindspore", "cpu", generates=False, sets_cores=True)
SHAPES, LOG = {"shapes": ("rows=1,2",)}, {"traffic": "log.jsonl"}
REFUSED: list[tuple[dict[str, Any], Target | None, str]] = [
    ({**SHAPES, **LOG}, None, "shapes and traffic: give one of them"),
    ({"instances": 2, "on": "ray"}, None, "instances and on: instances share one machine"),
    *(({"inputs": "calls.pt", **shapes}, None, "results are compared on shapes of") for shapes in (SHAPES, LOG)),
    ({"arguments": {"rows": 3}, **SHAPES}, CPU, "arguments rows: the traffic says its sizes"),
    *(
        ({"objective": "throughput", **shapes}, CPU, "objective='throughput' and (shapes|traffic): calls of many")
        for shapes in (SHAPES, LOG)
    ),
    *(
        ({"constraints": f"{name} == 0"}, CPU, f"constraints='{name} == 0': it is counted over many shapes")
        for name in ("compilations", "fallbacks")
    ),
    ({"instances": "auto"}, CPU, "instances='auto': which number is best is a question of throughput"),
    ({"instances": "auto", **SHAPES}, CPU, "instances='auto': .* many shapes do not have"),
    ({"instances": 2, "objective": "throughput"}, GPU, "instances='2' and framework='torch', device='gpu': instances"),
]
BY_WORKS_WORDS: dict[str, dict[str, Any]] = {
    "shapes": SHAPES,
    "traffic": LOG,
    "inputs": {"inputs": "calls.pt"},
    "whole_step": {"whole_step": True},
    "instances": {"instances": 2, "objective": "throughput"},
    "ttft": {"objective": "ttft"},
    "tpot": {"constraints": "tpot <= 1s"},
    "target": {},
}


def _ask(given: dict[str, Any], target: Target | None) -> None:
    question = Question.of(given)
    texts = [("constraints", text) for text in question.constraints]
    if question.objective is not None:
        texts.append(("objective", question.objective))
    quantities = {text.split()[0]: f"{name}={text!r}" for name, text in texts}
    require_allowed(Facts(question, target, quantities=quantities, dimensions=("rows",) if question.shapes else ()))


@pytest.mark.parametrize(("given", "target", "words"), REFUSED)
def test_what_does_not_go_together(given: dict[str, Any], target: Target | None, words: str) -> None:
    """Both sides are named, and the tip names no field but as the user gives it."""
    with pytest.raises(InputError, match=words) as caught:
        _ask(given, target)
    assert caught.value.tip
    assert "{" not in caught.value.tip


@pytest.mark.parametrize("shapes", [{}, SHAPES, LOG], ids=["one shape", "shapes", "traffic"])
@pytest.mark.parametrize("objective", [None, "throughput", "p99", "total:100"])
@pytest.mark.parametrize("instances", [None, "auto", "2"])
def test_a_tip_leads_to_a_question_that_is_taken(instances: str | None, objective: str | None, shapes: Any) -> None:
    """Workers, a tail and shapes in all combinations: who does what the first error says meets no second one."""
    given = {"instances": instances, **shapes, **({"objective": objective} if objective else {})}
    is_refused = instances == "auto" and (bool(shapes) or objective != "throughput")
    if not is_refused and not (shapes and objective == "throughput"):
        _ask(given, CPU)
        return
    with pytest.raises(InputError) as caught:
        _ask(given, CPU)
    tip = caught.value.tip or ""
    advised = dict(re.findall(r"(\w+)='(\w+)'", tip)) or {"objective": "p99"}
    assert all(value in tip for value in advised.values())
    _ask({**given, **advised}, CPU)


def test_each_combination_has_its_case() -> None:
    """The table and the cases above are of one length."""
    assert len(REFUSED) == len(APART)


@pytest.mark.parametrize("name", BY_WORK)
def test_each_kind_of_work_allows_a_field_or_says_why_not(name: str) -> None:
    """The table is total: a new kind of work is a column without gaps."""
    assert set(BY_WORK[name]) == set(get_args(Task))
    target = MINDSPORE if name == "target" else CPU
    for task, why in BY_WORK[name].items():
        given = {**BY_WORKS_WORDS[name], "task": task}
        if why is None:
            _ask(given, target)
            continue
        with pytest.raises(InputError) as caught:
            _ask(given, target)
        assert f"task={task!r}: {why.reason}" in str(caught.value)
