"""`watch`, `tune FOLDER`, `launch --apply` and `try` with MindSpore: Cells kept, built again and tuned in a job."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import sys

os.environ.setdefault("GLOG_v", "3")  # read when mindspore is imported

import numpy as np
import pytest

import autotune
from autotune.errors import InputError
from autotune.plugins.watch.command import chosen
from autotune.plugins.watch.folder import read
from autotune.plugins.watch.question import question_of
from tests.conftest import cli_command
from tests.plugins.test_watch import run
from tests.stand_ins.exports import export

ms = pytest.importorskip("mindspore")
nn = ms.nn
pytestmark = pytest.mark.mindspore
JIT = {"execution": "jit", "capture": "ast", "jit_level": "O0"}


def ones(*shape):
    return ms.Tensor(np.ones(shape, np.float32))


class Many(nn.Cell):
    """Parts of many kinds, and what authors put beside them."""

    def __init__(self):
        super().__init__()
        self.embed, self.table = nn.Embedding(8, 12), ms.Parameter(ms.Tensor([1.5, 2.5], ms.bfloat16), "table")
        self.blocks = nn.CellList([nn.SequentialCell(nn.Dense(12, 12), nn.GELU(), nn.LayerNorm((12,)))])
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.attend, self.drop, self.rnn = nn.MultiheadAttention(12, 2), nn.Dropout(p=0.5), nn.LSTM(12, 5)
        self.add, self.cast, self.kind = ms.ops.Add(), ms.ops.Cast(), ms.float16
        self.scale, self.names, self.act = ms.Tensor(2.0, ms.float32), {"a": [1, 2]}, ms.ops.relu
        self.again = self.blocks[0]
        self.weights = ms.ParameterTuple(self.blocks[0].trainable_params())

    def construct(self, ids, more=1.0):
        x = self.again(self.embed(ids)) * self.scale * more
        x = self.add(x, self.attend(x, x, x)[0])
        x = self.act(self.norm(self.conv(x.expand_dims(1)))).mean(1)
        return self.cast(self.drop(self.rnn(x)[0]), self.kind), self.table


@pytest.fixture
def many():
    return Many().set_train(False)


IDS = np.arange(6, dtype=np.int32).reshape(2, 3)


def same(one, other):
    pairs = zip(one, other, strict=True)
    return all((a.astype(ms.float32).asnumpy() == b.astype(ms.float32).asnumpy()).all() for a, b in pairs)


def test_a_cell_comes_back_from_its_file(many, tmp_path):
    """The same outputs and names, with parts that stand in two places as one; its graphs and callers stay behind. What
    no file holds is refused."""
    from autotune.plugins.watch.mindspore import cell_file

    want = many(ms.Tensor(IDS))
    needed = cell_file.write(many, tmp_path / "net.pickle")
    assert __name__ in needed
    again = cell_file.read(tmp_path / "net.pickle")
    assert same(again(ms.Tensor(IDS)), want)
    assert [each.name for each in again.get_parameters()] == [each.name for each in many.get_parameters()]
    assert again.again is again.blocks[0]
    assert again.weights[0] is again.blocks[0][0].weight
    assert again.create_time != many.create_time
    compiled = ms.jit(again.construct)
    assert same(compiled(ms.Tensor(IDS)), want)
    many.act = lambda x: x
    with pytest.raises(InputError, match="lambda"):
        cell_file.write(many, tmp_path / "net.pickle")


class Net(nn.Cell):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(16, 16), nn.ReLU(), nn.Dense(16, width))

    def construct(self, x, scale=1.0):
        return self.body(x) * scale


class Jitted(Net):
    @ms.jit
    def construct(self, x):
        return self.body(x)


def test_calls_in_a_block(tmp_path):
    """The outermost Cells with their shapes and values are built again as they were, whether the job compiles them; a
    loss and an optimizer are no models, gradients make training steps, calls that fail are not kept, and what is
    compiled so that nothing can be kept of it has its sentence."""
    net, trained, jitted = Net().set_train(False), Net(3).set_train(), Jitted()
    step = nn.TrainOneStepCell(nn.WithLossCell(trained, nn.MSELoss()), nn.SGD(trained.trainable_params(), 0.1))
    alone = Net(3).set_train()  # It is itself what the step takes gradients of.
    bare = nn.TrainOneStepCell(alone, nn.SGD(alone.trainable_params(), 0.1))
    before = nn.Cell.__call__
    with autotune.watch(tmp_path / "net"):
        outputs = [net(ones(1 + number % 2, 16), scale=0.5) for number in range(6)]
    with autotune.watch(tmp_path / "step"):
        [step(ones(2, 16), ones(2, 3)) for _ in range(3)]
    with autotune.watch(tmp_path / "bare"):
        [bare(ones(2, 16)) for _ in range(3)]
    with autotune.watch(tmp_path / "jitted"):
        [jitted(ones(2, 16)) for _ in range(2)]

    def function(x):
        return net(x) + 1

    compiled, of_function = ms.jit(net), ms.jit(function)
    captured = ms.jit(net, capture_mode="bytecode")
    want = [outputs[0], net(ones(1, 16)) + 1]
    with autotune.watch(tmp_path / "compiled"):
        with pytest.raises(ValueError, match="MatMul"):
            net(ones(2, 5))
        assert same([compiled(ones(2, 16), 0.5), captured(ones(2, 16), 0.5)], [outputs[1]] * 2)
        assert same([compiled(ones(1, 16), scale=0.5), of_function(ones(1, 16))], want)
    assert nn.Cell.__call__ is before
    (watched,), (training,), (refused,) = (read(tmp_path / each) for each in ("net", "step", "jitted"))
    (by_jit,) = (each for each in read(tmp_path / "compiled") if each.name == "Net")
    asked, remarks = question_of(by_jit), " ".join(by_jit.notes())
    assert asked.counted == [{"batch": 1, "count": 1}, {"batch": 2, "count": 1}]
    for words in ("already, with ms.jit", "function of tests.", "Net.construct of tests."):
        assert words in remarks
    asked = question_of(watched)
    assert (asked.values["framework"], asked.values["task"]) == ("mindspore", "infer")
    assert asked.counted == [{"batch": 1, "count": 3}, {"batch": 2, "count": 3}]
    cell, (args, kwargs) = built(asked, batch=2)
    assert kwargs == {"scale": 0.5}
    assert same([cell(*args, **kwargs)], [outputs[1]])
    asked = question_of(training)
    assert asked.values["task"] == question_of(*read(tmp_path / "bare")).values["task"] == "train"
    made = built(asked)
    assert float(made["loss"](made["model"], *made["inputs"][0])) > 0
    with pytest.raises(InputError, match=r"it is a Jitted whose construct is wrapped by ms\.jit already"):
        question_of(refused)


def test_graph_mode_is_the_jobs(tmp_path, caplog):
    """A file is not applied in it, with one line that says what to do; what was applied before is untuned in it, and
    goes on after it."""
    net, x = Net().set_train(False), ones(2, 16)
    path = export(tmp_path / "best.yaml", "mindspore", JIT, net, [x])
    tuned = autotune.load(path).apply(net)
    outputs = [tuned(x), net(x)]
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        assert autotune.load(path).apply(net) is net
        outputs += [tuned(x), tuned(x)]
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    outputs += [tuned(x)]
    assert all(np.allclose(each.asnumpy(), outputs[0].asnumpy(), rtol=1e-5) for each in outputs)
    refused, left = (each.message for each in caplog.records)
    assert "was not proven in graph mode" in refused
    assert "ms.set_context(mode=ms.PYNATIVE_MODE)" in refused
    assert "the process went into graph mode" in left


def built(asked, **sizes):
    return runpy.run_path(asked.values["build"].rpartition(":")[0])["build"](**sizes)


JOB = """
import logging, multiprocessing, os, signal, sys, time
import numpy as np
import mindspore as ms
from mindspore import nn

