"""Many ranks, one decision: real processes on gloo. Nothing hangs, no decision is mixed, and one rank warns."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import autotune
from autotune.apply.warm_start import key_here
from autotune.backends.registry import load_backend
from autotune.config import Config
from autotune.errors import InputError
from autotune.job import apply
from autotune.job import ranks as job_ranks
from autotune.tuned.cache_file import pack
from tests.dynamo_backends import registered
from tests.import_graph import REPOSITORY
from tests.stand_ins.exports import export
from tests.stand_ins.ranks import JOBS_S, RankProcesses

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from functorch.compile import make_boxed_func  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from autotune.backends.torch import apply as torch_apply  # noqa: E402
from autotune.backends.torch.knobs import settings_of  # noqa: E402
from tests.job.test_applied_on_ranks import row  # noqa: E402
from tests.stand_ins import launched  # noqa: E402
from tests.stand_ins.applied import applied, call, files, state  # noqa: E402

COMPILED = {"execution": "compile", "backend": "aot_eager"}
INDUCTOR = {"execution": "compile", "backend": "inductor"}
PLANTED = {"execution": "compile", "backend": "of_the_test"}
NUM_STEPS = 20


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Unused(Net):
    """A part of it has no gradient in every other step."""

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Linear(4, 1)
        self.is_other_used = False

    def forward(self, x):
        self.is_other_used = not self.is_other_used
        out = super().forward(x)
        return out + self.other(x) if self.is_other_used else out


def loss_of(model, x):
    return model(x).square().mean()


def batch(number, rank=0, rows=4):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(100 * rank + number))


def made(kind=Net):
    torch.manual_seed(0)
    return kind().train()


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    """Ranks stay for the module: to start them takes longer than most cases. These fixtures end them."""


@pytest.fixture(scope="module")
def two(program):
    processes = RankProcesses(2, program)
    yield processes
    processes.end()


@pytest.fixture
def exported(tmp_path):
    """`exported(config)` is the path of a file that fits a model, here and on every rank."""

    def write(config, model=None, name="best.yaml", inputs=None, **changes):
        given = made() if model is None else model
        return str(export(tmp_path / name, "torch", config, given, inputs or [batch(0)], task="train", **changes))

    return write


def whole(model):
    """Its weights, of all ranks, as lists that another process can read."""
    tensors = [*model.parameters(), *model.buffers()]
    return [(t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone().flatten().tolist() for t in tensors]


def loop(rank, model, call, optimizer, steps=NUM_STEPS, shapes=None):
    """The job's own."""
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        rows = 4 if shapes is None else shapes(rank, number)
        value = loss_of(call, batch(number, rank, rows))
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def same(outcomes):
    """No rank failed, and their weights are equal to those of the untuned job and of each other."""
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    tuned = [outcome.value["tuned"] for outcome in outcomes]
    for outcome in outcomes:
        for found, wanted in zip(outcome.value["tuned"], outcome.value["untuned"], strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), atol=1e-5, rtol=1e-4)
    for other in tuned[1:]:
        learned = len(list(made().parameters()))
        assert other[:learned] == tuned[0][:learned]


def warned(outcomes):
    """Whatever was warned of, with the rank that did."""
    return [(rank, line) for rank, outcome in enumerate(outcomes) for line in outcome.warnings]


def decided(rank, paths, kind):
    """What each rank has in the end, and how long it took."""
    model = made()
    start = time.monotonic()
    loaded = autotune.load(paths[rank])
    given = loaded.training_step(model, loss_of, sgd(model)) if kind == "step" else loaded.apply(model)
    seconds = time.monotonic() - start
    stands = state(given)
    if kind == "step":
        given(batch(0, rank))
    else:
        loss_of(given, batch(0, rank)).backward()
    return stands, seconds, [event.message for event in autotune.stats(given).events]


