"""Hugging Face's Trainer and accelerate under a tuned config: what they train is what they train without it."""

from __future__ import annotations

import logging
import os
import runpy

import pytest

import autotune
from autotune.integrations import hugging_face
from autotune.integrations.paid_back import told
from autotune.plugins.watch.command import chosen
from autotune.plugins.watch.question import question_of
from tests.conformance.torch_kit import CAPTURED, COMPILED, warned
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402

from autotune.backends.torch import counters  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, LENGTH, WORDS = 8, 12, 40
CONFIGS = pytest.mark.parametrize(
    "config", [CAPTURED, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["aot_eager", "inductor"]
)
BF16 = {**CAPTURED, "precision": "bf16_autocast"}


class Sentences(torch.utils.data.Dataset):
    """Words, and whether a certain one is among the first."""

    def __init__(self, size):
        self.words = torch.randint(0, WORDS, (size, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, number):
        words = self.words[number].clone()
        if number % 2:
            words[number % 3] = 7
        return {"input_ids": words, "labels": torch.tensor(number % 2)}


def made(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def initial():
    return made()


@pytest.fixture
def best(tmp_path):
    """The path of an export of a study of training steps that fits the model."""

    def best(config):
        return export(tmp_path / "best.yaml", "torch", {**config, "scope": "model"}, made(), [], task="train")

    return best


@pytest.fixture
def trainer(tmp_path):
    def trainer(model=None, steps=40, **arguments):
        given = {
            "output_dir": str(tmp_path / "out"), "max_steps": steps, "learning_rate": 1e-3, "report_to": "none",
            "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "disable_tqdm": True,
            "logging_steps": 1, "save_strategy": "no", "seed": 0, "use_cpu": True,
        }  # fmt: skip
        made_by = {"model_init": initial} if model is initial else {"model": made() if model is None else model}
        return transformers.Trainer(
            **made_by, args=transformers.TrainingArguments(**{**given, **arguments}),
            train_dataset=Sentences(20 * BATCH), eval_dataset=Sentences(3 * BATCH),
        )  # fmt: skip

    return trainer


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    torch.set_num_threads(1)  # Several would wait for each other, on so small a model.
    monkeypatch.delenv("ACCELERATE_DYNAMO_BACKEND", raising=False)
    yield
    torch._dynamo.reset()
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]  # Trainer's arguments set them for the process.
    AcceleratorState._reset_state(reset_partial_state=True)


def losses(trainer, **how):
    trainer.train(**how)
    logged = trainer.state.log_history
    return [each.get("loss", each.get("eval_loss")) for each in logged if {"loss", "eval_loss"} & each.keys()]


class TestTrainer:
    @pytest.mark.parametrize(
        "config", [CAPTURED, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["aot", "inductor"]
    )
    def test_it_trains_as_without(self, best, trainer, caplog, tmp_path, config):
        """With accumulation, clipping, a schedule, evaluation now and then; and saves what `from_pretrained` loads. The
        log says once, and only where the calls are tuned, when compiling is paid back."""
        caplog.set_level(logging.INFO, "autotune")
        how = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5, "eval_strategy": "steps", "eval_steps": 10}
        how["steps"] = 24
        tuned, reference = hugging_face.use_tuned(trainer(**how), best(config)), trainer(**how)
        found, expected = losses(tuned), losses(reference)
        assert found == pytest.approx(expected, rel=1e-3)
        assert len(found) >= 24 + 2
        assert sum("a step takes" in each.message for each in caplog.records) == 1
        torch.testing.assert_close(tuned.model.state_dict(), reference.model.state_dict(), rtol=1e-2, atol=1e-3)
        stats = autotune.stats(tuned.model)
        assert (stats.state, warned(caplog)) == ("tuned", [])
        assert stats.num_compiles > 0
        tuned.save_model(tmp_path / "saved")
        loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
        torch.testing.assert_close(loaded.state_dict(), tuned.model.state_dict())

    @pytest.mark.slow
    def test_dropout(self, best, trainer, caplog):
        """200 steps of the model as it is shipped: losses within the spread of the untuned run over seeds."""
        plain = torch.tensor([losses(trainer(made(0.1), 200, seed=seed)) for seed in range(4)])
        tuned = torch.tensor(
            [losses(hugging_face.use_tuned(trainer(made(0.1), 200, seed=seed), best(COMPILED))) for seed in range(2)]
        )
        for part in (slice(0, 40), slice(80, 120), slice(160, 200)):
            spread = plain[:, part].mean(1)
            margin = 3 * spread.std()
            assert spread.min() - margin < tuned[:, part].mean() < spread.max() + margin
        assert plain[:, -20:].mean() < 0.7 * plain[:, :20].mean()
        assert warned(caplog) == []

    @pytest.mark.slow
    def test_a_checkpoint_in_the_middle(self, best, trainer, caplog):
        """Resumed by another process's Trainer, tuned again."""
        how = {"save_strategy": "steps", "save_steps": 20}
        whole = losses(trainer(**how))
        resumed = hugging_face.use_tuned(trainer(**how), best(CAPTURED))
        found = losses(resumed, resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-20")
        assert found[-20:] == pytest.approx(whole[-20:], rel=1e-3)
        assert warned(caplog) == []

    @pytest.mark.slow
    def test_a_trainer_that_makes_its_model(self, best, trainer, caplog):
        """`model_init` is called when training begins: what it gives is tuned then."""
        tuned, reference = hugging_face.use_tuned(trainer(initial), best(CAPTURED)), trainer(initial)
        assert losses(tuned) == pytest.approx(losses(reference), rel=1e-3)
        assert autotune.stats(tuned.model).num_compiles > 0
        assert warned(caplog) == []

    def test_one_that_compiles_by_itself(self, best, trainer, caplog):
        """Its compiler gets all of the model: one warning, and the model is left alone."""
        given = trainer(torch_compile=True, torch_compile_backend="eager")
        model = given.model
        assert hugging_face.use_tuned(given, best(CAPTURED)).model is model
        (line,) = warned(caplog)
        assert "torch_compile=True" in line
        assert "the tuned config is not used" in line

    @pytest.mark.fast_cases("True")
    @pytest.mark.parametrize("bf16", [True, False])
    def test_autocast(self, best, trainer, caplog, bf16):
        """A config with autocast is for a Trainer with bf16; in another one it is not used, which is said once."""
        tuned = hugging_face.use_tuned(trainer(steps=20, bf16=bf16), best(BF16))
        found, expected = losses(tuned), losses(trainer(steps=20, bf16=bf16))
        assert found == pytest.approx(expected, rel=5e-2 if bf16 else 1e-6)
        assert (autotune.stats(tuned.model).num_compiles > 0) == bf16
        assert [("bfloat16" in each) for each in warned(caplog)] == [True] * (not bf16)


class TestRecording:
    @pytest.mark.parametrize("bf16", [True, False])
    def test_the_first_steps_are_the_question(self, trainer, tmp_path, caplog, bf16):
        """As long as there is no file the first steps are watched: `tune` takes the folder as it is, with the batches,
        autocast, clipping and loss of the trainer, and a step gives the loss that the trainer had. The job trains as
        without, and nothing is watched after them."""
        how = {"steps": 6, "bf16": bf16, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
        recording = hugging_face.use_tuned(trainer(**how), tmp_path / "none.yaml", record=tmp_path / "step")
        assert (found := losses(recording)) == losses(trainer(**how))
        first, last = warned(caplog)
        assert f"there is no {tmp_path / 'none.yaml'} yet" in first
        assert f"tune {tmp_path / 'step'} --study step" in last
        assert last.endswith(f"export step --output {tmp_path / 'none.yaml'}")
        (watched,) = chosen(str(tmp_path / "step"))
        assert watched.calls == 2 * hugging_face.STEPS_RECORDED
        asked = question_of(watched)
        assert (asked.values["task"], asked.values["arguments"]) == ("train", ["accumulate=2"])
        assert asked.values.get("tolerance") == (0.03 if bf16 else None)
        assert (asked.model["own_loss"], asked.model["clip"]) == (True, ("norm", 0.5))
        step = runpy.run_path(asked.values["build"].rpartition(":")[0])["build"]()
        batches = [step["inputs"], *step["more_inputs"][:1]]
        values = [step["loss"](step["model"], *args, **named).item() for args, named in batches]
        scale = 2 if "num_items_in_batch" in batches[0][1] else 1  # The loss of a batch is its part of the step's.
        assert scale * sum(values) / 2 == pytest.approx(found[0], rel=1e-2)

    def test_what_cannot_be_recorded_is_said(self, trainer, tmp_path, caplog):
        """Steps of a job that is watched already; it trains on."""
        recording = hugging_face.use_tuned(trainer(initial, steps=1), tmp_path / "none.yaml", record=tmp_path / "step")
        with autotune.watch(tmp_path / "other"):
            assert len(losses(recording)) == 1
        assert any("are not recorded: calls are watched already" in line for line in warned(caplog))


@pytest.mark.parametrize(
    ("saved_s", "num_steps", "words"),
    [
        (
            0.25,
            3000,
            "a step takes 500 ms, untuned 750 ms by the study; compiling took 8 s, paid back at step 32 of 3,000",
        ),
        (2**-9, 1000, "paid back at step 4,096 of 1,000: not worth it for 1,000 steps"),
        (0.25, -1, "compiling took 8 s, paid back at step 32"),
        (0.0, 1000, "by the study no less than untuned: not worth it"),
    ],
)
def test_when_compiling_is_paid_back(saved_s, num_steps, words):
    """Five first steps of which one compiles for eight seconds, and what the study says that a step saves."""
    assert told([8.5, *[0.5] * 19], saved_s, num_steps).endswith(words)


def loop(accelerator, model, optimizer, batches, steps=12):
    """As accelerate's documentation has it."""
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    found = []
    while len(found) < steps:
        for batch in batches:
            with accelerator.accumulate(model):
                value = model(**batch).loss
                accelerator.backward(value)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                found.append(value.item())
    return found[:steps]


class TestAccelerate:
    @pytest.mark.fast_cases("no")
    @pytest.mark.parametrize("precision", ["no", "bf16"])
    def test_it_trains_as_without(self, best, caplog, precision):
        """Around the model that it prepares, with accumulation and clipping."""
        found = []
        for tuned in (True, False):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
            model = made().train()
            if tuned:
                config = BF16 if precision == "bf16" else CAPTURED
                model = hugging_face.tuned_model(accelerator, model, best(config))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            batches = torch.utils.data.DataLoader(Sentences(20 * BATCH), batch_size=BATCH)
            found.append(loop(accelerator, model, optimizer, batches))
            if tuned:
                assert autotune.stats(model).num_compiles > 0
        assert found[0] == pytest.approx(found[1], rel=1e-3 if precision == "no" else 5e-2)
        assert warned(caplog) == []

    def test_one_that_compiles_by_itself(self, best, caplog, monkeypatch):
        """As `accelerate launch --dynamo_backend` has it."""
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
        model = made()
        assert hugging_face.tuned_model(Accelerator(cpu=True), model, best(CAPTURED)) is model
        assert "the tuned config is not used" in warned(caplog)[0]
