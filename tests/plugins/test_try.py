"""`try`: real jobs whose models are tuned and untuned in turns, and what is told of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys

import pytest

from autotune.plugins.watch import stretches
from autotune.plugins.watch.stretches import TUNED, UNTUNED, Sides
from tests.conftest import REPOSITORY, cli_command, cli_environment
from tests.stand_ins.exports import export


@pytest.mark.parametrize("num_calls", [500, 20_000])
def test_stretches(num_calls):
    """Two of as many calls are a pair, and two pairs are ABBA or BAAB, by chance; a first call does not count, and many
    calls make longer stretches in place of more."""
    sides, orders = Sides(chance=random.Random(0)), set()
    taken = []
    for _ in range(num_calls):
        turn = sides.begin(is_settled=True)
        taken.append(turn.side)
        sides.end(turn, 2.0 if turn.side == UNTUNED else 1.0, counts=True)
    assert taken[:6] == [TUNED] * 3 + [UNTUNED] * 3
    for first in range(6, 6 + 400, 20):
        orders.add(tuple(taken[first : first + 20 : 5]))
        assert all(len(set(taken[each : each + 5])) == 1 for each in range(first, first + 20, 5))
    assert orders == {(UNTUNED, TUNED, TUNED, UNTUNED), (TUNED, UNTUNED, UNTUNED, TUNED)}
    pairs, latest_s = sides.counted()
    assert len(sides.pairs) <= stretches._MOST_PAIRS + 2
    assert {(untuned.centre_s, tuned.centre_s) for untuned, tuned in pairs} == {(2.0, 1.0)}
    assert all(untuned.length == tuned.length for untuned, tuned in pairs)
    counted = sum(each.num for pair in sides.pairs for each in pair)
    assert 0.8 * (num_calls - 6) - 1 <= counted < num_calls
    assert {*latest_s[UNTUNED]} == {2.0}


def test_what_does_not_count():
    """Calls of a model that settles, calls that failed, and all before models were no longer looked for; a stretch of
    which no call counts is no row."""
    sides = Sides(chance=random.Random(0))
    for number in range(100):
        turn = sides.begin(is_settled=number >= 14)
        sides.end(turn, 1.0, counts=number < 40)
    assert sides.num_first == 20
    assert sides.num_left_out == 48  # Four of five of each stretch, from the fifth on.
    assert len(sides.counted()[0]) == 2
    assert sides.num_needed(14) == 60
    sides.start_over()
    assert sides.counted() == ([], ([], []))
    assert sides.begin(is_settled=True).stretch is not None


NET = """
import torch

EAGER = []

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    def forward(self, x):
        if not torch.compiler.is_compiling():
            EAGER.append(1)
        return self.body(x)
"""
JOB = """
import os, sys
import torch
from net import EAGER, Net

torch.manual_seed(0)
net = Net().eval()

def call(times):
    with torch.no_grad():
        print(f"{max(float(net(torch.ones(2, 16)).sum()) for _ in range(times)):.3f}", flush=True)
    with open(f"eager-{os.getpid()}", "w") as file:
        file.write(str(len(EAGER)))

num = int(sys.argv[1])
call(num)
if os.fork() == 0:
    EAGER.clear()
    call(num)
    os._exit(0)
os.wait()
print(sys.stdin.read())
sys.exit(5)
"""
TRAINING = """
import torch
from net import EAGER, Net

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, fused=True)
eager = set()
for step in range(60):
    before = len(EAGER)
    for _ in range(3):
        (net(torch.randn(2, 16)).square().mean() / 3).backward()
    eager.add(len(EAGER) - before)
    optimizer.step()
    optimizer.zero_grad()
    if step == 30:
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 16))
        net.train()
print([f"{float(parameter.detach().sum()):.4f}" for parameter in net.parameters()])
with open("eager", "w") as file:
    file.write(str(sorted(eager)))
"""
ENDLESS = """
import time
import torch
from net import Net

net = Net().eval()

def call(num):
    with torch.no_grad():
        for _ in range(num):
            net(torch.ones(2, 16))

call(100)
begun_s = time.monotonic()
while time.monotonic() - begun_s < 3:
    call(100)
print("ready", flush=True)
while True:
    call(100)
