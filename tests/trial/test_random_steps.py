"""Training steps that draw random numbers: right ones pass, wrong ones do not, and what was drawn is no part of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.backends.registry import load_backend
from autotune.errors import AutotuneError
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from autotune.space.schema import UNLESS_LACKING
from autotune.trial.folder import TrialFolder
from autotune.trial.worker import same_numbers
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.chance import NUM_DRAWS, require_alike, scatters
from autotune.trial.worker.calls.step_gate import NUM_STEPS, StepGate, StepsTaken
from autotune.trial.worker.subjects import declared_by
from tests.trial.test_training import run_steps, workload_of

__all__ = ["run_steps"]

DROPPING = '''
import torch
from torch import nn

class Wrong:
    """What the compiler does wrong: seen while it traces the model, and at no other time."""

    def __init__(self, fault):
        self.fault = fault

    def __call__(self, name):
        return self.fault == name and torch.compiler.is_compiling()

class Block(nn.Module):
    def __init__(self, wrong, width=32):
        super().__init__()
        self.wrong = wrong
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        y = self.outer(torch.nn.functional.gelu(self.inner(x)))
        if self.wrong("off"):
            return x + y
        if self.wrong("twice"):
            return x + self.drop(self.drop(y))
        if self.wrong("not scaled"):
            return x + 0.9 * self.drop(y)
        if self.wrong("gradient"):
            y = 0.9 * y + 0.1 * y.detach()
        return x + self.drop(y)

class Model(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.wrong = Wrong(fault)
        self.blocks = nn.ModuleList(Block(self.wrong) for _ in range(2))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(x, self.head.weight.detach() if self.wrong("frozen") else self.head.weight)

def loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)

def parts(fault="none"):
    model = Model(fault)
    return {
        "model": model, "inputs": torch.randn(16, 32), "targets": torch.randint(0, 4, (16,)), "loss": loss,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
    }
'''
UNTUNED = {"execution": "eager"}
COMPILED = {"execution": "compile", "backend": "inductor", "mode": "default"}
FAULTS = ("off", "twice", "not scaled", "frozen", "gradient")


def assert_right(untuned, compiled):
    """Both were measured, and are as near to each other as without random numbers."""
    assert isinstance(untuned, Measurement), untuned
    assert isinstance(compiled, Measurement), compiled
    assert compiled.relative_error is not None
    assert compiled.relative_error < 1e-4


class TestChance:
    """Losses over several draws."""

    def _losses(self, mean=2.0, spread=0.1, seed=0):
        return mean + spread * np.random.default_rng(seed).normal(size=NUM_DRAWS)

    def test_other_draws_of_one_distribution_are_alike(self):
        refused = 0
        for seed in range(2000):
            try:
                require_alike(self._losses(seed=2 * seed), self._losses(seed=2 * seed + 1), 1e-3)
            except WrongResultError:
                refused += 1
        assert refused <= 2

    @pytest.mark.parametrize(
        ("got", "words"),
        [
            (np.full(NUM_DRAWS, 2.0), "drops nothing, or the same in each call"),
            (np.array([2.0 + 3.0 * sign for sign in (1, -1) * (NUM_DRAWS // 2)]), "the loss scatters by 3.21"),
            (np.linspace(2.9, 3.1, NUM_DRAWS), "the mean loss over 8 draws of its random numbers is 3 instead of"),
        ],
    )
    def test_what_is_of_another_one_is_said(self, got, words):
        with pytest.raises(WrongResultError, match=words):
            require_alike(self._losses(), got, 1e-3)

    def test_a_step_that_draws_where_the_untuned_one_does_not(self):
        with pytest.raises(WrongResultError, match="the untuned step gives the loss 2 over 8 draws"):
            require_alike(np.full(NUM_DRAWS, 2.0), self._losses(), 1e-3)
        assert require_alike(np.full(NUM_DRAWS, 2.0), np.full(NUM_DRAWS, 2.0001), 1e-3) == pytest.approx(5e-5)
        assert not scatters(np.full(NUM_DRAWS, 2.0))


class TestStepsOfOtherNumbers:
    """What the gate makes of steps that drew other random numbers than the untuned ones."""

    def _steps(self, seed, **changed):
        generator = np.random.default_rng(seed)
        gradients = [{"": generator.normal(size=(3, 2))}, {"": generator.normal(size=2)}]
        return StepsTaken(
            losses=2 + 0.1 * generator.normal(size=NUM_STEPS + 1), gradients=gradients, again=gradients,
            ways=np.array([1e-3, 2e-3]), left=[], chance=2 + 0.1 * generator.normal(size=NUM_DRAWS), slope=1.0,
        ) if not changed else replace(self._steps(seed), **changed)  # fmt: skip

    def test_they_are_held_to_the_distribution(self):
        gate = StepGate("model")
        assert len(gate.errors(self._steps(0), self._steps(1), 1e-3)) == 1
        assert gate.by_chance
        gate = StepGate("model")
        assert gate.errors(self._steps(0), self._steps(0), 1e-3) == (0.0, 0.0)
        assert not gate.by_chance

    def test_with_the_untuned_steps_numbers_they_are_held_to_its_steps(self):
        with pytest.raises(WrongResultError, match="the loss of step 1 of 4"):
            StepGate("model").errors(self._steps(0), self._steps(1, chance=None), 1e-3)

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"ways": np.array([1e-3, 0.0])}, "weight 2 of 2 moved by 0"),
            ({"slope": 0.98}, "along the step's own gradient by 0.98 times what the gradient says"),
            ({"chance": np.full(NUM_DRAWS, 2.0)}, "drops nothing, or the same in each call"),
        ],
    )
    def test_what_they_have_in_common_is_compared(self, changed, words):
        with pytest.raises(WrongResultError, match=words):
            StepGate("model").errors(self._steps(0), self._steps(1, **changed), 1e-3)

    def test_a_weight_of_few_numbers_may_be_led_another_way(self):
        """As a classifier's bias of two labels is by dropout; not where its gradient has one direction, and no large
        weight is."""
        ways, large = np.array([1e-3, 3e-3]), np.linspace(-1, 1, 100)

        def error(got, ways):
            both = ([{"": large}, {"": few}] for few in (np.array([1, -1]), got))
            steps = (self._steps(seed, gradients=gradients) for seed, gradients in enumerate(both))
            expected, seen = (replace(each, ways=np.array([1e-3, 1e-3])) for each in steps)
            return StepGate("model").errors(expected, replace(seen, ways=ways), 1e-3)

        assert len(error(np.array([-2, 2]), ways)) == 1
        with pytest.raises(WrongResultError, match=r"weight 2 of 2 moved by 0\.003"):
            error(np.array([2, -2]), ways)
        with pytest.raises(WrongResultError, match=r"weight 1 of 2 moved by 0\.003"):
            error(np.array([-2, 2]), ways[::-1])

    def test_a_framework_that_cannot_draw_the_same_is_told(self):
        with pytest.raises(AutotuneError, match="it draws: turn that off"):
            StepGate("model", lambda: "it draws: turn that off").refuse_unusable(self._steps(0), 1e-3)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "draws_others"),
    [
        ({"execution": "compile", "backend": "aot_eager"}, False),
        (COMPILED, True),
        ({**COMPILED, "fallback_random": True}, False),
    ],
)
def test_dropout_that_is_on_is_tuned_as_it_is(run_steps, tmp_path, config, draws_others):
    """Compared with the untuned step's own numbers, to within rounding: by a second process if it draws others."""
    assert_right(*run_steps(DROPPING, config, framework="torch", untuned=UNTUNED))
    assert (tmp_path / "trial-1" / same_numbers.ONLY).exists() is draws_others