class TestTheDecision:
    """Over the store of a real group. What can be applied and what can go wrong with it are rows of a table in
    `test_applied_on_ranks`, whose ranks are threads."""

    @pytest.mark.fast_cases("model")
    @pytest.mark.parametrize("kind", ["model", "step"])
    def test_all_apply_one_file(self, two, exported, kind):
        """Or a copy of it elsewhere."""
        outcomes = two.run(decided, [exported(COMPILED), exported(COMPILED, name="copy.yaml")], kind)
        assert [outcome.value[0] for outcome in outcomes] == ["settling"] * 2
        assert warned(outcomes) == []

    def test_some_rows_of_the_table(self, two, tmp_path):
        """One warning that names rank and reason, and then another model is tuned."""
        rows = [("file", "file missing"), ("pipeline", "part missing"), ("step", "raises")]
        paths = {form: files(tmp_path, form) for form, _ in rows}
        for form, fault in rows:
            outcomes = two.run(really, form, fault, 1, paths[form])
            assert [outcome.error for outcome in outcomes] == [None] * 2
            assert [outcome.value[0] for outcome in outcomes] == [
                "untuned",
                "raised" if fault == "raises" else "untuned",
            ]
            assert [outcome.value[3] for outcome in outcomes] == ["settling"] * 2
            [(rank, line)] = warned(outcomes)
            assert rank == 0
            assert "rank 1: " in line
            assert "untuned on all of the 2 ranks" in line

    def test_a_group_that_is_made_again(self, two, exported):
        """Over the same store; what the ranks of the first one agreed on is as it was, and new things are paired."""
        outcomes = two.run(made_again, exported(COMPILED))
        assert [outcome.value for outcome in outcomes] == [["settling", "settling", "untuned"]] * 2
        assert all("rank 1: cannot read" in line for _, line in warned(outcomes))

    def test_ranks_that_meet_after_apply(self, two, exported):
        """They agreed on nothing, so none is tuned."""
        outcomes = two.run(met_later, exported(COMPILED))
        assert [outcome.value for outcome in outcomes] == ["untuned"] * 2
        assert all("init_process_group" in line for _, line in warned(outcomes))


