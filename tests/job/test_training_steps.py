"""Training steps of a job: whatever fails in one, the step is made once, and what is the job's own reaches it."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import importlib
import logging
import threading

import pytest

import autotune
from autotune.errors import InputError
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]

import torch.distributed as dist  # noqa: E402
from functorch.compile import make_boxed_func  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402

from autotune.backends.torch import parallel, training  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402

COMPILED = {"execution": "compile", "backend": "aot_eager"}
CAPTURED = {"execution": "compile", "backend": "eager"}
"""Captured by dynamo, and run as it is."""
WHOLE = {**COMPILED, "scope": "loss"}
FUSED = {"execution": "eager", "optimizer_impl": "fused"}
OPTIMIZER = {"execution": "eager", "optimizer_compiled": True}


class StopError(Exception):
    """The job's own."""


class Net(torch.nn.Module):
    """Has all that a step moves beside weights: statistics, a counter, random numbers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 1)
        self.num_calls = 0
        self.log = []

    def forward(self, x):
        self.num_calls += 1
        hidden = self.norm(self.first(x))
        torch._dynamo.graph_break()
        self.log.append(len(self.log))
        return self.last(self.drop(hidden).relu())


class Steady(Net):
    """Counts in a tensor, so that code for its first call is code for all: a third recompile would end the config."""

    def __init__(self):
        super().__init__()
        del self.num_calls
        self.register_buffer("num_calls", torch.tensor(0))

    def forward(self, x):
        self.num_calls += 1
        hidden = self.norm(self.first(x))
        torch._dynamo.graph_break()
        return self.last(self.drop(hidden).relu())


def loss(model, x):
    return model(x).square().mean()


def batch(number, rows=4):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(number))


def made(kind=Net):
    torch.manual_seed(0)
    return kind().train()


def by_hand(model, loss, optimizer):
    """A training step as it is written without this tool."""

    def step(*args):
        optimizer.zero_grad()
        value = loss(model, *args)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


@pytest.fixture
def tuned(tmp_path):
    """`tuned(config)` makes a step of a model, loss and optimizer, as from an export that fits the model."""

    def tuned(config, **policy):
        def make(model, loss, optimizer):
            path = export(tmp_path / "best.yaml", "torch", config, model, [batch(0)], task="train")
            loaded = autotune.load(path)
            return loaded.training_step(model, loss, optimizer, margin=None, **policy)

        return make

    return tuned


@pytest.fixture
def without_caches():
    """Inductor compiles what it has compiled before."""
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


def refuse(*_args, **_kwargs):
    raise RuntimeError("no code for this graph")


def failing_to_compile(part):
    """A compiler that makes no code for the forward or the backward of the second graph."""
    graphs = []

    def of_part(name):
        def compile_(graph, _inputs):
            graphs.append(name)
            return refuse() if name == part and graphs.count(name) == 2 else make_boxed_func(graph.forward)

        return compile_

    return aot_autograd(fw_compiler=of_part("forward"), bw_compiler=of_part("backward"))


def failing_at_run(number, part="forward"):
    """A compiler whose code for forwards, or backwards, fails when it is called for the `number`-th time."""
    calls = []

    def running(name):
        def compile_(graph, _inputs):
            def run(*args):
                calls.append(name)
                return refuse() if name == part and calls.count(name) == number else graph.forward(*args)

            return make_boxed_func(run)

        return compile_

    return aot_autograd(fw_compiler=running("forward"), bw_compiler=running("backward"))


class Job:
    """Trains, and notes all that could have moved twice or not at all."""

    def __init__(self, make_step, optimizer_kind=torch.optim.AdamW, num_steps=5, rows=lambda _: 4, loss=loss, kind=Net):
        self.model = made(kind)
        self.optimizer = optimizer_kind(self.model.parameters(), lr=1e-2)
        # Counted as the model counts its calls: what a compiled hook counts in an int is compiled for its values, too.
        self.hooks = {name: copy.deepcopy(self.model.num_calls) for name in ("forward", "gradient", "step")}
        self.model.norm.register_forward_hook(self.counting("forward"))
        self.model.first.weight.register_hook(self.counting("gradient"))
        self.optimizer.register_step_pre_hook(self.counting("step"))
        self.step = make_step(self.model, loss, self.optimizer)
        torch.manual_seed(1)
        self.losses, self.raised = [], []
        for number in range(num_steps):
            try:
                self.losses.append(self.step(batch(number, rows(number))).item())
            except (StopError, RuntimeError, TypeError) as error:
                self.raised.append((number, type(error)))

    def counting(self, name):
        def count(*_):
            self.hooks[name] += 1

        return count

    def left(self):
        """All but the weights and losses, which are compared with a tolerance."""
        moments = [int(each["step"]) for each in self.optimizer.state.values()]
        statistics = int(self.model.norm.num_batches_tracked)
        drawn = torch.get_rng_state().sum().item()
        return self.model.num_calls, self.model.log, self.hooks, moments, statistics, drawn, self.raised


def assert_alike(job, plain):
    assert job.left() == plain.left()
    assert job.losses == pytest.approx(plain.losses, rel=1e-4)
    for one, other in zip(job.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def warned(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "autotune" and each.levelno >= logging.WARNING]


class TestAStepThatFails:
    """Half of it was made: it goes on from there, or nothing is left of it."""

    @pytest.mark.parametrize("scope", ["model", pytest.param("loss", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("part", ["forward", "backward"])
    def test_what_does_not_compile_runs_as_it_is_written(self, tuned, compiler, caplog, part, scope):
        """After a graph break, with half of the forward done: no hook, counter, statistic or number is drawn twice."""
        config = {**compiler(failing_to_compile(part)), "scope": scope}
        job = Job(tuned(config))
        assert_alike(job, Job(by_hand))
        assert len(warned(caplog)) == 1
        assert "back to the untuned model" in warned(caplog)[0]
        assert autotune.stats(job.step).state == "untuned"

    def test_another_shape_that_does_not_compile(self, tuned, compiler, caplog):
        """The last batch of an epoch is smaller, and there is no code for it."""
        graphs = []

        def compile_(graph, inputs):
            graphs.append(graph)
            return refuse() if len(graphs) == 3 else graph.forward

        def rows(number):
            return 2 if number == 3 else 4

        assert_alike(Job(tuned({**compiler(compile_), "dynamic": False}), rows=rows), Job(by_hand, rows=rows))
        assert len(warned(caplog)) == 1

    @pytest.mark.parametrize("config", [OPTIMIZER, {**COMPILED, "optimizer_compiled": True}], ids=["eager", "compiled"])
    def test_an_optimizer_that_does_not_compile(self, tuned, monkeypatch, without_caches, caplog, config):
        """The gradients are there, and the optimizer steps once."""
        monkeypatch.setattr("torch._inductor.graph.GraphLowering.run", refuse)
        job = Job(tuned(config), torch.optim.SGD)
        assert_alike(job, Job(by_hand, torch.optim.SGD))
        assert len(warned(caplog)) == 1
        assert autotune.stats(job.step).state == "untuned"

    @pytest.mark.parametrize("part", ["forward", "backward"])
    @pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.slow), 6])
    def test_code_that_fails_as_it_runs(self, tuned, compiler, caplog, part, number):
        """In the first step or a later one, after half of the graphs have run: what they moved is put back, and the
        step is made untuned."""
        job, plain = Job(tuned(compiler(failing_at_run(number, part)))), Job(by_hand)
        assert "back to the untuned model" in warned(caplog)[0]
        assert job.losses == pytest.approx(plain.losses, rel=1e-4)
        torch.testing.assert_close(job.model.state_dict(), plain.model.state_dict(), atol=1e-5, rtol=1e-4)
        assert job.left()[3:] == plain.left()[3:]

    def test_one_process_of_many_makes_nothing_again(self, tuned, compiler, monkeypatch, caplog):
        """The others would wait for it: the error is raised, once, and later steps are untuned."""
        monkeypatch.setattr(training, "is_one_of_many", lambda: True)
        job = Job(tuned(compiler(failing_at_run(2))))
        assert job.raised == [(0, RuntimeError)]
        assert autotune.stats(job.step).state == "untuned"
        assert "in a call that cannot be made again" in warned(caplog)[0]

    def test_an_implementation_that_refuses_at_first(self, tuned, monkeypatch, caplog):
        """Nothing was written yet, and the job's own implementation takes the step."""
        monkeypatch.setattr(importlib.import_module("torch.optim.adam"), "_fused_adam", None)
        job = Job(tuned(FUSED), torch.optim.Adam)
        assert job.raised == [(0, TypeError)]  # A hook of the job's came before: it would come twice.
        assert autotune.stats(job.step).state == "untuned"
        model = made()
        optimizer = torch.optim.Adam(model.parameters())
        step = tuned(FUSED)(model, loss, optimizer)
        step(batch(0))
        assert optimizer.state[model.last.bias]["step"] == 1
        assert model.num_calls == 1

    def test_a_batch_that_nothing_takes(self, tuned, caplog):
        """The job's own error, once; the config is kept."""
        model = made()
        step = tuned(COMPILED)(model, loss, torch.optim.SGD(model.parameters()))
        step(batch(0))
        before = copy.deepcopy(model.state_dict()), model.num_calls
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            step(torch.ones(4, 3))
        torch.testing.assert_close(model.state_dict(), before[0])
        step(batch(1))
        assert ["such calls stay untuned" in line for line in warned(caplog)] == [True]
        assert autotune.stats(step).state == "tuned"