@pytest.mark.torch
@pytest.mark.parametrize("share", [0.1, 0.0])
def test_knobs_are_offered_by_whether_a_step_drops(tmp_path, share):
    """With dropout the one that draws as the untuned step does, without it the one whose masks would be drawn again."""
    built = f"nn.Sequential(nn.Linear(4, 4), nn.Dropout({share})).eval()"
    returned = f"{{'model': {built}, 'inputs': torch.ones(2, 4), 'targets': torch.ones(2, 4), 'loss': nn.MSELoss()}}"
    content = f"import torch\nfrom torch import nn\n\ndef parts():\n    return {returned}\n"
    declared = declared_by(workload_of(tmp_path / "step.py", content, framework="torch"), load_backend("torch"))
    known = frozenset(declared.met) | UNLESS_LACKING - {*declared.lacks}
    here = Circumstances(version="2.13.0", device="cpu", task="train", known=known)
    offered = {knob.name for knob in load_space(bundled_space("torch"), framework="torch", circumstances=here).knobs}
    assert offered & {"fallback_random", "activation_memory_budget"} == {
        "fallback_random" if share else "activation_memory_budget"
    }


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_compiled_code_is_found(run_steps, fault):
    _, compiled = run_steps(DROPPING, COMPILED, framework="torch", untuned=UNTUNED, arguments={"fault": fault})
    assert isinstance(compiled, Failure), compiled
    assert compiled.reason == "wrong_result"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "lite"])
