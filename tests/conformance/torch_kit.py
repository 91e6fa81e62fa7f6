"""What PyTorch's jobs are tried with: a model, what jobs do to it, and the configs under which they do."""

from __future__ import annotations

import copy
import io
import logging
import os
import pickle
from contextlib import contextmanager
from unittest import mock

import torch
from torch.nn.utils import parametrize, prune

import autotune
from tests.conformance.kit import Kit
from tests.stand_ins.exports import export

COMPILED = {"execution": "compile", "backend": "inductor"}
FROZEN = {**COMPILED, "freezing": True}
CAPTURED = {"execution": "compile", "backend": "aot_eager"}
EAGER = {"execution": "eager"}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(torch.nn.Module):
    """Weights, buffers, a plain tensor, a plain number and something that a call leaves behind."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.norm = torch.nn.BatchNorm1d(8)
        self.table = torch.linspace(0.5, 1.5, 8)
        self.scale = 2.0
        self.num_calls = 0

    def forward(self, x):
        self.num_calls = self.num_calls + 1
        return self.norm(self.blocks(x)) * self.table * self.scale


class Stateless(Net):
    """The same without what a call leaves behind, which makes a compiler compile again."""

    def forward(self, x):
        return self.norm(self.blocks(x)) * self.table * self.scale


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def made(kind=Stateless):
    torch.manual_seed(0)
    model = kind()
    for each in model.modules():
        if isinstance(each, torch.nn.BatchNorm1d):
            each.running_mean.uniform_(-0.5, 0.5)
    return model.eval()


def answer_in(folder):
    """Exports for `Net` with inputs of 4 by 8, measured on this machine: `answer(config)` is one, loaded."""

    def answer(config, workload_of=None, **changes):
        return autotune.load(export(folder / "best.yaml", "torch", config, workload_of or Net(), [X], **changes))

    return answer


def plain(model, x=X):
    """What the job's model gives without anything of the tool."""
    with torch.no_grad():
        return type(model).forward(model, x)


def warned(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "autotune" and each.levelno >= logging.WARNING]


def replaced_weight(model):
    model.blocks[0].linear.weight = torch.nn.Parameter(model.blocks[0].linear.weight * 3)


def load(model, **how):
    model.load_state_dict({name: each + 0.25 for name, each in model.state_dict().items()}, **how)


def in_place(model):
    with torch.no_grad():
        model.blocks[0].linear.weight.mul_(3)


def stepped(make):
    def step(model):
        optimizer = make(model.parameters())
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()

    return step


def stepped_fused_where_nobody_looks(model):
    """Only a row that holds none of the sampled elements has a gradient, and PyTorch does not count the write."""
    weight = model.blocks[0].linear.weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[2, 1] = 1.0
    torch.optim.Adam([weight], lr=0.5, fused=True).step()


def moved_statistics(model):
    model.train()
    with torch.no_grad():
        model(X * 3)
    model.eval()


def through_numpy(model):
    model.blocks[0].linear.weight.detach().numpy()[:] *= 3


def through_data(model):
    model.blocks[0].linear.weight.data.mul_(3)


def other_data(model):
    model.blocks[0].linear.weight.data = model.blocks[0].linear.weight.data * 3


def other_buffer(model):
    model.norm.running_mean.add_(1)


def other_table(model):
    model.table.mul_(3)


def new_table(model):
    model.table = torch.ones(8)


def other_number(model):
    model.scale = 5.0


CHANGES = {
    "load_state_dict": load,
    "load_state_dict(assign=True)": lambda model: load(model, assign=True),
    "an in-place operator": in_place,
    "SGD": stepped(lambda weights: torch.optim.SGD(weights, lr=0.1)),
    "fused Adam": stepped(lambda weights: torch.optim.Adam(weights, lr=0.1, fused=True)),
    "fused Adam, one element": stepped_fused_where_nobody_looks,
    "BatchNorm's statistics": moved_statistics,
    "a buffer": other_buffer,
    "a plain tensor": other_table,
    ".data.mul_": through_data,
    ".data = ": other_data,
    "NumPy": through_numpy,
    "another parameter": replaced_weight,
    "another plain tensor": new_table,
    "a plain number": other_number,
}