@contextlib.contextmanager
def patience(seconds):
    """Within: what a rank waits for the others' decisions, and for their first calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "DECISION_S", seconds)
        patch.setattr(job_ranks, "DECISION_S", seconds)
        patch.setattr(job_ranks, "COMPILE_S", seconds)
        yield


def really(rank, *args):
    """A row of the table in real time."""
    return row(rank, time, *args)


def made_again(rank, path):
    store, size = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    stands = [state(autotune.load(path).apply(made()))]
    dist.destroy_process_group()
    for is_missing in (False, True):
        again = dist.PrefixStore(f"again {is_missing}", store)
        dist.init_process_group("gloo", store=again, rank=rank, world_size=size)
        stands.append(state(autotune.load("none.yaml" if is_missing and rank else path).apply(made())))
        dist.barrier()
        dist.destroy_process_group()
    return stands


def met_later(rank, path):
    store, size = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    dist.destroy_process_group()
    model = autotune.load(path).apply(made())
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    loss_of(model, batch(0)).backward()
    return state(model)


class TestOrders:
    """Each is right: as the untuned job over 20 steps, and alike on all ranks; or untuned, with a sentence."""

    @pytest.mark.fast_cases("aot_eager-before", "aot_eager-step")
    @pytest.mark.parametrize("order", ["before", "after", "step"])
    @pytest.mark.parametrize("config", [COMPILED, INDUCTOR], ids=["aot_eager", "inductor"])
    def test_data_parallel(self, two, exported, order, config):
        outcomes = two.run(data_parallel, exported(config), order)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []

    @pytest.mark.fast_cases("aot_eager-blocks")
    @pytest.mark.parametrize("order", ["before", "after", "step", "blocks"])
    @pytest.mark.parametrize("config", [COMPILED, INDUCTOR], ids=["aot_eager", "inductor"])
    def test_sharded(self, two, exported, order, config):
        """FSDP2. Blocks are sharded each for itself, too; a config of a block was tuned with gradients of inputs."""
        path = (
            exported(config) if order != "blocks" else of_a_block(exported(config, Block(), inputs=[torch.zeros(4, 8)]))
        )
        outcomes = two.run(sharded, path, order, True)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []

    @pytest.mark.slow
    def test_sharded_as_a_whole(self, two, exported):
        outcomes = two.run(sharded, exported(COMPILED), "after", False)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []

    def test_a_block_that_was_tuned_without_gradients_of_its_inputs(self, two, exported):
        path = exported(COMPILED, Block(), inputs=[torch.zeros(4, 8)])
        outcomes = two.run(sharded, path, "blocks", True)
        same(outcomes)
        [line] = {line for _, line in warned(outcomes)}
        assert "inputs require gradients" in line
        assert "tune with inputs that require gradients" in line

    @pytest.mark.slow
    def test_no_sync(self, two, exported):
        outcomes = two.run(accumulated, exported(COMPILED))
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []

    @pytest.mark.slow
    def test_find_unused_parameters(self, two, exported):
        outcomes = two.run(with_unused, exported(COMPILED, made(Unused)))
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("order", ["before", "step"])
    def test_a_last_batch_of_another_shape_on_one_rank(self, two, exported, order):
        """A step of a shape that no trial compared is untuned on that rank alone, which says so once."""
        outcomes = two.run(with_a_last_batch, exported(COMPILED), order)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        lines = warned(outcomes)
        assert [rank for rank, _ in lines] == ([1])
        assert all("inputs float32[4, 4], here float32[3, 4]: such calls stay untuned" in line for _, line in lines)


def of_a_block(path):
    """The file of a config whose trials recorded gradients of inputs."""
    content = yaml.safe_load(Path(path).read_text())
    content["workload"]["signature"]["records_gradients"] = True
    Path(path).write_text(yaml.safe_dump(content))
    return path


def both(train):
    """`train(tune)` for the untuned job and for the tuned one: `tune(model)` is the job's second line."""
    value = {}
    for which in ("untuned", "tuned"):
        torch._dynamo.reset()
        value[which], value["state"] = train(which == "tuned")
    return value


def data_parallel(rank, path, order, kind=Net, shapes=None, **options):
    def train(is_tuned):
        model = made(kind)
        apply = autotune.load(path).apply if is_tuned else lambda model: model
        if order == "step" and is_tuned:
            wrapper = DistributedDataParallel(model, **options)
            step = autotune.load(path).training_step(wrapper, loss_of, sgd(wrapper))
            for number in range(NUM_STEPS):
                step(batch(number, rank, 4 if shapes is None else shapes(rank, number)))
            return whole(model), state(step)
        if order == "after":
            called = given = apply(DistributedDataParallel(model, **options))
        else:
            given = apply(model)
            called = DistributedDataParallel(given, **options)
        loop(rank, model, called, sgd(called), shapes=shapes)
        return whole(model), state(given) if is_tuned else None

    return both(train)


def sharded(rank, path, order, is_nested):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))

    def shard(model):
        if is_nested and order != "blocks":
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def train(is_tuned):
        model = made()
        load = autotune.load(path)
        apply = load.apply if is_tuned else lambda model: model
        given = None
        if order == "blocks":
            for number, block in enumerate(model.blocks):
                given = model.blocks[number] = apply(block)
                fully_shard(given, mesh=mesh)
            called = model
            shard(model)
        elif order == "before":
            called = given = apply(model)
            shard(called)
        else:
            shard(model)
            called = given = model if order == "step" else apply(model)
        if order == "step" and is_tuned:
            given = load.training_step(model, loss_of, sgd(model))
            for number in range(NUM_STEPS):
                given(batch(number, rank))
        else:
            loop(rank, model, called, sgd(model))
        return whole(model), state(given) if is_tuned else None

    return both(train)


