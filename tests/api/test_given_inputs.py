"""Inputs beside those of the model's function: in a file, or with a live model; and what a study says of them."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.answer.result import ONE_SHAPE
from autotune.api.given_model import named_model, split_inputs
from autotune.errors import InputError, StoreError
from autotune.plugins.diagnose import command as diagnosing
from autotune.question.question import Question
from autotune.workload.arguments import Arguments
from autotune_fake.backend import FakeBackend

MODEL = """
import numpy as np

def called(x, step):
    return x * step

def alone():
    return called

def tiny():
    return called, (np.ones(3), 2)
"""


@pytest.fixture
def calls_file(tmp_path):
    """A file of one call for each of the numbers."""

    def write(*steps):
        calls = [Arguments((np.full(4, 0.5), step)) for step in steps]
        FakeBackend().calls_file.write(calls, tmp_path / "calls.npz")
        return tmp_path / "calls.npz"

    return write


def test_a_study_is_made_with_a_file(tune, calls_file, model_file):
    """Results are compared on its calls; the same name with another content is another study."""
    model_file.write_text(MODEL)
    calls_file(3, 4)
    result = tune(f"{model_file}:alone", "calls.npz", study="s", trials=1)
    untuned = result.answer.untuned.measurement
    assert untuned.signature.inputs[0].shape == (4,)
    assert [said.partition(" was ")[0] for said in untuned.not_varied] == ["argument 1 (0.5 throughout)"]
    again = tune(f"{model_file}:alone", "calls.npz", study="s", trials=1)
    assert len(again.trials()) == 1
    calls_file(3, 5)
    with pytest.raises(StoreError, match=r"inputs \(SHA-256\)"):
        tune(f"{model_file}:alone", "calls.npz", study="s", trials=1)
    with pytest.raises(StoreError, match=r"inputs \(SHA-256\)"):
        autotune.resume("s", trials=2)


def test_what_never_varied_is_said_in_the_summary_and_in_the_export(tune, model_file):
    """Once for the study: the inputs are those of all its trials. A finalist's longer use varies numbers, and no
    texts."""
    content = MODEL.replace("x * step", "x * int(step)").replace("(np.ones(3), 2)", "(np.arange(3.0), '2')")
    model_file.write_text(content)
    result = tune(f"{model_file}:tiny", trials=2)
    said = "argument 2 ('2') was the same in all calls: compiled code may be made for that alone"
    assert result.summary(why=True).count(said) == 1
    assert result.export("best.yaml").evidence.not_varied == (said, ONE_SHAPE)
    assert said.replace("'", "''") in Path("best.yaml").read_text().replace("\n    ", " ")


def test_a_file_that_cannot_be_used(tune, calls_file, model_file, tmp_path):
    """One sentence, before anything is measured."""
    model_file.write_text(MODEL)
    with pytest.raises(InputError, match=r"inputs=.*none\.npz': No such file"):
        tune(f"{model_file}:alone", tmp_path / "none.npz")
    with pytest.raises(InputError, match="inputs and shapes"):
        tune(f"{model_file}:tiny", calls_file(1), shapes="step=1,2")


def test_further_inputs_go_with_a_live_model(torch, tmp_path):
    """They are saved beside the example; with a file of calls the model is saved alone. A function brings its own."""
    request = Question(study="live", device="cpu")
    model = torch.nn.Linear(4, 4)
    with named_model(model, [torch.ones(2, 4), torch.ones(3, 4)], request, tmp_path, lambda _: None) as named:
        file, _, function = named.build.rpartition(":")
    _, example, (further,) = runpy.run_path(file)[function]()
    assert (example.shape[0], further.shape[0]) == (2, 3)
    with_file = request.model_copy(update={"study": "filed", "inputs": tmp_path / "calls.pt"})
    with named_model(model, None, with_file, tmp_path, lambda _: None) as named:
        file, _, function = named.build.rpartition(":")
    assert isinstance(runpy.run_path(file)[function](), torch.nn.Linear)
    with pytest.raises(InputError, match="a function brings its own"):
        split_inputs("calls.pt", [1])


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_diagnose_takes_a_file_too(torch, tmp_path, monkeypatch):
    """As `tune` does: its request has the file, and the live model is saved alone."""
    heard = []
    monkeypatch.setattr(diagnosing, "examine", lambda request, *_: heard.append(request) or Found())
    diagnosing.diagnose(torch.nn.Linear(2, 2), tmp_path / "calls.pt", device="cpu")
    assert heard[0].inputs == tmp_path / "calls.pt"


class Found:
    """Stands for a diagnosis."""

    def model_copy(self, update):
        return self
