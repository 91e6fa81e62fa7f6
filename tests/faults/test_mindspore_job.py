"""What jobs do with a Cell that a config was applied to: every call gives what the untuned Cell would give.

One process of a job has all cases, each on a Cell of its own, for each way of compiling.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.conftest import REPOSITORY

pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

JOB = """
import copy, json, logging, os, sys, threading
import mindspore as ms, numpy as np
import yaml
import autotune
from autotune import environment
from autotune.backends.registry import framework_version
from autotune.backends.mindspore.backend import MindSporeBackend
from autotune.trial.worker.subject import structure_sha256
from mindspore import nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.size = 2.0
        self.mask = ms.Tensor(np.ones(8, np.float32))
        self.register_buffer("shift", ms.Tensor(np.zeros(8, np.float32)))

    def construct(self, x):
        y = ops.tanh(self.norm(self.fc(x)) * self.mask) * self.size + self.shift
        if self.training:
            y = y + 1
        return y


ms.set_device("CPU") if hasattr(ms, "set_device") else ms.set_context(device_target="CPU")
path, config = sys.argv[1], json.loads(sys.argv[2])
with open(path) as file:
    content = yaml.safe_load(file)
here = environment.describe(device="CPU", variables={}).model_dump(mode="json")
content.update(config=config, environment={**here, "framework_version": framework_version("mindspore")})
content["workload"]["signature"]["structure_sha256"] = structure_sha256(MindSporeBackend().parameters(Net()))
content["workload"]["signature"]["inputs"] = [{"shape": [4, 8], "dtype": "Float32"}]
with open(path, "w") as file:
    yaml.safe_dump(content, file)
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("autotune").addHandler(handler)

rows = lambda number: ms.Tensor(np.linspace(-1, 1, 8 * number, dtype=np.float32).reshape(number, 8))
x = rows(4)
random = lambda *shape: ms.Tensor(np.random.randn(*shape).astype(np.float32))
loaded = autotune.load(path)
found = {}


def applied(net=None):
    net = Net().set_train(False) if net is None else net
    tuned = loaded.apply(net, margin=None)
    tuned(x)
    return net, tuned


def error(net, tuned, x=x):
    return float(np.abs(tuned(x).asnumpy() - net(x).asnumpy()).max())


def case(function):
    del lines[:]
    try:
        said = function()
    except Exception as problem:
        said = f"{type(problem).__name__}: {problem}"[:300]
    found[function.__name__] = {"said": said, "lines": list(lines)}


def changed(name, change):
    def run():
        net, tuned = applied()
        before = error(net, tuned)
        change(net, tuned)
        return [before, error(net, tuned), autotune.stats(tuned).state == "tuned"]
    run.__name__ = name
    case(run)


def trained(net, tuned):
    optimizer = nn.Adam(tuned.trainable_params(), 0.1)
    gradients = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)(x)[1]
    optimizer(gradients)

def loaded_into(net, tuned):
    ms.load_param_into_net(tuned, {each.name: ms.Parameter(random(*each.shape).abs(), name=each.name)
                                   for each in net.get_parameters()})

def switched(net, tuned):
    tuned.set_train()
    assert net.training and error(net, tuned) < 1e-5
    net.set_train(False)
    assert not tuned.training

def statistics(net, tuned):
    net.set_train()
    for _ in range(3):
        net(x * 3)
    net.set_train(False)

def replaced(net, tuned):
    net.fc.weight = ms.Parameter(random(8, 8), name="fc.weight")

def another(net, tuned):
    net.fc = nn.Dense(8, 8)

def hooked(net, tuned):
    net.fc.register_forward_hook(lambda cell, inputs, output: output * 2)

changed("set_data", lambda net, tuned: net.fc.weight.set_data(random(8, 8)))
changed("assign", lambda net, tuned: ops.assign(net.fc.weight, random(8, 8)))
changed("in_place", lambda net, tuned: net.fc.weight.__setitem__(0, 5.0))
changed("assign_value", lambda net, tuned: net.fc.weight.assign_value(random(8, 8)))
changed("load_param_into_net", loaded_into)
changed("optimizer", trained)
changed("switched", switched)
changed("inner_switch", lambda net, tuned: net.norm.set_train())
changed("statistics", statistics)
changed("attribute", lambda net, tuned: setattr(tuned, "size", 3.0))
changed("tensor", lambda net, tuned: setattr(net, "mask", random(8)))
changed("tensor_in_place", lambda net, tuned: net.mask.__setitem__(0, 7.0))
changed("buffer", lambda net, tuned: net.shift.add_(random(8)))
changed("parameter", replaced)
changed("cell", another)
changed("hook", hooked)


def reloaded_often():
    net, tuned = applied()
    worst = 0.0
    for _ in range(12):
        net.fc.weight.set_data(random(8, 8))
        worst = max(worst, error(net, tuned))
    return worst
