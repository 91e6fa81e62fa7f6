"""The MindSpore backend with the real compiler.

MindSpore's mode, switches and counters belong to the process, so this file is also the child that it tests with:
`python tests/backends/test_mindspore_backend.py CELL CONFIG` prints what happened as one line of JSON.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # read when mindspore is imported

import numpy as np
import pytest

from autotune.backends.undo import UndoLog
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import MissingDeviceError, MissingFrameworkError
from autotune.measure.measurement import Reason
from autotune.trial.folder import TrialFolder

ms = pytest.importorskip("mindspore")
nn, ops = ms.nn, ms.ops
pytestmark = pytest.mark.mindspore

from autotune.backends.mindspore import backend  # noqa: E402
from autotune.backends.mindspore.backend import MindSporeBackend  # noqa: E402
from tests.backends.mindspore_child import (  # noqa: E402
    AST,
    FUSION,
    GRAPH,
    PYNATIVE,
    WHOLE,
    printed_by,
)

REPOSITORY = Path(__file__).resolve().parents[2]

COMPILED = {"graph": GRAPH, "ast": AST, "ast-fullgraph": WHOLE}


class Mlp(nn.Cell):
    """All of it can be captured, in every way."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Dense(8, 16)
        self.narrow = nn.Dense(16, 8)

    def construct(self, x):
        return self.narrow(ops.gelu(self.widen(x)))


class Indexing(nn.Cell):
    def construct(self, x):
        return x[0] + 1


class Branching(nn.Cell):
    def construct(self, x):
        if x.sum() > 0:  # BRANCH
            return ops.tanh(x)
        return x - 1


class Fallback(nn.Cell):
    """NumPy is nothing that a graph has an operator for."""

    def construct(self, x):
        return x + ms.Tensor(np.tanh(x.asnumpy()))


class Chain(nn.Cell):
    """Nothing but elementwise operators: more than 100 s in the fusion compiler if they all go into one kernel."""

    def construct(self, x):
        for _ in range(4):
            x = ops.tanh(x * 1.01) + 0.1
        return x


class Sampling(nn.Cell):
    """Random numbers come from a function, so no layer tells of them."""

    def construct(self, x):
        return ops.dropout(x, 0.5, True)


class Dropping(nn.Cell):
    """Every dropout that works on CPU, next to one that drops nothing."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Dropout(p=0.1)
        self.old = nn.Dropout(keep_prob=0.75)
        self.none = nn.Dropout(p=0.0)
        self.row = nn.Dropout1d(p=0.4)
        self.image = nn.Dropout2d(p=0.2)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3)

    def construct(self, x):
        return self.plain(x)


def sampling():
    """For a trial: the model and its inputs."""
    return Sampling().set_train(False), ms.Tensor(np.ones((4, 8), np.float32))


def dropping():
    """For a trial: the model and its inputs."""
    return nn.SequentialCell(nn.Dense(8, 8), nn.Dropout(p=0.1)).set_train(), ms.Tensor(np.ones((4, 8), np.float32))


def mlp():
    """For a trial: the model and its inputs."""
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    return Mlp().set_train(False), ms.Tensor(x)


def convolution():
    """For a trial: the model and its inputs."""
    return nn.Conv2d(3, 4, 3).set_train(False), ms.Tensor(np.ones((1, 3, 8, 8), np.float32))


def child(cell, config):
    """Two inputs of one shape against PyNative, and the diagnosis; of the MLP also what comes after."""
    backend = MindSporeBackend()
    backend.prepare("cpu", 0)
    model = globals()[cell]().set_train(False)
    ones = ms.Tensor(np.ones((4, 8), np.float32))
    inputs = [ones, -ones, ones[:2]]
    expected = [backend.to_array(model(each)) for each in inputs]
    names = [name for name, _ in backend.parameters(model)]
    compiled = backend.compile(model, Config(config), UndoLog())

    def error(number, step):
        got = backend.to_array(step(inputs[number]))
        backend.synchronise()
        return float(np.abs(got - expected[number]).max())

    def diagnosis():
        return backend.diagnose(model, Config(config)).model_dump()

    def afterwards():
        return {
            "other_shape": error(2, compiled),
            "diagnosis_then": diagnosis(),
            "is_the_model": compiled is model,
            "same_parameters": [name for name, _ in backend.parameters(model)] == names,
            "again": backend.check_model(model),
            "inside_another": error(0, nn.SequentialCell(model)),
            "ranks": [backend.like(backend.to_array(each), each).ndim for each in (ms.Tensor(3.5), ms.Tensor(4), ones)],
            "half": str(backend.to_array(backend.like(np.ones(2, np.float32), ones.astype(ms.bfloat16))).dtype),
            "kernels": len(list(os.scandir("akg_kernel_meta"))) if os.path.isdir("akg_kernel_meta") else 0,
        }

    said = {"errors": [error(0, compiled), error(1, compiled)], "diagnosis": diagnosis()}
    return said | (afterwards() if cell == "Mlp" else {})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a cell under a config in a process, folder and cache of its own; once for each pair."""

    @functools.cache
    def run_once(cell, config):
        return printed_by(__file__, tmp_path_factory.mktemp("trial"), cell, config)

    return lambda cell, config: run_once(cell, json.dumps(config))


