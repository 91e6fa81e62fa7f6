"""A job whose model is compiled again and again: it stops, and says for what, before the stalls add up."""

from __future__ import annotations

import enum

import pytest

import autotune
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.torch import counters  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402

pytestmark = pytest.mark.torch

CONFIG = {"execution": "compile", "backend": "aot_eager"}


class Phase(enum.Enum):
    """Of a schedule."""

    A, B, C, D, E, F, G, H = range(8)


class Reading(torch.nn.Module):
    """Its forward reads an attribute of some kind."""

    def __init__(self, read):
        super().__init__()
        self.layer, self.read = torch.nn.Linear(4, 4), read
        self.level, self.scales, self.phase, self.items = "l0", {f"l{n}": 1 + n / 8 for n in range(20)}, Phase.A, [0]

    def forward(self, x):
        return self.read(self, self.layer(x))


def set_level(model, n):
    model.level = f"l{n}"


def set_phase(model, n):
    model.phase = [*Phase][n % 8]


def set_items(model, n):
    model.items = [0] * (n + 1)


CHANGING = {
    "a text": (lambda self, y: y * self.scales[self.level], set_level, "self.level"),
    "an enum member": (lambda self, y: y + self.phase.value, set_phase, "self.phase"),
    "a list's length": (lambda self, y: y + len(self.items), set_items, "self.items"),
}


@pytest.fixture
def job(tmp_path):
    torch._dynamo.reset()
    counters.clear()

    def made(read, knobs=(), changes=(), **options):
        torch.manual_seed(0)
        model, x = Reading(read).eval(), torch.randn(2, 4)
        config = CONFIG | dict(knobs)
        loaded = autotune.load(export(tmp_path / "best.yaml", "torch", config, model, [x], **dict(changes)))
        return model, loaded.apply(model, **options), x

    return made


@pytest.mark.parametrize("case", CHANGING)
@torch.no_grad()
def test_the_third_recompile_for_one_value_ends_the_config(job, caplog, case):
    """Each call gives what the untuned model gives; one warning names the value; the state is true."""
    read, change, name = CHANGING[case]
    model, tuned, x = job(read)
    for _ in range(15):
        tuned(x)
    assert autotune.stats(tuned).state == "tuned"
    for n in range(1, 12):
        change(model, n)
        assert torch.allclose(tuned(x), read(model, model.layer(x)))
    stats = autotune.stats(tuned)
    assert (stats.state, stats.num_fallbacks) == ("untuned", 1)
    assert stats.num_compiles <= 3
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1, warnings
    (warning,) = warnings
    assert f"{name} changes from call to call" in warning


@torch.no_grad()
def test_three_values_in_turn_stay_tuned(job, caplog):
    """Each has its own code by then."""
    model, tuned, x = job(CHANGING["a text"][0])
    for n in range(30):
        set_level(model, n % 3)
        assert torch.allclose(tuned(x), model.layer(x) * model.scales[model.level])
    assert autotune.stats(tuned).state == "tuned"
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


class Layer(torch.nn.Module):
    """Knows its number, as the layers of many libraries do."""

    def __init__(self, number):
        super().__init__()
        self.linear, self.number = torch.nn.Linear(4, 4), number

    def forward(self, x):
        return torch.relu(self.linear(x)) * (0.5 if self.number % 2 else 2.0) + self.number


@torch.no_grad()
def test_modules_of_one_class_have_values_of_their_own(tmp_path):
    """A layer's number is one value of that layer, however many share its code, and each has dynamo's limit."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*map(Layer, range(5))).eval(), torch.randn(2, 4)
    loaded = autotune.load(export(tmp_path / "best.yaml", "torch", {**CONFIG, "region": "*"}, model, [x]))
    tuned = loaded.apply(model, margin=None, on_mismatch="apply")
    for rows in (2, 3, 5, 2):
        batch = torch.randn(rows, 4)
        assert torch.allclose(tuned(batch), model(batch))
    assert (autotune.stats(tuned).state, autotune.stats(tuned).num_fallbacks) == ("tuned", 0)
    assert autotune.stats(tuned).num_compiles >= 10


def test_types_and_modes_are_few(job):
    """Each is compiled for."""
    model, tuned, x = job(lambda self, y: y + 1, on_mismatch="apply")
    model.double()
    with torch.no_grad():
        tuned(x.double())
    for context in (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu"), torch.inference_mode()):
        with torch.no_grad(), context:
            for _ in range(2):
                tuned(x.double())
    assert autotune.stats(tuned).num_fallbacks == 0


@torch.no_grad()
@torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False)
def test_dynamos_own_limit_ends_the_config(job):
    """Whatever it recompiles for, it says so: a job that runs as it is written is no tuned one."""
    model, tuned, x = job(lambda self, y: y + 1, on_mismatch="apply")
    tuned(x)
    for number in range(3, 8):
        batch = torch.randn(number, 4)
        assert torch.allclose(tuned(batch), model.layer(batch) + 1)
    stats = autotune.stats(tuned)
    assert stats.state == "untuned"
    assert "it was compiled again and again, the last time since" in stats.events[-1].message


@torch.no_grad()
def test_dynamos_limit_of_shapes_is_measured_with_a_stream(job):
    """Calls beyond it run as they are written, in the study too: the other shapes stay tuned."""
    axis = {"dimension": "batch", "leaf": 0, "axis": 0}
    loads = [{"sizes": {"batch": batch}, "share": 0.1} for batch in range(2, 12)]
    shapes = {"traffic": {"loads": loads}, "inputs": [axis], "outputs": []}
    knobs = {"shapes": "static", "recompile_limit": 8}
    model, tuned, _ = job(lambda self, y: y + 1, knobs, {"shapes": shapes})
    for number in (*range(2, 12), 2, 11):
        batch = torch.randn(number, 4)
        assert torch.allclose(tuned(batch), model.layer(batch) + 1)
    assert autotune.stats(tuned).state == "tuned"


@torch.no_grad()
def test_a_trial_compiles_on():
    """What `diagnose` tells of a model is all that dynamo did."""
    torch._dynamo.reset()
    counters.clear()
    model, x = Reading(CHANGING["a text"][0]).eval(), torch.randn(2, 4)
    step = TorchBackend().compile(model, Config(CONFIG), UndoLog())
    for n in range(6):
        set_level(model, n)
        step(x)
    assert len(counters.diagnosis().recompiles) == 5
