"""Knob `packed_linear`: frozen linear layers are packed for oneDNN or MKL by the config alone, in float32, and those of
no other model."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import autotune
from autotune import models
from autotune.backends.contracts.models import WorkOfCall
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.planning.models import make_workload
from autotune.trial.worker.subjects import declared_by
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

import torch._inductor.config as inductor  # noqa: E402

from autotune.backends.torch import compiler, counters, frozen_graph  # noqa: E402
from autotune.backends.torch.apply import apply  # noqa: E402
from autotune.backends.torch.plain import plain_code  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not hasattr(torch._C, "_get_fp32_precision_getter") or not torch._C.has_mkl,
        reason="from torch 2.9 on, where it has MKL",
    ),
]

FROZEN = {"execution": "compile", "backend": "inductor", "freezing": True, "dynamic": False}
MKL, ONEDNN = ({**FROZEN, "packed_linear": library} for library in ("mkl", "onednn"))
X = torch.linspace(-1, 1, 256).reshape(4, 64)
NOTED: list[str] = []


@torch.library.custom_op("packed_linear::note", mutates_args=())
def note(x: torch.Tensor) -> torch.Tensor:
    """Runs within a call, and notes what float32 products of oneDNN may be rounded to then."""
    NOTED.append(torch.backends.mkldnn.matmul.fp32_precision)
    return x.clone()


note.register_fake(torch.empty_like)


class Layers(torch.nn.Module):
    """Linear layers, and between them what may be fused into the first."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 96), torch.nn.Linear(96, 32)

    def forward(self, x):
        return self.last(note(torch.nn.functional.gelu(self.first(x))))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Caches and books of its own; calls record no gradients."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    counters.clear()
    NOTED.clear()
    with torch.no_grad():
        yield
    counters.clear()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Layers().eval().requires_grad_(False)


def libraries():
    """Calls of packed linear layers in what inductor emitted since the books were cleared, by library."""
    code = "\n".join(counters.emitted_code())
    return {"mkl": code.count("mkl_linear"), "onednn": code.count("linear_pointwise")}


def is_packed_for(library):
    found = libraries()
    other = {"mkl": "onednn", "onednn": "mkl"}[library]
    return found[library] > 0 == found[other]


@pytest.mark.slow
def test_the_code_has_onednns_product_and_calls_stay_float32(model):
    """In the code, in the error, and in what the setting reads within a call, which is what it is before."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    exact = copy.deepcopy(model).double()(X.double())
    tuned = apply(model, Config({**ONEDNN, "cpp_wrapper": True}), UndoLog())
    for _ in range(3):
        assert float((tuned(X) - exact).abs().max() / exact.abs().max()) < 3e-6
    assert libraries()["mkl"] == 0 < libraries()["onednn"]
    assert NOTED[-3:] == [before] * 3
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.slow
def test_neither_program_is_found_for_the_other(model):
    """Code of each is found in the cache again, in both orders, and is that of its own library."""
    programs = {}
    backend = load_backend("torch")
    for config, is_found in ((MKL, False), (ONEDNN, False), (MKL, True), (ONEDNN, True)):
        counters.clear()
        own = copy.deepcopy(model)
        tuned = apply(own, Config(config), UndoLog())
        torch.testing.assert_close(tuned(X), model(X), rtol=1e-5, atol=1e-6)
        assert is_packed_for(config["packed_linear"])
        if len(frozen_graph.cache_entries()) > 1:
            assert counters.dynamo_counter("counters")["inductor"]["fxgraph_cache_hit"] == int(is_found)
        programs.setdefault(config["packed_linear"], set()).add(backend.program(own, Config(config)))
    assert [len(found) for found in programs.values()] == [1, 1]
    assert programs["mkl"] != programs["onednn"]


def test_a_later_compilation_is_packed_as_the_first(model):
    """A second shape, in another thread, long after the config was applied; then another model of the process."""
    tuned = apply(model, Config(ONEDNN), UndoLog())
    with ThreadPoolExecutor(1) as pool:

        def call(x):
            with torch.no_grad():
                return tuned(x)

        for x in (X, X[:3]):
            torch.testing.assert_close(pool.submit(call, x).result(), model(x), rtol=1e-5, atol=1e-6)
    assert counters.diagnosis().num_graphs == 2
    assert is_packed_for("onednn")
    counters.clear()
    other = copy.deepcopy(model)
    with inductor.patch(freezing=True):
        torch.compile(other)(X)
    assert is_packed_for("mkl")


def test_a_model_that_is_compiled_meanwhile_is_its_own(model):
    """What is set while a model compiles acts on that model alone, should another be compiled within."""
    entries = frozen_graph.packing_entries()
    before = [getattr(owner, name) for owner, name, _ in entries]
    with compiler._set(entries), inductor.patch(freezing=True):
        torch.compile(model)(X)
    assert is_packed_for("mkl")
    assert [getattr(owner, name) for owner, name, _ in entries] == before


def test_a_job_gets_it_by_the_same_code(model, tmp_path):
    """`load(...).apply(model)` without any setting of the process; after the block the model is as it was."""
    answer = autotune.load(export(tmp_path / "best.yaml", "torch", ONEDNN, model, (X,)))
    expected, before = model(X), torch.backends.mkldnn.matmul.fp32_precision
    with answer.applied(model) as tuned:
        torch.testing.assert_close(tuned(X), expected, rtol=1e-5, atol=1e-6)
        assert autotune.stats(tuned).state != "untuned"
        assert is_packed_for("onednn")
    assert torch.equal(model(X), expected)
    assert {*NOTED} == {before}


@pytest.mark.slow
def test_the_written_out_line_packs_for_it():
    """In a process of its own: the line, the first call, and what is said beside the line."""
    code = plain_code(Config({**ONEDNN, "dynamic": None}), torch.__version__, "cpu", "infer")
    after = next(each for each in code.beside if "fp32_precision" in each)
    after = after.partition(", ")[2].partition(":")[0]
    program = f"""
