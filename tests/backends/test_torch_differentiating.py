"""Models that take gradients within their calls: said by the author, or found by a call; no other is called for it."""

from __future__ import annotations

import pytest
import yaml

import autotune
from autotune.errors import InputError
from autotune.planning.manifest import make_manifest
from autotune.question.question import Question
from autotune.trial.worker.subjects import build_subject
from tests.backends.test_torch_inputs import COMPILED, EAGER, seen_under
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.torch.backend import TorchBackend  # noqa: E402

pytestmark = pytest.mark.torch

MODEL = """
import torch

calls = 0


class Potential(torch.nn.Module):
    \"\"\"Asks for gradients of positions that its caller gives without, as those of libraries do.\"\"\"

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))

    def forward(self, pos):
        global calls
        calls += 1
        pos = pos.clone().requires_grad_(True)
        distance = (pos[:, None] - pos[None]).square().sum(-1, keepdim=True).add(1e-3).sqrt()
        energy = self.net(distance).sum()
        if not self.count:
            return energy.detach()
        force, = torch.autograd.grad(energy, pos)
        return energy.detach(), -force


def potential(**more):
    torch.manual_seed(0)
    return {"model": Potential(True).eval(), "inputs": torch.randn(6, 3), **more}


def declared():
    return potential(gradients=True)


def wrongly():
    return potential(gradients="yes")


def energies():
    return {"model": Potential(False).eval(), "inputs": torch.randn(6, 3)}


def plain():
    return {"model": torch.nn.Linear(3, 3).eval(), "inputs": torch.randn(6, 3)}
"""


WEIGHTS = """
import torch

def training():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), torch.randn(2, 4)

def evaluated():
    model, inputs = training()
    return model.eval(), inputs

def inference():
    with torch.inference_mode():
        return evaluated()

def nan():
    model, inputs = evaluated()
    torch.nn.init.constant_(model[0].bias, float("nan"))
    return model, inputs
"""


@pytest.fixture
def made(tmp_path, workload):
    """The file's model by the name of its function: workload, backend and subject."""
    path = tmp_path / "potential.py"
    path.write_text(MODEL)

    def made(name):
        there = {"framework": "torch", "model": name, "reference": f"{path}:{name}"}
        backend = TorchBackend()
        backend.prepare("cpu", 0)
        described = workload.model_copy(update=there)
        return described, backend, build_subject(described, backend)

    return made


@pytest.mark.parametrize("name", ["potential", "declared"])
def test_gradients_are_recorded_for_a_model_that_needs_them(made, name):
    """It runs untuned and compiled, with the same forces, and the signature says so for a job's sake."""
    torch._dynamo.reset()
    assert made(name)[2].signature.records_gradients
    task, reference = seen_under(EAGER, *made(name))
    task.gate.refuse_unusable(reference, 1e-3)
    task, seen = seen_under(COMPILED, *made(name))
    assert max(task.gate.errors(reference, seen, 1e-3)) < 1e-3


@pytest.mark.parametrize("name", ["energies", "plain"])
def test_a_model_that_runs_without_gradients_is_called_without(made, name):
    """Also one whose file speaks of them."""
    _, backend, subject = made(name)
    assert not subject.signature.records_gradients
    assert not backend.input_gradients


@pytest.mark.fast_cases("potential")
@pytest.mark.parametrize(("name", "offered"), [("potential", (False,)), ("plain", (False, True))])
def test_weights_of_a_model_that_records_gradients_are_not_frozen(tmp_path, name, offered):
    """Such a config would fail, so the study has none."""
    path = tmp_path / "potential.py"
    path.write_text(MODEL)
    manifest = make_manifest(Question(build=f"{path}:{name}", framework="torch", device="cpu"))
    (freezing,) = (knob for knob in manifest.space.knobs if knob.name == "freezing")
    assert freezing.values == offered


@pytest.mark.fast_cases("nan", "evaluated")
@pytest.mark.parametrize(
    ("name", "offered"),
    [("training", (False,)), ("inference", (False,)), ("nan", (False,)), ("evaluated", (False, True))],
)
def test_weights_that_cannot_be_constants_are_not_frozen(tmp_path, name, offered):
    """A model in training mode, inference tensors, a weight that is NaN: what is known of the model costs no trial."""
    path = tmp_path / "plain.py"
    path.write_text(WEIGHTS)
    manifest = make_manifest(Question(build=f"{path}:{name}", framework="torch", device="cpu"))
    (freezing,) = (knob for knob in manifest.space.knobs if knob.name == "freezing")
    assert freezing.values == offered


def test_a_model_of_a_file_that_does_not_speak_of_gradients_is_not_called():
    """A call costs, and may leave something behind."""
    backend = TorchBackend()
    assert not backend.differentiates(torch.nn.Linear(2, 2), lambda: pytest.fail("it was called"))


def test_another_failure_is_left_to_the_trial(made):
    """Which says it with the model's own line."""
    _, backend, subject = made("potential")
    assert not backend.differentiates(subject.model, lambda: subject.model("no tensor"))


def test_a_declaration_is_true_or_false(made):
    """Anything else is a mistake in the function."""
    with pytest.raises(InputError, match="returned a str as gradients; it must be True or False"):
        made("wrongly")


def test_a_job_keeps_such_a_model_tuned(made, tmp_path, caplog):
    """Its calls record gradients, as the trials did, though its weights require them."""
    torch._dynamo.reset()
    _, _, subject = made("potential")
    model, positions = subject.model, torch.randn(6, 3)
    path = export(tmp_path / "best.yaml", "torch", COMPILED, model, [positions])
    content = yaml.safe_load(path.read_text())
    content["workload"]["signature"]["records_gradients"] = True
    path.write_text(yaml.safe_dump(content))
    expected = model(positions)
    tuned = autotune.load(path).apply(model, on_mismatch="raise", margin=None)
    for got, wanted in zip(tuned(positions), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    assert autotune.stats(tuned).state == "tuned"
    assert not [each for each in caplog.records if each.name == "autotune"]
