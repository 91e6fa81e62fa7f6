"""Training steps: what a model's function must return, what the gate lets through, and the whole way in processes."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune import models
from autotune.backends.mindspore.knobs import compile_arguments
from autotune.backends.registry import load_backend
from autotune.backends.torch.knobs import require_for_training, settings_of
from autotune.backends.undo import UndoLog
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import AutotuneError, InvalidConfigError
from autotune.files import read_yaml
from autotune.job.load import Loaded
from autotune.measure.accuracy import load_reference
from autotune.measure.measurement import Measurement, Reason, Stage
from autotune.measure.parts import Part
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from autotune.space.schema import Preset
from autotune.space.space import SearchSpace
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.step_gate import NUM_STEPS, StepGate, StepsTaken
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.subjects import build_subject
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.workload import Device, Workload
from tests.conftest import REPOSITORY

DESCENT = '''
import numpy as np

class Model:
    def __init__(self, seed):
        self.weight = np.random.default_rng(seed).normal(size=(3, 2))

    def __call__(self, x):
        return x @ self.weight

class Descent:
    """Gradients by differences: slow, and of any loss."""

    def __init__(self, weights, rate):
        self.weights, self.rate = weights, rate

    def gradients_of(self, loss):
        return [np.array([self.slope(loss, w, i) for i in np.ndindex(w.shape)]).reshape(w.shape) for w in self.weights]

    def slope(self, loss, weight, place):
        before = weight[place]
        by = 1e-4 * max(abs(before), 1)
        weight[place] = before + by
        above = loss()
        weight[place] = before - by
        below = loss()
        weight[place] = before
        return (above - below) / (2 * by)

    def step(self):
        for weight, gradient in zip(self.weights, self.gradients):
            weight -= self.rate * gradient

def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()

def parts(rate=0.1, seed=0):
    model = Model(seed)
    x, y = np.random.default_rng(1).normal(size=(4, 3)), np.random.default_rng(2).normal(size=(4, 2))
    return {"model": model, "inputs": x, "targets": y, "loss": loss, "optimizer": Descent([model.weight], rate)}
'''
"""A real, if small, training step for the fake framework."""
KINKED = '''
class AtABranch(Descent):
    """Gradients jump by a tenth where the first weight is at first."""

    def __init__(self, weights, rate):
        super().__init__(weights, rate)
        self.branch = weights[0][0, 0]

    def gradients_of(self, loss):
        factor = 1.0 if self.weights[0][0, 0] >= self.branch else 1.1
        return [factor * each for each in super().gradients_of(loss)]

def kinked():
    made = parts()
    return {**made, "optimizer": AtABranch([made["model"].weight], 0.1)}
'''


def workload_of(path: Path, content: str, name: str = "parts", framework: str = "fake", **more: object) -> Workload:
    path.write_text(content)
    reference = f"{path}:{name}"
    return Workload(
        model=reference, reference=reference, framework=framework, device="cpu", task="train",
        search_path=str(path.parent), **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def run_steps(tmp_path, make_request):
    """Outcomes of configs under a model file, in processes; the first config, `None`, is the untuned step."""

    def run(content, *configs, framework="fake", untuned=None, name="parts", arguments=None, **overrides):
        workload = workload_of(tmp_path / "steps.py", content, name, framework, arguments=arguments or {})
        outcomes = []
        with LocalBench({}, preload=framework != "mindspore", log=tmp_path / "log") as runner:
            for number, config in enumerate((None, *configs)):
                limits = Limits(compile=300, check=300, run=60) if framework != "fake" else Limits()
                fields = {"workload": workload, "untuned": config is None, "limits": limits, **overrides}
                request = make_request(config or untuned, **fields)
                request = request.model_copy(update={"cache": str(tmp_path / f"cache-{number}")})
                outcomes.append(runner.run(TrialFolder(tmp_path / f"trial-{number}"), request))
        return outcomes

    return run


# What a function returns.


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("{'inputs': x, 'loss': loss}", "returned no model"),
        ("{'model': model, 'inputs': x, 'loss': 3, 'optimizer': Descent([], 1)}", "an int as the loss"),
        ("{'model': model, 'inputs': x, 'loss': loss, 'optimizer': 3}", "as the optimizer a int"),
        ("{'model': model, 'inputs': x, 'loss': loss, 'optimizer': 3, 'sceduler': 1}", "'sceduler'"),
    ],
)
def test_what_is_missing_to_train_is_said_in_a_sentence(run_steps, returned, words):
    """Without a model, or with a loss or an optimizer that is none, the model is the operator's mistake."""
    content = DESCENT + f"\ndef odd():\n    model, x = Model(0), np.ones((4, 3))\n    return {returned}\n"
    (outcome,) = run_steps(content, name="odd")
    assert (outcome.reason, outcome.stage) == (Reason.SETUP, Stage.BUILD)
    assert words in outcome.error


