"""Trainings as people write them, generated: optimizer, scheduler, what is put around the optimizer's step, groups of
calls, clipping, autocast, checkpoints of activations. No line of a job raises because of the tool, and losses and
weights are those of the loop that is written by hand."""

from __future__ import annotations

import functools
import random
import types
import warnings
from dataclasses import dataclass, fields

import pytest

import autotune
from autotune.errors import InputError
from tests.conformance.torch_kit import warned
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]

from torch.optim import lr_scheduler, swa_utils  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

NUM_STEPS = 6
"""Groups of four leave an incomplete one of two, whose factors are powers of two: nothing is rounded otherwise."""


class Own(torch.optim.Adam):
    """A user's own, with methods of other signatures."""

    def zero_grad(self):
        super().zero_grad(set_to_none=False)

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.9
        return super().step(closure)


class Climbing(torch.optim.SGD):
    """Asks for the gradients elsewhere, as sharpness-aware ones do, and so for a closure, which its signature does not
    say."""

    def step(self, closure=None):
        assert closure is not None, "this optimizer needs a closure"
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        before = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for weight in weights:
                weight.add_(weight.grad, alpha=0.25)
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)
        super().step()


def in_groups(kind, **how):
    def make(model):
        last = list(model.last.parameters())
        others = [each for name, each in model.named_parameters() if not name.startswith("last")]
        return kind([{"params": last, "lr": 1e-2}, {"params": others}], lr=1e-3, **how)

    return make


def of_all(kind, **how):
    return lambda model: kind(model.parameters(), **{"lr": 1e-2, **how})


OPTIMIZERS = {
    "SGD": of_all(torch.optim.SGD),
    "momentum": of_all(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": of_all(torch.optim.Adam),
    "Adam, foreach": of_all(torch.optim.Adam, foreach=True),
    "AdamW": of_all(torch.optim.AdamW, weight_decay=0.5),
    "AdamW, fused": of_all(torch.optim.AdamW, weight_decay=0.5, fused=True),
    "Adam, tensor": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2)),
    "RMSprop": of_all(torch.optim.RMSprop),
    "Adagrad": of_all(torch.optim.Adagrad),
    "LBFGS": of_all(torch.optim.LBFGS, lr=0.1, max_iter=3),
    "own": of_all(Own),
    "climbing": of_all(Climbing),
    "groups": in_groups(torch.optim.AdamW, weight_decay=0.5),
}
CLOSURES = {"LBFGS", "climbing"}

SCHEDULERS = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20, cycle_momentum=False),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
    ),
    "SWALR": lambda optimizer: swa_utils.SWALR(optimizer, 1e-3, 2),
}


def around_function(optimizer):
    """As profilers and counters do it."""
    plain = optimizer.step

    @functools.wraps(plain)
    def step(*args, **kwargs):
        with torch.autograd.profiler.record_function("step"):
            return plain(*args, **kwargs)

    optimizer.step = step
    return optimizer


def around_method(optimizer):
    plain = type(optimizer).step

    @functools.wraps(plain)
    def step(self, *args, **kwargs):
        return plain(self, *args, **kwargs)

    optimizer.step = types.MethodType(step, optimizer)
    return optimizer


def around_partial(optimizer):
    optimizer.step = functools.partial(optimizer.step)
    optimizer.zero_grad = functools.partial(optimizer.zero_grad)
    return optimizer


def with_hooks(optimizer):
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def leaving_zeros(optimizer):
    if not isinstance(optimizer, Own):
        optimizer.zero_grad = functools.partial(optimizer.zero_grad, set_to_none=False)
    return optimizer


