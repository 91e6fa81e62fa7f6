"""A job's own training loop around `apply(model)`: after many steps its losses and weights are those of the untuned
loop, whatever the loop does between and around the calls."""

from __future__ import annotations

import contextlib
import functools
import io

import pytest

import autotune
from tests.conformance.torch_kit import CAPTURED, COMPILED, Doubled, warned
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.utils import clip_grad_norm_, parametrizations, parametrize  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]

NUM_STEPS = 60
NUM_CLASSES = 4
WHOLE = pytest.param(COMPILED, marks=pytest.mark.slow, id="inductor")
CONFIGS = pytest.mark.parametrize("config", [pytest.param(CAPTURED, id="aot_eager"), WHOLE])


class Net(torch.nn.Module):
    """Statistics that move in training mode, and a few layers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.middle = torch.nn.Linear(16, 16)
        self.last = torch.nn.Linear(16, NUM_CLASSES)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        return self.last(hidden + torch.tanh(self.middle(hidden)))


class Tied(torch.nn.Module):
    """One table of vectors for what comes in and for what goes out, as in language models."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(NUM_CLASSES, 16)
        self.middle = torch.nn.Linear(8, 16)
        self.head = torch.nn.Linear(16, NUM_CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        tokens = (x[:, :2] > 0).long().sum(1)
        return self.head(torch.tanh(self.middle(x)) + self.embedding(tokens))


class Normed(Net):
    """Two parametrizations from the beginning."""

    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.first)
        parametrizations.spectral_norm(self.middle)


class Heads(Net):
    """Several outputs, of which a loss takes some."""

    def __init__(self):
        super().__init__()
        self.pooler = torch.nn.Linear(16, NUM_CLASSES)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        return {"logits": self.last(torch.tanh(self.middle(hidden))), "pooled": self.pooler(hidden)}


class Broken(Heads):
    """The same in two graphs."""

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        torch._dynamo.graph_break()
        return {"logits": self.last(torch.tanh(self.middle(hidden))), "pooled": self.pooler(hidden)}


class Job:
    """A loop's model, what it calls, and its optimizer. In float64, so that rounding explains no difference."""

    def __init__(self, apply, kind=Net, dtype=torch.float64, seed=0, **optimizer):
        torch.manual_seed(seed)
        self.apply = apply
        self.dtype = dtype
        self.model = kind().to(dtype).train()
        self.call = apply(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.1, **optimizer)
        self.losses = []

    def batch(self, number, rows=16):
        x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(number), dtype=self.dtype)
        return x, x[:, :NUM_CLASSES].argmax(1)

    def loss(self, number, rows=16):
        x, y = self.batch(number, rows)
        value = cross_entropy(self.call(x), y, label_smoothing=0.1)
        self.losses.append(float(value.detach()))
        return value

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def left(self):
        return {**self.model.state_dict(), "moments": self.optimizer.state_dict()["state"]}


def plain(job, num_steps=NUM_STEPS):
    for number in range(num_steps):
        job.loss(number).backward()
        job.step()


