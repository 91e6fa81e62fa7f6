"""Inputs of models of PyTorch in a trial: whatever `torch.compile` takes is taken, and what is made up recompiles
nothing."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402
from autotune.trial.worker.calls import calls_for  # noqa: E402
from autotune.trial.worker.subjects import build_subject  # noqa: E402
from autotune.workload.workload import Workload  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

EAGER, COMPILED = {"execution": "eager"}, {"execution": "compile", "backend": "aot_eager"}

MODELS = '''
import torch
from torch import nn
from torch.nn.functional import gelu

class Potential(nn.Module):
    """Differentiates its energy within itself, by positions whose caller wants gradients recorded."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, pos):
        distance = (pos[:, None] - pos[None]).square().sum(-1).add(1e-3).sqrt()
        energy = gelu(self.net(distance[..., None])).sum()
        force, = torch.autograd.grad(energy, pos)
        return energy.detach(), -force

class Call(nn.Module):
    """A model of a function."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, each in modules.items():
            setattr(self, name, each)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)

def forces():
    return Potential().eval(), (torch.randn(6, 3).requires_grad_(),)

def bags():
    offsets = torch.tensor([0, 4, 4, 9, 15])
    words = torch.randint(0, 50, (20,))
    return Call(lambda m, w, o: m.bag(w, o), bag=nn.EmbeddingBag(50, 4, mode="sum")), (words, offsets)

def packed():
    def run(m, x, lengths):
        out, last = m.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0], last
    return Call(run, rnn=nn.GRU(3, 3, batch_first=True)), (torch.randn(4, 7, 3), torch.tensor([7, 5, 5, 2]))

def edges():
    tables = dict(users=nn.Embedding(9, 4), items=nn.Embedding(90, 4))
    pairs = torch.stack([torch.randint(0, 9, (80,)), torch.randint(0, 90, (80,))])
    return Call(lambda m, e: m.users(e[0]) * m.items(e[1]), **tables), (pairs,)

def process():
    half = torch.randn(5, 5)
    def run(m, x, covariance):
        return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), x, upper=False)
    return Call(run), (torch.randn(5, 2), half @ half.T + torch.eye(5))

def boxes():
    def run(m, boxes):
        assert (boxes[:, 2:] >= boxes[:, :2]).all(), "no boxes"
        return gelu(boxes)
    corner = torch.rand(6, 2)
    return Call(run), (torch.cat([corner, corner + torch.rand(6, 2)], 1),)

def time_step():
    return Call(lambda m, x, t: gelu(x) * torch.dot(m.table[t], m.table[0]), table=nn.Parameter(torch.randn(9, 3))), (
        torch.randn(4, 3), torch.tensor(7))

def ramp():
    return Call(lambda m, x, end: gelu(x) * torch.linspace(0, end, 3)), (torch.randn(4, 3), torch.tensor(0.8))

def strength():
    return Call(lambda m, x, t: gelu(x) * torch.exp(-t)), (torch.randn(4, 3), torch.tensor(0.8))

def images():
    def run(m, images):
        return [{"boxes": gelu(m.body(each[None]))[0], "labels": None} for each in images]
    return Call(run, body=nn.Conv2d(3, 2, 3)), ([torch.rand(3, 8, 8), torch.rand(3, 6, 9)],)

def batch():
    given = {"x": torch.randn(3), "scale": (2.0,), "id": "a"}
    return Call(lambda m, batch: gelu(batch["x"]) * batch["scale"][0]), (given,)

def float8():
    return Call(lambda m, q, s: gelu(q.float() * s)), (torch.randn(4, 3).to(torch.float8_e4m3fn), torch.ones(4, 1))

def quantised():
    x = torch.quantize_per_tensor(torch.randn(4, 3), 0.05, 128, torch.quint8)
    return Call(lambda m, q: gelu(q.dequantize())), (x,)

def sparse_csr():
    x, _ = sparse_coo()[1]
    return sparse_coo()[0], (x, torch.eye(6).roll(1, 0).to_sparse_csr())

def sparse_coo():
    return Call(lambda m, x, a: gelu(torch.sparse.mm(a, x))), (torch.randn(6, 2), torch.eye(6).roll(1, 0).to_sparse())

def complex64():
    return nn.Linear(3, 3, dtype=torch.complex64), (torch.randn(4, 3, dtype=torch.complex64),)

def jagged():
    rows = [torch.randn(n, 3) for n in (5, 9, 2)]
    return Call(lambda m, x: gelu(x) * 2), (torch.nested.nested_tensor(rows, layout=torch.jagged),)

def channels_last():
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    return Call(lambda m, x: gelu(m.body(x)), body=nn.Conv2d(3, 2, 3)), (x,)

def expanded():
    return Call(lambda m, x, y: gelu(x + y)), (torch.randn(4, 3), torch.randn(1, 3).expand(4, 3))

def one_object():
    x = torch.randn(4, 3)
    return Call(lambda m, x, y: gelu(x) + y["x"]), (x, {"x": x})

def marked():
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    return Call(lambda m, x: gelu(x)), (x,)
'''
NAMES = [line.split()[1][:-3] for line in MODELS.splitlines() if line.startswith("def ")]


@pytest.fixture
def backend_and_subject(tmp_path, monkeypatch):
    """The subject of one of the models, built as a trial builds it."""
    (tmp_path / "inputs_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    sys.modules.pop("inputs_models", None)

    def build(name: str) -> tuple[Workload, TorchBackend, Any]:
        torch._dynamo.reset()
        backend = TorchBackend()
        backend.prepare("cpu", 0)
        model = f"inputs_models:{name}"
        workload = Workload(
            model=model, reference=model, framework="torch", device="cpu", search_path=str(tmp_path), seed=0
        )
        return workload, backend, build_subject(workload, backend)

    return build


def seen_under(config: dict[str, str], workload: Workload, backend: TorchBackend, subject: Any) -> tuple[Any, Any]:
    """What a trial of the config sees. What is made up must be taken."""
    task = calls_for(workload, replace(subject, derived_may_fail=False), backend)
    with task.recording():
        step = task.compile(Config.model_validate(config), UndoLog())
        return task, task.observe(step, subject.inputs[0].call(step))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_compared_on_two_inputs_and_recompiles_for_none(backend_and_subject, name):
    """The untuned model takes what is made up, which gives other outputs; compiled code gives the same, made once."""
    task, reference = seen_under(EAGER, *backend_and_subject(name))
    task.gate.refuse_unusable(reference, 1e-3)
    example, other, _ = ([part.array for part in call.parts] for call in reference.calls)
    assert any((x != y).any() for x, y in zip(example, other, strict=True))
    workload, backend, subject = backend_and_subject(name)
    task, seen = seen_under(COMPILED, workload, backend, subject)
    assert max(task.gate.errors(reference, seen, 1e-3)) < 1e-3
    assert backend.diagnose(subject.model, Config.model_validate(COMPILED)).recompiles == ()


def test_gradients_are_recorded_where_an_input_requires_them(backend_and_subject):
    """In the untuned trial and in a compiled one, and the signature says so, for a job's sake."""
    _, backend, subject = backend_and_subject("forces")
    assert subject.signature.records_gradients
    assert backend.input_gradients
    assert all(each.positional[0].requires_grad and each.positional[0].is_leaf for each in subject.inputs)
    _, backend, subject = backend_and_subject("strength")
    assert not subject.signature.records_gradients
    assert not backend.input_gradients