class Doubled(torch.nn.Module):
    """A parametrization, or what a hook does."""

    def forward(self, weight):
        return weight * 2


class Adapter(torch.nn.Module):
    """A layer with low-rank weights beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down, self.up = torch.nn.Linear(8, 2, bias=False), torch.nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def patched(owner, name, make):
    """Replace a function of a class, an instance or a module; what puts it back is returned."""
    before, is_own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, make(before))
    return lambda: setattr(owner, name, before) if is_own else delattr(owner, name)


def doubled(function):
    return lambda *args: function(*args) * 2


def of_submodule(model):
    return model.blocks[0].linear


def of_hook(register):
    return lambda model: register(model).remove


def adapted_layer(model):
    model.blocks[0].linear = Adapter(model.blocks[0].linear)
    return lambda: setattr(model.blocks[0], "linear", model.blocks[0].linear.layer)


def parametrized(model):
    layer = of_submodule(model)
    parametrize.register_parametrization(layer, "weight", Doubled())
    return lambda: parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def pruned(model):
    layer = of_submodule(model)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return lambda: prune.remove(layer, "weight")


def fewer_statistics(model):
    """One module alone in training mode, as for Monte Carlo dropout."""
    model.norm.train()
    return model.norm.eval


ALL_MODULES = torch.nn.modules.module
PATCHES = {
    "a hook of a submodule": of_hook(lambda m: of_submodule(m).register_forward_hook(lambda _m, _i, out: out * 2)),
    "a hook before a submodule": of_hook(lambda m: m.norm.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))),
    "a hook of the model": of_hook(lambda m: m.register_forward_hook(lambda _m, _i, out: out * 2)),
    "a hook of all modules": of_hook(lambda _: ALL_MODULES.register_module_forward_hook(lambda _m, _i, out: out * 2)),
    "forward() of a submodule": lambda model: patched(model.blocks[0], "forward", doubled),
    "forward() of the model": lambda model: patched(model, "forward", doubled),
    "forward() of a class": lambda _: patched(Block, "forward", doubled),
    "a function of PyTorch": lambda _: patched(torch, "relu", doubled),
    "an adapter": adapted_layer,
    "a parametrization": parametrized,
    "pruning": pruned,
    "a submodule in training mode": fewer_statistics,
}


class Announced(Stateless):
    """As a library's base class that knows models by their names."""

    known: dict[str, type] = {}

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Announced.known[cls.__name__] = cls


class Cloned(Announced):
    def __deepcopy__(self, memo):
        clone = type(self).__new__(type(self))
        clone.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return clone


def replica(tuned):
    """What `DataParallel` calls, here with other modules in place of those on another device."""
    other = tuned._replicate_for_data_parallel()
    other._modules.update(made(Cloned)._modules)
    return other


def without_init(tuned):
    other = object.__new__(type(tuned))
    other.__dict__.update(vars(made(Cloned)))
    return other


OTHERS = {
    "type(tuned)()": lambda tuned: type(tuned)(),
    "tuned.__class__()": lambda tuned: tuned.__class__(),
    "without __init__": without_init,
    "a registry": lambda tuned: Announced.known["Cloned"](),
    "a derived class": lambda tuned: type("Derived", (type(tuned),), {})(),
    "a replica": replica,
    "copy.copy": copy.copy,
    "its author's __deepcopy__": copy.deepcopy,
    "a deep copy of its __dict__": lambda tuned: Cloned.__deepcopy__(tuned, {}),
}


