"""Regions on PyTorch: what is compiled, how often, what is left, and what shows of it. Tiny models, real compiles."""

from __future__ import annotations

import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError

torch = pytest.importorskip("torch")

RUN = """
import os, runpy, sys
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{sys.argv[1]}/cache"
runpy.run_path(f"{sys.argv[1]}/regions.py", run_name="__main__")
"""

NET = """
import sys
import torch
from torch import nn
from autotune.apply import compile_model
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
    def forward(self, x):
        return x + torch.tanh(self.fc(x))

class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

torch.manual_seed(0)
x = torch.ones(4, 8)
backend = load_backend("torch")

def run(depth=3, **settings):
    torch.manual_seed(0)
    net, changes = Net(depth).eval(), UndoLog()
    backend.prepare("cpu", 0)
    config = Config({"execution": "compile", **settings})
    with torch.no_grad():
        expected = net(x)
        step = compile_model.compile_under(backend, net, config, [], changes)
        assert torch.allclose(step(x), expected, atol=1e-5)
        said, program = backend.diagnose(net, config), backend.program(net, config)
        assert torch.equal(net(x), expected), "the model is as it was"
    return said, program, step, net
"""


@pytest.fixture(scope="module")
def in_process(program, tmp_path_factory):
    """`in_process(code)` is what the code prints, in a process of its own with caches of its own."""

    def in_process(code):
        folder = tmp_path_factory.mktemp("regions")
        (folder / "regions.py").write_text(NET + code)
        with (folder / "printed").open("w") as printed:
            assert program(RUN, str(folder), stdout=printed.fileno()).wait() == 0
        return (folder / "printed").read_text()

    return in_process


@pytest.fixture(scope="module")
def printed(in_process):
    """By case: what was found. One process has all cases, with the compiler's state reset between them."""
    code = """
said, _, step, net = run(12, region="blocks.*")
compiled = [each._compiled_call_impl for each in net.blocks]
print("equal", said.num_graphs, len(said.recompiles), said.num_kernels, set(compiled))
torch._dynamo.reset()
regions = ("blocks.*", "blocks.0", "blocks.0, blocks.1", "blocks.[01]")
programs = [run(3, region=region)[1] for region in regions]
print("programs", len(set(programs)), programs[2] == programs[3], None in programs)
torch._dynamo.reset()
captured = {"backend": "aot_eager"}
said, _, _, net = run(3, region="whole but head", **captured)
replaced = [name for name, part in net.named_modules() if "forward" in vars(part)]
print("head", said.num_graphs, said.num_graph_breaks, replaced)
torch._dynamo.reset()
said, _, _, net = run(3, region="whole but blocks.1", **captured)
print("block", said.num_graphs, said.num_graph_breaks, (said.note or "not told").partition(":")[0])
"""
    lines = in_process(code).splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_equal_blocks_share_one_compilation(printed):
    """Twelve blocks, one graph and no recompile; the model's own are not compiled; no kernels are counted."""
    assert printed["equal"] == "1 0 None {None}"


@pytest.mark.slow
def test_frozen_blocks_are_compiled_each(in_process):
    """More of them than dynamo's limit of compilations: none runs eagerly without a word."""
    code = """
said, _, _, _ = run(9, region="blocks.*", freezing=True)
print(said.num_graphs, said.note)
import torch._dynamo.config
print(torch._dynamo.config.recompile_limit)
"""
    assert in_process(code).split() == ["9", "None", "8"]


def test_regions_are_told_apart(printed):
    """Equal code that runs in other modules is another program; two texts for the same modules are one."""
    assert printed["programs"] == "3 True False"


@pytest.mark.slow
def test_the_whole_and_its_parts_are_told_apart(in_process):
    """The whole model, blocks of it, and the whole but for a part: each runs another program. Of the whole, kernels are
    counted."""
    code = """
said, _, _, _ = run(3)
print(said.num_graphs, said.num_kernels > 1)
torch._dynamo.reset()
regions = ("whole", "blocks.*", "blocks.0", "whole but head", "whole but blocks.1")
programs = [run(3, region=region)[1] for region in regions]
print(len(set(programs)), None in programs)
"""
    assert in_process(code).splitlines() == ["1 True", "5 False"]


def test_a_part_is_left_as_it_is(printed):
    """The compiler goes around it; a loop that it stands in is given up as a whole: said, and counted as a break, where
    the release tells of it (torch 2.6 does not)."""
    assert printed["head"] == "1 1 []"
    assert printed["block"] == ("1 0 not told" if torch.__version__ < "2.7" else "1 1 ran eagerly in part")


@pytest.mark.slow
def test_other_settings_hold_around_a_region(in_process):
    """Autocast and frozen weights go with chosen modules as with the whole."""
    code = """
torch.allclose = lambda one, other, atol: (one.float() - other).abs().max() < 0.05
for settings in ({"precision": "bf16_autocast"}, {"precision": "bf16_autocast", "freezing": True}):
    said, _, _, _ = run(2, region="blocks.*, head", **settings)
    print(said.compiled)
"""
    assert in_process(code).split() == ["True", "True"]


class TestRefused:
    def refused(self, match, **settings):
        from autotune.backends.torch.apply import apply

        model, before = (
            torch.nn.Sequential(torch.nn.ModuleList([torch.nn.ReLU()])),
            torch.get_float32_matmul_precision(),
        )
        with pytest.raises(InvalidConfigError, match=match):
            apply(model, Config({"execution": "compile", "matmul_precision": "medium", **settings}), UndoLog())
        assert torch.get_float32_matmul_precision() == before, "refused before anything is set"

    def test_paths_that_are_not_there(self):
        """A model without such modules."""
        self.refused(r"no module of the model has the path 'blocks\.\*'", region="blocks.*")

    def test_modules_that_are_never_called(self):
        """A list of modules has no call to compile; its members have."""
        self.refused("0 is a ModuleList, which is never called itself", region="0")

    def test_a_left_part_of_a_full_graph(self):
        """fullgraph asks for what a left part rules out."""
        self.refused("fullgraph=true refuses", region="whole but 0.0", fullgraph=True)

    def test_without_the_compiler(self):
        """There is nothing to choose."""
        self.refused("is for execution=compile only", execution="eager", region="0.0")


@pytest.mark.slow
def test_variants_and_a_region_together(in_process):
    """The variants are in what is compiled, the outputs stay right, and undone the model is its author's."""
    code = """
from autotune.apply import compile_model
from examples.models.swiglu_torch import swiglu, swish
built = swiglu(length=8, dim=32, depth=2, heads=2, hidden=48)
model, inputs = built["model"], built["inputs"]
config = Config({
    "execution": "compile", "region": "blocks.*", "variant.activation": "fused", "variant.attention": "math",
})
functions, changes = compile_model.declared_functions(config, built["variants"]), UndoLog()
with torch.no_grad():
    expected = model(*inputs)
    step = compile_model.compile_under(backend, model, config, functions, changes)
    assert torch.allclose(step(*inputs), expected, atol=1e-5)
from autotune.backends.torch.counters import emitted_code
(code,) = emitted_code()
print("autotune.swish" in code)
changes.undo()
print({each.feed_forward.swish is swish for each in model.blocks})
"""
    assert in_process(code).split() == ["True", "{True}"]
