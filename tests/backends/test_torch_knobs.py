"""Every knob of PyTorch that a CPU has, applied for real: what was read back, and what inductor emitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml

from autotune.backends.registry import framework_version
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRIALS = """
import ctypes, json, sys, torch
from autotune.backends.registry import load_backend
from autotune.backends.torch import counters
from autotune.backends.undo import UndoLog
from autotune.config import Config

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.rnn = torch.nn.LSTM(16, 32, batch_first=True)
        self.last = torch.nn.Linear(32, 32)

    def forward(self, x):
        y = torch.tanh(self.first(x)).flatten(2).mT
        if len(sys.argv) > 3:
            y = self.rnn(y)[0]
        else:
            y = torch.nn.functional.pad(y, (0, 16))
        return torch.nn.functional.gelu(self.last(y))

def num_mapped():
    # Field hblks of mallinfo2: blocks that stand outside the heap.
    class Info(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
        _fields_ = [(name, ctypes.c_size_t) for name in names]
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Info
    libc.malloc.restype = ctypes.c_void_p
    before = libc.mallinfo2().hblks
    libc.malloc(ctypes.c_size_t(2**26))
    return libc.mallinfo2().hblks - before

def trial(config):
    backend.prepare("cpu", 0)
    torch._inductor.config.freezing = torch._dynamo.config.allow_rnn = False
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    model, inputs = Model().eval(), torch.randn(2, 3, 16, 16)
    with backend.inference():
        expected = model(inputs)
        step = backend.compile(model, config, UndoLog())
        output = step(inputs)
        diagnosis, program = backend.diagnose(model, config), backend.program(model, config)
    compiled = config["execution"] == "compile" and config.get("backend", "inductor") == "inductor"
    return {
        "program": program,
        "code": counters.emitted_code() if compiled else None,
        "error": float((output.float() - expected).abs().max() / expected.abs().max()),
        "diagnosis": diagnosis.model_dump(mode="json"),
        "same_object": step is model,
        "dtypes": [str(output.dtype), str(model.first.weight.dtype)],
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "num_mapped": num_mapped(),
    }

import torch._dynamo, torch._inductor.config
backend = load_backend("torch")
threads = int(sys.argv[2])
print(json.dumps({name: trial(Config(config)) for name, config in json.loads(sys.argv[1]).items()}))
"""

EAGER, COMPILE = {"execution": "eager"}, {"execution": "compile"}
FROZEN = {**COMPILE, "backend": "inductor", "mode": "default", "freezing": True}

EAGER_TRIALS = {
    "plain": EAGER,
    "bf16_autocast": {**EAGER, "precision": "bf16_autocast"},
    "medium": {**EAGER, "matmul_precision": "medium"},
    "high": {**EAGER, "matmul_precision": "high"},
    "two": {**EAGER, "threads": 2},
    "one": {**EAGER, "threads": 1},
    "aot_eager": {**COMPILE, "backend": "aot_eager"},
    # Last: a process cannot take it back.
    "keep": {**EAGER, "allocator": "keep"},
}

COMPILED_TRIALS = {
    "default": {**COMPILE, "backend": "inductor", "mode": "default", "dynamic": None},
    "again": {**COMPILE, "backend": "inductor", "mode": "default", "dynamic": None},
    "static": {**COMPILE, "dynamic": False},
    "fullgraph": {**COMPILE, "fullgraph": True},
    "dynamic": {**COMPILE, "dynamic": True},
    "lite": {**COMPILE, "mode": "lite"},
    "cpp_wrapper": {**COMPILE, "cpp_wrapper": True},
    "layout": {**COMPILE, "layout_optimization": False},
    "tanh": {**COMPILE, "decompose_tanh": True},
    "threads": {**COMPILE, "threads": 1},
    "gemm_unfrozen": {**COMPILE, "max_autotune_gemm": True},
    "autocast": {**COMPILE, "precision": "bf16_autocast"},
}

FROZEN_TRIALS = {
    "default": COMPILED_TRIALS["default"],
    "frozen": FROZEN,
    "max_autotune": {**FROZEN, "mode": "max-autotune"},
    "gemm": {**FROZEN, "max_autotune_gemm": True},
    "gemm_cpp": {**FROZEN, "max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"},
    "gemm_epilogue": {
        **FROZEN,
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": "CPP",
        "epilogue_fusion": False,
    },
    "unpacked": {**FROZEN, "weight_prepack": False},
    "autocast": {**FROZEN, "precision": "bf16_autocast"},
}

RECURRENT_TRIALS = {"left": {**COMPILE}, "captured": {**COMPILE, "allow_rnn": True}}


def started(folder, trials, *arguments, threads=2):
    """A Python that runs trials one after the other, its caches in `folder`."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", TRIALS, json.dumps(trials), str(threads), *arguments],
        cwd=REPOSITORY, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def told(process):
    output, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each group of trials told, by the group's name; the groups run side by side."""
    groups = {"eager": EAGER_TRIALS, "compiled": COMPILED_TRIALS, "frozen": FROZEN_TRIALS}
    running = {name: started(tmp_path_factory.mktemp(name), trials) for name, trials in groups.items()}
    running["recurrent"] = started(tmp_path_factory.mktemp("recurrent"), RECURRENT_TRIALS, "recurrent")
    return {name: told(process) for name, process in running.items()}