def accumulated(rank, path):
    def train(is_tuned):
        model = made()
        given = autotune.load(path).apply(model) if is_tuned else model
        wrapper = DistributedDataParallel(given)
        optimizer = sgd(wrapper)
        for number in range(NUM_STEPS):
            with wrapper.no_sync() if number % 4 < 3 else contextlib.nullcontext():
                loss_of(wrapper, batch(number, rank)).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return whole(model), state(given) if is_tuned else None

    return both(train)


def with_unused(rank, path):
    return data_parallel(rank, path, "before", Unused, find_unused_parameters=True)


def with_a_last_batch(rank, path, order):
    return data_parallel(rank, path, order, shapes=lambda rank, number: 3 if rank == 1 and number % 5 == 4 else 4)


class TestPlanted:
    """What goes wrong on one rank alone."""

    @pytest.mark.fast_cases("prepared-before")
    @pytest.mark.parametrize("order", ["before", "step"])
    @pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared", "not prepared"])
    def test_a_compile_error(self, two, exported, order, is_prepared):
        outcomes = two.run(failing_to_compile, exported(PLANTED), order, is_prepared)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["untuned"] * 2
        [(rank, line)] = warned(outcomes)
        assert rank == 0
        assert "rank 1: the tuned model failed" in line
        assert "no code for this graph" in line
        assert "all of the 2 ranks are back to the untuned model" in line

    def test_a_compile_error_in_a_part(self, two, tmp_path):
        """That part alone is left, by both."""
        outcomes = two.run(failing_in_a_part, files(tmp_path, "pipeline", PLANTED))
        assert [outcome.error for outcome in outcomes] == [None] * 2
        assert [outcome.value for outcome in outcomes] == ["tuned and untuned"] * 2
        [(rank, line)] = warned(outcomes)
        assert rank == 0
        assert "rank 1: the tuned model failed" in line

    def test_a_compile_error_of_a_later_shape(self, two, exported):
        """Of one that the study did not compare, where the job has it tuned all the same."""
        path = exported(PLANTED)
        outcomes = two.run(failing_at_a_later_shape, path)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["untuned"] * 2
        assert [outcome.value["num_tuned"] for outcome in outcomes] == [10, 10]
        [(rank, line)] = warned(outcomes)
        assert rank == 0
        assert "rank 1: " in line

    @pytest.mark.slow
    def test_a_first_call_that_takes_long(self, two, exported):
        """The other rank waits for it, longer than the job's own collectives would."""
        outcomes = two.run(slow_to_compile, exported(PLANTED), 4.0, 100.0)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []

    @pytest.mark.slow
    def test_a_first_call_that_takes_a_minute(self, two, exported):
        """Twice as long as what the job's own collectives are waited for; the rank that waits says for whom."""
        outcomes = two.run(slow_to_compile, exported(PLANTED), JOBS_S, 1000.0)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert [line.rpartition("(): ")[2] for _, line in warned(outcomes)] == [
            "waits for rank 1, at most 1000 s in all"
        ]

    def test_a_first_call_that_takes_too_long(self, two, exported):
        outcomes = two.run(slow_to_compile, exported(PLANTED), 2.0, 1.0)
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["untuned"] * 2
        [(rank, line)] = warned(outcomes)
        assert rank == 0
        assert "rank 1: no answer within 1 s" in line

    @pytest.mark.slow
    def test_a_slower_machine(self, two, exported):
        """A rank whose calls take longer than recorded is no reason, for it or for the others."""
        path = Path(exported(PLANTED))
        content = yaml.safe_load(path.read_text())
        content["evidence"]["best"]["latency_s"] = {"p50": 1e-6, "p90": 1e-6, "p99": 1e-6}
        path.write_text(yaml.safe_dump(content))
        outcomes = two.run(slower, str(path))
        same(outcomes)
        assert [outcome.value["state"] for outcome in outcomes] == ["tuned"] * 2
        assert warned(outcomes) == []


@contextlib.contextmanager
def compiler(forward):
    """Within: dynamo has the backend of the test, which asks `forward` for the code of a graph; None: as it is."""

    def compile_(graph, _inputs):
        return make_boxed_func(forward(graph) or graph.forward)

    with registered(aot_autograd(fw_compiler=compile_), "of_the_test"):
        yield