@pytest.mark.parametrize("config", COMPILED.values(), ids=COMPILED)
@pytest.mark.fast_cases("graph", "ast-fullgraph")
def test_every_way_of_compiling(run, config):
    """Each execution and capture gives PyNative's result from one graph without breaks, a second shape is a recompile,
    whichever counter MindSpore keeps it in, and what is compiled stands beside the Cell: this has its parameters, works
    inside another one, and can be compiled again."""
    said = run("Mlp", config)
    assert max(*said["errors"], said["other_shape"], said["inside_another"]) < 1e-6
    nothing = dict.fromkeys(("cache_hits", "fused", "unfused", "note"))
    expected = {"compiled": True, "num_graphs": 1, "graph_breaks": [], "recompiles": [], "num_fused": 0, **nothing}
    found = dict(said["diagnosis"])
    assert found.pop("num_kernels") > 0
    assert found == expected
    assert said["diagnosis_then"]["num_graphs"] == 2
    assert len(said["diagnosis_then"]["recompiles"]) == 1
    assert (said["is_the_model"], said["same_parameters"], said["again"]) == (False, True, None)


def test_pynative_leaves_the_model_alone(run):
    """The untuned config hands back the Cell, with nothing compiled and nothing in the way of a later compile. Arrays
    of bfloat16, which NumPy has not, come as float32; a tensor like one without dimensions, as a time step, has none.
    """
    said = run("Mlp", PYNATIVE)
    assert said["errors"] == [0, 0]
    assert said["is_the_model"]
    assert said["diagnosis"]["compiled"] is False
    assert said["diagnosis"]["num_graphs"] == 0
    assert said["again"] is None
    assert (said["half"], said["ranks"]) == ("float32", [0, 0, 2])


@pytest.mark.parametrize("config", [AST | FUSION, GRAPH | FUSION], ids=["ast", "graph"])
@pytest.mark.slow
def test_fusion_works_on_cpu(run, config):
    """With graph-kernel fusion on, kernels are generated, and the result stays right but for their tanh."""
    pytest.importorskip("decorator")
    said = run("Mlp", config)
    assert max(said["errors"]) < 1e-3
    assert said["diagnosis"]["compiled"]
    assert said["kernels"] > 0


@pytest.mark.slow
def test_fusion_of_a_long_chain_ends(run):
    """The size of fused kernels is limited on CPU: unlimited, this one compiles for minutes."""
    pytest.importorskip("decorator")
    assert max(run("Chain", AST | FUSION)["errors"]) < 1e-3


@pytest.mark.slow
def test_ast_keeps_both_branches(run):
    """Capture ast turns a data-dependent branch into part of the graph: no break, and right on both inputs."""
    said = run("Branching", AST)
    assert max(said["errors"]) < 1e-6
    assert said["diagnosis"]["graph_breaks"] == []


@pytest.mark.fast_cases("ast")
@pytest.mark.parametrize("config", [AST, GRAPH], ids=["ast", "graph"])
def test_python_left_in_a_graph_is_a_break(run, config):
    """What a graph hands back to the interpreter is reported, with the Cell in which it stands."""
    said = run("Fallback", config)
    assert max(said["errors"]) < 1e-6
    assert said["diagnosis"]["compiled"]
    (graph_break,) = said["diagnosis"]["graph_breaks"]
    assert graph_break["reason"].endswith("in Default")
    assert graph_break["count"] > 0


