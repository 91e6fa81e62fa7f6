"""Every knob of MindSpore on a CPU, applied for real: what can be read back is, and the digest tells what took effect.

Instruction sets, threads and launches are settled once in a process, so this file is also the child that it tests with:
`python tests/backends/test_mindspore_knobs.py CELL CONFIGS` applies configs to one new Cell after the other.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # read when mindspore is imported

import numpy as np
import pytest
import yaml

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.planning.spaces import bundled_spaces
from autotune.space.load import Circumstances, load_space

ms = pytest.importorskip("mindspore")
nn, ops = ms.nn, ms.ops
pytestmark = pytest.mark.mindspore

from autotune.backends.mindspore import fingerprint  # noqa: E402
from autotune.backends.mindspore.backend import MindSporeBackend  # noqa: E402
from tests.backends.mindspore_child import printed_by  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]

PYNATIVE = {"execution": "pynative"}
GRAPH = {"execution": "graph"}
AST = {"execution": "jit", "capture": "ast"}
FUSED = GRAPH | {"enable_graph_kernel": True}

BLOCKING = PYNATIVE | {"launch_blocking": True, "onednn_isa": "AVX2", "kernel_threads": 1}
HALF_EAGER = PYNATIVE | {"amp_level": "O3", "amp_dtype": "float16", "onednn_isa": "AVX", "kernel_threads": 2}
PIPELINED = (
    AST
    | {"fullgraph": True, "graph_pipeline": True, "dispatch_threads": 1}
    | {
        "onednn_isa": "SSE41",
        "kernel_threads": 2,
    }
)
NO_PIPELINE = AST | {"fullgraph": True, "graph_pipeline": False}
MANY_THREADS = GRAPH | {"dispatch_threads": 2, "onednn_isa": "AVX512_CORE", "kernel_threads": 1}
HALF = AST | {"amp_level": "O3", "dispatch_threads": 2, "kernel_threads": 1}
FUSIONS = {
    "default": FUSED | {"graph_kernel_opt_level": 2, "graph_kernel_limit": 6},
    "limit 3": FUSED | {"graph_kernel_limit": 3},
    "limit 10": FUSED | {"graph_kernel_limit": 10},
    "level 1": FUSED | {"graph_kernel_opt_level": 1},
    "no transposition": FUSED | {"graph_kernel_transpose": False, "graph_kernel_expand": "default"},
    "norms": FUSED | {"graph_kernel_transpose": True, "graph_kernel_expand": "norms"},
    "none": FUSED | {"graph_kernel_expand": "none"},
}
ALONE = (PYNATIVE, AST, BLOCKING, HALF_EAGER, PIPELINED, NO_PIPELINE, MANY_THREADS, HALF)


class Block(nn.Cell):
    """A bit of a transformer: something for each part of fusion to do, and matrix products for oneDNN."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((16,))
        self.widen = nn.Dense(16, 32)
        self.narrow = nn.Dense(32, 16)

    def construct(self, x):
        y = self.narrow(ops.gelu(self.widen(self.norm(x)), approximate="tanh"))
        y = y.reshape((4, 2, 8)).swapaxes(0, 1) * 0.5 + 1.0
        return ops.softmax(y * y - 0.25 * y).swapaxes(0, 1).reshape((4, 16)) + x


def block(seed=0):
    ms.set_seed(seed)
    cell = Block()
    generator = np.random.default_rng(seed)
    for parameter in cell.get_parameters():
        parameter.set_data(ms.Tensor(generator.normal(size=parameter.shape).astype(np.float32) * 0.2))
    return cell.set_train(False)


def one_input():
    return ms.Tensor(np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32))


def child(cell, configs, first_an_operator):
    """For each config: outputs, digest, diagnosis and read-backs; and what was logged."""
    backend = MindSporeBackend()
    backend.prepare("cpu", 0)
    log = _Kept()
    logging.getLogger("autotune").addHandler(log)
    if first_an_operator:
        ops.matmul(one_input(), one_input().T).asnumpy()
    said = [applied(backend, cell, Config(config), number) for number, config in enumerate(configs)]
    return {"said": said, "logged": log.lines}


class _Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def applied(backend, cell, config, number):
    os.environ["MS_DEV_SAVE_GRAPHS_PATH"] = os.path.abspath(f"graphs-{number}")
    model = block() if cell == "Block" else globals()[cell]().set_train(False)
    names = [parameter.name for parameter in model.get_parameters()]
    compiled = backend.compile(model, config, UndoLog())
    output = compiled(one_input())
    backend.synchronise()
    return {
        "dtype": str(output.dtype),
        "output": backend.to_array(output).tolist(),
        "program": backend.program(model, config),
        "again": backend.program(model, config),
        "diagnosis": backend.diagnose(model, config).model_dump(),
        "refused": backend.check_model(model),
        "same_parameters": [parameter.name for parameter in model.get_parameters()] == names,
        "read": read_back(),
    }


