"""A pipeline from `tune`, or from a job that was watched, to a job."""

from __future__ import annotations

import sys

import pytest
import yaml

from tests.conftest import REPOSITORY, TORCH_SPACE
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


LIVE_JOB = f"""
import logging, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import numpy, torch
from tests.stand_ins import pipelines

logging.basicConfig(format="%(message)s", stream=sys.stderr)
pipe, inputs = getattr(pipelines, sys.argv[1])()
made = []
for _ in range(3):
    torch.manual_seed(5)
    if isinstance(inputs, dict):
        made.append(pipe(**inputs, output_type="np").images)
    else:
        made.append([each["score"] for each in pipe(*inputs)])
numpy.save(sys.argv[2], numpy.asarray(made))
print("graphs", "torch._dynamo.utils" in sys.modules and torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "package", "model"),
    [
        ("stable_diffusion", "diffusers", "UNet2DConditionModel"),
        ("texts", "transformers", "BertForSequenceClassification"),
    ],
)
def test_a_live_pipeline_is_seen_tuned_and_applied(
    cli, cli_process, no_toolchain, budget_file, tmp_path, pipeline, package, model
):
    """A job that says nothing of autotune is watched; what took its time is tuned, and the job makes the same pictures
    and scores tuned, each time."""
    numpy = pytest.importorskip("numpy")
    pytest.importorskip(package)
    (tmp_path / "job.py").write_text(LIVE_JOB)
    (tmp_path / "space.yaml").write_text(TORCH_SPACE.replace("aot_eager", "inductor"))
    job = ("--", sys.executable, "job.py", pipeline)
    watched = cli_process("watch", "-o", "seen", *job, "untuned.npy", timeout=600)
    assert (watched.returncode, watched.stdout) == (0, "graphs 0\n"), watched.stderr
    quickly = ("--space", "space.yaml", "--trials", "2", "--budget", str(budget_file))
    studied = cli("tune", f"seen/{model}", "--study", "s", *quickly)
    assert studied.returncode == 0, studied.stderr
    assert cli("export", "s", "--trial", "1", "-o", "best.yaml").returncode == 0
    tuned = cli_process("launch", "best.yaml", "--apply", *job, "tuned.npy", timeout=600)
    assert tuned.returncode == 0, tuned.stderr
    assert int(tuned.stdout.split()[1]) > 0, tuned.stderr
    assert "untuned" not in tuned.stderr
    untuned, drawn = (numpy.load(tmp_path / name) for name in ("untuned.npy", "tuned.npy"))
    numpy.testing.assert_allclose(drawn, untuned, rtol=1e-4, atol=1e-5)
    assert untuned.std() > 1e-4
