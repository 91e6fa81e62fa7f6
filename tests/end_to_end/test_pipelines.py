"""A pipeline from `tune` to a job."""

from __future__ import annotations

import pytest
import yaml

from tests.conftest import TORCH_SPACE
from tests.end_to_end.test_real_studies import job, studied

torch = pytest.importorskip("torch")

MODEL = """
import time

import torch


class Slow(torch.nn.Linear):
    def forward(self, x):
        if not torch.compiler.is_compiling():
            time.sleep(0.03)
        return torch.tanh(super().forward(x))


class Wrapped(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, *rest):
        return self.inner(x)


def call(parts, x):
    for step in range(3):
        x = x + parts.denoiser(x, torch.tensor(step))
    return parts.decoder(x)


def build(seed=0):
    torch.manual_seed(seed)
    return {
        "components": {"denoiser": Wrapped(Slow(4, 4)), "decoder": Wrapped(torch.nn.Linear(4, 4))}, "call": call,
        "inputs": (torch.randn(2, 4),), "regions": ["denoiser, decoder", "decoder"],
    }
"""
JOB = """
import json, sys
import torch, autotune
sys.path.insert(0, "models")
import pipe
built = pipe.build()
parts = built["components"]
holder = type("Holder", (), {})()
vars(holder).update(parts)
with torch.no_grad():
    expected = pipe.call(holder, *built["inputs"])
    tuned = autotune.load(sys.argv[1])
    assert tuned.apply(holder, check=True) is holder
    got = pipe.call(holder, *built["inputs"])
print(json.dumps({
    "error": float((expected - got).abs().max()),
    "states": {name: autotune.stats(getattr(holder, name)).state for name in parts},
    "changed": {name: getattr(holder, name) is not part for name, part in parts.items()},
}))
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_pipeline_is_tuned_exported_and_applied(cli, no_toolchain, tmp_path):
    """The whole call decides: what is faster compiled is compiled, and a job gets each component in its place."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "pipe.py").write_text(MODEL)
    (tmp_path / "space.yaml").write_text(TORCH_SPACE)
    asked = ("--model", "models/pipe.py:build", "--space", "space.yaml", "--trials", "3")
    document = studied(cli, tmp_path, "--framework", "torch", *asked)
    assert document["verdict"] == "faster", document
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    content = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert content["config"]["region"] == "denoiser, decoder"
    assert {part["path"]: part["calls"] for part in content["components"]} == {"denoiser": 3, "decoder": 1}
    said = job(JOB, tmp_path / "best.yaml")
    assert said["error"] < 1e-5
    assert said["states"] == {"denoiser": "tuned", "decoder": "tuned"}
    assert said["changed"] == {"denoiser": True, "decoder": True}