def test_what_a_function_left_out_is_said(run_steps):
    """The loss that the model returns and the usual optimizer are taken, and the measurement names both."""
    content = (
        DESCENT
        + """
class Whole(Model):
    def __call__(self, x, y):
        return loss(super().__call__, x, y)

def whole():
    model = Whole(0)
    model.optimizer = Descent([model.weight], 0.1)
    return model, (np.random.default_rng(1).normal(size=(4, 3)), np.random.default_rng(2).normal(size=(4, 2)))
"""
    )
    (whole,) = run_steps(content, name="whole")
    loss, optimizer = whole.assumed
    assert "the loss is what the model returns" in loss
    assert "the optimizer is Descent" in optimizer
    (given,) = run_steps(DESCENT)
    assert given.assumed == ()


def test_a_function_for_training_serves_inference_too(tmp_path, make_request):
    """The same mapping is tuned for inference: loss, targets and optimizer are left alone."""
    workload = workload_of(tmp_path / "steps.py", DESCENT).model_copy(update={"task": "infer"})
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        outcome = runner.run(TrialFolder(tmp_path / "trial"), make_request(workload=workload))
    assert isinstance(outcome, Measurement)
    assert len(outcome.signature.inputs) == 1


# The gate.

LOSSES = np.array([4.0, 3.0, 2.0, 1.0, 4.0])
GRADIENTS = [{"": np.array([1.0, -2.0])}, {"": np.array([1e-9, -1e-9])}]
WAYS = np.array([1e-3, 1e-3])
RIGHT = StepsTaken(LOSSES, GRADIENTS, GRADIENTS, WAYS, left=[])


def changed(part: str, index: int, by: float) -> StepsTaken:
    """`RIGHT` with one number changed: of losses and ways the one at `index`, of a gradient the first."""
    array = np.copy(getattr(RIGHT, part) if part in ("losses", "ways") else getattr(RIGHT, part)[index][""])
    array[index if part in ("losses", "ways") else 0] += by
    if part in ("losses", "ways"):
        return replace(RIGHT, **{part: array})
    return replace(RIGHT, **{part: [{"": array} if place == index else each for place, each in enumerate(GRADIENTS)]})


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (changed("losses", 0, 0.01), "the loss of step 1 of 4 is 4.01 instead of 4"),
        (changed("losses", 2, 0.1), "the loss of step 3 of 4"),
        (changed("losses", NUM_STEPS, 0.01), "the loss of the first step, repeated"),
        (changed("gradients", 0, 0.01), "gradient 1 of 2 in the first step: relative error 0.005"),
        (changed("again", 1, 0.1), "gradient 2 of 2 in the first step, repeated"),
        (changed("gradients", 0, float("nan")), "gradient 1 of 2 in the first step: relative error inf"),
        (changed("ways", 1, -1e-3), "weight 2 of 2 moved by 0 in 4 steps instead of 0.001"),
        (changed("ways", 0, 1e-3), "weight 1 of 2 moved by 0.002"),
    ],
)
def test_a_wrong_step_names_where(seen, words):
    """A loss, a gradient or a weight's way that differs is a wrong result, with the step or the weight."""
    with pytest.raises(WrongResultError) as caught:
        StepGate("m").errors(RIGHT, seen, 1e-3)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "seen",
    [
        changed("losses", 2, 0.03),  # Later losses may differ by more,
        changed("gradients", 1, 3e-9),  # a gradient that is zero but for rounding has no size of its own,
        changed("ways", 0, 2e-4),  # and under Adam an entry without a gradient moves either way.
    ],
    ids=["a later loss", "no gradient but rounding", "another way"],
)
def test_what_rounding_does_to_a_step_is_right(seen):
    """What two right steps were measured to differ in passes, and does not count as an error."""
    loss_error, gradient_error = StepGate("m").errors(RIGHT, seen, 1e-3)
    assert (loss_error, gradient_error) == (0, pytest.approx(0, abs=1e-6))


