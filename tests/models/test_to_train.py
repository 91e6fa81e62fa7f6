"""`--task train` of a model by name: the loss of its own head, example labels, and AdamW."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

from autotune.errors import InputError
from autotune.planning.models import make_workload
from autotune.plugins.hubs import hubs
from autotune.trial.worker.subjects import build_subject
from autotune.workload.kinds.train import own_loss
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def build():
    return importlib.import_module("autotune.plugins.hubs.torch.hugging_face").build_to_train


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "labels"),
    [
        ("bert", {"head": "classification"}, "BertForSequenceClassification", ((4,), 2)),
        ("bert", {"head": "classification", "num_labels": 5, "batch": 3}, "BertForSequenceClassification", ((3,), 5)),
        ("bert", {}, "BertForMaskedLM", ((4, 32), 1000)),
        ("gpt2", {"head": "causal", "seq": 8}, "GPT2LMHeadModel", ((4, 8), 1000)),
        ("gpt2", {"head": "classification"}, "GPT2ForSequenceClassification", ((4,), 2)),
        ("t5", {"batch": 2}, "T5ForConditionalGeneration", ((2, 32), 1000)),
        ("vit", {"num_labels": 7}, "ViTForImageClassification", ((4,), 7)),
        ("llama", {}, "LlamaForCausalLM", ((4, 32), 1000)),
        pytest.param("whisper", {}, "WhisperForConditionalGeneration", ((4, 32), 1000), marks=pytest.mark.slow),
        pytest.param("wav2vec2", {}, "Wav2Vec2ForSequenceClassification", ((4,), 2), marks=pytest.mark.slow),
        pytest.param("videomae", {}, "VideoMAEForVideoClassification", ((4,), 2), marks=pytest.mark.slow),
        pytest.param("bart", {}, "BartForConditionalGeneration", ((4, 32), 1000), marks=pytest.mark.slow),
    ],
)
def test_a_model_comes_with_labels_and_returns_its_loss(build, name, arguments, kind, labels):
    """In training mode, with the head that is asked for or that it is known for; its loss moves its weights."""
    made = build(name, **arguments)
    model, inputs = made["model"], made["inputs"]
    shape, num_labels = labels
    assert type(model).__name__ == kind
    assert model.training
    assert inputs["labels"].shape == shape
    assert 0 <= int(inputs["labels"].min()) <= int(inputs["labels"].max()) < num_labels
    assert "decoder_input_ids" not in inputs, "a decoder makes them of its labels"
    own_loss(model, **inputs).backward()
    assert sum(float(each.grad.abs().sum()) for each in model.parameters() if each.grad is not None) > 0


def test_dropout_is_as_the_model_ships_it(build):
    """Nothing is turned off on the quiet; the configuration's field does it."""
    shares = {each.p for each in build("bert")["model"].modules() if isinstance(each, torch.nn.Dropout)}
    assert shares == {0.1}
    off = build("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)["model"]
    assert {each.p for each in off.modules() if isinstance(each, torch.nn.Dropout)} == {0.0}


def test_numbers_and_several_labels_have_losses_of_their_own(build):
    """A regression, and a yes or no for each label."""
    numbers = build("bert", head="classification", num_labels=1)["inputs"]["labels"]
    assert numbers.is_floating_point()
    assert numbers.shape == (4,)
    several = build("bert", head="classification", num_labels=3, problem_type="multi_label_classification")
    assert several["inputs"]["labels"].shape == (4, 3)
    assert set(several["inputs"]["labels"].unique().tolist()) <= {0.0, 1.0}


def test_a_model_of_two_towers_is_told_to_return_its_loss(build):
    """CLIP takes no labels: the pairs of the batch are what it learns."""
    assert build("clip")["inputs"]["return_loss"] is True


@pytest.mark.parametrize(
    ("name", "arguments", "words", "tip"),
    [
        ("bert", {"head": "none"}, "no labels were found with which BertModel returns a loss", "head=masked or causal"),
        ("dpt", {}, "hf:dpt': no labels were found with which DPTModel returns a loss", "FILE.py:FUNCTION"),
        ("clip", {"part": "vision_model"}, "'vision_model'}: a part has no loss", "FILE.py:FUNCTION"),
        ("vit", {"head": "causal"}, "no such model with head=causal", "classification"),
        ("lama", {}, "has no such model type", "llama"),
    ],
)
def test_what_has_no_loss_is_said_in_a_sentence(build, name, arguments, words, tip):
    """With the heads that have one, or the way to a function of one's own."""
    with pytest.raises(InputError, match=words) as caught:
        build(name, **arguments)
    assert tip in (caught.value.tip or "")
    assert "\n" not in str(caught.value)


def test_timm_trains_by_smoothed_cross_entropy():
    """Its models return scores; what has no classes is told how to get them."""
    pytest.importorskip("timm")
    build = importlib.import_module("autotune.plugins.hubs.torch.timm_models").build_to_train
    made = build("test_vit", image_size=64, num_classes=5)
    assert made["model"].training
    assert made["targets"].shape == (4,)
    assert int(made["targets"].max()) < 5
    value = made["loss"](made["model"], made["inputs"], made["targets"])
    assert 0 < float(value) < 10
    with pytest.raises(InputError, match="it has no classes") as caught:
        build("test_vit", num_classes=0)
    assert "num_classes=1000" in str(caught.value.tip)


def test_mindcv_trains_by_smoothed_cross_entropy():
    """As timm's models do."""
    pytest.importorskip("mindspore")
    pytest.importorskip("mindcv")
    made = importlib.import_module("autotune.plugins.hubs.mindspore.mindcv_models").build_to_train(
        "mobilenet_v3_small_100", image_size=32, num_classes=5
    )
    assert made["model"].training
    assert made["targets"].shape == (4,)
    assert float(made["loss"](made["model"], made["inputs"], made["targets"]).asnumpy()) > 0


@pytest.mark.parametrize("name", ["hf:bert", "timm:test_vit"])
def test_a_name_becomes_a_training_step(monkeypatch, name):
    """The command's words give another function than for inference, and other code is another model."""
    monkeypatch.setattr(hubs, "package_version", lambda _: "1.0")
    train, infer = (make_workload(name, {}, "torch", "cpu", 0, task=task) for task in ("train", "infer"))
    assert train.reference == infer.reference + "_to_train"
    assert train.source_sha256 != infer.source_sha256


def test_a_trial_gets_the_usual_optimizer():
    """AdamW, for what is not frozen, at the learning rate that trainers take."""
    from autotune.backends.torch.backend import TorchBackend

    workload = make_workload("hf:bert", {"num_hidden_layers": 1}, "torch", "cpu", 0, task="train")
    backend = TorchBackend()
    backend.prepare("cpu", 0)
    recipe = build_subject(workload, backend).work
    assert type(recipe.optimizer).__name__ == "AdamW"
    (group,) = recipe.optimizer.param_groups
    assert group["lr"] == pytest.approx(5e-5)
    assert len(group["params"]) > 10


JOB = """
import json, sys
import torch
import autotune
from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(
    num_hidden_layers=1, hidden_size=64, intermediate_size=256, num_attention_heads=4, vocab_size=1000, use_cache=False,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
batch = {"input_ids": torch.arange(128).view(4, 32), "attention_mask": torch.ones(4, 32, dtype=torch.long)}
batch["labels"] = torch.tensor([0, 1, 0, 1])

def losses(step_of):
    torch.manual_seed(0)
    model = BertForSequenceClassification(config).train()
    step = step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    return [float(step(**batch)) for _ in range(20)]

def by_hand(model, optimizer):
    def step(**batch):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step

tuned = autotune.load(sys.argv[1])

def with_it(model, optimizer):
    return tuned.training_step(model, optimizer=optimizer, on_mismatch="raise")

print(json.dumps([losses(by_hand), losses(with_it)]))
"""


@pytest.mark.slow
def test_a_model_by_name_is_tuned_and_a_job_trains_with_it(cli_process, tmp_path):
    """From the command's words to a verdict and a file, with dropout as shipped; a job that gives no loss trains as by
    hand with it, without dropout, whose numbers differ."""
    (tmp_path / "budget.yaml").write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}")
    told = cli_process(
        *("tune", "--task", "train", "--model", "hf:bert", "--model-arg", "head=classification"),
        *("--model-arg", "num_hidden_layers=1", "--framework", "torch", "--device", "cpu"),
        *("--study", "s", "--trials", "3", "--budget", "budget.yaml"),
        timeout=500,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    exported = cli_process("export", "s", "-o", "best.yaml")
    assert exported.returncode == 0, exported.stderr
    assert "task: train" in (tmp_path / "best.yaml").read_text()
    (tmp_path / "job.py").write_text(JOB)
    child = subprocess.run(
        [sys.executable, "job.py", "best.yaml"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    by_hand, tuned = json.loads(child.stdout.splitlines()[-1])
    assert tuned == pytest.approx(by_hand, rel=1e-2)
    assert by_hand[-1] < by_hand[0]


def test_hub_references_need_no_framework():
    """What is imported for a name is known without importing it."""
    assert hubs.HF.builder("train").endswith("hugging_face:build_to_train")