case(reloaded_often)


def checkpoints():
    net, tuned = applied()
    before = {name: (str(each.dtype), each.asnumpy().copy()) for name, each in net.parameters_and_names()}
    ms.save_checkpoint(tuned, "tuned.ckpt")
    saved = ms.load_checkpoint("tuned.ckpt")
    return [list(saved) == list(before), all(
        str(saved[name].dtype) == kind and (saved[name].asnumpy() == value).all()
        for name, (kind, value) in before.items())]
case(checkpoints)


def untouched():
    net = Net().set_train(False)
    net(x)
    attributes = {name: set(vars(each)) for name, each in net.cells_and_names()}
    values = [each for _, each in net.parameters_and_names()]
    applied(net)
    return [type(net) is Net, attributes == {name: set(vars(each)) for name, each in net.cells_and_names()},
            all(one is other for one, (_, other) in zip(values, net.parameters_and_names()))]
case(untouched)


def copied():
    net, tuned = applied()
    other = copy.deepcopy(tuned)
    net.fc.weight.set_data(random(8, 8))
    apart = float(np.abs(tuned(x).asnumpy() - other(x).asnumpy()).max())
    again = applied(other)
    return [type(other) is Net, apart > 1e-3, error(*again), error(net, tuned)]
case(copied)


def twice():
    net, tuned = applied()
    _, second = applied(net)
    again = loaded.apply(tuned, margin=None)
    return [error(net, tuned), error(net, second), error(net, again)]
case(twice)


def another_config():
    net, tuned = applied()
    content["config"] = {"execution": "jit", "capture": "ast", "jit_level": "O0", "amp_level": "O3"}
    with open("other.yaml", "w") as file:
        yaml.safe_dump(content, file)
    half = Net().set_train(False)
    ms.load_param_into_net(half, net.parameters_dict())
    rounded = autotune.load("other.yaml").apply(half, margin=None)
    rounded(x)
    same = autotune.load("other.yaml").apply(net, margin=None)
    same(x)
    plain = Net().set_train(False)
    jitted = ms.jit(plain)
    return [error(net, tuned), 0 < error(half, rounded) < 2e-2, 0 < error(net, same) < 2e-2,
            {str(each.dtype) for each in half.get_parameters()} == {"Float32"},
            float(np.abs(jitted(x).asnumpy() - plain(x).asnumpy()).max())]
case(another_config)


def gradients():
    net, tuned = applied()
    weights = ms.ParameterTuple(net.trainable_params())
    wanted = ms.value_and_grad(lambda x: net(x).sum(), None, weights)(x)[1]
    through = ms.value_and_grad(lambda x: tuned(x).sum(), None, weights)(x)[1]
    itself = ms.value_and_grad(tuned, None, weights)(x)[1]
    plain = ms.value_and_grad(net, None, weights)(x)[1]
    of_input = ms.grad(lambda x: tuned(x).sum())(x) - ms.grad(lambda x: net(x).sum())(x)
    apart = lambda ones, others: max(float(np.abs((a - b).asnumpy()).max()) for a, b in zip(ones, others))
    return [apart(wanted, through), apart(plain, itself), float(np.abs(of_input.asnumpy()).max()), error(net, tuned),
            max(float(np.abs(each.asnumpy()).max()) for each in through) > 0]
case(gradients)


def inside_others():
    net, tuned = applied()
    head = nn.Dense(8, 1)
    sequence = nn.SequentialCell(tuned, head)
    graph = ms.jit(nn.SequentialCell(net, head))
    return [float(np.abs((sequence(x) - head(net(x))).asnumpy()).max()),
            float(np.abs((graph(x) - head(net(x))).asnumpy()).max()), error(net, tuned)]
case(inside_others)


