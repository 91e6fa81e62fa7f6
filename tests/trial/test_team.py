"""A training trial of several ranks: real processes of one data-parallel job, with the reference of one process."""

from __future__ import annotations

import pytest

from autotune.errors import InputError, InvalidConfigError, SetupError
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.planning.manifest import require_team, variables_of
from autotune.question.question import Question
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.further import error_of
from autotune.trial.worker.main import failure_of
from autotune.trial.worker.team import RANK_VARIABLE
from tests.conftest import QUICK_BUDGET, own_children
from tests.trial.test_training import run_steps

__all__ = ["run_steps"]

pytestmark = pytest.mark.torch

MODEL = f"""
import os, torch
from torch import nn
RANK = int(os.environ.get({RANK_VARIABLE!r}, 0))

def parts(fault="none", dropout=0.0):
    if fault == "raises" and RANK == 1:
        raise ValueError("rank 1 has no disk")
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, 4))
    inputs, targets = torch.randn(12, 8), torch.randint(0, 4, (12,))
    if fault == "another batch" and RANK == 1:
        inputs = 2 * inputs

    calls = []

    def loss(model, x, y):
        calls.append(RANK)
        if fault == "fails later" and len(calls) == 3 and RANK == 1:
            raise ValueError("the third step fails")
        return nn.functional.cross_entropy(model(x), y)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {{"model": model, "inputs": inputs, "targets": targets, "loss": loss, "optimizer": optimizer}}
"""
COMPILED = {"execution": "compile", "backend": "aot_eager"}
UNTUNED = {"execution": "eager"}


@pytest.fixture
def run_ranks(run_steps):
    """Outcomes of the untuned step by one process, and of configs by so many ranks, which are compared with it."""

    def run(*configs, ranks=2, fault="none", dropout=0.0):
        return run_steps(
            MODEL, *configs, framework="torch", untuned=UNTUNED, arguments={"fault": fault, "dropout": dropout},
            ranks=ranks, sampling=QUICK_BUDGET.sampling,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_ranks_give_what_one_process_gives(run_ranks, dropout):
    """The mean of the gradients of equal batches is the gradient: losses and weights meet the reference."""
    alone, untuned, compiled = run_ranks(UNTUNED, COMPILED, dropout=dropout)
    for outcome in (alone, untuned, compiled):
        assert isinstance(outcome, Measurement), outcome
    assert compiled.relative_error < 1e-5
    assert not own_children()


def test_a_rank_with_another_batch_is_seen(run_ranks):
    """The gate would find a mean that is not one process's."""
    _, ranks = run_ranks(UNTUNED, fault="another batch")
    assert isinstance(ranks, Failure)
    assert ranks.reason is Reason.WRONG_RESULT


@pytest.mark.parametrize(
    ("fault", "config", "words"),
    [
        ("raises", UNTUNED, "rank 1: ValueError: rank 1 has no disk"),
        ("fails later", COMPILED, "rank 1: ValueError: the third step fails"),
    ],
)
def test_the_rank_that_failed_is_named(run_ranks, fault, config, words):
    """The others only see that a connection has ended."""
    _, outcome = run_ranks(config, fault=fault)
    assert isinstance(outcome, Failure)
    assert words in outcome.error
    assert not own_children()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongResultError("the loss is 3", 0.0), Reason.WRONG_RESULT),
        (InvalidConfigError("no such knob"), Reason.INVALID),
        (SetupError("no disk"), Reason.SETUP),
        (MemoryError("too little"), Reason.OUT_OF_MEMORY),
        (ValueError("the third step fails"), Reason.RUN_ERROR),
    ],
)
def test_what_another_process_failed_with_fails_this_one_alike(make_request, error, reason):
    """The same reason and figure, and its kind is named once, whatever process says it."""
    there = failure_of(error, Stage.RUN, make_request(), None, evidence="there")
    here = failure_of(error_of(there, "rank 1: "), Stage.RUN, make_request(), None, evidence="here")
    assert (there.reason, here.reason, here.relative_error) == (reason, reason, there.relative_error)
    assert f"rank 1: {there.error if reason is Reason.RUN_ERROR else error}" in here.error
    assert here.error.count(type(error).__name__) == there.error.count(type(error).__name__)


@pytest.mark.parametrize(
    ("question", "framework", "device", "words"),
    [
        ({"task": "infer"}, "torch", "cpu", "training steps"),
        ({"task": "train"}, "mindspore", "cpu", "mindspore on cpu"),
        ({"task": "train"}, "torch", "gpu", "torch on gpu"),
        ({"task": "train", "on": "ray"}, "torch", "cpu", "one machine"),
    ],
)
def test_where_ranks_cannot_be_had(question, framework, device, words):
    """Each in a sentence, before anything runs."""
    with pytest.raises(InputError, match=words):
        require_team(Question(build=("m",), ranks=2, **question), framework, device)


def test_ranks_have_a_thread_each_unless_the_user_says_otherwise():
    """As torchrun starts them."""
    assert variables_of(Question(build=("m",), ranks=2), "torch", "cpu") == {"OMP_NUM_THREADS": "1"}
    two = {"OMP_NUM_THREADS": "2"}
    assert variables_of(Question(build=("m",), ranks=2, env=two), "torch", "cpu") == two
