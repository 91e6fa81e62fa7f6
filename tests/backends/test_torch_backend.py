"""The torch backend with the real compiler."""

from __future__ import annotations

import pytest

from autotune.backends.registry import framework_version, load_backend
from autotune.backends.undo import UndoLog
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import InvalidConfigError, worded
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DEFAULT = {"execution": "compile", "backend": "inductor", "mode": "default", "dynamic": None}
CHEAP = {"execution": "compile", "backend": "aot_eager", "dynamic": None, "fullgraph": False}

MODEL_FILE = """
import torch

class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        if y.mean() > 0:  # BREAK
            y = y + 1
        return torch.nn.functional.gelu(y)

def mlp(width=8):
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()).eval(), torch.randn(4, width)

def branching():
    return Branching().eval(), torch.randn(4, 8)

def wide():
    return torch.nn.Linear(8, 8).eval(), {"input": torch.randn(2, 8)}

class TooMuch(torch.nn.Module):
    def forward(self, x):
        return x + torch.empty(2**50).sum()

def too_much():
    return TooMuch(), torch.randn(4, 8)

class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))])

    def forward(self, x):
        return self.blocks[0](x)

class Unrepeatable(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

def dropping():
    return Dropping(), torch.randn(4, 8)

def functional_dropout():
    return Unrepeatable(lambda x: torch.nn.functional.dropout(x, training=True)).eval(), torch.randn(4, 8)

def sampling():
    return Unrepeatable(lambda x: x + torch.bernoulli(torch.full_like(x, 0.5))).eval(), torch.randn(4, 8)

def writing():
    return Unrepeatable(lambda x: x.add_(1)).eval(), torch.randn(4, 8)

def convolution():
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Softmax(1)
    return torch.nn.Sequential(*layers).eval(), torch.randn(2, 3, 8, 8)

def half():
    model, x = mlp()
    return model.bfloat16(), x.bfloat16()

class OnlyFloat32(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(8, 8)

def only_float32():
    return OnlyFloat32(), torch.randn(4, 8)
"""


@pytest.fixture
def run_torch(tmp_path, make_request, workload, no_toolchain):
    """The untuned model, then one config, each in a real child."""
    path = tmp_path / "models_of_tests.py"
    path.write_text(MODEL_FILE)

    def run(function, settings, *, preload=True, **overrides):
        overrides = {"limits": Limits(), **overrides}
        model = workload.model_copy(update={"framework": "torch", "reference": f"{path}:{function}", "model": function})
        with LocalBench({}, preload=preload, log=tmp_path / "log") as runner:
            untuned = make_request(None, workload=model, config=Config({"execution": "eager"}), **overrides)
            first = runner.run(TrialFolder(tmp_path / "untuned"), untuned)
            request = make_request(settings, workload=model, **overrides)
            return first, runner.run(TrialFolder(tmp_path / "trial"), request)

    return run, path


def test_inductor_compiles_and_agrees(run_torch):
    """The default compile gives one graph, no break, a cold compile time and the untuned model's numbers."""
    run, _ = run_torch
    untuned, compiled = run("mlp", DEFAULT)
    assert isinstance(untuned, Measurement)
    assert isinstance(compiled, Measurement)
    assert (untuned.diagnosis.compiled, untuned.diagnosis.num_graphs) == (False, 0)
    assert (compiled.diagnosis.compiled, compiled.diagnosis.num_graphs) == (True, 1)
    assert compiled.diagnosis.graph_breaks == ()
    assert compiled.diagnosis.cache_hits == 0, "the caches were cold"
    # A linear layer of the library's, and GELU in one generated kernel.
    assert (compiled.diagnosis.num_kernels, compiled.diagnosis.num_fused) == (2, 0)
    assert untuned.diagnosis.num_kernels is None
    assert None not in {untuned.program, compiled.program}
    assert untuned.program != compiled.program
    assert compiled.relative_error < 1e-5
    assert compiled.compile_s > 0
    assert compiled.signature.num_parameters == 72
    assert compiled.environment.packages["torch"] == framework_version("torch")


