"""A config as one line of a framework's own code: the line is executed, and does what the config does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config

from autotune.backends.mindspore.plain import plain_code as mindspore_code
from autotune.backends.registry import plain_code
from autotune.backends.torch.apply import mode_options
from autotune.backends.torch.knobs import compile_arguments, settings_of
from autotune.backends.torch.plain import plain_code as torch_code
from autotune.config import Config

CONFIGS = [
    {},
    {"mode": "default", "dynamic": None, "fullgraph": False},
    {"mode": "max-autotune", "dynamic": False},
    {"mode": "reduce-overhead", "fullgraph": True},
    {"mode": "max-autotune", "freezing": True, "cpp_wrapper": True},
    {"freezing": True, "max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"},
    {"freezing": True, "packed_linear": "onednn"},
    {"backend": "aot_eager", "recompile_limit": 64},
    {"shapes": "dynamic", "activation_memory_budget": 0.5},
    {"inductor.max_fusion_size": 32, "matmul_precision": "high"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_line_of_pytorch_gives_what_the_config_gives(config, monkeypatch):
    """torch.compile is called with the config's own arguments, and what is no argument of it is in force."""
    whole = Config({"execution": "compile", **config})
    settings, given = settings_of(whole), {}
    monkeypatch.setattr(torch, "compile", lambda model, **arguments: given.update(arguments) or model)
    matmul = torch.get_float32_matmul_precision()
    code = torch_code(whole, torch.__version__, "cpu", "infer")
    modules = torch._inductor.config, torch._dynamo.config, torch._functorch.config
    wanted = (settings.compiler_options, settings.dynamo_options, settings.functorch_options)
    entries = [(module, name) for module, options in zip(modules, wanted, strict=True) for name in options]
    before = [getattr(*entry) for entry in entries]
    if settings.packs_for_onednn and not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("it is offered from torch 2.9 on")
    packing = torch.backends.mkldnn.matmul.fp32_precision if settings.packs_for_onednn else None
    try:
        exec(code.line, {"torch": torch, "model": torch.nn.Linear(2, 2)})
        assert [getattr(*entry) for entry in entries] == [value for one in wanted for value in one.values()]
        if settings.packs_for_onednn:
            assert torch.backends.mkldnn.matmul.fp32_precision == "tf32"
            assert any('fp32_precision = "none"' in one for one in code.beside)
            torch.backends.mkldnn.matmul.fp32_precision = packing
        assert torch.get_float32_matmul_precision() == (settings.matmul_precision or matmul)
    finally:
        torch.set_float32_matmul_precision(matmul)
        for entry, value in zip(entries, before, strict=True):
            setattr(*entry, value)
    plain = {"backend": "inductor", "dynamic": None, "fullgraph": False}
    own = compile_arguments(settings, mode_options(settings.mode))
    if own.get("mode") == "default":
        del own["mode"]
    assert {**plain, **given} == own
    assert any("no_grad" in one for one in code.beside) == settings.freezes


@pytest.mark.slow
def test_a_model_that_the_line_compiled_computes_the_same():
    """With the real compiler: weights frozen, options of its own beside a mode. What `torch.compile` is called with is
    in the test before."""
    program = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
x = torch.randn(2, 8)
expected = model(x)
{line}
import torch._inductor.config
assert torch._inductor.config.freezing
with torch.no_grad():
    assert torch.allclose(model(x), expected, atol=1e-5)
"""
    config = Config({"execution": "compile", "mode": "max-autotune", "freezing": True, "epilogue_fusion": False})
    line = torch_code(config, torch.__version__, "cpu", "infer").line
    run = subprocess.run([sys.executable, "-c", program.format(line=line)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


OF_MINDSPORE = [
    {"execution": "jit", "capture": "ast", "jit_level": "O0", "fullgraph": False},
    pytest.param({"execution": "graph", "jit_level": "O0", "memory_optimize_level": "O1"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("config", OF_MINDSPORE, ids=str)
def test_a_line_of_mindspore_computes_the_same(config):
    """In a process of its own: most of what it sets is the process's."""
    pytest.importorskip("mindspore")
    program = """
import mindspore, numpy
from mindspore import nn
mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
model = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU())
x = mindspore.Tensor(numpy.ones((2, 8), numpy.float32))
expected = model(x).asnumpy()
{line}
got = (call if "call" in globals() else model)(x).asnumpy()
assert numpy.allclose(got, expected, atol=1e-5)
assert "graph" not in {config!r} or mindspore.get_context("mode") == mindspore.GRAPH_MODE
"""
    import mindspore

    code = mindspore_code(Config(config), mindspore.__version__, "cpu", "infer")
    text = program.format(line=code.line, config=config["execution"])
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("scope", "says"), [("model", False), ("step", True)])
def test_a_line_of_mindspore_says_what_of_a_step_is_compiled(scope, says):
    """Not of a config that compiles the model alone, as `Model.train` and a job's own loop take it."""
    code = mindspore_code(Config({"execution": "jit", "scope": scope, "capture": "ast"}), "2.10.0", "cpu", "train")
    assert any("not the model alone" in each for each in code.beside) == says


def test_variables_of_mindspore_stand_beside_the_line():
    """The processor's instructions are chosen before the process starts; flags of fusion are in the line."""
    config = Config({"execution": "jit", "jit_level": "O1", "enable_graph_kernel": True, "onednn_isa": "AVX2"})
    code = mindspore_code(config, "2.10.0", "cpu", "infer")
    assert "enable_graph_kernel=True" in code.line
    assert code.beside == ("set ONEDNN_MAX_CPU_ISA=AVX2 before the process starts",)


@pytest.mark.parametrize(
    "config",
    [{"execution": "eager"}, {"execution": "compile", "shapes": "bucketed"}, {"execution": "compile", "region": "a"}],
    ids=str,
)
def test_what_no_line_says_has_none(config):
    """The untuned model, calls that are padded, parts that are compiled each on their own."""
    assert plain_code("torch", Config(config), "2.13", "cpu", "infer") is None


def test_what_surrounds_calls_is_named_beside_the_line():
    """A context manager is no setting."""
    config = Config({"execution": "compile", "precision": "bf16_autocast", "optimizer_impl": "fused", "scope": "loss"})
    code = torch_code(config, "2.13", "gpu", "train")
    assert code.line == "model = torch.compile(model)"
    assert code.beside[0] == 'call it under torch.autocast("cuda", torch.bfloat16)'
    assert code.beside[1:] == ("compile the model and the loss as one function", "make the optimizer with fused=True")