@pytest.mark.slow
def test_detection_is_quiet():
    """`find` names what is there and prints nothing: not even without the log level that a trial sets."""
    script = (
        "import sys; from autotune.backends.mindspore.backend import MindSporeBackend as B; "
        "open(sys.argv[1], 'w').write(repr(B().find()))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GLOG_v"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.run(
        [sys.executable, "-c", script, os.devnull], env=environment, capture_output=True, text=True, check=True
    )
    assert (process.stdout, process.stderr) == ("", "")


def test_an_absent_device_is_a_note_and_an_error():
    """Each device that is not there has one note with the page to read; to ask for it is an operator's error."""
    found = MindSporeBackend().find()
    assert found.version == ms.__version__
    assert found.devices["cpu"] == "CPU"
    for note in found.notes:
        device = note.partition(":")[0]
        assert backend._INSTALL in note
        with pytest.raises(MissingDeviceError, match=device):
            MindSporeBackend().prepare(device, 0)


def test_operators_are_waited_for_before_the_device_is_looked_up(monkeypatch):
    """The first time: `synchronize` creates the device if the queue's first operator has not yet, without a lock."""
    calls = []
    monkeypatch.setattr(backend._PIPELINE, "sync", lambda: calls.append("wait"))
    monkeypatch.setattr(backend, "_SYNCHRONISE", lambda: calls.append("synchronize"))
    here = MindSporeBackend()
    here.synchronise()
    here.synchronise()
    assert calls == ["wait", "synchronize", "synchronize"]


@pytest.mark.slow
def test_a_process_that_has_computed_keeps_its_device():
    """To select the device that a process is on already is no error, though MindSpore takes no selection any more."""
    script = (
        "import os, mindspore as ms; from autotune.backends.mindspore.backend import MindSporeBackend as B; "
        "(ms.Tensor([1.0]) + 1).asnumpy(); B().prepare('cpu', 0); print('prepared', flush=True); os._exit(0)"
    )
    environment = {**os.environ, "GLOG_v": "3", "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert process.stdout.strip() == "prepared", process.stderr


@pytest.fixture
def run_untuned(tmp_path, make_request, workload):
    """The untuned model in a real child; in another one if MindSpore dies by itself (see tune.py)."""

    def run(function, **overrides):
        reference = f"{__file__}:{function}"
        model = workload.model_copy(update={"framework": "mindspore", "reference": reference, "model": function})
        request = make_request(None, workload=model, config=Config(PYNATIVE), **overrides)
        with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
            for _ in range(4):
                outcome = runner.run(TrialFolder(tmp_path / "untuned"), request)
                if getattr(outcome, "reason", None) is not Reason.CRASH:
                    break
        return outcome

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("dropping", "Dropout '1' (p=0.1) is active: call model.set_train(False)"),
        ("sampling", "draws random numbers"),
    ],
)
def test_an_unrepeatable_model_is_named(run_untuned, function, words):
    """Dropout left on by its place in the model, a function's random numbers by the seeds that it counts up."""
    outcome = run_untuned(function)
    assert outcome.reason is Reason.SETUP
    assert words in outcome.error


def test_layers_that_drop_are_known():
    """Dropout layers, by share or by what they keep, and attention that drops by itself; in training mode only."""
    model = Dropping().set_train()
    assert MindSporeBackend().active_dropout(model) == [
        "Dropout 'plain' (p=0.1)",
        "Dropout 'old' (p=0.25)",
        "Dropout1d 'row' (p=0.4)",
        "Dropout2d 'image' (p=0.2)",
        "MultiheadAttention 'attention' (p=0.3)",
    ]
    assert MindSporeBackend().active_dropout(model.set_train(False)) == []


@pytest.mark.slow
def test_a_float64_reference_gives_pynative_an_error(run_untuned):
    """Where all operators take float64, the untuned model's own error is measured."""
    outcome = run_untuned("mlp", reference_precision="float64")
    assert 0 < outcome.relative_error < 1e-5
    assert outcome.output_errors == (outcome.relative_error,)


@pytest.mark.slow
def test_an_operator_without_float64_is_said_so(run_untuned):
    """Convolution takes no float64 on CPU: a sentence with MindSpore's own words and the way out."""
    outcome = run_untuned("convolution", reference_precision="float64")
    assert outcome.reason is Reason.SETUP
    assert "does not run in float64: TypeError: For primitive[Conv2D]" in outcome.error
    assert "reference='model'" in outcome.error


