"""What `watch` sees of training steps, and the step that a study makes of it."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from types import MethodType

import pytest

import autotune
from autotune.plugins.watch.command import chosen
from autotune.plugins.watch.question import question_of
from tests.conftest import cli_command, cli_environment

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
nn = torch.nn
X, Y = torch.linspace(-1, 1, 24).reshape(4, 6), torch.linspace(0, 1, 8).reshape(4, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.unused = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), nn.Linear(2, 2)

    def forward(self, x, labels=None):
        y = self.body(x)
        return y if labels is None else {"loss": nn.functional.mse_loss(y.float(), labels), "y": y}


class Own(torch.optim.SGD):
    """An optimizer of the job's own."""


def by_itself(net):
    """A step a batch, and a loss that the loop computes."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        net(X).square().mean().backward()
        optimizer.step()


def as_a_trainer(net):
    """Three batches a step under autocast as accelerate sets it, clipped, with a schedule that begins at nothing, two
    groups of weights, and a validation now and then."""
    net.forward = MethodType(torch.autocast("cpu", torch.bfloat16)(type(net).forward), net)
    first, *others = net.parameters()
    groups = [{"params": [first], "weight_decay": 0.5}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: number / 10)
    for number in range(12):
        net(X, labels=Y)["loss"].backward()
        if number % 3 == 2:
            torch.nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            with torch.no_grad():
                net(X)


def in_pairs(net):
    """Two calls for each backward pass, and an optimizer of its own."""
    optimizer = Own(net.parameters(), lr=0.1)
    for _ in range(4):
        (net(X) - net(-X)).square().mean().backward()
        torch.nn.utils.clip_grad.clip_grad_value_(net.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()


def seen(job, folder):
    """The question of a job that was watched, and the model as the job left it."""
    net = Net()
    with autotune.watch(folder):
        job(net)
    return question_of(*chosen(str(folder))), net


@pytest.mark.parametrize(
    ("job", "arguments", "optimizer", "clip", "remark"),
    [
        (by_itself, None, ("torch.optim.sgd.SGD", {"lr": 0.1, "momentum": 0.5}), None, None),
        (
            as_a_trainer,
            ["accumulate=3"],
            ("torch.optim.adamw.AdamW", {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.5}),
            ("norm", 0.5),
            None,
        ),
        (in_pairs, None, None, ("value", 0.25), "calls the model 2 times in a step, and a study 1"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_seen_of_steps(tmp_path, job, arguments, optimizer, clip, remark):
    """Batches a step, clipping and the optimizer become the question, and what no study has is said. The job trains as
    without, and PyTorch's functions are its own again."""
    functions = [torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad.clip_grad_value_]
    asked, net = seen(job, tmp_path)
    job(plain := Net())
    torch.testing.assert_close(net.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert functions == [torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad.clip_grad_value_]
    assert asked.values["task"] == "train"
    assert asked.values.get("arguments") == arguments
    assert asked.model["own_loss"] == (job is as_a_trainer)
    assert asked.model["clip"] == clip
    assert asked.model["autocast"] == (("cpu", "bfloat16") if job is as_a_trainer else None)
    found = asked.model.get("optimizer")
    assert (found and (found[0], {name: found[1][name] for name in optimizer[1]})) == optimizer
    assert remark is None or any(remark in each for each in asked.remarks)
    assert any("Own: a study steps with torch.optim.AdamW" in each for each in asked.remarks) == (job is in_pairs)


def test_a_step_of_a_study_is_the_jobs(tmp_path):
    """The gradients of a batch that is accumulated are those of that batch, whichever way they are taken, and what was
    there stays; weights that the loss does not use have none. The optimizer clips."""
    asked, _ = seen(as_a_trainer, tmp_path)
    build = runpy.run_path(asked.values["build"].rpartition(":")[0])["build"]
    one, four = build(), build(accumulate=4)

    def loss(step):
        positional, named = step["inputs"]
        return step["loss"](step["model"], *positional, **named)

    torch.testing.assert_close(loss(four), expected := loss(one))
    expected.backward()
    weights = list(four["model"].parameters())
    expected = [weight.grad for weight in one["model"].parameters()]
    assert expected[-1] is None
    weights[0].grad = earlier = torch.ones_like(weights[0])
    value = loss(four)
    assert weights[0].grad is earlier
    found = torch.autograd.grad(value, weights, allow_unused=True, retain_graph=True)
    torch.testing.assert_close(list(found), expected)
    weights[0].grad = None
    value.backward()
    torch.testing.assert_close([weight.grad for weight in weights], expected)
    weights[0].grad *= 1e6
    four["optimizer"].step()
    assert weights[0].grad.norm() <= 0.5 + 1e-6


TRAINER = """
import sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, number):
        words = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": words, "labels": (words[0] > 25).long()}

torch.manual_seed(0)
config = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
arguments = TrainingArguments(
    output_dir="out", max_steps=10, per_device_train_batch_size=16, gradient_accumulation_steps=2, bf16=True,
    use_cpu=True, max_grad_norm=0.5, learning_rate=1e-3, logging_steps=1, report_to="none", save_strategy="no",
    disable_tqdm=True, seed=0,
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sentences())
trainer.train()
losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
compiled = "torch._dynamo.utils" in sys.modules and torch._dynamo.utils.counters["stats"]["unique_graphs"]
print(f"rank {arguments.process_index} {losses} {compiled}")
torch.distributed.destroy_process_group()
"""
SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://example.org/x", when: {execution: compile}, values: [aot_eager], default: aot_eager}
"""


@pytest.mark.slow
def test_a_trainer_of_two_ranks(tmp_path):
    """From a script with bfloat16, two batches a step and two ranks, which says nothing of this tool, to its run under
    the config: the question is the step, and the losses are those of the script."""
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "budget.yaml").write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}")
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    variables = {**cli_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done

    def losses(done):
        ranks = dict(re.findall(r"rank (\d) (\[.*\] \S+)", done.stdout))
        assert ranks.keys() == {"0", "1"}
        each = [ranks[rank].rsplit(" ", 1) for rank in "01"]
        return json.loads(each[0][0]), [compiled for _, compiled in each]

    watched = run(*cli_command("watch", "-o", "seen", "--", *job))
    asking = cli_command("tune", "seen", "--study", "s", "--space", "space.yaml", "--trials", "2")
    shown = run(*asking, "--dry-run").stderr
    for words in (
        "accumulation  2 batches to a step",
        "autocast      bfloat16 on cpu",
        "ranks         2 (DistributedDataParallel)",
        "with the loss that it returns",
        "AdamW, lr 0.001, its 2 groups as the largest; gradients are clipped to a norm of 0.5",
        "--task train --model-arg accumulate=2",
        "of 2 ranks a study measures one",
    ):
        assert words in shown, shown
    run(*asking, "--budget", "budget.yaml")
    run(*cli_command("export", "s", "--trial", "1", "-o", "best.yaml"))
    tuned = run(*cli_command("launch", "best.yaml", "--apply", "--", *job))
    (plain, uncompiled), (found, compiled) = losses(watched), losses(tuned)
    assert uncompiled in (["False"] * 2, ["0"] * 2)
    assert all(int(number) > 0 for number in compiled), (tuned.stdout, tuned.stderr)
    assert len(plain) == 10
    assert found == pytest.approx(plain, rel=2e-2)
