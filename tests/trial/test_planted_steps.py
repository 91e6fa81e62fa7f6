"""No wrong training step passes the checks of a study, and no right one is refused."""

from __future__ import annotations

import importlib
from itertools import islice
from pathlib import Path

import pytest

from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure import sketch
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY
from tests.trial.planted_steps import LATER, Fault, Judge, faults

FRAMEWORKS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "mindspore")]


@pytest.fixture(scope="module")
def judges():
    """`judges(framework, **arguments)`: what is planted there, and the checks of its model."""
    known = {}

    def judge(framework, **arguments):
        key = sketch.MOST_WHOLE, framework, *arguments.values()
        if key not in known:
            importlib.import_module(framework)
            planted = importlib.import_module(f"tests.trial.planted_steps_{framework}")
            workload = Workload(
                model="words", reference=f"{Path(planted.__file__)}:build", framework=framework, device="cpu",
                task="train", search_path=str(REPOSITORY), arguments=arguments,
            )  # fmt: skip
            known[key] = planted, Judge(load_backend(framework), workload, Config(planted.UNTUNED))
        return known[key]

    return judge


def trained(planted, subject):
    return planted.Trainer(subject.model, subject.work.loss, subject.work.optimizer)


def all_faults(planted, framework, optimizer):
    has_momentum = optimizer == "SGD"
    return list(faults(planted.WEIGHTS, planted.BUFFERS, has_momentum=has_momentum, has_none=framework == "torch"))


@pytest.mark.fast_cases("whole-SGD-11-torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("optimizer", "every"), [
    ("SGD", 11),
    ("SGD", 1),
    ("Adam", 1),
])  # fmt: skip
def test_no_wrong_step_passes(judges, sketches, framework, optimizer, every):
    """A gradient missing, zero, negated, doubled, of another place or step, none for rare rows, a weight or statistic
    that stays, updates or moments lost, another loss: from the first step on, from the second, or in the timed ones."""
    planted, judge = judges(framework, optimizer=optimizer, dropout=0.0)
    found = {
        fault: judge.verdict(lambda _, subject, fault=fault: fault.step(trained(planted, subject)))
        for fault in islice(all_faults(planted, framework, optimizer), 0, None, every)
    }
    assert [str(fault) for fault, why in found.items() if why is None] == []
    late = [why for fault, why in found.items() if fault.since == LATER]
    assert all("the timed steps" in why for why in late)


@pytest.mark.torch
@pytest.mark.parametrize("sketches", [True], indirect=True)
def test_what_is_large_stays_where_it_lies(judges, sketches, monkeypatch):
    """Weights and gradients: a copy of none is made on the host, and each gradient that is not kept whole is named."""
    from autotune.backends.torch.backend import TorchBackend
    from autotune.backends.torch.tensors import array_of

    planted, judge = judges("torch", optimizer="SGD", dropout=0.2)
    backend, task, copied = load_backend("torch"), judge.calls(is_used=False), []
    monkeypatch.setattr(TorchBackend, "to_array", lambda _, value: copied.append(value.numel()) or array_of(value))
    step = task.compile(Config(planted.UNTUNED), UndoLog())
    seen = task.observe(step, task.first(step, Config({}), backend.clock, 0.0), reference_tolerance=1e-3)
    assert max(copied) <= sketch.MOST_WHOLE
    large = [n for n, each in enumerate(seen.gradients, start=1) if len(each) > 1]
    assert len(large) == 3
    said = "of gradient {} of 9, which is large, a fixed sample and sums over all of it were compared"
    assert {said.format(n) for n in large} <= set(task.not_varied)


@pytest.mark.torch
def test_a_mask_that_is_repeated(judges):
    """All draws have one loss."""
    planted, judge = judges("torch", optimizer="SGD", dropout=0.2)

    def make(task, subject):
        step = task.compile(Config(planted.UNTUNED), UndoLog())
        return lambda *batch: (task._backend.seed(0), step(*batch))[1]

    assert "or the same in each call" in judge.verdict(make)


@pytest.mark.fast_cases("whole-SGD-0.0-0-torch", "whole-SGD-0.2-1-torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(("optimizer", "dropout"), [("SGD", 0.0), ("Adam", 0.0), ("SGD", 0.2)])
def test_no_right_step_is_refused(judges, sketches, framework, number, optimizer, dropout):
    """By the compilers of the framework, and by hand."""
    planted, judge = judges(framework, optimizer=optimizer, dropout=dropout)
    assert judge.untuned.why_unlike is None
    if number == 0:
        assert judge.verdict(lambda _, subject: Fault("nothing").step(trained(planted, subject))) is None
    if number < len(planted.COMPILERS):
        config = Config(planted.COMPILERS[number])
        assert judge.verdict(lambda task, _: task.compile(config, UndoLog())) is None
