"""`autotune.load(...).apply(cell)` on a real Cell, in a process of its own: what a job holds, and how it is undone."""

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
import json, logging, sys
import mindspore as ms, numpy as np
import yaml
import autotune
from autotune import environment
from autotune.backends.mindspore.backend import MindSporeBackend
from autotune.measure.measurement import structure_sha256

class Net(ms.nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = ms.nn.Dense(8, 8)
        self.size = 8

    def construct(self, x):
        if self.training:
            return self.fc(x) + 1
        return ms.ops.relu(self.fc(x))

class Counting(Net):
    def __init__(self):
        super().__init__()
        self.count = ms.Parameter(ms.Tensor(0, ms.float32), name="count", requires_grad=False)

    def construct(self, x, cache):
        count = ms.ops.assign_add(self.count, ms.Tensor(1, ms.float32))
        written = ms.ops.assign_add(cache, ms.Tensor(1, ms.float32))
        return self.fc(x) * count * written

def checked(path):
    # A Cell that was never called, and one that writes to a Parameter and to an input.
    x, cache = ms.Tensor(np.ones((4, 8), np.float32)), ms.Parameter(ms.Tensor(0, ms.float32), name="cache")
    cells, outputs, said = [Net().set_train(False), Counting().set_train(False)], [], []
    for cell, inputs in zip(cells, [(x,), (x, cache)]):
        tuned = autotune.load(path).apply(cell, check=True, on_mismatch="apply")
        outputs.append([tuned(*inputs).asnumpy() for _ in range(2)])
        said.append([e.message for e in autotune.stats(tuned).events if "checked" in e.message or "wrong" in e.message])
    fresh, counting = cells
    wanted = counting.fc(x).asnumpy()
    right = [bool(np.allclose(got, wanted * n * n, atol=1e-5)) for n, got in enumerate(outputs[1], 1)]
    return {"said": said, "right": right, "counts": [float(counting.count.asnumpy()), float(cache.asnumpy())]}

def as_of_here(path):
    content = yaml.safe_load(open(path).read())
    here = environment.describe(device="CPU", variables={}).model_dump(mode="json")
    content["environment"] = {**here, "framework_version": ms.__version__}
    content["workload"]["signature"]["structure_sha256"] = structure_sha256(MindSporeBackend().parameters(Net()))
    with open(path, "w") as file:
        yaml.safe_dump(content, file)

def job(path):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("autotune").addHandler(handler)
    ms.set_seed(0)
    net, x = Net().set_train(False), ms.Tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
    expected, mode = net(x).asnumpy(), ms.get_context("mode")
    loaded = autotune.load(path)
    with loaded.applied(net, check=True) as tuned:
        outputs = [tuned(x).asnumpy() for _ in range(3)]
        weight = ms.Tensor(net.fc.weight.asnumpy())
        net.fc.weight.set_data(weight * 2)
        other = float(np.abs(tuned(x).asnumpy() - net(x).asnumpy()).max())
        net.fc.weight.set_data(weight)
        names = list(tuned.parameters_dict())
        # Used inside another Cell, MindSpore renames a Cell's parameters.
        inside = list(ms.nn.SequentialCell(tuned, ms.nn.Dense(8, 1)).parameters_dict())
        stats = autotune.stats(tuned)
        found = {
            "mode": ms.get_context("mode"),
            "error_of_other_weights": other,
            "error": max(float(abs(each - expected).max()) for each in outputs),
            "is_net": isinstance(tuned, Net), "name": type(tuned).__name__, "size": tuned.size,
            "names": names, "inside": inside,
            "state": stats.state, "num_compiles": stats.num_compiles, "events": [e.message for e in stats.events],
        }
    after = {"same": bool((net(x).asnumpy() == expected).all()), "mode": ms.get_context("mode") == mode,
             "class": type(net) is Net, "unwrapped": "construct" not in vars(net)}
    return {**found, "after": after, "said": list(said)}

ms.set_device("CPU") if hasattr(ms, "set_device") else ms.set_context(device_target="CPU")
as_of_here(sys.argv[1])
print("\\n" + json.dumps({**job(sys.argv[1]), "checked": checked(sys.argv[1])}), flush=True)
__import__("os")._exit(0)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB)
    return path


def said(script, *arguments):
    """MindSpore parses source files, so that a script must be one; PyNative's first operator may crash on a CPU."""
    for _ in range(4):
        child = subprocess.run(
            [sys.executable, str(script), *map(str, arguments)], cwd=script.parent, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"}, check=False,
        )  # fmt: skip
        if child.returncode >= 0:
            break
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.fixture
def exported(tmp_path):
    """An export for `Net` under a config."""

    def exported(config, tolerance=None):
        content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
        content.update(framework="mindspore", verdict="faster", config=config, untuned={"execution": "pynative"})
        content["workload"]["tolerance"] = tolerance
        content["workload"]["signature"]["inputs"] = [{"shape": [4, 8], "dtype": "Float32"}]
        path = tmp_path / "best.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return exported


CONFIGS = [{"execution": "graph"}, {"execution": "jit", "capture": "ast", "jit_level": "O0", "fullgraph": False}]


@pytest.mark.fast_cases("jit")
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["execution"])
def test_a_tuned_cell(script, exported, config):
    """A Cell of the same class, compiled and right, for as long as the block lasts, with other weights too; then all is
    as before. A checked call that writes to Parameters is made once."""
    found = said(script, exported(config))
    assert found["events"] == [] == found["said"]
    assert max(found["error"], found["error_of_other_weights"]) < 1e-5
    assert (found["is_net"], found["name"], found["size"]) == (True, "Net", 8)
    assert found["names"] == ["fc.weight", "fc.bias"]
    assert found["inside"][:2] == ["0.fc.weight", "0.fc.bias"]
    assert found["num_compiles"] >= 1
    assert found["mode"] == 1  # Graph mode would hold for all Cells of the process.
    assert found["after"] == {"same": True, "mode": True, "class": True, "unwrapped": True}
    unchecked = "a call changes the model's inputs or its state: its first outputs cannot be checked"
    assert found["checked"] == {"said": [[], [unchecked]], "right": [True, True], "counts": [2, 2]}


@pytest.mark.slow
def test_half_precision_is_caught(script, exported):
    """Mixed precision leaves a tight tolerance: the first call is answered untuned, with one line."""
    config = {"execution": "pynative", "amp_level": "O3", "amp_dtype": "float16"}
    found = said(script, exported(config, tolerance=1e-6))
    assert found["state"] == "untuned"
    assert found["error"] == 0
    assert len(found["said"]) == 1
    assert "the first outputs are wrong" in found["said"][0]
    assert (found["is_net"], found["size"], found["after"]["same"]) == (True, 8, True)