class Appending(Stateless):
    """Writes to its input, as a cache of keys and values does."""

    def forward(self, x, cache):
        cache.add_(1)
        return super().forward(x) * cache.sum()


class Advancing(Stateless):
    """Writes to a buffer."""

    def forward(self, x, cache):
        self.norm.num_batches_tracked.add_(1)
        return super().forward(x) * self.norm.num_batches_tracked


class CountingCalls(Stateless):
    """Sets an attribute."""

    def forward(self, x, cache):
        self.num_calls = self.num_calls + 1
        return super().forward(x) * self.num_calls


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class TorchKit(Kit):
    framework = "torch"
    stays_tuned = False  # Frozen weights are given up.
    CONFIGS = {
        "default": COMPILED,
        "frozen": FROZEN,
        "autocast": {**COMPILED, "precision": "bf16_autocast"},
        "frozen autocast": {**FROZEN, "precision": "bf16_autocast"},
        "eager autocast": {**EAGER, "precision": "bf16_autocast"},
        "blocks": {**CAPTURED, "region": "blocks.*"},
        "frozen blocks": {**FROZEN, "region": "blocks.*"},
        "left": {**CAPTURED, "region": "whole but norm"},
        "captured": CAPTURED,
        "eager": EAGER,
    }
    CHANGES = {name: lambda model, _, change=change: change(model) for name, change in CHANGES.items()} | {
        "load_state_dict of what it holds": lambda _, tuned: load(tuned)
    }
    PATCHES = PATCHES
    OTHERS = OTHERS
    COPIES = (copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), through_a_file)
    WRITERS = (Appending, Advancing, CountingCalls)
    Cloned = Cloned
    UnfitError = RuntimeError
    WRONG = {**EAGER, "precision": "bf16_autocast"}
    WAYS_OUT = ("torch.no_grad()", "torch.inference_mode()", "training_step")
    x = X

    def model(self, kind=None):
        return made(kind or Stateless)

    def rows(self, num):
        return torch.linspace(-1, 1, 8 * num).reshape(num, 8)

    def unseen(self):
        return self.rows(7).t().contiguous().t()

    def parts(self, model):
        """Without what dynamo notes in a module."""
        return {
            path: (type(part), {name for name in vars(part) if not name.startswith("_")})
            for path, part in model.named_modules()
        }

    def unfit(self):
        return X[:, :5]

    def cache(self):
        return torch.zeros(2)

    def array(self, value):
        return value.detach().float().numpy() if isinstance(value, torch.Tensor) else value

    def plain(self, model):
        return plain(model)

    def weights(self, model):
        return dict(model.state_dict(keep_vars=True))

    def saved(self, model):
        torch.save(model.state_dict(), self.folder / "model.pt")
        return torch.load(self.folder / "model.pt")

    def gradients(self, call, model):
        with torch.enable_grad():
            x = X.clone()
            model.zero_grad()
            call(x).pow(2).sum().backward()
        return [each.grad for each in model.parameters()]

    def switch(self, model, training):
        model.train(training)

    def containers(self, model):
        whole = torch.nn.Sequential(model, torch.nn.Identity())
        assert list(whole.state_dict()) == [f"0.{name}" for name in model.state_dict()]
        return [whole, torch.compile(whole, backend="eager")]

    def settings(self):
        inductor = torch._inductor.config.freezing, torch._dynamo.config.recompile_limit
        return torch.get_num_threads(), torch.get_float32_matmul_precision(), *inductor, dict(os.environ)

    def tolerance(self):
        return 5e-2 if "precision" in self.config else 1e-5

    def calls(self):
        return torch.no_grad()

    @contextmanager
    def refusing(self, x):
        def refuse(*_args, **_kwargs):
            raise RuntimeError("no more memory for the compiler")

        # Beneath `call_user_compiler`, in whose place the product has its own while it compiles.
        with mock.patch("torch._dynamo.output_graph.OutputGraph._call_user_compiler", refuse):
            yield