import torch
from autotune.backends.torch import counters
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval()
x = torch.randn(4, 64)
with torch.no_grad():
    expected = model(x)
    {code.line}
    model(x)
    {after}
    assert torch.allclose(model(x), expected, atol=1e-5)
code = "".join(counters.emitted_code())
assert "linear_pointwise" in code and "mkl_linear" not in code
assert torch.backends.mkldnn.matmul.fp32_precision == "none"
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["CpuMkldnnDeviceOp", "mkl"])
def test_where_there_is_no_choice_it_is_refused(model, monkeypatch, name):
    """A release that packs otherwise, or a build without MKL: a sentence, before anything is compiled."""
    if name == "mkl":
        monkeypatch.setattr(torch._C, "has_mkl", False)
    else:
        monkeypatch.delattr(frozen_graph.mkldnn_fusion, name)
    with pytest.raises(InvalidConfigError, match=r"knob packed_linear: torch .* packs for one library only here"):
        apply(model, Config(ONEDNN), UndoLog())


class Mixed(torch.nn.Module):
    """A convolution, and as its last layer a linear one of the given width."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(64, 64, 3), torch.nn.Linear(64, width)


LINEAR = torch.nn.Linear(8, 8)


def around(x):
    """A function that has its module from outside."""
    return LINEAR(x)


WHETHER = {
    "linear": (LINEAR, True),
    "a head behind convolutions": (Mixed(10), False),
    "as much as convolutions": (Mixed(512), True),
    "convolutions alone": (torch.nn.Conv2d(8, 8, 3), False),
    "half precision": (torch.nn.Linear(8, 8, dtype=torch.bfloat16), False),
    "a table alone": (torch.nn.Embedding(8, 8), False),
    "within one operator": (torch.nn.LSTM(8, 8), False),
    "attention": (torch.nn.MultiheadAttention(8, 2), True),
    "around a function": (around, True),
    "nothing": (torch.nn.Identity(), False),
}


@pytest.mark.parametrize("case", WHETHER)
def test_it_is_offered_where_there_are_linear_layers(case):
    """A model whose linear layers hold little of its weights pays for no trial of it."""
    given, is_offered = WHETHER[case]
    backend = load_backend("torch")
    assert backend.packs_linears(backend.as_model(given)) is is_offered


@pytest.mark.parametrize("layer", ["Linear(8, 8)", "ReLU()"])
def test_a_study_knows_it_from_the_model(tmp_path, layer):
    """What the process that builds the model finds is what the search space asks for."""
    text = f"import torch\n\ndef net():\n    return torch.nn.{layer}.eval(), (torch.ones(2, 8),)\n"
    (tmp_path / "net.py").write_text(text)
    workload = make_workload("net.py:net", {}, "torch", "cpu", 0, search_path=tmp_path)
    declared = declared_by(workload, load_backend("torch"))
    assert declared.met == (("linear layers",) if "Linear" in layer else ())


@pytest.mark.parametrize("name", models.names())
def test_the_table_of_bundled_models_says_the_same(name):
    """It is asked without building the model."""
    module = __import__(f"autotune.models.torch.{name}", fromlist=[name])
    built = getattr(module, name)()
    model = built["model"] if isinstance(built, dict) else built[0]
    backend, inputs = load_backend("torch"), built["inputs"] if isinstance(built, dict) else built[1]
    assert backend.packs_linears(model) is bool(models.declared(name)["met"])
    work = backend.work_of(model, lambda: model(*inputs), asks_load=True)
    assert work.lacks_products is bool(models.declared(name)["lacks"])
    assert models.declared(name, on_device=True)["met"] == (*models.declared(name)["met"], *work.load)


class Squared(torch.nn.Module):
    """Multiplies activations, and no weights."""

    def forward(self, x):
        return torch.bmm(x, x.transpose(1, 2)).relu()


class Asks(torch.nn.Module):
    """What it does depends on the numbers."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "lacks"),
    [
        (torch.nn.Conv2d(3, 4, 3), True),
        (torch.nn.Conv2d(3, 4, 1), False),
        (torch.nn.Conv2d(3, 4, 1, stride=2), True),
        (torch.nn.ReLU(), True),
        (Squared(), False),
        (Asks(), False),
    ],
    ids=["convolution", "of size 1", "in steps", "elementwise", "of activations", "by the numbers"],
)
def test_what_multiplies_no_matrices_is_not_searched_for_how(model, lacks):
    """By one call without numbers; where that says nothing, the knob stays."""
    shape = (2, 8, 8) if isinstance(model, Squared) else (1, 3, 8, 8)
    for asks_load in (False, True):
        assert (
            load_backend("torch").work_of(model, lambda: model(torch.ones(shape)), asks_load=asks_load).lacks_products
            is lacks
        )