LONG = {"": np.array([1.0, -2.0, *[0.0] * 98])}
FAR = StepsTaken(LOSSES, [LONG] * 2, [LONG] * 2, WAYS, left=[])
"""Two gradients of 100 entries, for what happens to one entry."""


def moved(by: float) -> StepsTaken:
    """`FAR` with an entry of the second gradient that is `by` away, in the first step and the repeated one."""
    gradient = LONG[""].copy()
    gradient[50] += by
    both = [LONG, {"": gradient}]
    return replace(FAR, gradients=both, again=both)


@pytest.mark.parametrize("place", ["gradients", "again"])
@pytest.mark.parametrize("missing", ["untuned", "tuned"])
def test_no_gradient_is_not_a_gradient_of_zeros(place, missing):
    """An optimizer passes a weight without a gradient by, and decays one whose gradient is zero."""
    lacking = [GRADIENTS[0], {}]
    without = replace(RIGHT, gradients=lacking, again=lacking)
    zeros = replace(without, **{place: [GRADIENTS[0], {"": np.zeros(2)}]})
    pair = (without, zeros) if missing == "untuned" else (zeros, without)
    if (missing, place) != ("tuned", "again"):  # Of the untuned step the first gradients are the reference.
        with pytest.raises(WrongResultError, match=r"gradient 2 of 2 in the first step.*: one of the steps gives"):
            StepGate("m").errors(*pair, 1e-3)
    assert StepGate("m").errors(without, without, 1e-3) == (0, 0)


@pytest.mark.parametrize(
    ("by", "spread"),
    [(0.1, [0.0, 0.01]), (0.1, [0.5, 0.0]), (1.0, [9.0, 9.0]), (float("nan"), [9.0, 9.0])],
    ids=["more than three times the spread", "another gradient's spread", "beyond any spread", "not a number"],
)
def test_a_gradient_that_no_branch_explains_is_wrong(by, spread):
    """The reference has how far each gradient moves when the weights are nudged, by root mean square: three times that
    is allowed, for each gradient by itself, up to a limit."""
    with pytest.raises(WrongResultError, match=r"gradient 2 of 2 in the first step: relative error"):
        StepGate("m").errors(replace(FAR, spread=np.array(spread)), moved(by), 1e-3)


def test_a_gradient_as_far_away_as_nudged_ones_is_right():
    """Its root mean square is recorded: 0.1 of an entry over that of 1 and -2."""
    _, error = StepGate("m").errors(replace(FAR, spread=np.array([0.0, 0.02])), moved(0.1), 1e-3)
    assert error == pytest.approx(0.1 / np.sqrt(5))


TABLE = np.random.default_rng(0).normal(size=(40, 6))
"""The gradient of an embedding; that of a head is a millionth of it."""
TABLES = [{"": TABLE}, {"": TABLE[:6] * 1e-6}]
HEADS = replace(
    RIGHT, gradients=TABLES, again=TABLES, spread=np.zeros(2),
    own_spreads=[np.full(1 + 40 + 6, 1e-3), np.full(1 + 6 + 6, 1e-3)],
)  # fmt: skip