def threads():
    net, tuned = applied()
    sizes = (4, 2, 3)
    inputs = {size: rows(size) for size in sizes}
    wanted = {size: net(each).asnumpy() for size, each in inputs.items()}
    for each in inputs.values():
        tuned(each)
    wrong, errors, own = [], [], []
    def calls(size):
        for _ in range(int(sys.argv[3])):
            try:
                apart = float(np.abs(tuned(inputs[size]).asnumpy() - wanted[size]).max())
                if not apart < 1e-5:
                    wrong.append(apart)
            except Exception as problem:
                errors.append(repr(problem)[:300])
    def mistakes():
        for _ in range(int(sys.argv[3]) // 10):
            try:
                tuned(ms.Tensor(np.ones((4, 7), np.float32)))
            except Exception as problem:
                own.append(type(problem).__name__)
    workers = [threading.Thread(target=calls, args=(size,)) for size in sizes] + [threading.Thread(target=mistakes)]
    for each in workers: each.start()
    for each in workers: each.join()
    return [len(wrong), wrong[:3], errors[:3], len(own), error(net, tuned), autotune.stats(tuned).state]


def process_settings():
    names = ("mode", "enable_graph_kernel", "graph_kernel_flags", "runtime_num_threads", "inter_op_parallel_num",
             "pynative_synchronize", "memory_optimize_level")
    def settings():
        return {name: ms.get_context(name) for name in names} | dict(os.environ)
    before = settings()
    net, tuned = applied()
    tuned(rows(2))
    return settings() == before
case(process_settings)
print("\\n" + json.dumps(found), flush=True)
if int(sys.argv[3]):
    case(threads)
    print("\\n" + json.dumps(found), flush=True)
os._exit(0)
"""

WAYS = {
    "jit": {"execution": "jit", "capture": "ast", "jit_level": "O0"},
    "graph": {"execution": "graph", "jit_level": "O0"},
}
CHANGES = (
    "set_data", "assign", "in_place", "assign_value", "load_param_into_net", "optimizer", "switched", "inner_switch",
    "statistics", "attribute", "tensor", "tensor_in_place", "buffer", "parameter", "cell", "hook",
)  # fmt: skip
NUM_CALLS = 300


@pytest.fixture(scope="module", params=WAYS)
def found(request, tmp_path_factory):
    """Case -> what the job said, and what was logged; all from one process for each way."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "job.py").write_text(JOB)
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="mindspore", verdict="faster", untuned={"execution": "pynative"})
    command = [sys.executable, "job.py", "best.yaml", json.dumps(WAYS[request.param]), str(NUM_CALLS)]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "4"}
    for _ in range(4):  # PyNative's first operator may crash on a CPU.
        (folder / "best.yaml").write_text(yaml.safe_dump(content))
        child = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        if child.returncode >= 0:
            break
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1]) | {"way": request.param}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_job_changes_is_seen(found, change):
    """Weights, buffers, modes, attributes and parts that change after the first call are those of the next call."""
    before, after, is_tuned = found[change]["said"]
    assert before < 1e-5
    assert after < 1e-5
    assert is_tuned
    assert found[change]["lines"] == [] or change == "hook"


def test_a_model_that_never_stays_the_same_goes_untuned(found):
    """After a number of states nothing more is compiled: the calls are right, and one warning says why."""
    assert found["reloaded_often"]["said"] < 1e-5
    assert len(found["reloaded_often"]["lines"]) == 1
    assert "calls in further states stay untuned" in found["reloaded_often"]["lines"][0]


def test_a_checkpoint_is_that_of_the_model(found):
    """Names, types and values are those of the job's own Cell."""
    assert found["checkpoints"]["said"] == [True, True]


def test_the_own_cell_is_untouched(found):
    """Its class, its attributes and its Parameters stay."""
    assert found["untouched"]["said"] == [True, True, True]


def test_a_copy_is_an_untuned_model_of_its_own(found):
    """A deep copy has its own weights, and can be given a config as well."""
    is_net, has_own_weights, of_copy, of_original = found["copied"]["said"]
    assert is_net
    assert has_own_weights
    assert max(of_copy, of_original) < 1e-5


def test_a_second_application(found):
    """To the same Cell, or to what the job holds already, it takes the first one's place."""
    assert max(found["twice"]["said"]) < 1e-5


def test_another_cell_under_another_config(found):
    """Neither rounds the other's outputs, weights or the graphs that the job compiles itself."""
    error, rounds, rounds_too, keeps_weights, own = found["another_config"]["said"]
    assert max(error, own) < 1e-5
    assert rounds
    assert rounds_too
    assert keeps_weights


def test_gradients_are_the_models(found):
    """Of weights and inputs, through the calls and of the Cell itself; where there are none, one warning."""
    *errors, some = found["gradients"]["said"]
    assert max(errors) < 1e-4
    assert some
    warnings = found["gradients"]["lines"]
    assert ["gradients" in each for each in warnings] == ([True] if found["way"] == "graph" else [])


def test_inside_other_cells(found):
    """The tuned Cell in a Cell of the job's, and the untuned one in a graph of the job's."""
    assert max(found["inside_others"]["said"]) < 1e-5


def test_no_setting_of_the_process(found):
    """A config that asks for none leaves MindSpore's settings and the environment alone."""
    assert found["process_settings"]["said"] is True


def test_threads_beside_a_jobs_own_errors(found):
    """Calls of three threads and shapes are right while a fourth thread's calls raise.

    MindSpore raises such an error in another thread that waits for its outputs too, without any config as well.
    """
    num_wrong, wrong, errors, num_raised, error, state = found["threads"]["said"]
    assert (num_wrong, wrong) == (0, [])
    assert all("'x1_col': 7" in each for each in errors)
    assert num_raised == NUM_CALLS // 10
    assert error < 1e-5
    assert state == "tuned"
