"""What a config changes outside the compiled code is put back by `UndoLog.undo`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")


def test_the_last_change_first():
    """Changes are undone in reverse order, once; a change that fails is none."""
    seen: list[str] = []
    changes = UndoLog()
    changes.make(lambda: seen.append("+a"), lambda: seen.append("-a"))
    changes.make(lambda: seen.append("+b"), lambda: seen.append("-b"))
    with pytest.raises(ZeroDivisionError):
        changes.make(lambda: 1 / 0, lambda: seen.append("never"))
    changes.undo()
    changes.undo()
    assert seen == ["+a", "+b", "-b", "-a"]


def test_torch_puts_the_process_back():
    """Threads and matmul precision: as before. The model is never touched, nor are the compiler's own switches."""
    import torch._inductor.config as inductor

    from autotune.backends.torch.apply import apply

    def state():
        return [torch.get_num_threads(), torch.get_float32_matmul_precision()]

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    weights = {name: (each, each.clone()) for name, each in model.state_dict(keep_vars=True).items()}
    torch.set_num_threads(2)
    before, changes = state(), UndoLog()
    config = {"execution": "compile", "precision": "bf16_autocast", "matmul_precision": "medium", "threads": 1}
    apply(model, Config({**config, "freezing": True, "allocator": "keep"}), changes)
    under = state()
    assert all(now != then for now, then in zip(under, before, strict=True))
    assert inductor.freezing is False
    assert all(each is weights[name][0] for name, each in model.state_dict(keep_vars=True).items())
    changes.undo()
    assert state() == before
    assert all(torch.equal(each, copy) for each, copy in weights.values())


LIGHTNING = """
import lightning_fabric.wrappers
import torch
from autotune.backends.torch.apply import apply
from autotune.backends.undo import UndoLog
from autotune.config import Config

assert hasattr(torch.compile, "__wrapped__")
for config in ({"freezing": True}, {"freezing": True, "region": "0"}, {"mode": "default"}):
    apply(torch.nn.Sequential(torch.nn.Linear(3, 3)).eval(), Config({"execution": "compile", **config}), UndoLog())
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lightning_fabric") is None, reason="needs Lightning")
def test_lightning_may_have_replaced_torch_compile():
    """Lightning's torch.compile deep-copies its arguments, with locks of ours in them: configs are applied still."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", LIGHTNING], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


MINDSPORE = """
import json, os, sys
import mindspore as ms, numpy as np
from autotune.backends.mindspore.apply import apply
from autotune.backends.undo import UndoLog
from autotune.config import Config

class Net(ms.nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = ms.nn.Dense(8, 8), ms.nn.LayerNorm((8,))
    def construct(self, x):
        return self.norm(self.fc(x))

def state():
    names = ["mode", "enable_graph_kernel", "graph_kernel_flags", "memory_optimize_level", "runtime_num_threads"]
    cell = ["construct" in vars(net), net._jit_config_dict, net._amp_level, "_autotune_around" in vars(net)]
    return [ms.get_context(name) for name in names] + [os.environ.get("MS_DEV_RUNTIME_CONF"), *cell]

ms.set_device("CPU") if hasattr(ms, "set_device") else ms.set_context(device_target="CPU")
net, x = Net().set_train(False), ms.Tensor(np.random.RandomState(0).randn(4, 8).astype(np.float32))
before, answer = state(), net(x).asnumpy()
for config in json.loads(sys.argv[1]):
    changes = UndoLog()
    cell = apply(net, Config(config), changes)
    tuned, under = cell(x).asnumpy(), state()
    assert under != before or (tuned != answer).any(), config
    changes.undo()
    assert state() == before, (config, state(), before)
    assert (net(x).asnumpy() == answer).all(), config
print("all back")
"""


@pytest.mark.fast_cases("one_cell")
@pytest.mark.parametrize(
    "configs",
    [
        [
            {"execution": "jit", "capture": "ast", "graph_pipeline": False},
            {"execution": "pynative", "amp_level": "O2"},
            {"execution": "jit", "capture": "ast", "amp_level": "O3"},
        ],
        [{"execution": "graph", "enable_graph_kernel": True, "memory_optimize_level": "O1"}],
    ],
    ids=["one_cell", "whole_process"],
)
def test_mindspore_puts_all_back(tmp_path, configs):
    """Context, variables, jit and mixed precision, in a process of its own: the Cell computes as before, to the bit."""
    pytest.importorskip("mindspore")
    script = tmp_path / "undo.py"
    script.write_text(MINDSPORE)
    command = [sys.executable, str(script), json.dumps(configs)]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert "all back" in done.stdout, done.stderr[-2000:]