def test_masks_that_the_backward_draws_again_are_found(run_steps, mode):
    """PyTorch's own fault (2.13): where all activations are computed again, so is dropout, with other numbers."""
    config = {**COMPILED, "mode": mode, "activation_memory_budget": 0.0}
    _, compiled = run_steps(DROPPING, config, framework="torch", untuned=UNTUNED)
    assert isinstance(compiled, Failure), compiled
    assert "forward and backward do not drop the same" in compiled.error


DROPPING_CELL = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops

class Model(nn.Cell):
    def __init__(self, share):
        super().__init__()
        self.inner, self.outer, self.drop = nn.Dense(16, 32), nn.Dense(32, 4), nn.Dropout(p=share)

    def construct(self, x):
        return self.outer(self.drop(ops.relu(self.inner(x))))

def loss(model, x, y):
    return ops.cross_entropy(model(x), y)

def twice(model, x, y):
    return ops.cross_entropy(ops.dropout(model(x), 0.3, True), y)

def parts(share=0.3, name="loss"):
    model = Model(share)
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    return {
        "model": model, "inputs": ms.Tensor(x), "targets": ms.Tensor(np.arange(8) % 4, ms.int32),
        "loss": globals()[name], "optimizer": nn.Adam(model.trainable_params(), 1e-3),
    }
"""
PYNATIVE = {"execution": "pynative"}
JIT = {"execution": "jit", "scope": "model", "jit_level": "O1"}


@pytest.mark.parametrize(
    ("silence", "how"), [(None, "the untuned step's random numbers"), (print, "its dropout silent")]
)
def test_how_steps_were_compared_is_said(tmp_path, make_request, monkeypatch, silence, how):
    """Where the framework cannot draw the same numbers, its layers were silent."""
    wrong = Failure(
        reason=Reason.WRONG_RESULT, stage="check", error="WrongResultError: the loss is 3", relative_error=1
    )
    monkeypatch.setattr(same_numbers, "run_helper", lambda inner, _: inner.write_outcome(wrong) or 1)
    backend = SimpleNamespace(training=SimpleNamespace(silence=silence))
    with pytest.raises(WrongResultError, match=f"^with {how}, the loss is 3"):
        same_numbers.check_in_child(TrialFolder(tmp_path), make_request(), backend)


@pytest.mark.mindspore
@pytest.mark.slow
def test_a_cell_that_drops_is_compared_with_its_dropout_silent(run_steps):
    """PyNative itself draws other numbers from the same seed; what was timed is held to the losses of several draws."""
    assert_right(*run_steps(DROPPING_CELL, JIT, framework="mindspore", untuned=PYNATIVE))


@pytest.mark.mindspore
@pytest.mark.slow
def test_a_function_that_drops_is_refused(run_steps):
    (untuned,) = run_steps(DROPPING_CELL, framework="mindspore", untuned=PYNATIVE, arguments={"name": "twice"})
    assert "dropout as a function, sampling" in untuned.error
