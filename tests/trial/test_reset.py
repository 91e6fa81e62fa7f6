"""A model that keeps state from call to call, with a `reset` of its author's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from autotune.backends.undo import UndoLog
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import AutotuneError
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.sampling import SamplingPlan, take_samples
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.subject import NUM_IN_A_ROW
from autotune.trial.worker.subjects import build_subject
from autotune_fake.backend import FakeBackend

SUMMING = """
import numpy as np

class Summing:
    def __init__(self):
        self.total = np.zeros(3)
        self.seen = []

    def __call__(self, x):
        self.seen.append(self.total.sum())
        if self.total.sum() > MOST:
            raise IndexError("the table is full")
        self.total = self.total + x
        return self.total * 2

def reset(model):
    model.total = np.zeros(3)

def half(model):
    model.total = model.total * 0.5

MOST = 1e9

def tiny():
    return {"model": Summing(), "inputs": np.arange(1.0, 4.0), RESET}
"""
DECLARED = "'reset': reset"


@pytest.fixture
def run(tmp_path, make_request, model_file):
    """Outcomes of the untuned model and of a compiled config of it, in real children."""

    def run(declared: str, content: str = SUMMING, **overrides: object) -> list[Measurement | Failure]:
        model_file.write_text(content.replace("RESET", declared))
        with LocalBench({}, preload=True, log=tmp_path / "log") as bench:
            return [
                bench.run(TrialFolder(tmp_path / f"{number}"), make_request(each, **overrides))
                for number, each in enumerate([None, {"latency_ms": 1}])
            ]

    return run


@pytest.fixture
def calls(model_file, workload):
    """The calls of a trial in this process, with a step in place of the model's own."""

    def calls(make: Callable[[Any], Callable[..., Any]], declared: str = DECLARED):
        model_file.write_text(SUMMING.replace("RESET", declared))
        backend = FakeBackend()
        backend.prepare("cpu", 0)
        task = OneShape(workload, build_subject(workload, backend), backend)
        return task, make(task._subject.model)

    return calls


@pytest.mark.parametrize("precision", ["model", "float32"])
def test_each_call_that_is_compared_begins_in_the_same_state(run, precision):
    """The model is measured, and what was measured is said."""
    content = SUMMING.replace("np.arange(1.0, 4.0)", "np.arange(1, 4, dtype=np.float32)")
    for outcome in run(DECLARED, content, reference_precision=precision):
        assert isinstance(outcome, Measurement), outcome
        assert any("timed from the state that reset puts back" in sentence for sentence in outcome.not_varied)


def test_without_one_the_attribute_and_its_line_are_named_with_the_ways_out(run):
    untuned, _ = run("'padding': {}")
    line = 1 + SUMMING.splitlines().index("        self.total = self.total + x")
    assert f"its calls change model.total (tiny_model.py, line {line})" in untuned.error
    assert untuned.error.endswith("take it as an input and return it, or return a reset that puts it back")


def test_what_it_does_not_put_back_is_named(run):
    untuned, _ = run("'reset': half")
    assert re.search(r"its calls change model\.total \(.*\), and reset does not put that back", untuned.error)


def test_it_leaves_room_for_further_calls(run):
    """They are what shows whether a config hands the state on."""
    untuned, _ = run(DECLARED, SUMMING.replace("MOST = 1e9", "MOST = 0"))
    assert "fails at a further call after a reset (IndexError: the table is full)" in untuned.error
    assert f"room for {NUM_IN_A_ROW} calls in a row" in untuned.error


def constant(model):
    """Compiled code that has the state as a constant, and still writes it."""

    def step(x):
        model(x)
        return x * 2

    return step


def not_kept(model):
    """Compiled code that loses what it writes."""

    def step(x):
        before = model.total
        output = model(x)
        model.total = before
        return output

    return step


@pytest.mark.parametrize("make", [constant, not_kept])
def test_a_config_that_does_not_hand_the_state_on_is_wrong(calls, make):
    """Though each call from a state that was just put back is right."""
    task, step = calls(lambda model: model)
    reference = task.observe(step)
    task.gate.refuse_unusable(reference, 1e-3)
    assert len(reference.calls) == NUM_IN_A_ROW + 2
    again, step = calls(lambda model: model)
    again.gate.errors(reference, again.observe(step), 1e-3)
    task, step = calls(make)
    with pytest.raises(WrongResultError, match="in call 2 after a reset, output"):
        task.gate.errors(reference, task.observe(step), 1e-3)


def test_inputs_are_counted_without_the_further_calls(calls):
    """In messages: the second input is the one that was made of the example."""
    task, step = calls(lambda model: model)
    reference = task.observe(step)

    def wrong(model):
        return lambda x: model(x) * (1 if x[0] > 0.9 else 2)

    task, step = calls(wrong)
    with pytest.raises(WrongResultError, match="on input 2 of 3"):
        task.gate.errors(reference, task.observe(step), 1e-3)


def test_every_call_that_is_timed_begins_in_that_state(calls):
    """Those of the warm-up and those between samples too, and calls are timed one by one."""
    task, step = calls(lambda model: model)
    plan = task.sampling(SamplingPlan(max_samples=5, calls_per_sample=8, min_sampling_s=0.02, max_sampling_s=0.1))
    assert plan.calls_per_sample == 1
    step.seen.clear()
    take_samples(task.one_pass(step, plan.calls_per_sample), plan)
    task.example(step)()
    assert len(step.seen) > 5
    assert set(step.seen) == {0.0}
    assert task.launch(step) is None


def test_a_config_is_compiled_for_that_state(calls):
    """As for that of a job's first call."""
    task, _ = calls(lambda model: model)
    model = task._subject.model
    model(model.total + 1)
    task.reset()
    step = task.compile(Config({}), UndoLog())
    assert step(model.total + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("declared", "task", "words"),
    [
        ("'reset': 3", "infer", "returned an int as reset"),
        (
            f"{DECLARED}, 'loss': print, 'optimizer': 1",
            "train",
            "'reset' that .* returned cannot be used, since the loss can do that",
        ),
    ],
)
def test_what_is_none_is_one_sentence(model_file, workload, declared, task, words):
    model_file.write_text(SUMMING.replace("RESET", declared))
    with pytest.raises(AutotuneError, match=words):
        build_subject(workload.model_copy(update={"task": task}), FakeBackend())