def read_back():
    return {
        "onednn_isa": fingerprint.effective_isa(),
        "launch_blocking": fingerprint.is_launch_blocking(),
        "queue": fingerprint.has_queue(),
        "kernel_threads": ms.get_context("runtime_num_threads"),
        "dispatch_threads": ms.get_context("inter_op_parallel_num"),
        "pipeline": os.environ.get("MS_DEV_RUNTIME_CONF"),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Applies configs in a process, folder and cache of its own; once for each list unless it is another `attempt`."""

    @functools.cache
    def run_once(cell, configs, first_an_operator, attempt):
        folder = tmp_path_factory.mktemp("trial")
        return printed_by(__file__, folder, cell, configs, json.dumps(first_an_operator), timeout_s=300)

    def run_configs(*configs, cell="Block", first_an_operator=False, attempt=0):
        return run_once(cell, json.dumps(configs), first_an_operator, attempt)

    return run_configs


@pytest.fixture
def one(run):
    """What one config alone in its process says."""
    return lambda config, **options: run(config, **options)["said"][0]


@pytest.fixture(scope="module")
def fusions(run):
    pytest.importorskip("decorator")
    return dict(zip(FUSIONS, run(*FUSIONS.values())["said"], strict=True))


def test_every_value_is_run_here():
    """No value that the deepest space offers on a CPU is left out of this file's trials."""
    path = next(path for path in bundled_spaces() if path.stem == "mindspore")
    here = Circumstances(version="2.10.0", device="cpu", preset="exhaustive", num_cores=1024)
    space = load_space(path, framework="mindspore", circumstances=here)
    offered = {(knob.name, json.dumps(value)) for knob in space.knobs for value in knob.values}
    as_it_is = {(knob.name, json.dumps(knob.default)) for knob in space.knobs}
    tried = {(n, json.dumps(v)) for config in (*ALONE, *FUSIONS.values()) for n, v in config.items()}
    assert offered - as_it_is <= tried


@pytest.mark.parametrize("config", ALONE, ids=str)
@pytest.mark.slow
def test_a_knob_leaves_the_result_right(one, config):
    """Whatever is set, the outputs are PyNative's: to rounding, or to that of half precision; and in float32."""
    expected, said = one(PYNATIVE), one(config)
    error = np.abs(np.array(said["output"]) - np.array(expected["output"])).max()
    assert error < (2e-2 if "amp_level" in config else 1e-5)
    assert said["dtype"] == "Float32"


@pytest.mark.fast_cases("blocking")
@pytest.mark.parametrize(
    "config",
    [BLOCKING, HALF_EAGER, PIPELINED, MANY_THREADS],
    ids=["blocking", "half_eager", "pipelined", "many_threads"],
)
def test_a_knob_reads_back(one, config):
    """Instruction sets and threads are in force as they were asked for."""
    isa = {"SSE41": 0x1, "AVX": 0x3, "AVX2": 0x7, "AVX512_CORE": 0x27}
    read = one(config)["read"]
    assert read["onednn_isa"] & ~isa[config["onednn_isa"]] == 0
    assert read["kernel_threads"] == config["kernel_threads"]
    assert read["dispatch_threads"] == config.get("dispatch_threads", 0)


def test_blocking_launches_read_back(one):
    """They have no queue."""
    assert one(BLOCKING)["read"]["launch_blocking"]
    assert not one(BLOCKING)["read"]["queue"]


@pytest.mark.slow
def test_what_is_off_reads_back(one):
    """The queue of PyNative stays where launches do not block, and a pipeline is off where it is said so; one that was
    not switched off leaves no trace."""
    assert one(PYNATIVE)["read"]["queue"]
    assert one(PIPELINED)["read"]["pipeline"] is None
    assert one(NO_PIPELINE)["read"]["pipeline"] == "graph_pipeline:false"


@pytest.mark.slow
def test_a_program_is_the_same_in_another_process(one, run):
    """One config, two processes: one digest. And asking twice changes nothing."""
    for config in (PYNATIVE, AST):
        assert one(config)["program"] == one(config, attempt=1)["program"] == one(config)["again"]
    pytest.importorskip("decorator")
    default = FUSIONS["default"]
    assert run(*FUSIONS.values())["said"][0]["program"] == one(default, attempt=1)["program"]


@pytest.mark.slow
def test_programs_that_differ_have_other_digests(one):
    """Each way to run, and each setting in force, shows."""
    programs = [one(config)["program"] for config in ALONE if config != NO_PIPELINE]
    assert None not in programs
    assert len(set(programs)) == len(programs)


@pytest.mark.slow
def test_a_whole_graph_without_its_pipeline_is_the_graph(one):
    """fullgraph only asks for more than was needed, and the pipeline that it switches on is off: the same program."""
    assert one(NO_PIPELINE)["program"] == one(AST)["program"]


@pytest.mark.slow
def test_kernels_are_counted(one, fusions):
    """A graph without fusion launches a kernel for each operator; fusion launches fewer, and says how many less."""
    plain, fused = one(AST)["diagnosis"], fusions["default"]["diagnosis"]
    assert plain["num_kernels"] > 10
    assert plain["num_fused"] == 0
    assert fused["num_kernels"] < plain["num_kernels"]
    assert fused["num_fused"] > 0
    assert one(MANY_THREADS)["diagnosis"]["num_kernels"] == plain["num_kernels"]
    assert one(PYNATIVE)["diagnosis"]["num_kernels"] is None


@pytest.mark.slow
def test_each_part_of_fusion_takes_effect(fusions):
    """Other kernels than by default, and the right results all the same."""
    expected = np.array(fusions["none"]["output"])
    for name, said in fusions.items():
        assert np.abs(np.array(said["output"]) - expected).max() < 1e-3, name
    programs = {name: said["program"] for name, said in fusions.items()}
    assert all(programs[name] != programs["default"] for name in programs if name not in ("default", "limit 10"))
    operators = {name: s["diagnosis"]["num_kernels"] + s["diagnosis"]["num_fused"] for name, s in fusions.items()}
    assert operators["norms"] > operators["default"] > operators["none"]
    assert fusions["limit 3"]["diagnosis"]["num_kernels"] > fusions["default"]["diagnosis"]["num_kernels"]


@pytest.mark.slow
def test_half_precision_leaves_the_model_alone(one):
    """It is given to another Cell with the same Parameters: the model can be tuned again."""
    for config in (HALF_EAGER, HALF):
        assert one(config)["refused"] is None
        assert one(config)["same_parameters"]


def test_half_precision_of_the_author_s_own_stays_alone():
    """Such a model can be tuned as it is; a level on top of its own is invalid."""
    model = ms.amp.auto_mixed_precision(block(), "O3", ms.float16)
    assert MindSporeBackend().check_model(model) is None
    with pytest.raises(InvalidConfigError, match="of its author's own"):
        MindSporeBackend().compile(model, Config(PYNATIVE | {"amp_level": "O3"}), UndoLog())


@pytest.mark.slow
def test_too_late_is_said_so(run):
    """After the first operator the cap and blocking launches have no effect any more: one line in the log for each."""
    logged = run(BLOCKING, first_an_operator=True)["logged"]
    assert [line.partition(" comes too late")[0] for line in logged] == [
        "autotune: onednn_isa=AVX2",
        "autotune: launch_blocking",
    ]
    assert run(BLOCKING)["logged"] == []


JOB = """
import json, sys
sys.path.insert(0, sys.argv[2])
import autotune
from test_mindspore_knobs import block, one_input, read_back
from autotune.backends.mindspore.backend import MindSporeBackend
import mindspore as ms
ms.set_device("CPU") if hasattr(ms, "set_device") else ms.set_context(device_target="CPU")
model = autotune.load(sys.argv[1]).apply(block(), on_mismatch="apply", process_settings=True)
output = MindSporeBackend().to_array(model(one_input()))
print(json.dumps({"read": read_back(), "output": output.tolist()}), flush=True)
__import__("os")._exit(0)
"""


@pytest.mark.parametrize("config", [BLOCKING, PIPELINED, HALF], ids=str)
@pytest.mark.slow
def test_a_job_gets_what_the_trial_had(one, tmp_path, config):
    """`apply` in a fresh job sets in the process what the trial measured: same read-backs, same outputs."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="mindspore", verdict="faster", config=config)
    content["environment"]["framework_version"] = ms.__version__
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(content))
    job = subprocess.run(
        [sys.executable, "-c", JOB, str(path), str(Path(__file__).parent)],
        env={**os.environ, "GLOG_v": "3", "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    said = json.loads(job.stdout.splitlines()[-1])
    assert said["read"] == one(config)["read"]
    assert said["output"] == one(config)["output"]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(child(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # MindSpore may hang or abort in the interpreter's shutdown