def refused(_graph):
    raise RuntimeError("no code for this graph")


def trained(rank, path, order, is_prepared, forward, shapes=None, **policy):
    def train(is_tuned):
        model = made()
        optimizer = sgd(model)
        if order == "step" and is_tuned:
            wrapper = DistributedDataParallel(model)
            given = autotune.load(path).training_step(wrapper, loss_of, optimizer)
            if is_prepared:
                autotune.prepare(given, batch(0, rank))
            for number in range(NUM_STEPS):
                given(batch(number, rank))
            return whole(model), state(given)
        given = autotune.load(path).apply(model, **policy) if is_tuned else model
        if is_tuned and is_prepared:
            autotune.prepare(given, batch(0, rank))
        loop(rank, model, DistributedDataParallel(given), optimizer, shapes=shapes)
        return whole(model), state(given) if is_tuned else None

    with compiler(forward):
        return both(train)


def failing_to_compile(rank, path, order, is_prepared):
    return trained(rank, path, order, is_prepared, refused if rank == 1 else lambda _: None)


def failing_in_a_part(rank, paths):
    """What is compiled first on rank 1."""
    graphs = []

    def forward(graph):
        graphs.append(graph)
        if rank == 1 and len(graphs) == 1:
            refused(graph)

    with compiler(forward):
        held = applied("pipeline", "none", paths)
        for _ in range(3):
            call("pipeline", held)
            dist.barrier()
        return state(held)


def failing_at_a_later_shape(rank, path):
    """On rank 1, in the tenth step."""
    graphs, calls = [], []

    def forward(graph):
        graphs.append(graph)
        if rank == 1 and len(graphs) == 3:  # The first two are a forward and its backward pass.
            refused(graph)

    original = job_ranks.JointCalls.__call__

    def counted(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        calls.append(not self._fallback.is_over)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_ranks.JointCalls, "__call__", counted)
        shapes = lambda rank, number: 3 if rank == 1 and number == 9 else 4  # noqa: E731
        value = trained(rank, path, "before", True, forward, shapes, on_mismatch="apply")
    return {**value, "num_tuned": sum(calls[1:])}


def slow_to_compile(rank, path, seconds, longest):
    with patience(longest):
        return trained(rank, path, "before", True, lambda _: time.sleep(seconds * (rank == 1)))


def slower(rank, path):
    def slow_code(graph):
        return lambda *args: (time.sleep(0.01 * (rank == 1)), graph.forward(*args))[1]

    return trained(rank, path, "before", True, slow_code)


def killed(rank, path, when):
    def end(now):
        if rank == 1 and now == when:
            os.kill(os.getpid(), signal.SIGKILL)

    end("before apply")
    model = made()
    with patience(5.0):
        given = autotune.load(path).apply(model)
        end("before prepare")
        autotune.prepare(given, batch(0, rank))
    wrapper = DistributedDataParallel(given)
    optimizer = sgd(wrapper)
    for number in range(NUM_STEPS):
        if number == 3:
            end("in a step")
        loop(rank, model, wrapper, optimizer, steps=1)


def key_on_a_rank(_rank, structure):
    return key_here("torch", load_backend("torch"), Config(INDUCTOR), structure).model_dump(mode="json")