@pytest.mark.parametrize("what", ["missing", "inference"])
def test_before_anything_was_tuned(tmp_path, caplog, what):
    """Without the file, or with a config of inference: the plain step, and one warning."""
    path = tmp_path / "best.yaml"
    loaded = autotune.load(path if what == "missing" else export(path, "torch", COMPILED, Net(), [batch(0)]))
    assert_alike(Job(loaded.training_step), Job(by_hand))
    (line,) = warned(caplog)
    assert ("best.yaml" if what == "missing" else "was tuned for calls of a model") in line


def raising_at(number):
    calls = []

    def hook(*_):
        calls.append(len(calls))
        if len(calls) == number:
            raise StopError

    return calls, hook


HOOKS = {
    "forward": lambda job, hook: job[0].first.register_forward_hook(hook),
    "forward pre": lambda job, hook: job[0].norm.register_forward_pre_hook(hook),
    "backward": lambda job, hook: job[0].last.register_full_backward_hook(hook),
    "gradient": lambda job, hook: job[0].first.weight.register_hook(hook),
    "accumulated": lambda job, hook: job[0].first.weight.register_post_accumulate_grad_hook(hook),
    "before the step": lambda job, hook: job[1].register_step_pre_hook(hook),
    "after the step": lambda job, hook: job[1].register_step_post_hook(hook),
}


