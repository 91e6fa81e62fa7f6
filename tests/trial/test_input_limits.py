"""Which whole numbers the untuned model takes: its trial looks when all else is done, and loses nothing by it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.limits import InputLimits, Span
from autotune.measure.measurement import Measurement
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.calls import calls_for
from autotune.trial.worker.input_limits import look_for_limits
from autotune.trial.worker.subjects import build_subject
from autotune.workload.traffic import parse_shapes
from autotune.workload.workload import Workload

TABLES = """
import os
import numpy as np

class Tables:
    def __init__(self):
        self.words, self.places, self.calls = np.ones((50, 4)), np.ones((20, 4)), 0

    def __call__(self, ids, places):
        WATCH
        return self.words[ids] + self.places[places] * 2

def tiny():
    return Tables(), ((np.arange(6) * 7,), {"places": np.arange(6)})
"""
WORDS = InputLimits(name="argument 1", spans=(Span(lowest=-50, highest=49),))
PLACES = InputLimits(name="places", spans=(Span(lowest=-20, highest=19),))


@pytest.fixture
def untuned(tmp_path, make_request, model_file):
    """The outcome of the untuned model's trial in a real child."""

    def run(watch: str = "pass", **overrides: object) -> Measurement:
        model_file.write_text(TABLES.replace("WATCH", watch))
        with LocalBench({}, preload=True, log=tmp_path / "log") as bench:
            outcome = bench.run(TrialFolder(tmp_path / "trial"), make_request(**overrides))
        assert isinstance(outcome, Measurement), outcome
        return outcome

    return run


def test_a_trial_looks_where_it_is_asked_to(untuned):
    """The first trial of a study finds the limits of each input; any other leaves no word of them."""
    assert untuned(finds_limits=True).limits == (WORDS, PLACES)
    again = untuned()
    assert again.limits is None
    assert "limits" not in again.model_dump()


def test_a_model_that_dies_of_a_number_loses_no_measurement(untuned):
    """The outcome is written before, with the limits that were found until then."""
    assert untuned("if places.max() > 18: os.abort()", finds_limits=True).limits == (WORDS,)
    assert untuned("if ids.max() > 42: os.abort()", finds_limits=True).limits is None


def test_calls_without_end_are_ended():
    """A process that looks for limits ends by itself, whatever the model does with a number."""
    looking = (
        "import time; from autotune.trial.worker import input_limits as i; i._ALARM_S = 0.1\n"
        "with i.little_to_lose(0.0): time.sleep(60)"
    )
    ended = subprocess.run([sys.executable, "-c", looking], check=False, timeout=50)
    assert ended.returncode == -signal.SIGALRM


def test_a_study_hands_the_limits_to_its_export(tune_fake, cli, tmp_path, model_file):
    """The file of a study has what its untuned model takes."""
    model_file.write_text(TABLES.replace("WATCH", "pass"))
    assert tune_fake("--trials", "3").returncode == 0
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    assert "highest: 49" in (tmp_path / "best.yaml").read_text()


MODELS = """
import torch

class Kept(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.room = torch.nn.Embedding(40, 4), torch.zeros(3, 4)
        self.used = 0

    def forward(self, ids):
        self.room[self.used] = self.table(ids).mean(0)
        self.used += 1
        return self.room.sum(0)

def start(model):
    model.used = 0
    model.room.zero_()

def keeps(rows=4):
    return {"model": Kept(), "inputs": torch.arange(rows), "reset": start}

class Graph(torch.nn.Module):
    def forward(self, nodes, edges, kinds):
        return nodes[edges[0]] + nodes[edges[1]] + kinds.sigmoid()[:, None]

def graph(rows=6):
    edges = torch.stack([torch.arange(rows), torch.arange(rows).flip(0)]) % 3
    return Graph(), (torch.randn(rows, 3), edges, torch.zeros(rows, dtype=torch.long))

def step(classes=5):
    model = torch.nn.Linear(3, classes)
    loss = lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y)
    return {"model": model, "inputs": torch.randn(8, 3), "targets": torch.arange(8) % (classes - 1), "loss": loss}

def sized():
    return (lambda size: torch.zeros(int(size)).cumsum(0).sum() + 1), torch.tensor(64)

def floats():
    return torch.nn.Linear(3, 3), (torch.randn(2, 3),)
"""


@pytest.fixture
def found(tmp_path):
    """The limits of a PyTorch model, found in this process, by the name of the input."""

    def found(name: str, **fields: object) -> dict[str, InputLimits] | None:
        (tmp_path / "models.py").write_text(MODELS)
        where = {"reference": f"{tmp_path}/models.py:{name}", "search_path": str(tmp_path)}
        workload = Workload.model_validate(
            {"model": name, "arguments": {}, "framework": "torch", "device": "cpu", **where, **fields}
        )
        backend = load_backend("torch")
        backend.prepare("cpu", 0)
        calls = calls_for(workload, build_subject(workload, backend), backend)
        told: list[tuple[InputLimits, ...]] = []
        with calls.recording():
            step = calls.compile(Config.model_validate({"execution": "eager"}), UndoLog())
            look_for_limits(calls, step, backend, 0.1, told.append)
        return {one.name: one for one in told[-1]} if told else None

    return found


Found = Callable[..., dict[str, InputLimits] | None]


@pytest.mark.torch
def test_a_model_that_keeps_state_is_put_back_before_each_call(found: Found):
    """Its room for three calls is enough for all."""
    assert found("keeps") == {"argument 1": InputLimits(name="argument 1", spans=(Span(lowest=0, highest=39),))}


@pytest.mark.torch
def test_the_labels_of_a_training_step(found: Found):
    """A label that is no class ends the step; the one that the loss ignores does not."""
    labels = Span(lowest=0, highest=4, also=(-100,))
    assert found("step", task="train") == {"argument 2": InputLimits(name="argument 2", spans=(labels,))}


@pytest.mark.torch
def test_limits_that_follow_the_shape_are_left_to_the_job(found: Found):
    """Under traffic the number of nodes differs from call to call; what has no limit has none in any of them."""
    kinds = InputLimits(name="argument 3", spans=(Span(lowest=None, highest=None),))
    edges = InputLimits(name="argument 2", spans=(Span(lowest=-6, highest=5),))
    assert found("graph") == {"argument 2": edges, "argument 3": kinds}
    traffic = parse_shapes(("rows=4..12",))
    assert found("graph", arguments=traffic.largest, traffic=traffic, stream_calls=8) == {"argument 3": kinds}


@pytest.mark.torch
@pytest.mark.slow
def test_a_size_is_taken_as_far_as_it_was_tried(found: Found):
    """No call takes memory or time without end for the sake of a limit. Where time is over, there is none."""
    limits = found("sized") or {}
    assert all(span.highest is None or span.highest > 64 for one in limits.values() for span in one.spans)


@pytest.mark.torch
def test_nothing_is_called_where_there_are_no_whole_numbers(found: Found):
    """A trial of floats costs what it cost before."""
    assert found("floats") is None
