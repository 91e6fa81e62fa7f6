"""What only a device runs, as far as it shows without one: each defect that a study of the releases' sources found."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet

from autotune.backends.torch.knobs import KNOBS, Goes, process_knobs, settings_of
from autotune.backends.undo import UndoLog
from autotune.config import Config

torch = pytest.importorskip("torch")

from autotune.backends.torch import counters, fingerprint, instruments, precision  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.torch.compiled_step import ClonedOutputs  # noqa: E402
from autotune.backends.torch.compiler import setting_name  # noqa: E402
from autotune.backends.torch.precision import with_precision  # noqa: E402
from autotune.backends.torch.training import draw_as_uncompiled, training_step  # noqa: E402

pytestmark = pytest.mark.torch

NEW_API = [
    'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    'torch.backends.fp32_precision = "tf32"',
    'torch.backends.cudnn.conv.fp32_precision = "ieee"',
    'torch.backends.mkldnn.matmul.fp32_precision = "bf16"',
]

TUNED_UNDER_NEW_API = """
import os, sys
import torch
from autotune.backends.torch import precision
from autotune.backends.torch.backend import TorchBackend
from autotune.backends.undo import UndoLog
from autotune.config import Config

def tune(statement):
    exec(statement)
    model, x = torch.nn.Linear(8, 8).eval(), torch.ones(4, 8)
    backend, before = TorchBackend(), precision.current_precisions()
    backend.prepare("cpu", 0)
    programs = []
    for settings in ({}, {"matmul_precision": "medium"}):
        config, changes = Config({"execution": "eager", **settings}), UndoLog()
        backend.compile(model, config, changes)(x)
        programs.append(backend.program(model, config))
        changes.undo()
        assert precision.current_precisions() == before, settings
    assert None not in programs and len(set(programs)) == 2, programs
    torch.backends.fp32_precision = "ieee"
    for name, value in (("cuda.matmul", "tf32"), ("mkldnn.matmul", "bf16")):
        expected = value if name in statement else "ieee"
        assert precision.current_precisions()[name] == expected, (name, precision.current_precisions())

for statement in sys.argv[1:]:  # Each in a process of its own: nothing brings the state of a new process back.
    child = os.fork()
    if not child:
        tune(statement)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, statement
"""


@pytest.mark.skipif(precision.precision_getter() is None, reason="PyTorch has this API since 2.9")
def test_a_model_may_set_fp32_precision(program):
    """With PyTorch 2.9's API in the model's file nothing raises: the digest is made, and a config with a precision of
    its own is undone to what the file set; what followed the generic setting follows it again."""
    assert program(TUNED_UNDER_NEW_API, *NEW_API).wait() == 0


@pytest.mark.skipif(precision.precision_getter() is None, reason="PyTorch has this API since 2.9")
@pytest.mark.parametrize(("value", "is_the_same"), [("highest", True), ("high", False)])
def test_a_precision_that_is_the_usual_one_makes_no_other_program(value, is_the_same):
    """PyTorch reads `none` back where nothing was set, and computes as it does under `highest`."""
    changes = UndoLog()
    changes.make(lambda: torch._C._set_fp32_precision_setter("cuda", "matmul", "none"), lambda: None)
    before = precision.current_precisions()
    precision.set_matmul_precision(value, changes)
    assert (precision.current_precisions() == before) is is_the_same
    changes.undo()
    assert precision.current_precisions() == before


def test_the_old_api_is_read_where_there_is_no_other(monkeypatch):
    """Before 2.9 the three getters of that time say what is in force, and the old value is put back."""
    monkeypatch.delattr(torch._C, "_get_fp32_precision_getter", raising=False)
    changes = UndoLog()
    before = precision.current_precisions()
    assert set(before) == {"matmul", "cuda.matmul", "cudnn"}
    precision.set_matmul_precision("medium", changes)
    assert precision.current_precisions()["matmul"] == "medium"
    changes.undo()
    assert precision.current_precisions() == before


def test_a_setting_has_its_former_name_before_it_was_renamed():
    """torch 2.6 calls dynamo's limit `cache_size_limit`; releases that have both names get the new one."""
    assert setting_name(SimpleNamespace(cache_size_limit=8), "recompile_limit") == "cache_size_limit"
    both = SimpleNamespace(cache_size_limit=8, recompile_limit=8)
    assert setting_name(both, "recompile_limit") == "recompile_limit"
    assert setting_name(SimpleNamespace(), "recompile_limit") == "recompile_limit"
    assert setting_name(SimpleNamespace(), "freezing") == "freezing"