@pytest.mark.slow
def test_a_graph_break_names_the_users_line(run_torch):
    """Reason and file:line of the user's own code, both branches counted as graphs, and right on either branch."""
    run, path = run_torch
    _, outcome = run("branching", CHEAP)
    line = next(i for i, text in enumerate(MODEL_FILE.splitlines(), 1) if "# BREAK" in text)
    assert isinstance(outcome, Measurement)
    assert {each.location for each in outcome.diagnosis.graph_breaks} == {f"{path}:{line}"}
    assert all(each.reason for each in outcome.diagnosis.graph_breaks)
    assert outcome.diagnosis.num_graphs >= 3


@pytest.mark.slow
def test_fullgraph_of_a_breaking_model_is_a_compile_error(run_torch):
    """`fullgraph` fails on a break, with dynamo's own words."""
    run, _ = run_torch
    _, outcome = run("branching", {**CHEAP, "fullgraph": True})
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.COMPILE_ERROR
    assert "Data-dependent branching" in outcome.error


@pytest.mark.slow
def test_inputs_may_be_keywords(run_torch):
    """A dict of inputs is passed by keyword."""
    run, _ = run_torch
    _, outcome = run("wide", CHEAP)
    assert isinstance(outcome, Measurement)


@pytest.mark.slow
def test_exhausted_memory_is_recognised(run_torch):
    """The CPU allocator's error is `out_of_memory`, in a fresh process as in a forked one."""
    run, _ = run_torch
    untuned, _ = run("too_much", CHEAP, preload=False)
    assert untuned.reason is Reason.OUT_OF_MEMORY


ERRORS_OF_MEMORY = {
    "a graph or a context": "CUDA error: out of memory",
    "cuBLAS": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuBLAS on a full device": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN 9": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuFFT": "cuFFT error: CUFFT_ALLOC_FAILED",
    "CANN": "EL0004: Failed to allocate memory.",
    "a mapped file": "unable to mmap 2147483648 bytes from file <w.bin>: Cannot allocate memory (12)",
    "g++ that the kernel ended": "C++ compile error: g++: fatal error: Killed signal terminated program cc1plus",
    "Triton": "Triton Error [CUDA]: out of memory",
    "torch_npu": "NPU out of memory. NPUWorkspaceAllocator tried to allocate 2.00 GiB",
}


@pytest.mark.parametrize("text", ERRORS_OF_MEMORY.values(), ids=ERRORS_OF_MEMORY.keys())
def test_a_device_is_out_of_memory_in_many_words(text):
    """Alone, or as what a compiler's own error came from."""
    error = getattr(torch, "AcceleratorError", RuntimeError)(text)
    wrapped = ValueError("the backend failed")
    wrapped.__cause__ = error
    assert load_backend("torch").classify(error) is Reason.OUT_OF_MEMORY
    assert load_backend("torch").classify(wrapped) is Reason.OUT_OF_MEMORY
    wrapped.__cause__ = MemoryError()
    assert load_backend("torch").classify(wrapped) is Reason.OUT_OF_MEMORY


def test_other_errors_are_not_a_lack_of_memory():
    assert load_backend("torch").classify(ValueError("out of memory")) is None
    assert load_backend("torch").classify(RuntimeError("CUDA error: an illegal memory access was encountered")) is None


UNREPEATABLE = [
    ("dropping", "Dropout 'blocks.0.1' (p=0.1) is active: call model.eval()"),
    ("functional_dropout", "draws random numbers"),
    ("sampling", "draws random numbers"),
    ("writing", "writes into its input (argument 1)"),
]