class TestCaches:
    def test_a_neighbour_finds_the_code(self, two, exported, tmp_path):
        """The first rank of a host compiles, the other one waits and loads: nothing of a rank is in a cache's key."""
        outcomes = two.run(compiled_in, exported(INDUCTOR, compile_cold_s=100.0), str(tmp_path / "caches"))
        assert [outcome.error for outcome in outcomes] == [None] * 2
        (hits, misses), (hits_of_neighbour, misses_of_neighbour) = [outcome.value for outcome in outcomes]
        assert (hits, misses_of_neighbour) == (0, 0)
        assert misses >= 1
        assert hits_of_neighbour >= 1

    def test_a_first_rank_that_waits_for_its_neighbour(self, two, exported):
        """In a collective that nobody knows of, within the model: the neighbour comes after a while."""
        outcomes = two.run(waiting_in_a_call, exported(COMPILED, compile_cold_s=1.0))
        assert [outcome.error for outcome in outcomes] == [None] * 2
        assert [outcome.value for outcome in outcomes] == ["tuned"] * 2

    def test_an_artifact_that_one_rank_does_not_have(self, two, exported, tmp_path):
        """Its first call compiles; the config is the same one."""
        os.makedirs(tmp_path / "other")
        path = Path(exported(INDUCTOR))
        content = yaml.safe_load(path.read_text())
        packed = pack(tmp_path / "other")
        (tmp_path / "best.cache").write_bytes(packed)
        structure = content["workload"]["signature"]["structure_sha256"]
        key, _ = two.run(key_on_a_rank, structure)
        content["artifact"] = {
            **{"file": "best.cache", "sha256": hashlib.sha256(packed).hexdigest(), "num_bytes": len(packed)},
            **{"key": key.value, "check_first_call": False, "compile_s": 1.0, "compile_cold_s": 2.0},
        }
        paths = [str(path), str(tmp_path / "other" / "best.yaml")]
        for each in paths:
            Path(each).write_text(yaml.safe_dump(content))
        outcomes = two.run(decided, paths, "step")
        assert [outcome.error for outcome in outcomes] == [None] * 2
        assert [outcome.value[0] for outcome in outcomes] == ["settling"] * 2
        [(rank, line)] = warned(outcomes)
        assert rank == 1
        assert "best.cache cannot be read" in line
        assert "the first call compiles" in line

    def test_each_rank_has_its_share_of_the_workers(self, monkeypatch):
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        monkeypatch.setattr(torch_apply, "is_one_of_many", lambda: True)
        monkeypatch.setattr(torch_apply, "num_usable_cores", lambda: 8)
        with inductor_config.patch(compile_threads=16):
            entries = torch_apply._entries(made(), settings_of(Config(INDUCTOR)))
            assert (inductor_config, "compile_threads", 2) in entries
            monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "8")
            names = [name for _, name, _ in torch_apply._entries(made(), settings_of(Config(INDUCTOR)))]
        assert "compile_threads" not in names


def compiled_in(rank, path, folder):
    counts = torch._dynamo.utils.counters["aot_autograd"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
        counts.clear()
        given = autotune.load(path).apply(made())
        autotune.prepare(given, batch(0, rank))
        return counts["autograd_cache_hit"], counts["autograd_cache_miss"]


class Waiting(Net):
    def forward(self, x):
        everybody(x)
        return super().forward(x)


@torch._dynamo.disable
def everybody(x):
    dist.all_reduce(x.detach().clone())


def waiting_in_a_call(rank, path):
    given = autotune.load(path).apply(made(Waiting))
    autotune.prepare(given, batch(0, rank))
    return state(given)


@pytest.mark.slow
class TestLaunched:
    @pytest.mark.parametrize("trainer", ["accelerate", "trainer", "lightning"])
    def test_by_torchrun(self, tmp_path, trainer):
        """As a job is started, with the libraries that people use."""
        pytest.importorskip({"trainer": "transformers", "lightning": "pytorch_lightning"}.get(trainer, trainer))
        inputs = [torch.zeros(launched.BATCH, 4), torch.zeros(launched.BATCH, 1)]
        path = export(tmp_path / "best.yaml", "torch", COMPILED, launched.Regression(), inputs, task="train")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += ["-m", "tests.stand_ins.launched", trainer, str(path), str(tmp_path)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
        for rank in ranks:
            assert rank["tuned"] == ranks[0]["tuned"]
            assert rank["num_compiles"] >= 1
            assert rank["events"] == rank["warnings"] == []
            for found, wanted in zip(rank["tuned"], rank["untuned"], strict=True):
                torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), atol=1e-5, rtol=1e-4)