def no_sync(job):
    """DistributedDataParallel around the tuned model, and all but one backward pass of four without it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        job.call = torch.nn.parallel.DistributedDataParallel(job.call)
        for number in range(NUM_STEPS):
            with contextlib.nullcontext() if number % 4 == 3 else job.call.no_sync():
                (job.loss(number) / 4).backward()
            if number % 4 == 3:
                job.step()
    finally:
        dist.destroy_process_group()


def scaled(job):
    """A loss scaler, which finds an infinity now and then and leaves that step out."""
    scaler, num_left_out = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=10), 0
    for number in range(NUM_STEPS):
        value = job.loss(number)
        scaler.scale(value * float("inf") if number % 20 == 19 else value).backward()
        scaler.unscale_(job.optimizer)
        clip_grad_norm_(job.model.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(job.optimizer)
        scaler.update()
        num_left_out += scaler.get_scale() < before
        job.optimizer.zero_grad()
    assert num_left_out == NUM_STEPS // 20


def groups(job):
    """The last layer alone at first, the others later in a group of their own; then one of them not any more."""
    model = job.model
    model.requires_grad_(False)
    model.last.requires_grad_(True)
    job.optimizer = torch.optim.AdamW(model.last.parameters(), lr=1e-2, weight_decay=0.1)
    for number in range(NUM_STEPS):
        if number == 20:
            model.requires_grad_(True)
            others = [each for name, each in model.named_parameters() if not name.startswith("last")]
            job.optimizer.add_param_group({"params": others, "lr": 1e-3})
        if number == 40:
            model.first.requires_grad_(False)
        job.loss(number).backward()
        assert (model.first.weight.grad is None) == (not 20 <= number < 40)
        job.step()


def averaged(job):
    """An average of the weights beside them, made of what `apply` gave, and its statistics anew at the end."""
    average = AveragedModel(job.call, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for number in range(NUM_STEPS):
        job.loss(number).backward()
        job.step()
        average.update_parameters(job.call)
    update_bn([job.batch(number)[0] for number in range(5)], average)
    average.eval()
    with torch.no_grad():
        x, y = job.batch(1000)
        job.losses.append(float(cross_entropy(average(x), y)))
    job.model.load_state_dict(average.module.state_dict())


def parametrized_later(job):
    """A parametrization in the middle, and none again."""
    for number in range(NUM_STEPS):
        if number == 20:
            parametrize.register_parametrization(job.model.middle, "weight", Doubled())
        if number == 40:
            parametrize.remove_parametrizations(job.model.middle, "weight")
        job.loss(number).backward()
        job.step()


def evaluated(job):
    """Every so often, with batches of another size; and the last batch of an epoch is smaller."""
    for number in range(NUM_STEPS):
        job.loss(number, rows=6 if number % 10 == 9 else 16).backward()
        job.step()
        if number % 20 == 19:
            job.call.eval()
            with torch.no_grad():
                job.loss(1000, rows=32)
            job.call.train()


def resumed(job):
    """Saved in the middle, and loaded into a model and an optimizer that were just made."""
    for number in range(NUM_STEPS):
        if number == NUM_STEPS // 2:
            file = io.BytesIO()
            torch.save({"model": job.call.state_dict(), "optimizer": job.optimizer.state_dict()}, file)
            file.seek(0)
            saved, losses = torch.load(file, weights_only=True), job.losses
            job.__init__(job.apply, type(job.model), seed=1)
            job.call.load_state_dict(saved["model"])
            job.optimizer.load_state_dict(saved["optimizer"])
            job.losses = losses
        job.loss(number).backward()
        job.step()


def some_outputs(job):
    """A loss of one output, later of the other: weights of the one that is left out stay where they are, though there
    is a weight decay."""
    for number in range(NUM_STEPS):
        x, y = job.batch(number)
        name = "pooled" if 20 <= number < 40 else "logits"
        value = cross_entropy(job.call(x)[name], y)
        job.losses.append(float(value.detach()))
        value.backward()
        assert (job.model.pooler.weight.grad is None) == (name != "pooled")
        assert (job.model.last.weight.grad is None) == (name != "logits")
        job.step()


LOOPS = {
    **{
        loop.__name__: (loop, Net)
        for loop in (*(plain, no_sync, scaled, groups, averaged, parametrized_later, evaluated, resumed),)
    },
    "tied": (plain, Tied),
    "parametrized": (plain, Normed),
    "some_outputs": (some_outputs, Heads),
    "some_outputs_of_two_graphs": (some_outputs, Broken),
}


@pytest.fixture
def applied(tmp_path):
    """`applied(config)` applies an export of a study of training steps that fits whatever model it is given."""

    def applied(config, **policy):
        def apply(model):
            path = export(tmp_path / "best.yaml", "torch", {**config, "scope": "model"}, model, [], task="train")
            return autotune.load(path).apply(model, **policy)

        return apply

    return applied


def ran(loop, apply, kind=Net, **how):
    job = Job(apply, kind, **how)
    loop(job)
    return job


def untuned(model):
    return model


@pytest.mark.fast_cases("plain", "no_sync", "scaled", "groups", "evaluated", "resumed", "some_outputs_of_two_graphs")
@CONFIGS
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_the_jobs_own(applied, caplog, config, loop):
    """Losses of all steps, weights, statistics and moments; compiled, and nothing to warn of but batches of another
    size than the first one's, which are untuned."""
    function, kind = LOOPS[loop]
    tuned, reference = (ran(function, apply, kind) for apply in (applied(config), untuned))
    torch.testing.assert_close(tuned.losses, reference.losses, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(tuned.left(), reference.left(), rtol=1e-5, atol=1e-7)
    assert len(tuned.losses) >= NUM_STEPS - 1
    assert sum(reference.losses[-5:]) < sum(reference.losses[:5])
    stats, lines = autotune.stats(tuned.model), warned(caplog)
    said = "was tuned for inputs float64[16, 8], here float64[6, 8]: such calls stay untuned"
    assert ([said in line for line in lines], stats.state) == ([True] if loop == "evaluated" else [], "tuned")
    assert stats.num_compiles > 0


@CONFIGS
def test_batches_of_another_size_tuned_as_well(applied, caplog, config):
    """Where the job asks for it: the same, of code for several shapes."""
    tuned, reference = (ran(evaluated, apply) for apply in (applied(config, on_mismatch="apply"), untuned))
    torch.testing.assert_close(tuned.losses, reference.losses, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(tuned.left(), reference.left(), rtol=1e-5, atol=1e-7)
    stats = autotune.stats(tuned.model)
    assert (warned(caplog), stats.state) == ([], "tuned")
    assert stats.num_compiles > 1


def test_evaluated_before_it_trains(applied, caplog):
    """A file that does not say the shapes of the step's calls: which they are, the first that trains shows."""
    job = Job(applied(CAPTURED))
    with torch.no_grad():
        job.loss(1000)
    plain(job)
    said = "tuned for the inputs of the first call that records gradients, here float64[16, 8] before it: such calls"
    assert [said in line for line in warned(caplog)] == [True]
    stats = autotune.stats(job.model)
    assert (stats.state, stats.num_compiles > 0) == ("tuned", True)


def under_autocast(job):
    for number in range(NUM_STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            value = job.loss(number)
        value.backward()
        job.step()


class TestAutocast:
    """The job's own, around model and loss."""

    @CONFIGS
    def test_around_the_calls(self, applied, caplog, config):
        """The same is compiled under it, in its precision; losses are as near as rounding in bfloat16 leaves them."""
        jobs = [ran(under_autocast, apply, dtype=torch.float32) for apply in (applied(config), untuned)]
        exact = ran(plain, untuned, dtype=torch.float32)
        tuned, rounded = (torch.tensor(job.losses) for job in jobs)
        far = (rounded - torch.tensor(exact.losses)).abs().mean()
        assert (tuned - rounded).abs().mean() < 2 * far + 1e-4
        assert warned(caplog) == []

    def test_a_config_with_autocast_is_used_under_it(self, applied, caplog):
        """Its trials had it around model and loss, as this job has. Other calls are untuned, with one warning."""
        apply = applied({**CAPTURED, "precision": "bf16_autocast"})
        job = ran(under_autocast, apply, dtype=torch.float32)
        assert autotune.stats(job.model).num_compiles > 0
        assert warned(caplog) == []
        exact, reference = (ran(plain, each, dtype=torch.float32) for each in (apply, untuned))
        assert exact.losses == reference.losses
        (line,) = warned(caplog)
        assert "under autocast of bfloat16" in line
        assert "with torch.autocast('cpu', torch.bfloat16)" in line

    def test_around_the_models_own_forward(self, applied, caplog):
        """As accelerate has it: the model's `forward` is one that enters autocast."""
        job = Job(applied({**CAPTURED, "precision": "bf16_autocast"}), dtype=torch.float32)
        job.call.forward = torch.autocast("cpu", torch.bfloat16)(job.call.forward)
        plain(job)
        assert autotune.stats(job.model).num_compiles > 0
        assert warned(caplog) == []


class Dropping(Net):
    """Dropout in two places, one of them a function."""

    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        hidden = self.drop(torch.tanh(self.norm(self.first(x))))
        hidden = hidden + torch.tanh(self.middle(hidden))
        return self.last(torch.nn.functional.dropout(hidden, 0.1, self.training))


class Checkpointed(Dropping):
    """A part of it is computed again in the backward pass, with the random numbers that it had."""

    reentrant = False

    def block(self, hidden):
        return self.drop(hidden + torch.tanh(self.middle(hidden)))

    def forward(self, x):
        hidden = self.drop(torch.tanh(self.norm(self.first(x))))
        return self.last(checkpoint(self.block, hidden, use_reentrant=self.reentrant, preserve_rng_state=True))


class Reentrant(Checkpointed):
    reentrant = True


class TestRandomNumbers:
    """Compiled code draws others than eager code from the same seed: single losses differ, what is learned does not."""

    @pytest.mark.fast_cases("Dropping")
    @CONFIGS
    @pytest.mark.parametrize("kind", [Dropping, Checkpointed, Reentrant], ids=lambda kind: kind.__name__)
    def test_dropout(self, applied, caplog, config, kind):
        """Losses of 200 steps lie within the spread of the untuned loop over seeds."""
        seeds, long = range(5), functools.partial(plain, num_steps=200)
        batches = torch.stack([torch.tensor(ran(long, untuned, kind, seed=seed).losses) for seed in seeds])
        tuned = torch.stack([torch.tensor(ran(long, applied(config), kind, seed=seed).losses) for seed in seeds[:2]])
        for part in (slice(0, 20), slice(90, 110), slice(-20, None)):
            spread = batches[:, part].mean(1)
            low, high = spread.min() - 2 * spread.std(), spread.max() + 2 * spread.std()
            assert all(low < each < high for each in tuned[:, part].mean(1)), (part, spread, tuned[:, part].mean(1))
        assert warned(caplog) == []


class Elementwise(torch.nn.Module):
    """Gives what its weights are multiplied by: the gradient of the sum is the outputs' own sum."""

    reentrant = False

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))

    def drop(self, x):
        return torch.nn.functional.dropout(x * self.weight, 0.5, self.training)

    def forward(self, x):
        return checkpoint(self.drop, x, use_reentrant=self.reentrant, preserve_rng_state=True)


class ElementwiseReentrant(Elementwise):
    reentrant = True


class Unchecked(Elementwise):
    def forward(self, x):
        return self.drop(x)


def around(call, how):
    """The job's own checkpoint around the tuned model."""
    return lambda x: checkpoint(call, x, use_reentrant=how == "reentrant", preserve_rng_state=True)


@CONFIGS
@pytest.mark.parametrize("where", ["within", "within, reentrant", "around", "around, reentrant"])
def test_a_checkpoint_draws_again_what_it_drew(applied, config, where):
    """The backward pass drops what the forward pass dropped, in each step."""
    kind = {"within": Elementwise, "within, reentrant": ElementwiseReentrant}.get(where, Unchecked)
    model = kind().train()
    call = applied(config)(model)
    if where.startswith("around"):
        call = around(call, where.removeprefix("around, "))
    for number in range(20):
        x = torch.rand(8, 64, generator=torch.Generator().manual_seed(number)).add_(0.5).requires_grad_()
        output = call(x)
        model.weight.grad = None
        output.sum().backward()
        torch.testing.assert_close(model.weight.grad, output.detach().sum(0), rtol=1e-5, atol=1e-5)
        assert 0.3 < float((output == 0).float().mean()) < 0.7