def _without_rows(gradient):
    return np.where(np.arange(40)[:, None] < 2, 0.0, gradient)


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (1, np.negative, "gradient 2 of 2 in the first step is off by 2 times its own size; nudged"),
        (1, np.zeros_like, "gradient 2 of 2 in the first step is off by 1 times its own size; nudged"),
        (0, _without_rows, "in 2 of its slices"),
    ],
    ids=["backwards", "none", "rare rows"],
)
def test_a_small_gradient_leads_the_same_way(place, change, words):
    """Whatever its share of the largest: Adam goes by its sign. Where nudges turn it, rounding may."""
    given = [{"": change(each[""])} if number == place else each for number, each in enumerate(TABLES)]
    seen = replace(HEADS, gradients=given, again=given)
    with pytest.raises(WrongResultError, match=words):
        StepGate("m").errors(HEADS if place else replace(HEADS, spread=np.array([9.0, 0.0])), seen, 1e-3)
    turned = [each + 0.1 for each in HEADS.own_spreads]
    if place:
        StepGate("m").errors(replace(HEADS, own_spreads=turned), seen, 1e-3)


def test_a_weight_without_a_gradient_but_rounding_moves_either_way():
    """A bias before a batch norm: Adam moves it by the signs of its rounding. That it moves is all there is to know."""
    further = replace(HEADS, ways=WAYS * [1, 3])
    with pytest.raises(WrongResultError, match=r"weight 2 of 2 moved by 0\.003"):
        StepGate("m").errors(HEADS, further, 1e-3)
    rounding = replace(HEADS, own_spreads=[HEADS.own_spreads[0], np.full(1 + 6 + 6, 1.4)])
    assert StepGate("m").errors(rounding, further, 1e-3) == (0, 0)
    with pytest.raises(WrongResultError, match="weight 2 of 2 moved by 0 "):
        StepGate("m").errors(rounding, replace(HEADS, ways=WAYS * [1, 0]), 1e-3)


@pytest.mark.parametrize(("moved", "is_right"), [(0.3, True), (0.25, True), (0.0, False), (0.9, False)])
def test_what_is_left_goes_on_to_change(moved, is_right):
    """A statistic that the first step alone moves is wrong: evaluation after training reads it."""
    left = [Part("model.norm.running_mean", "float32", np.ones(3))]
    reference = replace(RIGHT, left=left, left_moved={left[0].name: 0.3})
    gate, seen = StepGate("m"), replace(RIGHT, left=left, left_moved={left[0].name: moved})
    if is_right:
        assert gate.errors(gate.unpacked(gate.packed(reference)), seen, 1e-3) == (0, 0)
        return
    with pytest.raises(
        WrongResultError, match=r"running_mean moved by .* in the 3 steps after the first instead of 0\.3"
    ):
        gate.errors(reference, seen, 1e-3)


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        (changed("losses", 1, float("inf")), WrongResultError, "gives losses of 4, inf, 2, 1"),
        (replace(RIGHT, ways=WAYS * 0), AutotuneError, "changes no weight"),
        (changed("losses", NUM_STEPS, 1.0), AutotuneError, "another result when it is repeated"),
        (changed("again", 0, 1.0), AutotuneError, "another result when it is repeated"),
    ],
)
def test_an_untuned_step_that_nothing_can_be_compared_with_is_refused(seen, kind, words):
    """A loss that is no number, weights that stay, or a step that cannot be repeated: no reference is made of it."""
    with pytest.raises(kind, match=words):
        StepGate("m").refuse_unusable(seen, 1e-3)


def test_what_a_step_leaves_behind_is_compared():
    """Statistics that do not move, or a counter that moves where none should, are wrong results."""
    statistics = Part("model.norm.running_mean", "float32", np.ones(3))
    counter = Part("model.count", "int", np.asarray(1), is_tensor=False)
    gate, with_statistics = StepGate("m"), replace(RIGHT, left=[statistics])
    assert gate.errors(with_statistics, with_statistics, 1e-3) == (0, 0)
    with pytest.raises(WrongResultError, match=r"the untuned model changes model\.norm\.running_mean"):
        gate.errors(with_statistics, RIGHT, 1e-3)
    with pytest.raises(WrongResultError, match=r"the config changes model\.count"):
        gate.errors(with_statistics, replace(RIGHT, left=[statistics, counter]), 1e-3)