@pytest.mark.parametrize(("function", "words"), UNREPEATABLE)
@pytest.mark.slow
def test_an_unrepeatable_model_is_named(run_torch, function, words):
    """Dropout left on by its place in the model, random numbers by the generator's state, a written input as such."""
    run, _ = run_torch
    untuned, _ = run(function, CHEAP)
    assert untuned.reason is Reason.SETUP
    assert words in untuned.error


@pytest.mark.parametrize(
    ("function", "precision", "largest"), [("convolution", "float64", 1e-5), ("half", "float32", 3e-2)]
)
@pytest.mark.slow
def test_a_wider_reference_gives_the_untuned_model_an_error(run_torch, function, precision, largest):
    """Eager's own error and a config's are both measured against the wider model."""
    run, _ = run_torch
    untuned, compiled = run(function, CHEAP, reference_precision=precision, tolerance=None)
    assert 0 < untuned.relative_error < largest
    assert 0 < compiled.relative_error < largest


@pytest.mark.slow
def test_a_model_that_is_bound_to_its_type_has_no_wider_reference(run_torch):
    """What cannot run in float64 says so in torch's own words, with the way out."""
    run, _ = run_torch
    untuned, _ = run("only_float32", CHEAP, reference_precision="float64")
    assert untuned.reason is Reason.SETUP
    assert "does not run in float64: RuntimeError: expected m1 and m2 to have the same dtype" in untuned.error
    assert "reference='model'" in worded(untuned.error)


LAYERS = [
    (lambda: torch.nn.Dropout1d(0.5), ["Dropout1d '(the model)' (p=0.5)"]),
    (lambda: torch.nn.AlphaDropout(0.5), ["AlphaDropout '(the model)' (p=0.5)"]),
    (lambda: torch.nn.MultiheadAttention(4, 2, dropout=0.2), ["MultiheadAttention '(the model)' (p=0.2)"]),
    (lambda: torch.nn.LSTM(4, 4, num_layers=2, dropout=0.3), ["LSTM '(the model)' (p=0.3)"]),
    (lambda: torch.nn.Linear(4, 4), []),
]


@pytest.mark.parametrize(("layer", "named"), LAYERS)
def test_layers_that_drop_are_known(layer, named):
    """Every dropout layer, and the attention and recurrent layers that drop by themselves, in training mode only."""
    from autotune.backends.torch.backend import TorchBackend

    assert TorchBackend().active_dropout(layer()) == named
    assert TorchBackend().active_dropout(layer().eval()) == []


def test_complex_parameters_keep_their_imaginary_part():
    """Widening touches floats only: a complex parameter stays as it is."""
    from autotune.backends.torch.backend import TorchBackend

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64) * 1j)
    assert TorchBackend().widen(model, "float64").weight.imag.tolist() == [1, 1]


@pytest.mark.parametrize(("knob", "value"), [("mode", "ludicrous"), ("backend", "steam")])
def test_a_setting_that_this_release_lacks_is_invalid(knob, value):
    """Unknown modes and backends are refused before anything is compiled, with those that there are."""
    from autotune.backends.torch.backend import TorchBackend

    with pytest.raises(InvalidConfigError, match=f"knob {knob}: torch .* has no '{value}', only"):
        TorchBackend().compile(torch.nn.Linear(2, 2), Config({"execution": "compile", knob: value}), UndoLog())


def test_apply_refuses_another_frameworks_model(tmp_path):
    """A config tuned for torch and a model that is none: a sentence."""
    import yaml

    import autotune
    from autotune.errors import InputError

    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", config=DEFAULT)
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"tuned for torch; it was to be applied to an? object"):
        autotune.load(tmp_path / "best.yaml").apply(object(), on_mismatch="raise")


@pytest.mark.parametrize("name", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_a_compiler_that_is_turned_off_is_named(monkeypatch, name):
    """Every config would be the untuned model under another name, and none would say why."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(InvalidConfigError, match=f"turned off in this process: unset {name}$"):
        load_backend("torch").compile(torch.nn.Linear(2, 2), Config(CHEAP), UndoLog())