class TestTheJobsOwnExceptions:
    @pytest.mark.fast_cases(
        "forward-model",
        "forward pre-model",
        "backward-model",
        "accumulated-model",
        "before the step-fused",
        "after the step-fused",
    )
    @pytest.mark.parametrize(
        "config", [CAPTURED, pytest.param(WHOLE, marks=pytest.mark.slow), FUSED], ids=["model", "loss", "fused"]
    )
    @pytest.mark.parametrize("where", HOOKS)
    def test_a_hook_that_raises(self, tuned, caplog, config, where):
        """It reaches the job once, the hook is called once, and the config is kept."""
        seen = []
        for make in (tuned(config), by_hand):
            model = made(Steady)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            step = make(model, loss, optimizer)
            calls, hook = raising_at(3)
            HOOKS[where]((model, optimizer), hook)
            raised = []
            for number in range(5):
                try:
                    step(batch(number))
                except StopError:
                    raised.append(number)
            left = int(model.norm.num_batches_tracked), int(optimizer.state[model.first.weight]["step"])
            seen.append((raised, calls, int(model.num_calls), left))
            if make is not by_hand:
                assert (warned(caplog), autotune.stats(step).state) == ([], "tuned")
        assert seen[0] == seen[1]
        assert seen[0][0] == [2]

    @pytest.mark.parametrize("kind", [StopError, RuntimeError])
    def test_a_loss_that_raises(self, tuned, caplog, kind):
        """So it is with what the loss raises after the model was called."""
        calls = []

        def raising(model, x):
            value = loss(model, x)
            calls.append(value)
            if len(calls) == 2:
                raise kind
            return value

        job = Job(tuned(CAPTURED), loss=raising, kind=Steady)
        assert job.raised == [(1, kind)]
        assert (len(calls), int(job.hooks["forward"]), autotune.stats(job.step).state) == (5, 5, "tuned")
        assert warned(caplog) == []

    @pytest.mark.parametrize("kind", [StopError, TimeoutError])
    @pytest.mark.parametrize("config", ["compile", "run"])
    def test_what_another_thread_throws_into_it(self, tuned, compiler, caplog, config, kind):
        """A cancellation or a timeout is the job's, also while the compiler works."""
        thrown = []

        def throw():
            if not thrown:
                thrown.append(kind)
                thread = ctypes.c_ulong(threading.get_ident())
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(kind))
                for _ in range(3):  # It comes between two instructions.
                    len(thrown)

        def compile_(graph, _inputs):
            if config == "compile":
                throw()

            def run(*args):
                if config == "run":
                    throw()
                return graph.forward(*args)

            return run

        model = made()
        step = tuned(compiler(compile_))(model, loss, torch.optim.SGD(model.parameters()))
        with pytest.raises(kind):
            step(batch(0))
        step(batch(1))
        assert (warned(caplog), autotune.stats(step).state) == ([], "tuned")

    @pytest.mark.fast_cases("forward-True", "forward pre-False")
    @pytest.mark.parametrize("is_disabled", [False, True])
    @pytest.mark.parametrize("where", ["forward", "forward pre"])
    def test_a_hook_of_a_model_that_is_called(self, tmp_path, caplog, where, is_disabled):
        """`apply(model)` repeats what fails, and a hook's exception is none of it."""
        model = made(Steady).eval()
        path = export(tmp_path / "best.yaml", "torch", COMPILED, model, [batch(0)])
        applied = autotune.load(path).apply(model, margin=None)
        calls, hook = raising_at(3)
        HOOKS[where]((model, None), torch.compiler.disable(hook) if is_disabled else hook)
        with torch.no_grad():
            for number in range(5):
                with pytest.raises(StopError) if number == 2 else contextlib.nullcontext():
                    applied(batch(number))
        assert len(calls) == 5
        assert (warned(caplog), autotune.stats(applied).state) == ([], "tuned")

    @pytest.mark.parametrize("config", [COMPILED, None])
    def test_a_loss_that_is_no_number(self, tuned, tmp_path, config):
        """A sentence, in the tuned step as in the untuned one."""
        model = made()
        optimizer = torch.optim.SGD(model.parameters())
        make = tuned(config) if config else autotune.load(tmp_path / "none.yaml").training_step
        with pytest.raises(InputError, match="the loss gave a dict of loss and not one number"):
            make(model, lambda model, x: {"loss": loss(model, x)}, optimizer)(batch(0))