"""


@pytest.fixture
def folder(tmp_path):
    """Jobs, and files that are for their model."""
    torch = pytest.importorskip("torch")
    for name, text in {"net": NET, "job": JOB, "training": TRAINING, "endless": ENDLESS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    for task in ("infer", "train"):
        config = {"execution": "compile", "backend": "eager"}
        net = torch.nn.ModuleDict({"body": layers})
        path = export(tmp_path / f"{task}.yaml", "torch", config, net, [torch.ones(2, 16)], task=task)
        path.write_text(path.read_text().replace("model_class: builtins.function", "model_class: mine.Net"))
    return tmp_path


def begin(folder, *command, **variables):
    return subprocess.Popen(
        command, cwd=folder, env={**cli_environment(), **variables}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process):
    out, err = process.communicate("given", timeout=300)
    return process.returncode, out, err


@pytest.mark.torch
def test_a_job_is_called_on_both_sides(folder):
    """Output and exit status are its own; in each process some calls are tuned and others are not, as counted."""
    job = [sys.executable, "job.py", "6000"]
    status, out, err = ended(begin(folder, *cli_command("try", "infer.yaml", "--json", "--", *job)))
    plain = ended(begin(folder, *job))
    *own, last = out.splitlines()
    assert (status, own) == (5, plain[1].splitlines()), err
    assert plain[0] == 5
    told = json.loads(last)
    assert told["exit_status"] == 5
    assert [file["promised"]["median"] for file in told["files"].values()] == [pytest.approx(3.9, abs=0.1)]
    assert len(told["models"]) == 2
    for model in told["models"]:
        num_eager = int((folder / f"eager-{model['pid']}").read_text())
        assert model["num"] == 6000
        assert 0 < model["untuned"]["num"] <= num_eager
        assert 0 < model["tuned"]["num"] <= 6000 - num_eager
        assert model["num_first"] in (20, 6)  # A child of a process in which the guard has settled.
        assert all(seconds > 0 for pair in model["pairs"] for seconds in pair)
        assert (model["delivered"] is None) == (model["missing"] is not None) == (len(model["pairs"]) < 4)


@pytest.mark.torch
def test_training_changes_sides_between_steps(folder):
    """The weights are those of the job without, no step is of two sides, and one with a validation does not count."""
    status, out, err = ended(
        begin(folder, *cli_command("try", "train.yaml", "--json", "--", sys.executable, "training.py"))
    )
    assert status == 0, err
    assert (folder / "eager").read_text() == "[0, 3]"
    own, last = out.splitlines()
    assert own == ended(begin(folder, sys.executable, "training.py"))[1].strip()
    (model,) = json.loads(last)["models"]
    assert (model["unit"], model["num"]) == ("step", 60)
    assert model["num_left_out"] + model["num_first"] - 7 >= 1


@pytest.mark.torch
@pytest.mark.fast_cases("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_ended_by_a_signal(folder, number):
    """It is sent the signal and ends by it, as the command does then, which tells what was delivered until then."""
    process = begin(folder, *cli_command("try", "infer.yaml", "--", sys.executable, "endless.py"), PYTHONUNBUFFERED="1")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    status, _, err = ended(process)
    assert status == -number, err
    assert "  untuned " in err, err
    assert "  delivered " in err, err
    assert ", promised 3.90x (" in err


@pytest.mark.torch
def test_what_is_missing_is_said(folder):
    """Too few calls, several ranks and a model of another class have their sentences; the job runs as ever."""

    def told(job, **variables):
        status, _, err = ended(
            begin(folder, *cli_command("try", "infer.yaml", "--", sys.executable, *job), **variables)
        )
        return status, err

    status, err = told(["job.py", "14"])
    assert (status, err.count("  14 calls; at least ")) == (5, 2), err
    assert "  14 calls; at least 60 are needed for an interval" in err
    status, err = told(["job.py", "30"], WORLD_SIZE="2")
    assert status == 5
    assert "one of 2 ranks, which cannot change sides each by itself: the job ran untuned" in err
    status, err = told(["-c", "print(5)"])
    assert (status, err.splitlines()[1:]) == (
        0, ["infer.yaml: no call of a model with its class and parameters was seen in any process of the job"],
    )  # fmt: skip
    full = "import json, os; os.mkdir(place := json.loads(os.environ['AUTOTUNE_TRY'])['folder'] + '/processes')"
    status, err = told(["-c", f"{full}; open(place + '/here.partial', 'w')"])
    assert (status, err.count("\n")) == (0, 2)
    assert "is the disk full? (TMPDIR names another)" in err


def test_what_is_not_tried(folder, cli_process):
    """Files of nothing to compare or of another framework, and commands that are not there, have their sentences."""
    refused = cli_process("try", str(REPOSITORY / "tests" / "best.yaml"), "--", "true")
    assert (refused.returncode, "only models of torch and mindspore are tuned" in refused.stderr) == (2, True)
    path = folder / "infer.yaml"
    assert "no command" in cli_process("try", str(path)).stderr
    assert cli_process("try", str(path), "--", "no-such-program").returncode == 127
    path.write_text(path.read_text().replace("verdict: faster", "verdict: tie"))
    refused = cli_process("try", str(path), "--", "true")
    assert refused.returncode == 2
    assert "says tie: the model stays as it is, and there is nothing to try" in refused.stderr