def same(one, other):
    return one["program"] == other["program"] is not None


@pytest.mark.slow
def test_no_knob_breaks_the_model(seen):
    """Every value keeps the outputs: to rounding, or to bfloat16 where that was asked for or allowed."""
    for group in seen.values():
        for name, each in group.items():
            lower = "cast" in name or name in ("medium", "high")
            assert each["error"] < (3e-2 if lower else 1e-5), name


@pytest.mark.slow
def test_an_eager_model_is_not_wrapped_without_need(seen):
    """The very same object comes back unless its calls themselves are changed."""
    wrapped = {name for name, each in seen["eager"].items() if not each["same_object"]}
    assert wrapped == {"bf16_autocast", "aot_eager"}


@pytest.mark.slow
def test_precision_reaches_the_outputs(seen):
    """Autocast computes in bfloat16 from float32 weights, and leaves these alone; outputs have the weights' type."""
    eager = seen["eager"]
    assert eager["plain"]["dtypes"] == ["torch.float32", "torch.float32"]
    assert eager["bf16_autocast"]["dtypes"] == ["torch.float32", "torch.float32"]
    assert seen["compiled"]["autocast"]["dtypes"] == ["torch.float32", "torch.float32"]
    assert seen["frozen"]["autocast"]["dtypes"] == ["torch.float32", "torch.float32"]


@pytest.mark.slow
def test_settings_of_the_process_took_effect(seen):
    """Threads, matmul precision and allocator, read back from where they hold."""
    eager = seen["eager"]
    assert [eager[name]["threads"] for name in ("plain", "two", "one")] == [2, 2, 1]
    assert [eager[name]["matmul_precision"] for name in ("plain", "high", "medium")] == ["highest", "high", "medium"]
    assert [eager[name]["num_mapped"] for name in ("plain", "keep")] == [1, 0]


@pytest.mark.slow
def test_each_eager_setting_is_a_program_of_its_own(seen):
    """But for a thread count that is what the process has anyway; code that cannot be had gives none."""
    eager = dict(seen["eager"])
    assert eager.pop("aot_eager")["program"] is None
    assert same(eager["plain"], eager.pop("two"))
    assert len({each["program"] for each in eager.values()}) == len(eager)