class TestTheOptimizer:
    def test_a_step_that_the_job_replaces_afterwards(self, tuned, caplog):
        """Clipping, counters, loss scaling: it is called in each step from then on, and not compiled any more."""
        model = made()
        optimizer = torch.optim.Adam(model.parameters())
        step = tuned(OPTIMIZER)(model, loss, optimizer)
        step(batch(0))
        calls, plain = [], optimizer.step

        def clipped():
            calls.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
            return plain()

        optimizer.step = clipped
        for number in range(3):
            step(batch(number))
        assert len(calls) == 3
        assert optimizer.state[model.last.bias]["step"] == 4
        assert len([each for each in warned(caplog) if "optimizer.step" in each]) == 1

    @pytest.mark.parametrize("implementation", ["fused", "foreach"])
    def test_flags_are_the_jobs_own_outside_of_a_step(self, tuned, implementation):
        """In its groups, its checkpoints, and after it has loaded one."""
        model = made()
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        flags, during = [], []
        optimizer.register_step_post_hook(lambda *_: during.append(optimizer.param_groups[0][implementation]))
        step = tuned({"execution": "eager", "optimizer_impl": implementation})(model, loss, optimizer)
        for number in range(2):
            step(batch(number))
            optimizer.load_state_dict(optimizer.state_dict())
            flags.append([optimizer.param_groups[0][each] for each in ("fused", "foreach")])
        assert flags == [[None, False]] * 2
        assert during == [True, True]