logging.basicConfig(format="%(message)s", stream=sys.stdout)

def dense(*shape):
    weights = np.random.default_rng(shape).normal(size=shape[::-1])
    return nn.Dense(*shape, weight_init=ms.Tensor(weights.astype(np.float32)), bias_init="zeros")

class Net(nn.Cell):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.SequentialCell(dense(16, 16), nn.ReLU(), dense(16, width))

    def construct(self, x):
        return self.body(x)

net = Net().set_train(False)
x = ms.Tensor(np.ones((2, 16), np.float32))

def call(times):
    print([round(float(net(x).asnumpy().sum()), 4) for _ in range(times)][-1], type(net).__name__, flush=True)

def forked(run):
    child = os.fork()
    if child == 0:
        run()
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def graphs():
    from mindspore.graph import api
    return len(api.ms_compile_cache)
"""
OWN_JOB = f"""{JOB}
if __name__ == "__main__":
    if sys.argv[1:] == ["again"]:
        call(3)
        print("executed", sys.modules["sitecustomize"].MINE, os.path.basename(sys.path[0]))
        sys.exit(3)
    print(forked(lambda: call(4)))  # Before the first operator: a fork of MindSpore has none of its threads.
    worker = multiprocessing.get_context("fork").Process(target=call, args=(5,))
    worker.start(), worker.join()
    print(forked(lambda: os.execv(sys.executable, [sys.executable, __file__, "again"])))
    call(11)
    for mode in ("ast", "bytecode"):
        def function(x):
            return net(x) + 1

        function = ms.jit(function, capture_mode=mode)
        print([round(float(function(x).asnumpy().sum()), 4) for _ in range(3)], graphs())
    try:
        net(ms.Tensor(np.ones((2, 5), np.float32)))
    except ValueError as error:
        print(type(error).__name__)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_job_is_its_own(tmp_path):
    """Forks, a worker of multiprocessing, another program, compiled code, an error and the signal that ends it are as
    without; each process has its document, the killed one that of its latest calls."""
    (tmp_path / "job.py").write_text(OWN_JOB)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("MINE = 5")
    job = [sys.executable, str(tmp_path / "job.py")]
    plain, watched = run(job, tmp_path), run(cli_command("watch", "-o", "seen", "--", *job), tmp_path)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout), watched.stderr
    assert plain.returncode == -signal.SIGTERM, plain.stderr
    (each,) = chosen(str(tmp_path / "seen"))
    calls = {model.calls for model in each.models}
    assert {3, 4, 5} < calls  # The program, the child and the worker.
    assert max(calls) >= 8
    assert each.saved() is not None