@pytest.mark.slow
def test_the_same_config_gives_the_same_program_in_another_process(seen):
    """Digests hold across processes and cache folders, for frozen code too."""
    assert same(seen["compiled"]["default"], seen["frozen"]["default"])
    assert same(seen["compiled"]["default"], seen["compiled"]["again"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["static", "fullgraph", "gemm_unfrozen"])
def test_settings_without_effect_are_one_program(seen, name):
    """On a static model of one graph these emit the default's code, and are known for it."""
    assert same(seen["compiled"]["default"], seen["compiled"][name])


@pytest.mark.slow
def test_settings_with_effect_emit_other_code(seen):
    """Each of these changes what inductor emits, and so is a program of its own."""
    names = ("default", "dynamic", "lite", "cpp_wrapper", "layout", "tanh", "threads", "autocast")
    assert len({seen["compiled"][name]["program"] for name in names}) == len(names)
    assert len({json.dumps(seen["compiled"][name]["code"]) for name in names}) == len(names)


@pytest.mark.slow
def test_frozen_settings_with_effect_emit_other_code(seen):
    """Freezing shows in the code, and so do generated matrix multiplications and the precision."""
    names = ("default", "frozen", "max_autotune", "gemm", "gemm_cpp", "gemm_epilogue", "unpacked", "autocast")
    frozen = {name: "\n".join(seen["frozen"][name]["code"]) for name in names}
    assert "_frozen_param" not in frozen["default"]
    assert all("_frozen_param" in code for name, code in frozen.items() if name != "default")
    assert len({frozen[name] for name in ("default", "frozen", "gemm_cpp", "autocast")}) == 4
    # Whether a generated matrix multiplication won is a measurement, and so is whether it won with what follows fused
    # into it; but the C++ one alone has no other choice.
    assert "kernel_micro_gemm" in frozen["gemm_cpp"]
    assert "kernel_micro_gemm" not in frozen["frozen"]


@pytest.mark.slow
def test_the_threads_are_in_the_code(seen):
    """Code for one thread has no parallel region at all."""
    assert "omp parallel" in "".join(seen["compiled"]["default"]["code"])
    assert "omp parallel" not in "".join(seen["compiled"]["threads"]["code"])


@pytest.mark.slow
def test_a_recurrent_layer_is_captured_when_told(seen):
    """Without `allow_rnn` dynamo leaves an LSTM out; with it the model is one graph."""
    left, captured = (seen["recurrent"][name]["diagnosis"] for name in ("left", "captured"))
    assert (left["num_graphs"], left["graph_breaks"]) != (1, [])
    assert (captured["num_graphs"], captured["graph_breaks"]) == (1, [])


@pytest.mark.slow
def test_kernels_are_counted(seen):
    """As many as the code starts in a call: the same for a Python and a C++ wrapper, more where nothing is fused."""
    kernels = {name: seen["compiled"][name]["diagnosis"]["num_kernels"] for name in seen["compiled"]}
    assert kernels["default"] == kernels["cpp_wrapper"] >= 3
    assert kernels["lite"] > kernels["default"]
    assert seen["compiled"]["default"]["diagnosis"]["num_fused"] >= 1
    assert seen["eager"]["aot_eager"]["diagnosis"]["num_kernels"] is None


JOB = """
import json, sys, torch, autotune
from autotune.backends.registry import load_backend
from autotune.backends.torch import counters
from autotune.config import Config
TRIAL
counters.clear()
torch.manual_seed(0)
torch.set_num_threads(2)
torch.set_float32_matmul_precision("highest")  # As the trials do: a process that has never said so reads back "none".
model, inputs = Model().eval(), torch.randn(2, 3, 16, 16)
expected = model(inputs)
tuned = autotune.load(sys.argv[1])
step = tuned.apply(model, on_mismatch="apply")
with torch.no_grad():  # Frozen code serves no other calls.
    output = step(inputs)
print(json.dumps({
    "program": load_backend("torch").program(model, tuned.answer.config),
    "num_graphs": counters.diagnosis().num_graphs,
    "requires_grad": output.requires_grad,
    "error": float((output.float() - expected).abs().max() / expected.abs().max()),
    "attribute": step.first is model.first,
    "num_parameters": len(list(step.parameters())),
    "training": step.training,
}))
"""


@pytest.mark.slow
def test_a_job_runs_what_the_trial_ran(seen, tmp_path):
    """`autotune.load(...).apply(model)` comes to the trial's program: autocast and frozen code alike."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", verdict="faster", config=FROZEN_TRIALS["autocast"])
    content["environment"]["framework_version"] = framework_version("torch")
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    model = TRIALS[TRIALS.index("class Model") : TRIALS.index("def num_mapped")]
    job = subprocess.run(
        # Two arguments: the model looks for a third.
        [sys.executable, "-c", JOB.replace("TRIAL", model), str(tmp_path / "best.yaml"), "2"],
        cwd=REPOSITORY, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    said = json.loads(job.stdout.splitlines()[-1])
    assert said["program"] == seen["frozen"]["autocast"]["program"]
    assert (said["num_graphs"], said["requires_grad"]) == (1, False)
    assert said["error"] < 3e-2
    assert (said["attribute"], said["num_parameters"], said["training"]) == (True, 8, False)


# What needs no compiler


class Nested(torch.nn.Module):
    """Takes and gives tensors in nested structures."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.size = 4

    def forward(self, x, *, others):
        return {"y": (self.layer(x), [others["floats"][0], others["integers"]]), "text": others["text"]}


def nested_inputs():
    return torch.ones(2, 4), {"floats": [torch.ones(2)], "integers": torch.arange(2), "text": "text"}


def test_a_wrapper_keeps_the_structure():
    """Tensors in tuples, lists and dicts come out where they went in; integers and other values stay as they are."""
    from autotune.backends.torch.apply import apply

    step = apply(Nested().eval(), Config({"execution": "eager", "precision": "bf16_autocast"}), UndoLog())
    x, others = nested_inputs()
    outputs = step(x, others=others)
    assert outputs["y"][0].dtype is torch.float32
    assert outputs["y"][1][0].dtype is torch.float32
    assert outputs["y"][1][1].dtype is torch.int64
    assert outputs["text"] == "text"
    assert (step.size, step.training) == (4, False)
    assert others["floats"][0].dtype is torch.float32


def test_modes_of_inner_modules_are_kept():
    """A wrapper does not turn a layer that the model keeps in training mode."""
    from autotune.backends.torch.apply import apply

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()).eval()
    model[1].train()
    step = apply(model, Config({"execution": "eager", "precision": "bf16_autocast"}), UndoLog())
    assert (step.training, model[0].training, model[1].training) == (False, False, True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**COMPILE, "mode": "ludicrous"}, "knob mode: torch .* has no 'ludicrous', only"),
        ({**COMPILE, "backend": "steam"}, "knob backend: torch .* has no 'steam', only"),
        ({**COMPILE, "backend": "torchair"}, "knob backend: torchair cannot be imported"),
    ],
)
def test_what_this_release_lacks_is_refused(config, words):
    """Before anything is compiled or set."""
    from autotune.backends.torch.apply import apply

    with pytest.raises(InvalidConfigError, match=words):
        apply(torch.nn.Linear(2, 2), Config({**config, "threads": 1}), UndoLog())