class Step(torch.nn.Module):
    """A table of tokens, its product with what was looked up in it, and an attention to what came before."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(100, 512), torch.nn.Linear(512, 100, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        kept = torch.ones(len(x), 64, 512)
        return self.head(torch.bmm(torch.bmm(self.tokens(x), kept.mT), kept))


class Looked(torch.nn.Module):
    """Tables that are looked up in, far larger than the matrices which are multiplied."""

    def __init__(self):
        super().__init__()
        self.table, self.top = torch.nn.EmbeddingBag(20_000, 256, mode="sum"), torch.nn.Linear(256, 256)

    def forward(self, x):
        return self.top(self.table(x))


@pytest.mark.parametrize(
    ("model", "shape", "load"),
    [
        (Step(), (1, 1), ("few rows",)),
        (Step(), (4, 256), ("many rows",)),
        (torch.nn.Linear(1024, 1024), (20, 1024), ("few rows",)),
        (torch.nn.Linear(1024, 1024), (21, 1024), ("many rows",)),
        (torch.nn.Linear(1024, 1024, dtype=torch.bfloat16), (128, 1024), ("few rows",)),
        (torch.nn.Linear(1024, 1024, dtype=torch.bfloat16), (256, 1024), ("many rows",)),
        (torch.nn.Linear(8, 8), (4096, 8), ("few rows",)),
        (Looked(), (2048, 1), ("many rows",)),
        (torch.nn.Conv2d(3, 4, 3), (1, 3, 8, 8), ("convolutions",)),
        (torch.nn.ReLU(), (1,), ()),
        (Asks(), (1,), ()),
    ],
    ids=[
        *("decode step", "prefill", "20 rows", "21 rows", "128 rows in half", "256 rows in half", "narrow"),
        *("tables of a recommender", "convolution", "elementwise", "by the numbers"),
    ],
)
def test_the_kind_of_load_is_read_from_one_call_without_numbers(model, shape, load):
    """By what most multiplications are, and what bounds the products; where that says nothing, it is not known."""
    dtype = next((each.dtype for each in model.parameters()), torch.float32)
    given = torch.ones(shape, dtype=torch.long if isinstance(model, (Step, Looked)) else dtype)
    assert load_backend("torch").work_of(model, lambda: model(given), asks_load=True).load == load


@pytest.mark.parametrize(("device", "load"), [("gpu", ("few rows",)), ("cpu", ())])
def test_a_study_on_a_device_knows_the_load(tmp_path, monkeypatch, device, load):
    """The process that builds the model tells it; on a CPU nothing is asked."""
    (tmp_path / "net.py").write_text("import torch\n\ndef net():\n    return torch.nn.Bilinear(1, 1, 1), "
                                     "(torch.ones(2, 1), torch.ones(2, 1))\n")  # fmt: skip
    workload = make_workload("net.py:net", {}, "torch", device, 0, search_path=tmp_path)
    backend = load_backend("torch")
    monkeypatch.setattr(backend, "work_of", lambda *_, asks_load: WorkOfCall(load=("few rows",) if asks_load else ()))
    assert declared_by(workload, backend).met == load


class Cast(torch.nn.Module):
    """Computes in another type than that of its weights, in one of the ways that authors have."""

    def __init__(self, way):
        super().__init__()
        self.linear, self.way = torch.nn.Linear(4, 4), way
        if way == "around":  # As accelerate does.
            self.forward = torch.autocast("cpu", torch.bfloat16)(self.forward)

    def forward(self, x):
        if self.way == "within":
            with torch.autocast("cpu", torch.float16):
                return self.linear(x)
        if self.way == "by hand":
            return (x.half() @ self.linear.weight.half()).float()
        if self.way == "turned off":
            with torch.autocast("cpu", torch.bfloat16, enabled=False):
                return self.linear(x)
        return self.linear(x)


@pytest.mark.parametrize(
    ("way", "types", "tolerance"),
    [
        ("within", ("float16",), 5e-3),
        ("around", ("bfloat16",), 3e-2),
        ("by hand", ("float16",), 5e-3),
        ("turned off", (), None),
        ("plain", (), None),
    ],
)
def test_a_model_that_casts_is_held_to_the_type_that_it_multiplies_in(tmp_path, way, types, tolerance):
    """Its weights and inputs are float32, and its results are rounded as those of the lower type are."""
    model = Cast(way)
    assert load_backend("torch").work_of(model, lambda: model(torch.ones(2, 4)), asks_load=False).types == types
    (tmp_path / "net.py").write_text("from tests.backends.test_torch_packed_linear import Cast, torch\n\n"
                                     f"def net():\n    return Cast({way!r}), torch.ones(2, 4)\n")  # fmt: skip
    workload = make_workload("net.py:net", {}, "torch", "cpu", 0, search_path=tmp_path)
    assert declared_by(workload, load_backend("torch")).tolerance == tolerance


def test_threads_compile_each_as_its_config_says(model):
    """Two models, both ways, from two threads at once."""
    tuned = {
        name: apply(copy.deepcopy(model), Config(config), UndoLog())
        for name, config in (("mkl", MKL), ("onednn", ONEDNN))
    }
    start, outputs = threading.Barrier(2), {}

    def call(name):
        start.wait()
        with torch.no_grad():
            outputs[name] = tuned[name](X)

    threads = [threading.Thread(target=call, args=(name,)) for name in tuned]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = counters.emitted_code()
    assert sorted("mkl" if "mkl_linear" in code else "onednn" for code in codes) == ["mkl", "onednn"]
    assert all(("mkl_linear" in code) != ("linear_pointwise" in code) for code in codes)
    for output in outputs.values():
        torch.testing.assert_close(output, model(X), rtol=1e-5, atol=1e-6)