def test_the_reference_of_steps_survives_the_file():
    """With names of what is left, and with or without a spread."""
    left = [Part("model.count", "int", np.asarray(1), is_tensor=False)]
    for seen in (replace(RIGHT, left=left), replace(RIGHT, left=left, spread=np.array([0.1, 0.2]))):
        found = StepGate("m").unpacked(StepGate("m").packed(seen))
        assert StepGate("m").errors(found, seen, 1e-3) == (0, 0)
        assert [(each.name, each.array.item()) for each in found.left] == [("model.count", 1)]
        assert found.allowed.tolist() == seen.allowed.tolist()


# The whole way, in processes.


def test_steps_are_checked_and_timed(run_steps):
    """The untuned step has no error, a right one has one for the loss and one for the gradients; targets are inputs.
    Gradients of the other sign, weights that never change and another loss are caught before anything is timed."""
    wrong = {"wrong_gradients": "step 2 of 4", "frozen": "step", "wrong": "step 1 of 4"}
    untuned, right, *others = run_steps(DESCENT, *({"behaviour": name} for name in ("right", *wrong)))
    for outcome, words in zip(others, wrong.values(), strict=True):
        assert (outcome.reason, outcome.stage) == (Reason.WRONG_RESULT, Stage.CHECK)
        assert f"the loss of {words}" in outcome.error
    assert untuned.output_errors is None
    assert right.output_errors == (0, 0)
    assert untuned.not_varied == right.not_varied == ()
    assert [each.shape for each in right.signature.inputs] == [(4, 3), (4, 2)]


@pytest.mark.parametrize(("name", "at_least", "at_most"), [("parts", 1e-6, 1e-4), ("kinked", 0.09, 0.11)])
def test_the_reference_has_how_far_gradients_move(run_steps, tmp_path, name, at_least, at_most):
    """As little as the weights, for a smooth loss; by the whole jump where a weight is at a branch."""
    (untuned,) = run_steps(DESCENT + KINKED, name=name)
    assert isinstance(untuned, Measurement), untuned
    *_, (spread, *_) = load_reference(tmp_path / "reference.npz")
    assert at_least < spread[0] < at_most


CHOOSY = """
def choosy():
    made = parts()
    least = np.abs(made["inputs"]).max()

    def loss_of_these(model, x, y):
        if np.abs(x).max() < least:
            raise ValueError("no such batch")
        return loss(model, x, y)

    return {**made, "loss": loss_of_these}
"""


def test_a_made_up_batch_that_the_loss_does_not_take_is_left_out(run_steps):
    """In the untuned trial and in those after it, and the trials say so."""
    trials = run_steps(DESCENT + CHOOSY, {"behaviour": "right"}, name="choosy")
    for outcome in trials:
        assert isinstance(outcome, Measurement), outcome
        assert "fails on the further input" in outcome.not_varied[0]
    assert trials[1].output_errors == (0, 0)


def test_a_finalist_takes_its_compared_steps_again(run_steps, tmp_path):
    """After those that were timed; the untuned model, in its process of the same block, says what they tell."""
    outcomes = run_steps(DESCENT, {}, {}, is_used=True)
    assert all(isinstance(outcome, Measurement) for outcome in outcomes)
    said = json.loads((tmp_path / "use" / "later_steps.json").read_text())
    assert said == {"why_unlike": None, "left": [], "moved": [0], "changed": []}
    assert not [each for each in outcomes[1].not_varied if "after the timed" in each]


def test_a_loss_that_leaves_the_numbers_is_no_measurement(run_steps):
    """Right in its first steps, divergent in those that are timed: the failure says what to change."""
    (outcome,) = run_steps(DESCENT, arguments={"rate": 1e30})
    assert outcome.reason is Reason.WRONG_RESULT
    assert "learning rate" in outcome.error


def test_a_step_that_cannot_be_repeated_is_named(run_steps):
    """Numbers of a generator that no seed reaches: said in a sentence before any config is blamed."""
    change = "    return ((model(x) - y) ** 2).mean() + np.random.default_rng().random()"
    (outcome,) = run_steps(DESCENT.replace("    return ((model(x) - y) ** 2).mean()", change))
    assert outcome.reason is Reason.SETUP
    assert "draw from a generator of its own" in outcome.error