def test_a_setting_that_another_release_has_is_refused(monkeypatch):
    """An entry of inductor's config that is not there is a sentence, and nothing was set in the process."""
    from autotune.backends.torch import knobs
    from autotune.backends.torch.apply import apply

    monkeypatch.setitem(
        knobs.KNOBS, "cpp_wrapper", knobs.Knob(knobs.Goes.INDUCTOR, "gone.with_the_release", plain=False)
    )
    threads = torch.get_num_threads()
    config = Config({**COMPILE, "cpp_wrapper": True, "threads": threads + 1})
    with pytest.raises(InvalidConfigError, match=r"has no setting torch\._inductor\.config\.gone\.with_the_release"):
        apply(torch.nn.Linear(2, 2), config, UndoLog())
    assert torch.get_num_threads() == threads


def test_only_glibc_is_told_to_keep_memory(monkeypatch):
    """Elsewhere the setting is refused: nothing would happen."""
    from autotune.backends.torch.apply import apply

    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidConfigError, match="knob allocator: only glibc on Linux"):
        apply(torch.nn.Linear(2, 2), Config({**EAGER, "allocator": "keep"}), UndoLog())


def program_of(model, config):
    from autotune.backends.torch.backend import TorchBackend

    return TorchBackend().program(model, Config(config))