@pytest.mark.parametrize("settings", [{"region": "*"}, {"shapes": "bucketed"}, {"recompile_limit": 64}], ids=str)
def test_the_limit_of_compilations_is_set_on_the_oldest_release(settings, monkeypatch):
    """Regions and strategies that compile often raise the limit that torch 2.6 has, and are not refused there."""
    importlib.import_module("torch._dynamo")  # It checks its own settings when it is imported.
    from autotune.backends.torch import apply as applied

    old = SimpleNamespace(cache_size_limit=8, allow_rnn=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", old)
    asked = settings_of(Config({"execution": "compile", **settings}))
    applied._refuse_unknown_entries(asked)
    set_to = {name: value for owner, name, value in applied._entries(_two_layers(), asked) if owner is old}
    assert set_to == {"cache_size_limit": 16 if "region" in settings else 64}


def test_what_private_pools_keep_is_memory():
    """A captured graph's memory does not count as allocated between two replays; it is held all the same."""
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 1000, "allocated_size": 10},
        {"segment_pool_id": (0, 1), "total_size": 500, "allocated_size": 100},
        {"segment_pool_id": (1, 0), "total_size": 50, "allocated_size": 0},
        {"total_size": 7, "allocated_size": 0},
    ]
    device = SimpleNamespace(
        max_memory_allocated=lambda: 300, memory_allocated=lambda: 200, memory_snapshot=lambda: segments
    )
    assert instruments.peak_bytes(device) == 300 + 400 + 50
    plain = SimpleNamespace(max_memory_allocated=lambda: 300, memory_allocated=lambda: 200)
    assert instruments.peak_bytes(plain) == 300


class Backed(TorchBackend):
    """As on a GPU, for what is read from dynamo's books only."""

    def __init__(self):
        super().__init__()
        self._device = torch.device("cuda")


@pytest.fixture
def skips():
    """What inductor writes into its books for graphs that it does not replay."""
    counters.clear()
    yield counters.dynamo_counter("counters")["inductor"]
    counters.clear()


def test_graphs_that_were_not_captured_are_said(skips):
    """A config that asked for CUDA graphs and got fewer says how many; on a CPU, which has none, nothing is said."""
    config = Config({"execution": "compile", "mode": "reduce-overhead"})
    counters.dynamo_counter("counters")["stats"]["unique_graphs"] = 3
    assert Backed().diagnose(None, config).note is None
    skips["cudagraph_skips"] = 2
    assert Backed().diagnose(None, config).note == "2 graphs not replayed as CUDA graphs"
    assert TorchBackend().diagnose(None, config).note is None


def test_the_reason_is_inductors_own(skips, monkeypatch):
    """Inductor writes into the record of the compilation why it left a graph as it is."""
    skips["cudagraph_skips"] = 1
    records = [SimpleNamespace(fail_reason=None), SimpleNamespace(cudagraph_skip_reason="skipping: cpu device (s0)")]
    monkeypatch.setattr(counters, "_compilation_metrics", lambda: records)
    assert counters.uncaptured_note() == "1 graph not replayed as CUDA graphs: skipping: cpu device (s0)"


def test_graphs_that_never_came_are_no_other_program(skips, monkeypatch):
    """Where all graphs were left as they are, the config is the one that did not ask for them; else it is not."""
    monkeypatch.setattr(fingerprint, "_tensors", lambda model: [SimpleNamespace(device=torch.device("cuda"))])
    counters.dynamo_counter("counters")["stats"]["unique_graphs"] = 2

    def graphs(mode, num_skips):
        skips["cudagraph_skips"] = num_skips
        return fingerprint._device_graphs(None, settings_of(Config({"execution": "compile", "mode": mode})))

    assert graphs("reduce-overhead", 2) == graphs("default", 0)
    assert graphs("reduce-overhead", 1) != graphs("reduce-overhead", 0) != graphs("default", 0)
    assert graphs("max-autotune", 2) == graphs("max-autotune-no-cudagraphs", 0)


def in_this_release(knob):
    """The space offers the knob here, on some device."""
    from autotune.planning.spaces import bundled_space
    from autotune.space.load import read_space_file

    entry = read_space_file(bundled_space("torch")).knobs.get(knob)
    if entry is None or entry.packages:  # Settings of other packages are checked where these are stood in for.
        return False
    return SpecifierSet(entry.versions).contains(torch.__version__, prereleases=True)


