"""Chosen Cells compiled by ms.jit inside PyNative: in a process of its own, as in a trial."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

NET = """
import sys
import numpy as np
import mindspore as ms
from mindspore import nn, ops
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError

class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(8, 8)
    def construct(self, x):
        return x + ops.tanh(self.fc(x))

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(3)])
        self.head = nn.Dense(8, 2)
    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

backend = load_backend("mindspore")
backend.prepare("cpu", 0)
x = ms.Tensor(np.ones((4, 8), np.float32))

def run(**settings):
    net, changes = Net().set_train(False), UndoLog()
    config = Config({"execution": "jit", **settings})
    expected = net(x).asnumpy()
    step = backend.compile(net, config, changes)
    assert step is not net
    assert not any("construct" in vars(each) for _, each in net.cells_and_names())
    assert np.allclose(step(x).asnumpy(), expected, atol=1e-5)
    said, program = backend.diagnose(net, config), backend.program(net, config)
    changes.undo()
    assert not any("construct" in vars(each) for _, each in net.cells_and_names())
    assert (net(x).asnumpy() == expected).all()
    return said, program
"""


EACH_BLOCK = """
said, program = run(region="blocks.*")
print(said.compiled, said.num_graphs, len(said.recompiles), program is not None)
"""
REFUSED = """
for settings in ({"region": "blocks"}, {"region": "whole but head"}, {"region": "x"},
                 {"execution": "graph", "region": "head"}):
    try:
        run(**settings)
    except InvalidConfigError as error:
        print(str(error).replace(" ", "_"))
"""


def in_process(folder, code):
    """What the code prints, in a process of its own."""
    script = folder / "regions.py"
    script.write_text(NET + code + 'print("done")\n')
    variables = {"PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env={**os.environ, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "done" in done.stdout, done.stderr[-3000:]
    return done.stdout.partition("done")[0].split()


@pytest.fixture(scope="module")
def by_ast(tmp_path_factory):
    """What one process says of the blocks, and of what it refuses."""
    return in_process(tmp_path_factory.mktemp("ast"), EACH_BLOCK + REFUSED)


def test_each_block_is_compiled(by_ast):
    """One graph for each block, none of which is a recompile, and the model computes as before."""
    assert by_ast[:4] == ["True", "3", "0", "True"]


@pytest.mark.slow
def test_regions_are_told_apart(tmp_path):
    """Equal code that runs in other Cells is another program; two texts for the same Cells are one."""
    code = """
from autotune.backends.mindspore import counters
programs = []
for region in ("whole", "blocks.*", "blocks.0", "blocks.0, blocks.1", "blocks.[01]", "head"):
    programs.append(run(region=region)[1])
    counters._AST_PHASES.clear()
print(len(set(programs)), programs[3] == programs[4], None in programs)
"""
    assert in_process(tmp_path, code) == ["5", "True", "False"]


def test_what_cannot_be_compiled_is_refused(by_ast):
    """A list of Cells, a part left out of a graph, graph mode, a path that is not there: a sentence for each."""
    said = by_ast[4:]
    words = ("never_called_itself", "cannot_leave_a_part", "has_the_path_'x'", "is_for_execution=jit_only")
    assert len(said) == 4
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))