EMITTED = """
# AOT ID: ['7_inference']
async_compile = AsyncCompile()
# kernel path: /cache/ab/cabcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrs.py
cpp_fused_tanh_0 = async_compile.cpp_pybinding(['float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(float* in_out_ptr0)
{
    #pragma omp parallel num_threads(2)
    // Note: the line that it came from
}
''')
_frozen_param0 = None  # device(type='cpu') torch.float32 (64,) (1,) 7f86301c9130
class Runner:
    def call(self, args):
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.tanh]
        assert_size_stride(buf2, (2,), (1,), "fn at 0x7f4f9b7bb880")
        cpp_fused_tanh_0(buf2)
        cpp_fused_tanh_0(buf3)
        del buf2  # reuse
"""


def test_emitted_code_is_compared_by_its_meaning():
    """Comments, paths, cache keys, addresses and numbers of graphs differ from process to process; pragmas matter."""
    from autotune.backends.torch.counters import normalised

    other = EMITTED
    for mine, theirs in [
        ("7_inf", "9_inf"),
        ("/cache", "/else"),
        ("cabcd", "cbbcd"),
        ("7f86", "7f87"),
        ("0x7f4", "0x7f5"),
    ]:
        assert mine in other
        other = other.replace(mine, theirs)
    other = other.replace("the line that", "another line").replace("# reuse", "# free")
    assert normalised(other) == normalised(EMITTED)
    for mine, theirs in [("threads(2)", "threads(1)"), ("(2,)", "(3,)"), ("tanh_0(buf3)", "tanh_0(buf4)")]:
        assert normalised(EMITTED.replace(mine, theirs)) != normalised(EMITTED)


def test_launches_are_counted_not_kernels():
    """A kernel that a call starts twice counts twice."""
    from autotune.backends.torch.counters import normalised, num_launches

    assert num_launches(normalised(EMITTED)) == 2


def test_settings_that_show_nowhere_in_the_code_are_in_the_program():
    """Each setting that library kernels or launches go by changes the digest by itself."""
    model = torch.nn.Linear(2, 2)
    configs = [
        EAGER,
        *({**EAGER, name: value} for name, value in [("precision", "bf16_autocast"), ("allocator", "keep")]),
    ]
    seen = [program_of(model, config) for config in configs]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        seen.append(program_of(model, EAGER))
    finally:
        torch.set_num_threads(threads)
    assert all(one != other for one, other in pairwise(sorted(seen)))


KEEPING = """
import json, statistics, torch
from autotune.backends.torch.apply import apply
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.sampling import SamplingPlan, take_samples

x = torch.ones(32, 32768)

def call():
    y = x
    for _ in range(6):
        y = torch.tanh(y * 1.01 + 0.1)
    return y

def faults():
    samples = take_samples([call], SamplingPlan(max_warmup_s=1, min_samples=5, max_samples=20, max_sampling_s=0.5))
    return statistics.median(samples.usage.page_faults)

torch.set_grad_enabled(False)
found, changes = [faults()], UndoLog()
apply(torch.nn.Identity(), Config({"execution": "eager", "allocator": "keep"}), changes)
found.append(faults())
changes.undo()
found.append(faults())
print(json.dumps(found))
"""


@pytest.mark.slow
def test_kept_memory_ends_page_faults():
    """Planted by a C library that gives all memory back at once: thousands in each call, none while it is kept."""
    variables = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-c", KEEPING], env=variables, cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    before, kept, _ = json.loads(child.stdout)
    assert before > 1000
    assert kept < 50