def test_a_loss_must_be_one_number(run_steps):
    """A loss for each item is refused with its shape."""
    (outcome,) = run_steps(DESCENT.replace(".mean()\n\ndef parts", ".mean(axis=1)\n\ndef parts"))
    assert "one number" in outcome.error or "only" in outcome.error


def test_a_training_study_ends_in_a_yaml(tune_fake, cli, tmp_path):
    """`tune --task train` searches, confirms and exports; the export says that it is for training."""
    (tmp_path / "steps.py").write_text(DESCENT)
    done = tune_fake("--task", "train", "--trials", "4", model=f"{tmp_path / 'steps.py'}:parts")
    assert done.returncode == 0, done.stderr
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    assert "task: train" in (tmp_path / "best.yaml").read_text()
    assert json.loads(cli("show", "s", "--json").stdout)


# The spaces.


def space_of(framework: str, version: str, device: Device, preset: Preset = "standard") -> SearchSpace:
    here = Circumstances(version=version, device=device, task="train", preset=preset, tolerance=3e-2, num_cores=2)
    return load_space(bundled_space(framework), framework=framework, circumstances=here)


@pytest.mark.parametrize("device", ["cpu", "gpu", "ascend"])
def test_every_config_of_a_training_step_means_something(device):
    """Nothing on offer for training is refused by a backend's mapping, and nothing of it is for inference only."""
    for config in space_of("torch", "2.13.0", device).configs():
        require_for_training(settings_of(config))
    for config in space_of("mindspore", "2.10.0", device).configs():
        arguments = compile_arguments(config, "2.10.0", device, "train")
        assert arguments.mixed_precision is None
        flags = arguments.context.get("graph_kernel_flags")
        assert flags is None or "--disable_cluster_ops=Transpose" in flags


def test_a_knob_of_the_other_task_is_not_on_offer():
    """What is for training only is no knob of inference, and the other way round."""
    train = {knob.name for knob in space_of("torch", "2.13.0", "cpu", "exhaustive").knobs}
    here = Circumstances(version="2.13.0", device="cpu", preset="exhaustive")
    infer = {knob.name for knob in load_space(bundled_space("torch"), framework="torch", circumstances=here).knobs}
    assert train - infer == {
        *("scope", "fallback_random", "activation_memory_budget", "optimizer_impl", "optimizer_compiled")
    }
    assert "freezing" in infer - train


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"execution": "compile", "freezing": True}, "frozen weights cannot be trained"),
        ({"execution": "compile", "region": "blocks.*"}, "is for inference"),
    ],
)
def test_what_is_for_inference_only_is_invalid_in_training(setting, words):
    """A space of one's own may offer it; the trial is invalid, with the reason."""
    with pytest.raises(InvalidConfigError, match=words):
        require_for_training(settings_of(Config(setting)))


# In a job.


def exported(config: dict[str, object], verdict: str) -> Loaded:
    """An export as of a study, with this config for the answer, as a job has it."""
    content = read_yaml(REPOSITORY / "tests" / "best.yaml")
    content |= {"framework": "torch", "config": config, "verdict": verdict, "untuned": {"execution": "eager"}}
    content["workload"] = {**content["workload"], "task": "train"}
    return Loaded("best.yaml", TunedConfig.model_validate(content))