class TestPrepare:
    def test_nothing_moves(self, exported):
        """Weights, gradients, statistics, counters, random numbers and the batch are as before, and code is there."""
        model = made(Moving)
        x = batch(0)
        model(x.clone()).sum().backward()
        before = copy.deepcopy((model.state_dict(), [p.grad for p in model.parameters()], model.num_calls, x))
        given = autotune.load(exported(COMPILED, model)).apply(model)
        torch.manual_seed(1)
        wanted = torch.rand(3)
        torch.manual_seed(1)
        autotune.prepare(given, x)
        assert torch.equal(torch.rand(3), wanted)
        after = model.state_dict(), [p.grad for p in model.parameters()], model.num_calls, x
        torch.testing.assert_close(after, before, atol=0, rtol=0)
        assert autotune.stats(given).num_compiles >= 1

    def test_a_step_takes_no_step(self, exported):
        model = made(Moving)
        optimizer = torch.optim.Adam(model.parameters())
        before = copy.deepcopy(model.state_dict())
        step = autotune.load(exported(COMPILED, model)).training_step(model, loss_of, optimizer)
        autotune.prepare(step, batch(0))
        torch.testing.assert_close(model.state_dict(), before, atol=0, rtol=0)
        assert not optimizer.state
        num_compiles = autotune.stats(step).num_compiles
        assert num_compiles >= 1
        step(batch(1))
        assert autotune.stats(step).num_compiles == num_compiles
        assert optimizer.state

    def test_it_compiles_all_that_a_step_needs(self, two, exported):
        outcomes = two.run(prepared_and_counted, exported(COMPILED))
        assert [outcome.error for outcome in outcomes] == [None] * 2
        assert all(outcome.value[0] == outcome.value[1] for outcome in outcomes)

    def test_a_rank_that_does_not_come(self, two, exported):
        """It is waited for no longer than in `apply`, and all leave the tuned model."""
        outcomes = two.run(prepared_on_rank_0, exported(COMPILED))
        assert [outcome.value for outcome in outcomes] == ["untuned"] * 2
        [(rank, line)] = warned(outcomes)
        assert rank == 0
        assert "rank 1: no answer within 2 s" in line

    def test_an_untuned_model_needs_none(self, exported):
        model = made()
        given = autotune.load(exported(COMPILED, verdict="tie")).apply(model)
        autotune.prepare(given, batch(0))
        with pytest.raises(InputError, match="neither"):
            autotune.prepare(Net(), batch(0))

    def test_a_batch_that_the_model_does_not_take(self, exported, caplog):
        given = autotune.load(exported(COMPILED)).apply(made(), on_mismatch="apply")
        autotune.prepare(given, torch.zeros(4, 3))
        assert state(given) == "untuned"
        assert "prepare" in caplog.text


class Moving(Net):
    """Leaves something behind in each call."""

    def __init__(self):
        super().__init__()
        self.num_calls = 0
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        self.num_calls += 1
        x.add_(1)
        return self.drop(super().forward(x))


def prepared_on_rank_0(rank, path):
    given = autotune.load(path).apply(made())
    with patience(2.0):
        if rank == 0:
            autotune.prepare(given, batch(0))
    dist.barrier()
    loss_of(given, batch(0)).backward()
    return state(given)


def prepared_and_counted(rank, path):
    model = made()
    given = autotune.load(path).apply(model)
    wrapper = DistributedDataParallel(given)
    autotune.prepare(wrapper, batch(0, rank))
    first = autotune.stats(given).num_compiles
    loop(rank, model, wrapper, sgd(wrapper), steps=3)
    return first, autotune.stats(given).num_compiles


@pytest.mark.fast_cases("in a step")
@pytest.mark.parametrize("when", ["before apply", "before prepare", "in a step"])
def test_a_rank_that_is_killed(two, exported, when):
    """The other one comes to its end by the job's own error. This test is the last: it ends the ranks' processes."""
    outcomes = two.run(killed, exported(COMPILED), when)
    assert [outcome.was_killed for outcome in outcomes] == [False, True]
    assert outcomes[0].error is not None