OTHERS = """
class Trained(Net):
    pass

class Odd(Net):
    def named_buffers(self, *args, **kwargs):
        raise RuntimeError("no parameters here")

Odd.__name__ = "Net"
"""
TUNED_JOB = f"""{JOB}{OTHERS}
print(forked(lambda: (call(3), print("graphs", graphs(), flush=True))))
for net in (net, Net(5).set_train(False), Odd().set_train(False)):
    call(3)
print("graphs", graphs())
trained, before = Trained(3).set_train(), graphs()
step = ms.value_and_grad(lambda x: trained(x).square().mean(), None, trained.trainable_params())
for _ in range(3):
    for weight, gradient in zip(trained.trainable_params(), step(x)[1]):
        ms.ops.assign_sub(weight, 0.01 * gradient)
print([round(float(weight.asnumpy().sum()), 4) for weight in trained.get_parameters()])
print("graphs", int(graphs() > before))
sys.exit(5)
"""


@pytest.fixture
def job(tmp_path):
    """A job, and files that are for its models: of calls, and of training steps."""
    (tmp_path / "job.py").write_text(TUNED_JOB)
    for task, name, width in (("infer", "Net", 4), ("train", "Trained", 3)):
        config = JIT if task == "infer" else {**JIT, "scope": "model"}
        path = export(tmp_path / f"{task}.yaml", "mindspore", config, Net(width), [ones(2, 16)], task=task)
        path.write_text(path.read_text().replace("model_class: builtins.function", f"model_class: mine.{name}"))
    return [sys.executable, "job.py"]


@pytest.mark.slow
def test_a_job_is_tuned_without_a_line_of_code(tmp_path, job):
    """In a worker and in its parent, with the untuned outputs, and weights where gradients are taken; a Cell of another
    structure, and one that cannot be looked at, stay as they are."""
    command = cli_command("launch", "infer.yaml", "train.yaml", "--apply", "--")
    plain, tuned = run(job, tmp_path), run([*command, *job], tmp_path)
    assert plain.returncode == tuned.returncode == 5, tuned.stderr
    assert plain.stdout.count("graphs 0") == 3
    warning = "autotune: a Net stays untuned, since it cannot be looked at: RuntimeError: no parameters here\n"
    assert tuned.stdout.replace(warning, "") == plain.stdout.replace("graphs 0", "graphs 1")
    assert warning in tuned.stdout