def test_numpy_2_is_refused(monkeypatch):
    """MindSpore is built against NumPy 1 and fails obscurely under 2: said before a trial starts."""
    monkeypatch.setattr(np, "__version__", "2.4.6")
    with pytest.raises(MissingFrameworkError, match="needs numpy < 2"):
        MindSporeBackend().prepare("cpu", 0)


def test_fusion_without_its_package_says_what_to_install(monkeypatch):
    """Without `decorator` the fusion compiler only answers "Response is empty."; the operator is told first."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingFrameworkError, match="decorator"):
        MindSporeBackend().compile(Mlp(), Config(AST | FUSION), UndoLog())


def test_a_model_that_is_neither_cell_nor_function_is_refused():
    assert "needs a mindspore.nn.Cell or a function" in MindSporeBackend().check_model(3)


def twice_tanh(x):
    return ops.tanh(x) * 2


def test_a_plain_function_is_compiled():
    """As a Cell that calls it; of a method, its Cell's parameters come along."""
    backend, x, mlp = MindSporeBackend(), ms.Tensor(np.ones((2, 8), np.float32)), Mlp()
    for function, names in ((twice_tanh, []), (mlp.construct, [name for name, _ in backend.parameters(mlp)])):
        model = backend.as_model(function)
        assert backend.check_model(model) is None
        assert len(backend.parameters(model)) == len(names)
        expected = function(x).asnumpy()
        found = backend.compile(model, Config(AST), UndoLog())(x).asnumpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_operator_without_a_kernel_is_named():
    """MindSpore's own message goes on with a call stack of its framework's developers."""
    error = RuntimeError("The kernel Arange unregistered.\n--- C++ Call Stack: (For framework developers) ---")
    hint = MindSporeBackend().hint(error, "infer")
    assert hint is not None
    assert "has no kernel of the operator Arange on cpu in PyNative" in hint
    assert MindSporeBackend().hint(RuntimeError("out of memory"), "infer") is None


def test_a_model_that_its_author_compiled_is_refused():
    """A Cell whose construct is decorated has no untuned form to compare with."""
    jitted = type("Jitted", (Mlp,), {"construct": ms.jit(Mlp.construct)})
    assert "wrapped by ms.jit already" in MindSporeBackend().check_model(jitted())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("Allocate memory failed\n\n- C++ Call Stack"), Reason.OUT_OF_MEMORY),
        (RuntimeError("Miss argument input for parameter:x"), None),
        (ValueError("out of memory"), None),
    ],
)
def test_memory_exhaustion_is_recognised(error, reason):
    """MindSpore's own exhaustion is a RuntimeError with a known text; nothing else is guessed."""
    assert MindSporeBackend().classify(error) is reason


if __name__ == "__main__":
    sys.stdout.write(json.dumps(child(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # MindSpore may hang or abort in the interpreter's shutdown


def test_what_acts_as_in_training():
    """Cells that normalise by the batch or drop, in training mode only."""
    backend, model = MindSporeBackend(), ms.nn.SequentialCell(ms.nn.Dense(4, 4), ms.nn.BatchNorm1d(4))
    assert list(backend.acting_in_training(model)) == []
    model.set_train()
    assert list(backend.acting_in_training(model)) == ["BatchNorm1d '1'"]


class Coder(ms.nn.Cell):
    def __init__(self):
        super().__init__()
        self.narrow = ms.nn.Dense(8, 4)

    def decode(self, z):
        return self.narrow(z)

    def construct(self, z):
        return self.decode(z) * 2


def test_a_tuned_method_is_put_back():
    """Into a Cell of the same class, whose other calls are its own; of the method alone it is a function."""
    backend, coder, z, calls = MindSporeBackend(), Coder(), ms.Tensor(np.ones((2, 8), np.float32)), []

    def call(z):
        calls.append(z)
        return coder.decode(z)

    model = backend.as_model(coder.decode)
    tuned = backend.proxies.proxy(coder, model, call, UndoLog(), "decode")
    assert isinstance(tuned, Coder)
    np.testing.assert_allclose(tuned(z).asnumpy(), coder(z).asnumpy())
    assert not calls
    np.testing.assert_allclose(tuned.decode(z).asnumpy(), coder.decode(z).asnumpy())
    assert len(calls) == 1
    coder.decode = backend.proxies.proxy(model, model, lambda z: z, UndoLog())
    assert (coder.decode(z) is z, coder.decode.__name__) == (True, "decode")
    assert [name for name, _ in coder.cells_and_names()] == ["", "narrow"]