MODULES = {
    Goes.INDUCTOR: "torch._inductor.config",
    Goes.COMPILER: "torch._inductor.config",
    Goes.DYNAMO: "torch._dynamo.config",
    Goes.FUNCTORCH: "torch._functorch.config",
}


@pytest.mark.parametrize("knob", [name for name, row in KNOBS.items() if row.goes in MODULES and in_this_release(name)])
def test_each_setting_of_the_compiler_exists(knob):
    """Whatever the space offers for this release stands in the release's own modules, and takes the knob's type."""
    row = KNOBS[knob]
    found = importlib.import_module(MODULES[row.goes])
    for part in setting_name(found, row.name or knob).split("."):
        found = getattr(found, part)
    if row.plain is not None:
        assert isinstance(row.plain, type(found)), f"{found!r} is what this release has"
        assert found == row.plain, "the plain value leaves the setting as it is"


ATTENTION = {"execution": "compile", "backend": "aot_eager", "sdpa": "math"}


class TestAttention:
    class Attends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = self.layer(x)[:, None]
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    def captured(self, settings):
        """What dynamo captured, what AOTAutograd made of it, and that the outputs are the model's."""
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        graphs = []

        def compiler(graph, inputs):
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        def backend(graph, inputs):
            graphs.append(graph)
            return aot_autograd(fw_compiler=compiler)(graph, inputs)

        torch._dynamo.reset()
        model, x = self.Attends().eval(), torch.ones(2, 4, 8)
        step = with_precision(model, settings_of(Config({**ATTENTION, **settings})))
        with torch.no_grad():
            assert torch.allclose(torch.compile(step, backend=backend, fullgraph=True)(x), model(x), atol=1e-5)
        first, second = ([str(node.target) for node in each.graph.nodes] for each in graphs)
        return " ".join(first), " ".join(second)

    def test_the_kernel_is_chosen_while_the_graph_is_captured(self, monkeypatch):
        """The order is set in the captured graph, around the model, and decides which kernel the compiler is given; at
        a call nothing is set. A CPU has no order of its own kernels: what shows is that one of them is left out."""
        before = torch._C._get_sdp_priority_order()
        captured, given = self.captured({"sdpa": None})
        assert "_sdpa_kernel" not in captured
        assert "flash_attention_for_cpu" in given
        monkeypatch.setitem(precision._ENABLED, "flash", lambda: False)
        captured, given = self.captured({"sdpa": "math"})
        assert captured.count("_sdpa_kernel") == 2, "set, and put back"
        assert "flash_attention_for_cpu" not in given
        assert "softmax" in given
        assert "_sdpa_kernel" not in given
        assert torch._C._get_sdp_priority_order() == before

    def test_what_the_job_switched_off_stays_off(self, monkeypatch):
        """The chosen kernel comes first; of the others those that the job allows."""
        monkeypatch.setitem(precision._ENABLED, "flash", lambda: False)
        assert [each.name for each in precision.order_of("math")] == [
            "MATH", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION",
        ]  # fmt: skip

    def test_a_training_step_has_it_too(self):
        """Forward and backward run with the chosen kernel, and the model's own weights are trained."""
        model = self.Attends()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before, changes = model.layer.weight.detach().clone(), UndoLog()
        step = training_step(model, lambda m, x: m(x).sum(), optimizer, Config(ATTENTION), changes)
        assert step(torch.ones(2, 4, 8)).ndim == 0
        assert not torch.equal(model.layer.weight, before)

    def test_it_is_in_the_digest_where_it_is_not_in_the_code(self, skips):
        """Where the graph breaks, the kernel is chosen at each call too: then the digest says which was asked for."""
        asked = settings_of(Config({"execution": "compile", "sdpa": "cudnn"}))
        assert fingerprint._attention(asked) is None
        assert fingerprint._attention(settings_of(Config({"execution": "compile", "sdpa": "cudnn", "region": "a"})))
        assert fingerprint._attention(settings_of(Config({"execution": "compile", "region": "a"}))) is None


def test_cudnn_times_its_algorithms_if_told_so():
    """The switch is the process's, and is put back."""
    changes, before = UndoLog(), torch.backends.cudnn.benchmark
    config = Config({"execution": "eager", "cudnn_benchmark": True})
    assert process_knobs(config) == ("cudnn_benchmark",)
    TorchBackend().compile(torch.nn.Linear(2, 2), config, changes)
    assert torch.backends.cudnn.benchmark is True
    changes.undo()
    assert torch.backends.cudnn.benchmark is before