class Delegating:
    """Hands on all that it is asked for."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Proxy(Delegating):
    """Says that it is what it stands for."""

    @property
    def __class__(self):
        return type(self.inner)


class Sharding:
    """With a step and groups of its own."""

    def __init__(self, inner):
        self.inner = inner
        self.param_groups = inner.param_groups

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()

    def step(self, closure=None, **kwargs):
        return self.inner.step() if closure is None else self.inner.step(closure)


class Hiding:
    """Tells nothing of what it holds."""

    def __init__(self, inner):
        self._zero_grad, self._step = inner.zero_grad, inner.step

    def zero_grad(self):
        self._zero_grad()

    def step(self, *args):
        return self._step(*args)


class Scaling(Delegating):
    """Steps through a loss scaler, whose scale is a power of two."""

    def __init__(self, inner):
        super().__init__(inner)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(self):
        self.scaler.step(self.inner)
        self.scaler.update()


def accelerated(optimizer):
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(optimizer)


WRAPPERS = {
    "none": lambda optimizer: optimizer,
    "function": around_function,
    "method": around_method,
    "partial": around_partial,
    "hooks": with_hooks,
    "zeros": leaving_zeros,
    "delegating": Delegating,
    "proxy": Proxy,
    "sharding": Sharding,
    "hiding": Hiding,
    "scaling": Scaling,
    "accelerated": accelerated,
}
UNLIKE_OPTIMIZERS = {"delegating", "proxy", "sharding", "hiding", "scaling", "accelerated"}

COMPILED = {"execution": "compile", "backend": "aot_eager"}
CONFIGS = {
    "eager": {"execution": "compile", "backend": "eager"},
    "aot_eager": COMPILED,
    "with the loss": {**COMPILED, "scope": "loss"},
    "fused": {"execution": "eager", "optimizer_impl": "fused"},
    "foreach": {**COMPILED, "optimizer_impl": "foreach"},
    "optimizer": {"execution": "eager", "optimizer_compiled": True},
    "inductor": {"execution": "compile", "backend": "inductor"},
    "no file": None,
}
EXACT = ("eager", "aot_eager", "with the loss", "no file")
"""The same operators in the same order: not a digit differs."""


@dataclass(frozen=True)
class Training:
    """One way to train."""

    optimizer: str
    scheduler: str
    order: str
    wrapper: str
    wrapped: str
    accumulate: int
    clip: float | None
    autocast: bool
    checkpointed: bool
    loop: str
    config: str

    @classmethod
    def generated(cls, seed):
        """The training of a seed. What does not go together by hand is drawn anew."""
        draw = random.Random(seed)
        while True:
            found = cls(**{name: draw.choice(values) for name, values in CHOICES.items()})
            is_closed = found.optimizer in CLOSURES and found.wrapper == "scaling"
            is_no_method = found.order == "after" and found.wrapper in {"function", "partial"}  # A scheduler needs one.
            is_of_a_step = found.loop == "own" and found.config in {"with the loss", "fused", "foreach", "optimizer"}
            is_rough = found.optimizer == "LBFGS" and found.config == "inductor" and found.autocast
            if not (is_closed or is_no_method or is_of_a_step or is_rough):
                return found

    @property
    def state(self):
        """What becomes of it: an optimizer that is not understood, or lacks what the config asks for, is untuned."""
        if self.config == "no file":
            return "untuned"
        is_unlike = self.optimizer == "LBFGS" or (self.wrapper in UNLIKE_OPTIMIZERS and self.wrapped == "before")
        lacks_fused = self.config == "fused" and self.optimizer == "RMSprop"
        return "untuned" if self.loop == "step" and (is_unlike or lacks_fused) else "tuned"


CHOICES = {
    "optimizer": list(OPTIMIZERS),
    "scheduler": list(SCHEDULERS),
    "order": ["none", "before", "before", "after"],
    "wrapper": list(WRAPPERS),
    "wrapped": ["before", "before", "after"],
    "accumulate": [1, 1, 2, 4],
    "clip": [None, None, 0.5],
    "autocast": [False, False, True],
    "checkpointed": [False, False, True],
    "loop": ["step", "step", "own"],
    "config": [*EXACT, *EXACT, *CONFIGS],
}


class Net(torch.nn.Module):
    """Statistics that move, random numbers, and weights that the loss does not use."""

    def __init__(self, checkpointed):
        super().__init__()
        self.first = torch.nn.Linear(4, 8, bias=False)  # Before the norm the gradient of a bias is but rounding.
        self.last, self.spare = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.checkpointed = checkpointed

    def block(self, hidden):
        return torch.tanh(self.norm(hidden))

    def forward(self, x):
        hidden = self.first(x)
        hidden = checkpoint(torch.tanh, hidden, use_reentrant=False) if self.checkpointed else hidden
        hidden = self.block(hidden)
        return self.last(hidden), self.spare(hidden)


def batch(number):
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(number))


class ByHand:
    """A loop's step as it is written without this tool, with a closure where the optimizer wants one."""

    def __init__(self, training, model, loss, optimizer):
        self.training, self.model, self.loss, self.optimizer = training, model, loss, optimizer
        self.batches, self.has_updated, self.values = [], False, []
        groups = getattr(optimizer, "param_groups", [{"params": model.parameters()}])
        self.weights = [each for group in groups for each in group["params"]]

    def __call__(self, x):
        self.batches.append(x)
        self.has_updated = len(self.batches) == self.training.accumulate
        if self.has_updated:
            self.update()

    def flush(self):
        self.has_updated = bool(self.batches)
        if self.batches:
            self.update()

    def update(self):
        self.evaluate(keep=True)
        self.optimizer.step(*([self.closure()] if self.training.optimizer in CLOSURES else []))
        self.batches = []

    def evaluate(self, keep=False):
        self.optimizer.zero_grad()
        values = []
        for x in self.batches:
            values.append(self.loss(self.model, x))
            (values[-1] / len(self.batches)).backward()
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.weights, self.training.clip)
        if keep:
            self.values += [value.item() for value in values]
        return sum(value.detach() for value in values) / len(values)

    def closure(self):
        """LBFGS evaluates first where it is: that was done."""
        values = [] if self.training.optimizer == "climbing" else [self.values[-len(self.batches) :]]

        def closure():
            return torch.tensor(values.pop()).mean() if values else self.evaluate()

        return closure


