"""PyTorch Lightning under a tuned config: what it trains is what it trains without it."""

from __future__ import annotations

import logging
import re

import pytest
import yaml

import autotune
from autotune.errors import InputError
from autotune.integrations.lightning import tuned_callback
from tests.conformance.torch_kit import CAPTURED, COMPILED, warned
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("pytorch_lightning")

from torch.nn.functional import cross_entropy  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler"), pytest.mark.filterwarnings("ignore")]

BATCH = 16
BF16 = {**CAPTURED, "precision": "bf16_autocast"}


def network(dropout=0.0):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(32, 4)
    return torch.nn.Sequential(*layers)


class Classifier(lightning.LightningModule):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.network = network(dropout)
        self.measure = torch.nn.CrossEntropyLoss()
        self.losses, self.stats = [], None

    def training_step(self, batch, _):
        value = cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(float(value.detach()))
        return value

    def validation_step(self, batch, _):
        self.losses.append(float(cross_entropy(self.network(batch[0]), batch[1])))

    def on_train_end(self):
        self.stats = autotune.stats(self.network)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]


@pytest.fixture
def best(tmp_path):
    def best(config):
        inputs = next(iter(data()))
        return export(tmp_path / "best.yaml", "torch", {**config, "scope": "model"}, network(), inputs, task="train")

    return best


def data():
    x = torch.randn(10 * BATCH, 8, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=BATCH)


def fitted(module, callback=None, epochs=4, seed=0, **how):
    lightning.seed_everything(seed, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback] if callback else [], **how,
    )  # fmt: skip
    trainer.fit(module, data(), data())
    return module


@pytest.mark.parametrize("config", [CAPTURED, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["aot", "inductor"])
def test_it_trains_as_without(best, caplog, config):
    """With accumulation, clipping, a schedule and validation; afterwards the module is the author's again."""
    how = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}
    module, plain = fitted(Classifier(), tuned_callback(best(config)), **how), fitted(Classifier(), **how)
    assert module.losses == pytest.approx(plain.losses, rel=1e-4)
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=1e-3, atol=1e-5)
    assert (module.stats.state, warned(caplog)) == ("tuned", [])
    assert module.stats.num_compiles > 0
    assert type(module.network) is torch.nn.Sequential


@pytest.mark.parametrize(("num_batches", "how"), [(1, {}), (3, {"accumulate_grad_batches": 3})])
def test_after_some_steps_the_log_says_when_it_is_paid_back(best, caplog, num_batches, how):
    """Once in each fit, of all its steps, be they of several batches each."""
    caplog.set_level(logging.INFO, "autotune")
    path = best(CAPTURED)
    content = yaml.safe_load(path.read_text())
    content["evidence"]["untuned"]["latency_s"] = {"p50": 20.0, "p90": 20.0, "p99": 20.0}
    path.write_text(yaml.safe_dump(content))
    callback = tuned_callback(path)
    for _ in range(2):
        fitted(Classifier(), callback, epochs=6 if num_batches > 1 else 3, **how)
    told = [each.getMessage() for each in caplog.records if "a step takes" in each.getMessage()]
    num_steps = 24 if num_batches > 1 else 30
    assert [re.search(r"paid back at step [01] of (\d+)$", each)[1] for each in told] == [str(num_steps)] * 2


@pytest.mark.slow
def test_dropout(best, caplog):
    """200 steps: losses within the spread of the untuned run over seeds."""
    plain = torch.tensor([fitted(Classifier(0.1), epochs=20, seed=seed).losses for seed in range(4)])
    callbacks = [tuned_callback(best(COMPILED), "network") for _ in range(2)]
    tuned = torch.tensor([fitted(Classifier(0.1), each, 20, seed).losses for seed, each in enumerate(callbacks)])
    for part in (slice(0, 100), slice(150, 250), slice(-100, None)):
        spread = plain[:, part].mean(1)
        assert spread.min() - 3 * spread.std() < tuned[:, part].mean() < spread.max() + 3 * spread.std()
    assert warned(caplog) == []


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_autocast(best, caplog, precision):
    """A config with autocast is for a trainer that has it around its steps; elsewhere it is not used, said once."""
    module = fitted(Classifier(), tuned_callback(best(BF16)), precision=precision)
    plain = fitted(Classifier(), precision=precision)
    is_used = precision == "bf16-mixed"
    assert module.losses == pytest.approx(plain.losses, rel=5e-2 if is_used else 1e-6)
    assert (module.stats.num_compiles > 0) == is_used
    assert [("bfloat16" in each) for each in warned(caplog)] == [True] * (not is_used)


@pytest.mark.slow
def test_a_module_that_is_compiled_as_a_whole(best, caplog):
    """Its compiler gets all of the network: one warning, and no config."""
    module = fitted(torch.compile(Classifier(), backend="eager"), tuned_callback(best(CAPTURED)), epochs=1)
    (line,) = warned(caplog)
    assert "compiled as a whole" in line
    assert type(getattr(module, "_orig_mod", module).network) is torch.nn.Sequential


class Two(Classifier):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 4)


def test_the_module_is_named_where_there_are_several(best):
    """By its path; the error says which there are."""
    with pytest.raises(InputError, match="network, head"):
        fitted(Two(), tuned_callback(best(CAPTURED)), epochs=1)
    with pytest.raises(InputError, match="has no module 'body'"):
        fitted(Two(), tuned_callback(best(CAPTURED), "body"), epochs=1)
    assert fitted(Two(), tuned_callback(best(CAPTURED), "network"), epochs=1).stats.num_compiles > 0


class Failing(Classifier):
    def training_step(self, batch, number):
        if number == 3:
            raise ArithmeticError
        return super().training_step(batch, number)


def test_a_fit_that_ends_with_an_exception(best):
    """The module is the author's again."""
    module = Failing()
    with pytest.raises(ArithmeticError):
        fitted(module, tuned_callback(best(CAPTURED)), epochs=1)
    assert type(module.network) is torch.nn.Sequential
    assert autotune.stats(module.network).num_compiles > 0