@pytest.mark.torch
@pytest.mark.parametrize("verdict", ["faster", "tie"])
def test_a_job_gets_the_step_that_was_tuned(verdict):
    """The step trains like the plain loop; the optimizer is fused only where that was found to be faster, and only as
    it steps."""
    import torch

    def train(step_of):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step, fused = step_of(model, optimizer), []
        optimizer.register_step_post_hook(lambda *_: fused.append(optimizer.param_groups[0]["fused"]))
        return [step(torch.ones(2, 3)).item() for _ in range(3)], fused[-1], optimizer.param_groups[0]["fused"]

    def loss(model, x):
        return model(x).square().mean()

    def plainly(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            value = loss(model, x)
            value.backward()
            optimizer.step()
            return value

        return step

    tuned = exported({"execution": "eager", "optimizer_impl": "fused"}, verdict)
    losses, *fused = train(lambda model, optimizer: tuned.training_step(model, loss, optimizer, on_mismatch="apply"))
    assert losses == pytest.approx(train(plainly)[0])
    assert list(map(bool, fused)) == [verdict == "faster", False]


@pytest.mark.torch
@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("vit", {"image": 32, "depth": 1}), ("resnet18", {"image": 32, "width": 8}), ("bert_small", {"depth": 1})],
)
def test_bundled_models_start_from_the_same_loss(name, sizes):
    """Both frameworks train the same function: same weights, batch, targets and loss."""
    losses = []
    for framework in ("torch", "mindspore"):
        module, _, function = models.reference(name, framework, "train").partition(":")
        parts = getattr(importlib.import_module(module), function)(**sizes)
        loss = parts["loss"](parts["model"], parts["inputs"], parts["targets"])
        losses.append(float(loss.detach() if framework == "torch" else loss.asnumpy()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# Real frameworks.

TORCH = """
import torch

def loss(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)

def parts(p=0.0, kind="Adam"):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(p), torch.nn.Linear(16, 4))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    return {"model": model.eval(), "inputs": torch.randn(4, 8), "targets": torch.randn(4, 4), "loss": loss,
            "optimizer": optimizer}
"""


@pytest.mark.torch
@pytest.mark.slow
def test_torch_steps_in_every_way_agree_with_eager(run_steps, no_toolchain):
    """Model or loss compiled, optimizer compiled or fused, activations recomputed: right steps, and counted graphs."""
    compiled = {"execution": "compile", "backend": "inductor"}
    outcomes = run_steps(
        TORCH,
        {"execution": "eager", "optimizer_impl": "fused"},
        {**compiled, "scope": "model", "activation_memory_budget": 0.0},
        {**compiled, "scope": "loss", "optimizer_compiled": True},
        framework="torch",
        untuned={"execution": "eager"},
    )
    assert all(isinstance(each, Measurement) for each in outcomes), outcomes
    assert [each.diagnosis.num_graphs for each in outcomes] == [0, 0, 1, 2]
    assert len({each.program for each in outcomes}) == 4


@pytest.mark.torch
@pytest.mark.slow
def test_what_an_optimizer_lacks_is_invalid(run_steps):
    """An implementation that an optimizer has not is invalid."""
    _, lacking = run_steps(
        TORCH, {"execution": "eager", "optimizer_impl": "fused"},
        framework="torch", untuned={"execution": "eager"}, arguments={"kind": "Rprop"},
    )  # fmt: skip
    assert lacking.reason is Reason.INVALID
    assert "Rprop has no fused implementation" in lacking.error


@pytest.mark.torch
@pytest.mark.slow
def test_a_float64_reference_gives_untuned_steps_an_error(run_steps):
    """With `--reference float64` the untuned step is compared with itself in float64."""
    (outcome,) = run_steps(TORCH, framework="torch", untuned={"execution": "eager"}, reference_precision="float64")
    assert isinstance(outcome, Measurement), outcome
    assert 0 < outcome.relative_error < 1e-4


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_relu_that_flips_is_no_wrong_result(tmp_path):
    """PyTorch with oneDNN and without: of the activations of 17 ReLUs some are zero but for rounding, and gradients
    before those differ by more than the tolerance (2 to 16 % with six seeds)."""
    import torch

    workload = Workload(
        model="resnet18", reference="autotune.models.torch.training:resnet18", framework="torch", device="cpu",
        task="train", arguments={"image": 96, "width": 32, "batch": 16}, search_path=str(tmp_path),
    )  # fmt: skip
    backend = load_backend("torch")

    def seen(reference_tolerance):
        backend.prepare("cpu", workload.seed)
        subject = build_subject(workload, backend)
        task = Steps(workload, subject, backend)
        step = task.compile(Config({"execution": "eager"}), UndoLog())
        return task.observe(step, subject.inputs[0].call(step), reference_tolerance=reference_tolerance)

    reference = seen(1e-3)
    with torch.backends.mkldnn.flags(enabled=False):
        other = seen(None)
    loss_error, gradient_error = StepGate("resnet18").errors(reference, other, 1e-3)
    assert loss_error < 1e-5
    assert gradient_error < 0.1
    assert reference.spread.max() > 1e-3
    turned = [{end: -array for end, array in each.items()} for each in other.gradients]
    with pytest.raises(WrongResultError, match="gradient"):
        StepGate("resnet18").errors(reference, replace(other, gradients=turned), 1e-3)


@pytest.mark.torch
def test_an_optimizer_that_has_counted_changes_its_implementation_and_back():
    """In a job that was resumed: fused as it steps, from the moments there are; at other times it is as the job has
    it."""
    import torch

    from autotune.backends.torch.training import training_step

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    changes = UndoLog()
    batch = torch.ones(2, 3)

    def loss(model, x):
        return model(x).square().mean()

    plain = training_step(model, loss, optimizer, Config({"execution": "eager"}), changes)
    first = plain(batch)
    fused = training_step(model, loss, optimizer, Config({"execution": "eager", "optimizer_impl": "fused"}), changes)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(optimizer.param_groups[0]["fused"]))
    assert fused(batch) < first
    assert not optimizer.param_groups[0]["fused"]
    changes.undo()
    assert plain(batch) < first
    assert seen == [True, None]
    assert optimizer.state[model.weight]["step"] == 3


PYNATIVE = {"execution": "pynative", "launch_blocking": True}
"""Its queue waits busily: without blocking launches a step takes seconds beside other programs."""
MINDSPORE = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops

def loss(model, x, y):
    return ops.mse_loss(model(x), y)

def parts():
    rng = np.random.default_rng(0)
    model = nn.SequentialCell(nn.Dense(8, 16), nn.GELU(), nn.Dense(16, 4))
    for each in model.get_parameters():
        each.set_data(ms.Tensor(rng.normal(size=each.shape).astype(np.float32) * 0.3))
    x, y = (ms.Tensor(rng.normal(size=(4, n)).astype(np.float32)) for n in (8, 4))
    return {"model": model, "inputs": x, "targets": y, "loss": loss,
            "optimizer": nn.Adam(model.trainable_params(), learning_rate=1e-2)}
"""


@pytest.mark.mindspore
@pytest.mark.slow
def test_mindspore_steps_in_every_way_agree_with_pynative(run_steps):
    """Whole steps under ms.jit, the gradients or the model alone, and TrainOneStepCell in graph mode are right."""
    jit = {"execution": "jit", "capture": "ast"}
    right = run_steps(
        MINDSPORE,
        {**jit, "scope": "step", "step_pipeline": False},
        {**jit, "scope": "gradients"},
        {**jit, "scope": "model"},
        {"execution": "graph"},
        framework="mindspore",
        untuned=PYNATIVE,
    )
    assert all(isinstance(each, Measurement) for each in right), right
    assert [each.diagnosis.compiled for each in right] == [False, True, True, True, True]


@pytest.mark.mindspore
@pytest.mark.slow
def test_fusion_with_transpositions_is_caught(tmp_path, make_request):
    """Graph-kernel fusion gives right gradients as it is applied to a training step, and wrong ones with Transpose in
    its clusters: the gate tells them apart on a small ViT."""
    pytest.importorskip("decorator")
    workload = Workload(
        model="vit", reference="autotune.models.mindspore.training:vit", framework="mindspore", device="cpu",
        task="train", arguments={"image": 32, "depth": 1, "dim": 96}, search_path=str(tmp_path),
    )  # fmt: skip
    fused = {"execution": "graph", "onednn_isa": "AVX2", "enable_graph_kernel": True}
    outcomes = []
    with LocalBench({}, preload=False, log=tmp_path / "log") as runner:
        for number, config in enumerate([None, fused, {**fused, "graph_kernel_transpose": True}]):
            request = make_request(config or PYNATIVE, workload=workload, untuned=config is None)
            request = request.model_copy(update={"cache": str(tmp_path / f"cache-{number}")})
            request = request.model_copy(update={"limits": Limits(compile=300, check=300, run=60)})
            outcomes.append(runner.run(TrialFolder(tmp_path / f"trial-{number}"), request))
    _, right, wrong = outcomes
    assert isinstance(right, Measurement), right
    assert wrong.reason is Reason.WRONG_RESULT