TRAINING = f"""{JOB}
class Trained(Net):
    pass

def batches():
    for number in range(180):
        yield np.random.default_rng(number).normal(size=(2, 16)).astype(np.float32),

trained = Trained(3).set_train()
weights = trained.trainable_params()
optimizer, losses = nn.Adam(weights, 1e-2), []

def loss(x):
    return trained(x).square().mean()

class Losses(ms.train.Callback):
    def on_train_step_end(self, run):
        losses.append(run.original_args().net_outputs.asnumpy())

def fit(model, dataset):
    ms.train.Model(model, optimizer=optimizer).train(1, dataset, callbacks=[Losses()], dataset_sink_mode=False)

class WithLoss(nn.Cell):
    def __init__(self):
        super().__init__(auto_prefix=False)
        self.model = trained

    def construct(self, x):
        return self.model(x).square().mean()

class Own(Net):
    def construct(self, x):
        return self.body(x).square().mean()

Own.__name__ = "Trained"
how, step = sys.argv[1], ms.value_and_grad(loss, None, weights)
if how == "Model.train":
    fit(WithLoss(), ms.dataset.GeneratorDataset(batches, ["x"], shuffle=False))
elif how == "the network itself":
    trained = Own(3).set_train()
    weights = trained.trainable_params()
    optimizer = nn.Adam(weights, 1e-2)
    fit(trained, ms.dataset.GeneratorDataset(batches, ["x"], shuffle=False))
elif how != "calls":
    held = None
    for number, (x,) in enumerate(batches(), 1):
        value, gradients = step(ms.Tensor(x))
        losses.append(value.asnumpy())
        held = gradients if held is None else [one + other for one, other in zip(held, gradients)]
        if number % 3 == 0 and how == "optimizer":
            optimizer(tuple(held))
        elif number % 3 == 0:
            [ms.ops.assign_sub(weight, 0.01 * each) for weight, each in zip(weights, held)]
        held = held if number % 3 else None
        if number == 90:
            trained.set_train(False)(ms.Tensor(x))
            trained.set_train()
else:
    call(200)
print([f"{{float(each):.4f}}" for each in losses], [f"{{float(each.asnumpy().sum()):.3f}}" for each in weights])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "how", "num"),
    [
        ("infer.yaml", "calls", 200),
        ("train.yaml", "optimizer", 60),
        ("train.yaml", "assigned", 60),
        ("train.yaml", "Model.train", 180),
        ("train.yaml", "the network itself", 180),
        ("whole.yaml", "optimizer", 0),
    ],
)
def test_a_job_is_called_on_both_sides(tmp_path, job, file, how, num):
    """Calls are tuned and untuned in turns, and steps, of several batches, too, with a validation between: output,
    losses and weights are the job's own. A file of whole steps has its sentence."""
    (tmp_path / "job.py").write_text(TRAINING)
    train = (tmp_path / "train.yaml").read_text()
    (tmp_path / "whole.yaml").write_text(train.replace("scope: model", "scope: step"))
    plain = run([*job, how], tmp_path)
    tried = run([*cli_command("try", file, "--json", "--"), *job, how], tmp_path)
    *own, last = tried.stdout.splitlines()
    assert own == plain.stdout.splitlines(), tried.stderr
    (model,) = json.loads(last)["models"]
    assert (model["num"], model["unit"]) == (num, "call" if how == "calls" else "step")
    if num:
        assert model["untuned"]["num"] > 0 < model["tuned"]["num"]
        assert model["delivered"] is not None
    else:
        (note,) = model["notes"]
        assert note.startswith("the config compiles more of a step than the model")


WALK = f"""import torch
{JOB}
with torch.no_grad():
    other = torch.nn.Linear(2, 2).eval()
    [other(torch.ones(1, 2)) for _ in range(3)]
for _ in range(20):
    call(2)
print("graphs", graphs(), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_from_a_job_to_the_same_job_tuned(tmp_path, cli):
    """A script of both frameworks is watched, its Cell is tuned as it was called, and the file is applied to it: the
    same output."""
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(WALK)
    job = [sys.executable, "job.py"]
    plain, watched = run(job, tmp_path), run(cli_command("watch", "-o", "seen", "--", *job), tmp_path)
    assert (watched.returncode, watched.stdout) == (0, plain.stdout), watched.stderr
    assert {each.processes[0].framework for each in read(tmp_path / "seen")} == {"torch", "mindspore"}
    tuned = cli("tune", "seen/Net", "--trials", "2", "--budget", "60s", "--study", "walk")
    assert tuned.returncode == 0, tuned.stderr
    assert cli("export", "walk", "--trial", "1", "-o", "best.yaml").returncode == 0
    path = tmp_path / "best.yaml"
    path.write_text(re.sub("verdict: .*", "verdict: faster", path.read_text()))
    applied = run([*cli_command("launch", "best.yaml", "--apply", "--"), *job], tmp_path)
    assert (applied.returncode, applied.stdout) == (0, plain.stdout), applied.stderr
    assert ["graphs 0" in each.stderr for each in (plain, watched, applied)] == [True, True, False]