class Job:
    """Trains, and notes losses, weights and learning rates."""

    def __init__(self, training, make):
        torch.manual_seed(0)
        model = Net(training.checkpointed).train()
        optimizer = OPTIMIZERS[training.optimizer](model)
        scheduler = SCHEDULERS[training.scheduler](optimizer) if training.order == "before" else None
        wrap = WRAPPERS[training.wrapper]
        given = wrap(optimizer) if training.wrapped == "before" else optimizer
        scaler = getattr(given, "scaler", None)

        def loss(model, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=training.autocast):
                value = model(x)[0].square().mean()
            return value if scaler is None else scaler.scale(value)

        self.step = make(model, loss, given)
        if training.wrapped == "after" and training.wrapper not in UNLIKE_OPTIMIZERS:
            wrap(optimizer)
        if training.order == "after":
            scheduler = SCHEDULERS[training.scheduler](optimizer)
        average, self.losses, self.rates = swa_utils.AveragedModel(model), [], []
        for number in range(NUM_STEPS + 1):
            value = self.step(batch(number)) if number < NUM_STEPS else self.step.flush()
            self.losses += [] if value is None else [value.item()]
            if self.step.has_updated:
                average.update_parameters(model)
                self.rates.append([float(group["lr"]) for group in optimizer.param_groups])
                if scheduler is not None:
                    scheduler.step(*([1.0] if training.scheduler == "ReduceLROnPlateau" else []))
        self.losses += getattr(self.step, "values", [])
        self.left = {**model.state_dict(), **{f"averaged {name}": each for name, each in average.state_dict().items()}}


@pytest.fixture
def tuned(tmp_path):
    """`tuned(training)` makes its step, or applies the config in a loop by hand, from an export that fits the model."""

    def tuned(training):
        def make(model, loss, optimizer):
            path, config = tmp_path / "best.yaml", CONFIGS[training.config]
            if config is not None:
                scope = {"scope": "model"} if training.loop == "own" else {}
                export(path, "torch", {**config, **scope}, model, [batch(0)], task="train")
            if training.loop == "own":
                return ByHand(training, autotune.load(path).apply(model, margin=None), loss, optimizer)
            how = {"accumulate": training.accumulate, "clip_grad_norm": training.clip, "margin": None}
            return autotune.load(path).training_step(model, loss, optimizer, **how)

        return make

    return tuned


def ran(training, make):
    """The job, and the warnings of PyTorch's schedulers and optimizers."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        job = Job(training, make)
    return job, [str(each.message) for each in given if "optim" in each.filename]


FAST = [seed for seed in range(16) if Training.generated(seed).config not in ("inductor", "optimizer")]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in FAST else pytest.mark.slow) for seed in range(200)]
)
def test_a_training_is_as_by_hand(tuned, caplog, seed):
    """It does not raise, warns at most once, and comes to the same weights."""
    training = Training.generated(seed)
    job, warnings_of_tuned = ran(training, tuned(training))
    plain, warnings_by_hand = ran(training, functools.partial(ByHand, training))
    error = 0 if training.config in EXACT else 2e-2 if training.autocast else 1e-4
    torch.testing.assert_close(job.losses, plain.losses, rtol=error, atol=error)
    torch.testing.assert_close(job.left, plain.left, rtol=error, atol=error)
    assert job.rates == plain.rates
    assert set(warnings_of_tuned) <= set(warnings_by_hand)
    assert len(warned(caplog)) <= 1
    assert autotune.stats(job.step if training.loop == "step" else job.step.model).state == training.state


def test_all_choices_are_drawn():
    """All together have each choice, and the fast ones each order."""
    every = [Training.generated(seed) for seed in range(200)]
    for field in fields(Training):
        assert {getattr(each, field.name) for each in every} == set(CHOICES[field.name])
    assert {every[seed].order for seed in FAST} == set(CHOICES["order"])


@pytest.mark.parametrize(("model", "optimizer"), [("model", None), (Net(False), "adam"), ("model", "optimizer")])
def test_what_cannot_be_trained(tmp_path, model, optimizer):
    """No optimizer at all, or no model: there is no step to go back to, so it is an error."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]) if optimizer == "optimizer" else optimizer
    with pytest.raises(InputError, match=r"training_step\(\) was given"):
        autotune.load(tmp_path / "nope.yaml").training_step(model, len, optimizer)


class Called:
    """No module, and can be called."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, x):
        return self.inner(x)


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
@pytest.mark.parametrize("of", [Called, functools.partial, lambda net: net.forward, torch.jit.script])
def test_what_no_config_can_be_applied_to_is_trained(tmp_path, of, kind):
    """Whatever can be called is a model for a loss, and an untuned step needs no more."""
    net = torch.nn.Linear(4, 1)
    step = autotune.load(tmp_path / "none.yaml").training_step(
        of(net), lambda model, x: model(x).square().mean(), OPTIMIZERS[kind](net)
    )
    before = step(batch(0))
    for _ in range(3):
        step(batch(0))
    assert step(batch(0)) < before
