"""A stream of shapes through the real compilers, in real trials: what is compiled, and where eager takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Axis, Measurement
from autotune.measure.sampling import SamplingPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.traffic import parse_shapes
from autotune.workload.workload import Workload

TORCH_MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, tokens):
        encoded = torch.tanh(self.linear(tokens))
        return encoded, encoded.sum(0)

def build(seq=4):
    torch.manual_seed(0)
    return {"model": Model().eval(), "inputs": torch.randn(seq, 64), "padding": {"seq": 0}}
"""

MINDSPORE_MODEL = """
import mindspore
import numpy as np

class Model(mindspore.nn.Cell):
    def __init__(self):
        super().__init__()
        self.linear = mindspore.nn.Dense(8, 8)

    def construct(self, tokens):
        return mindspore.ops.tanh(self.linear(tokens))

def build(seq=4):
    return Model(), mindspore.Tensor(np.random.default_rng(0).normal(size=(seq, 8)).astype(np.float32))
"""

PLAN = SamplingPlan(max_warmup_s=0.2, max_sampling_s=0.1)


def trial_of(tmp_path: Path, framework: str, source: str, config: dict, *, shapes: str, num_calls: int) -> Measurement:
    """The config's trial, after the untuned model's, which leaves the reference."""
    model = tmp_path / "model.py"
    model.write_text(source)
    traffic = parse_shapes([shapes])
    workload = Workload(
        model="m", reference=f"{model}:build", arguments=traffic.largest, framework=framework, device="cpu",
        traffic=traffic, stream_calls=num_calls, search_path=str(tmp_path),
    )  # fmt: skip
    untuned = {"execution": "eager" if framework == "torch" else "pynative"}
    with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as runner:
        for name, settings in {"untuned": untuned, "trial": config}.items():
            request = TrialRequest(
                schema=1, number=0, workload=workload, config=Config(settings), untuned=name == "untuned",
                tolerance=1e-3, reference=str(tmp_path / "reference.npz"), cache=str(tmp_path / "cache" / name),
                cold=True, sampling=PLAN, limits=Limits(),
            )  # fmt: skip
            outcome = runner.run(TrialFolder(tmp_path / name), request)
            assert isinstance(outcome, Measurement), outcome
    return outcome


class TestTorch:
    """On the backend `aot_eager`, which captures as every other and generates no code."""

    pytestmark = pytest.mark.torch

    @pytest.fixture(autouse=True)
    def _needs_torch(self, no_toolchain):
        pytest.importorskip("torch")

    def measured(self, tmp_path, **config):
        settings = {"execution": "compile", "backend": "aot_eager", **config}
        return trial_of(tmp_path, "torch", TORCH_MODEL, settings, shapes="seq=3..12", num_calls=20)

    @pytest.mark.slow
    def test_dynamic_shapes_are_compiled_once(self, tmp_path):
        """One graph serves all ten; nothing that is checked adds another, and what was found of the axes is kept."""
        measured = self.measured(tmp_path, dynamic=True)
        assert (measured.replay.num_compilations, measured.replay.num_fallbacks) == (1, 0)
        assert measured.diagnosis.num_graphs == 1
        assert measured.diagnosis.num_recompiles == 0
        seq = Axis(dimension="seq", leaf=0, axis=0)
        tokens = seq.model_copy(update={"name": "tokens"})
        assert (measured.replay.inputs, measured.replay.outputs, measured.replay.padding) == (
            (tokens,),
            (seq,),
            {"seq": 0},
        )
        assert sum(measured.replay.cold_s) > len(measured.replay.stream) * measured.steady_call_s
        assert len(measured.samples.latency_s) % len(measured.replay.stream) == 0

    @pytest.mark.slow
    def test_more_compilations_than_dynamo_keeps_records_of(self, tmp_path):
        """It keeps 64; 66 shapes, each compiled for, are counted to the last one."""
        source = TORCH_MODEL.replace("import torch\n", "import torch\nimport torch._dynamo\n", 1).replace(
            "    torch.manual_seed(0)\n",
            "    torch.manual_seed(0)\n    torch._dynamo.config.recompile_limit = 100\n",
            1,
        )
        settings = {"execution": "compile", "backend": "eager", "dynamic": False}
        measured = trial_of(tmp_path, "torch", source, settings, shapes="seq=2..67", num_calls=66)
        assert (measured.replay.num_compilations, measured.replay.num_fallbacks) == (66, 0)
        assert measured.diagnosis.num_recompiles == 65


@pytest.mark.mindspore
def test_mindspore_compiles_for_each_shape(tmp_path):
    """A graph for every new shape, counted call by call; there is no limit that eager execution begins at."""
    pytest.importorskip("mindspore")
    measured = trial_of(tmp_path, "mindspore", MINDSPORE_MODEL, {"execution": "jit"}, shapes="seq=3..5", num_calls=6)
    replay = measured.replay
    assert (replay.num_compilations, replay.num_fallbacks) == (3, 0)
    assert [replay.compiled_for(index) for index in range(3)] == [1, 1, 1]
    assert measured.diagnosis.num_recompiles == 2