class Heads(torch.nn.Module):
    """Two outputs, and a low-rank part whose first factor has a gradient of zeros, since the second is zero."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 8)
        self.one, self.two = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        self.down, self.up = torch.nn.Linear(8, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(self.up.weight)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        hidden = self.norm(self.body(x))
        return self.one(hidden) + self.up(self.down(hidden)), self.two(hidden)


class TestWeightsThatTheLossDoesNotUse:
    @pytest.mark.parametrize("config", [COMPILED, WHOLE], ids=["model", "loss"])
    def test_they_have_no_gradient(self, tuned, caplog, config):
        """And no weight decay; those that it uses, with a gradient of zeros, have. A loss may use others later."""
        seen = []
        for make in (tuned(config), by_hand):
            model = made(Heads)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
            places = [0]

            def one_of(model, x, places=places):
                return model(x)[places[0]].square().mean()

            step, nones = make(model, one_of, optimizer), []
            for number in range(6):
                places[0] = int(number in {2, 3})
                step(batch(number))
                nones.append([name for name, each in model.named_parameters() if each.grad is None])
            seen.append((nones, int(model.norm.num_batches_tracked)))
            weights = model.state_dict()
            if make is not by_hand:
                found, stats = weights, autotune.stats(step)
                assert stats.state == "tuned"
                assert stats.num_compiles >= 1
        assert seen[0] == seen[1]
        assert seen[0][0][0] == ["two.weight", "two.bias"]
        torch.testing.assert_close(found, weights, atol=1e-5, rtol=1e-4)
        assert warned(caplog) == []


@pytest.fixture
def one_process(tmp_path):
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class TestSeveralProcesses:
    @pytest.mark.fast_cases("module", "loss")
    @pytest.mark.parametrize("given", ["module", "wrapper", "loss"])
    def test_the_module_of_a_wrapper(self, tuned, monkeypatch, one_process, caplog, given):
        """DistributedDataParallel synchronises what is called through it: one warning where nothing is."""
        monkeypatch.setattr(parallel, "is_one_of_many", lambda: True)
        model = made()
        wrapper = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters())
        called = wrapper if given == "wrapper" else wrapper.module
        through = (lambda _, x: loss(wrapper, x)) if given == "loss" else loss
        step = tuned(CAPTURED, on_mismatch="apply")(called, through, optimizer)
        for number in range(3):
            step(batch(number))
        told = [each for each in warned(caplog) if "gradients are not synchronised" in each]
        assert len(told) == (given == "module")

    def test_copies_of_the_same_weights_step_alike(self, tuned, monkeypatch, caplog):
        """One that falls back alone would round otherwise, so the optimizer is the job's own in all of them."""
        monkeypatch.setattr(training, "is_one_of_many", lambda: True)
        model = made()
        optimizer = torch.optim.Adam(model.parameters())
        seen = []
        optimizer.register_step_post_hook(lambda *_: seen.append(optimizer.param_groups[0]["fused"]))
        step = tuned(FUSED)(model, loss, optimizer)
        for number in range(2):
            step(batch(number))
        assert seen == [None, None]
        assert [each for each in warned(caplog) if "their steps must be alike" in each]

    def test_sharded_weights_are_no_constants(self, one_process):
        """FSDP puts them together anew for each call: a config that freezes them is refused, in a sentence."""
        from torch.distributed.fsdp import fully_shard

        from autotune.backends.torch.apply import apply
        from autotune.errors import InvalidConfigError, UnsuitableCallError

        frozen = Config({"execution": "compile", "backend": "inductor", "freezing": True})
        model = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
        changes = UndoLog()
        step = parallel.WholeWeights(model, lambda x: x)
        assert step(1) == 1
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        with pytest.raises(InvalidConfigError, match="sharded over several processes"):
            apply(model, frozen, changes)
        with pytest.raises(UnsuitableCallError, match="was sharded") as refused:
            step(1)
        assert refused.value.lasting
