"""Versions of a real Cell, through `autotune.load`, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.conftest import REPOSITORY

pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

JOB = """
import json, sys
import mindspore as ms, numpy as np
import autotune
from autotune import environment
from autotune.tuned.tuned_config import AdaptivePolicy
from autotune.backends.registry import framework_version
from autotune.backends.mindspore.backend import MindSporeBackend
from autotune.measure.measurement import structure_sha256
import yaml

class Net(ms.nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = ms.nn.Dense(8, 8)

    def construct(self, x):
        return ms.ops.relu(self.fc(x))

def of(rows):
    return ms.Tensor(np.linspace(-1, 1, 8 * rows, dtype=np.float32).reshape(rows, 8))

with open(sys.argv[1]) as file:
    content = yaml.safe_load(file)
here = environment.describe(device="CPU", variables={}).model_dump(mode="json")
content["environment"] = {**here, "framework_version": framework_version("mindspore")}
content["workload"]["signature"]["structure_sha256"] = structure_sha256(MindSporeBackend().parameters(Net()))
with open(sys.argv[1], "w") as file:
    yaml.safe_dump(content, file)

ms.set_seed(0)
net = Net().set_train(False)
expected = {rows: net(of(rows)).asnumpy() for rows in (1, 2, 3)}
error = 0.0
with autotune.load(sys.argv[1]).applied(net, on_mismatch="raise", adaptive=AdaptivePolicy(max_versions=2)) as tuned:
    for rows in (1, 2, 3):
        for _ in range(20):
            error = max(error, float(abs(tuned(of(rows)).asnumpy() - expected[rows]).max()))
    stats = autotune.stats(tuned).adaptive
print(json.dumps({
    "error": error, "compiled": stats.num_compiled, "evicted": stats.num_evicted, "failures": stats.num_failures,
    "stopped": stats.stopped, "calls": [each.num_eager + each.num_compiled for each in stats.shapes],
    "left": "construct" in vars(net), "after": float(abs(net(of(2)).asnumpy() - expected[2]).max()),
}))
"""


@pytest.mark.slow
def test_each_shape_its_own_graph(tmp_path):
    """Shapes are compiled as they earn it; MindSpore lets go of no graph, so past the bound the others stay eager."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="mindspore", verdict="faster", untuned={"execution": "pynative"})
    content["config"] = {"execution": "jit", "jit_level": "O0"}
    # As if compiling cost nothing: whether it is worth it here is not what is asked.
    content["evidence"]["best"]["compile_cold_s"] = 1e-6
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "job.py").write_text(JOB)
    child = subprocess.run(
        [sys.executable, "-P", str(tmp_path / "job.py"), str(tmp_path / "best.yaml")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert found["error"] < 1e-6
    assert found["after"] < 1e-6
    assert 1 <= found["compiled"] <= 2
    assert (found["evicted"], found["failures"]) == (0, 0)
    assert sum(found["calls"]) == 60
    assert not found["left"]