def test_how_cuda_multiplies_is_the_process_s_and_is_put_back(monkeypatch):
    """A CPU build has no library to choose: which one is asked for is what shows here."""
    asked = ["before"]
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda *to: asked.extend(to) or asked[-1])
    config = Config({"execution": "eager", "fp16_accumulation": True, "blas_library": "cublaslt"})
    assert process_knobs(config) == ("fp16_accumulation", "blas_library")
    changes, before = UndoLog(), precision.libraries_of_products()
    TorchBackend().compile(torch.nn.Linear(2, 2), config, changes)
    assert precision.libraries_of_products() == [True, "cublaslt"]
    changes.undo()
    assert precision.libraries_of_products() == before == [False, "before"]


@dataclass
class Output:
    logits: object
    cache: object = None


class Layer:
    def __init__(self, keys):
        self.keys = keys


class TestOutputsOfAReplay:
    """A replay writes to the memory of the replay before: what a call gave must not change with the next one."""

    def replayed(self, make):
        memory = torch.zeros(2)

        def replay(value, **kwargs):
            memory.fill_(value)
            return make(memory.view(2))

        step = ClonedOutputs(replay)
        return step(1.0), step(2.0)

    @pytest.mark.parametrize(
        ("make", "read"),
        [
            (lambda memory: memory, lambda out: out),
            (lambda memory: (memory, {"a": [memory]}), lambda out: out[1]["a"][0]),
            (Output, lambda out: out.logits),
            (lambda memory: {"cache": Output(None, [Layer(memory)])}, lambda out: out["cache"].cache[0].keys),
            (lambda memory: SimpleNamespace(x=memory), lambda out: out.x),
        ],
        ids=["tensor", "nested", "dataclass", "cache", "object"],
    )
    def test_outputs_of_any_form_are_the_callers_own(self, make, read):
        """Tensors in containers, dataclasses and the objects of libraries, such as a cache of keys and values."""
        first, second = self.replayed(make)
        assert (read(first).tolist(), read(second).tolist()) == ([1.0, 1.0], [2.0, 2.0])

    def test_one_tensor_stays_one(self):
        """A tensor that stands in two places of the output is copied once."""
        (one, (other, text)), _ = self.replayed(lambda memory: [memory, (memory, "text")])
        assert one is other
        assert (one.tolist(), text) == ([1.0, 1.0], "text")

    def test_the_callers_own_tensors_are_not_copied(self):
        """A model that returns its input returns the very same tensor, as it does untuned."""
        given = torch.ones(2)
        step = ClonedOutputs(lambda x, state: {"x": x, "state": state["deep"][0], "text": "same"})
        out = step(given, state={"deep": [given]})
        assert out["x"] is out["state"] is given

    def test_objects_that_hold_themselves_end(self):
        """An object that refers to itself is copied once and for all."""
        knot = SimpleNamespace(x=torch.ones(1))
        knot.me = knot
        before = knot.x
        assert ClonedOutputs(lambda: knot)().x is not before

    def test_gradients_flow_through_the_copies(self):
        """The loss of a training step is copied too, and its backward reaches the weights."""
        weight = torch.ones(2, requires_grad=True)
        ClonedOutputs((weight * 3).sum)().backward()
        assert weight.grad.tolist() == [3.0, 3.0]


def _two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


def test_a_device_s_dropout_draws_in_the_order_of_its_input(monkeypatch):
    """Releases up to 2.11 lay its input out anew, and so draw other numbers than the untuned step."""
    lowering = importlib.import_module("torch._inductor.lowering")
    dropout = torch.ops.aten.native_dropout.default
    monkeypatch.delitem(lowering._maybe_layout_constraints, dropout, raising=False)
    # Not by monkeypatch, which leaves the option deleted.
    with importlib.import_module("torch._inductor.config").patch(fallback_random=False):
        draw_as_uncompiled()
    assert lowering._maybe_layout_constraints[dropout] is lowering.constrain_to_fx_strides


def test_a_job_waits_for_the_device_of_its_model(monkeypatch):
    """Which need not be the current one: a model on `cuda:1` is named and waited for there."""
    asked, backend = [], TorchBackend()
    module = SimpleNamespace(synchronize=asked.append, get_device_name=lambda device: f"card {device.index}")
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr("autotune.backends.torch.backend.device_of", lambda _: torch.device("cuda", 1))
    backend.adopt(torch.nn.Linear(2, 2))
    backend.synchronise()
    assert asked == [torch.device("cuda", 1)]
    assert backend.device_name() == "card 1"
