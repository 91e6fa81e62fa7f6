"""What MindSpore's jobs are tried with, and what they must get beside the cases of `jobs`.

It is also the program that tries them: one process has all cases of one way of compiling, each on a Cell of its own.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("GLOG_v", "4")  # read when mindspore is imported

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import autotune
from autotune.backends.mindspore import compiled_cell
from autotune.backends.mindspore.compiled_cell import compiled_of
from tests.conformance import jobs
from tests.conformance.kit import Kit

JIT = {"execution": "jit", "capture": "ast", "jit_level": "O0"}
GRAPH = {"execution": "graph", "jit_level": "O0"}


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.scale = 2.0
        self.mask = ms.Tensor(np.ones(8, np.float32))
        self.register_buffer("shift", ms.Tensor(np.zeros(8, np.float32)))

    def construct(self, x):
        y = ops.tanh(self.norm(self.fc(x)) * self.mask) * self.scale + self.shift
        if self.training:
            y = y + 1
        return y


class Moving(Net):
    """Reads a buffer that it moves in each call that trains."""

    def construct(self, x):
        y = ops.tanh(self.fc(x)) + self.shift
        if self.training:
            ops.assign(self.shift, self.shift + 1)
        return y


class Announced(Net):
    known: dict[str, type] = {}

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Announced.known[cls.__name__] = cls


class Cloned(Announced):
    def __deepcopy__(self, memo):
        clone = type(self)()
        ms.load_param_into_net(clone, self.parameters_dict())
        return clone


class Counting(Net):
    """Writes to a Parameter and to an input."""

    def __init__(self):
        super().__init__()
        self.count = ms.Parameter(ms.Tensor(0, ms.float32), name="count", requires_grad=False)

    def construct(self, x, cache):
        count = ops.assign_add(self.count, ms.Tensor(1, ms.float32))
        return self.fc(x) * count * ops.assign_add(cache, ms.Tensor(1, ms.float32))


class Varied(Net):
    """Its activation has a variant, and a call may leave something behind."""

    def __init__(self):
        super().__init__()
        self.act = activated
        self.num_calls = 0
        self.counts = False

    def construct(self, x):
        if self.counts:
            self.num_calls = self.num_calls + 1
        return self.act(self.norm(self.fc(x)))


def activated(x):
    return ops.tanh(x)


def doubled(x):
    return ops.tanh(x) * 2


def use_doubled(model):
    model.act = doubled


@dataclasses.dataclass
class Options:
    """Of the author's own, whose instance is an attribute; and below a class that is one itself."""

    scales: dict[str, list[float]]


class OfClass:
    power = 1.0


class Nested(Net):
    gain = 1.0
    bias = 1.0
    options = OfClass

    def __init__(self):
        super().__init__()
        self.by_name = {"last": {"scale": 1.0}}
        self.pairs = ([1.0], [1.0])
        self.settings = types.SimpleNamespace(scale=1.0)
        self.own = Options({"last": [1.0]})
        self.own.itself, self.own.model = self.own, self
        self.table = np.ones(8, np.float32)
        self.masks = {"last": ms.Tensor(np.ones(8, np.float32))}

    def helped(self, y):
        return y

    def construct(self, x):
        y = self.helped(Net.construct(self, x)) * self.by_name["last"]["scale"] * self.pairs[0][0]
        y = y * self.settings.scale * self.own.scales["last"][0] * self.options.power
        return y * ms.Tensor(self.table) * self.masks["last"] * self.gain + self.bias


def tripled(self, y):
    return y * 3


def drawn(*shape):
    return ms.Tensor(np.random.randn(*shape).astype(np.float32))


def load(tuned):
    found = {each.name: ms.Parameter(drawn(*each.shape).abs(), name=each.name) for each in tuned.get_parameters()}
    ms.load_param_into_net(tuned, found)


def trained(model, tuned):
    optimizer = nn.Adam(tuned.trainable_params(), 0.1)
    optimizer(ms.value_and_grad(lambda x: model(x).sum(), None, optimizer.parameters)(rows(4))[1])


def moved_statistics(model, _):
    model.set_train()
    for _ in range(3):
        model(rows(4) * 3)
    model.set_train(False)


def replaced_construct(owner, construct):
    """Of a class, as libraries patch models, or of one Cell."""
    before = vars(owner).get("construct")
    owner.construct = construct
    return lambda: delattr(owner, "construct") if before is None else setattr(owner, "construct", before)


def other_construct(self, x):
    return ops.tanh(self.norm(self.fc(x)) * self.mask) * self.scale * 2


def rows(num):
    return ms.Tensor(np.linspace(-1, 1, 8 * num, dtype=np.float32).reshape(num, 8))


class MindSporeKit(Kit):
    framework = "mindspore"
    CONFIGS = {
        "jit": JIT,
        "graph": GRAPH,
        "half jit": {**JIT, "amp_level": "O3"},
        "half graph": {**GRAPH, "amp_level": "O2"},
        "half pynative": {"execution": "pynative", "amp_level": "O2"},
        "a region": {**JIT, "region": "fc"},
    }
    CHANGES = {
        "set_data": lambda net, _: net.fc.weight.set_data(drawn(8, 8)),
        "assign": lambda net, _: ops.assign(net.fc.weight, drawn(8, 8)),
        "in place": lambda net, _: net.fc.weight.__setitem__(0, 5.0),
        "assign_value": lambda net, _: net.fc.weight.assign_value(drawn(8, 8)),
        "load_param_into_net": lambda _, tuned: load(tuned),
        "an optimizer": trained,
        "a mode within": lambda net, _: net.norm.set_train(),
        "BatchNorm's statistics": moved_statistics,
        "a number": lambda _, tuned: setattr(tuned, "scale", 3.0),
        "another plain tensor": lambda net, _: setattr(net, "mask", drawn(8)),
        "a plain tensor": lambda net, _: net.mask.__setitem__(0, 7.0),
        "a buffer": lambda net, _: net.shift.assign_value(drawn(8)),
        "a buffer by assign": lambda net, _: ops.assign(net.shift, drawn(8)),
        "a buffer by copy_": lambda net, _: net.shift.copy_(drawn(8)),
        "an element of a buffer": lambda net, _: net.shift.__setitem__(0, 5.0),
        "another Parameter": lambda net, _: setattr(net.fc, "weight", ms.Parameter(drawn(8, 8), name="fc.weight")),
        "another Cell": lambda net, _: setattr(net, "fc", nn.Dense(8, 8)),
    }
    PATCHES = {
        "a hook": lambda net: net.fc.register_forward_hook(lambda _cell, _inputs, output: output * 2).remove,
        "construct() of the class": lambda _: replaced_construct(Net, other_construct),
        "construct() of a Cell": lambda net: replaced_construct(net.fc, lambda x: ops.dense(x, net.fc.weight) * 2),
    }
    OTHERS = {
        "type(tuned)()": lambda tuned: type(tuned)(),
        "tuned.__class__()": lambda tuned: tuned.__class__(),
        "a registry": lambda _: Announced.known["Cloned"](),
        "a derived class": lambda tuned: type("Derived", (type(tuned),), {})(),
        "its author's __deepcopy__": copy.deepcopy,
        "the function __deepcopy__": lambda tuned: Cloned.__deepcopy__(tuned, {}),
    }
    WRITERS = (Counting,)
    Cloned = Cloned
    UnfitError = (ValueError, RuntimeError)
    WRONG = {"execution": "pynative", "amp_level": "O3", "amp_dtype": "float16"}
    WAYS_OUT = ("ms.value_and_grad", "training_step")

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        super().__init__(config, folder)
        self.x = rows(4)
        self.num_calls = 225

    def model(self, kind=None):
        net = (kind or Net)().set_train(False)
        generator = np.random.default_rng(0)
        for each in (net.fc.weight, net.fc.bias):
            each.set_data(ms.Tensor(generator.normal(size=each.shape).astype(np.float32)))
        return net

    def rows(self, num):
        return rows(num)

    def parts(self, model):
        return {path: (type(cell), set(vars(cell))) for path, cell in model.cells_and_names()}

    def unfit(self):
        return ms.Tensor(np.ones((4, 7), np.float32))

    def is_of_unfit(self, error):
        return "'x1_col': 7" in str(error)

    def plain(self, model):
        return Net.construct(model, self.x)

    def cache(self):
        return ms.Parameter(ms.Tensor(0, ms.float32), name="cache")

    def array(self, value):
        return value.asnumpy() if isinstance(value, ms.Tensor) else value

    def weights(self, model):
        return dict(model.parameters_and_names())

    def saved(self, model):
        ms.save_checkpoint(model, "model.ckpt")
        return ms.load_checkpoint("model.ckpt")

    def gradients(self, call, model):
        weights = ms.ParameterTuple(model.trainable_params())
        of_input, found = ms.value_and_grad(lambda x: call(x).sum(), 0, weights)(self.x)[1]
        return [of_input, *found, *ms.value_and_grad(call, None, weights)(self.x)[1]]

    def switch(self, model, training):
        model.set_train(training)

    def containers(self, model):
        whole = nn.SequentialCell(model, nn.ReLU())
        assert list(whole.parameters_dict())[:2] == ["0.fc.weight", "0.fc.bias"]
        return [whole, ms.jit(nn.SequentialCell(model, nn.ReLU()))]

    def settings(self):
        names = (
            "mode", "enable_graph_kernel", "graph_kernel_flags", "runtime_num_threads", "inter_op_parallel_num",
            "pynative_synchronize", "memory_optimize_level",
        )  # fmt: skip
        return {name: ms.get_context(name) for name in names} | dict(os.environ)

    def tolerance(self):
        return 2e-2 if "amp_level" in self.config else 1e-5

    @contextmanager
    def refusing(self, x):
        call = compiled_cell._State.call

        def refuse(self, args, kwargs):
            if args[0] is x:
                raise RuntimeError("no more memory for the compiler")
            return call(self, args, kwargs)

        with mock.patch.object(compiled_cell._State, "call", refuse):
            yield


def a_class_is_patched_through_what_the_job_holds(kit):
    """The author's class is, and so the model."""

    class Held(Net):
        pass

    model, tuned = kit.applied(kit.model(Held))
    before = kit.array(model(kit.x))
    type(tuned).construct = other_construct
    assert kit.error(model, tuned) < kit.tolerance()
    assert Held.construct is other_construct
    assert kit.apart(model(kit.x), before) > 1e-3


def what_attributes_hold_at_any_depth_is_seen(kit):
    """A graph has it as constants, whether it is in a container, an object, a class or an array."""
    model, tuned = kit.applied(kit.model(Nested))

    def equal_one(net):
        net.own = Options(copy.deepcopy(net.own.scales))
        tuned(kit.x)
        net.own.scales["last"][0] = 3.0

    changes: dict[str, Callable[[Any], object]] = {
        "a dict in a dict": lambda net: net.by_name["last"].update(scale=2.0),
        "a list in a tuple": lambda net: net.pairs[0].__setitem__(0, 2.0),
        "a namespace": lambda net: setattr(net.settings, "scale", 2.0),
        "a list in an object": lambda net: net.own.scales["last"].__setitem__(0, 2.0),
        "a list in another object": equal_one,
        "a tensor in a dict": lambda net: net.masks["last"].__setitem__(0, 5.0),
        "an array": lambda net: net.table.__setitem__(0, 5.0),
        "an attribute that hides the class's": lambda net: setattr(net, "bias", 5.0),
        "an attribute of the class": lambda _: setattr(Nested, "gain", 5.0),
        "a class in the class": lambda _: setattr(OfClass, "power", 5.0),
        "a method of the class": lambda _: setattr(Nested, "helped", tripled),
    }
    for number, (name, change) in enumerate(changes.items()):
        if number == 6:  # A model is not followed through any number of states.
            model, tuned = kit.applied(kit.model(Nested))
        before, num_made = kit.array(model(kit.x)), compiled_of(model)._num_made
        assert kit.error(model, tuned) < kit.tolerance(), name
        change(model)
        assert kit.error(model, tuned) < kit.tolerance(), name
        assert kit.apart(model(kit.x), before) > 1e-2, name
        assert compiled_of(model)._num_made - num_made == (2 if change is equal_one else 1), name
        assert autotune.stats(tuned).state == "tuned", name
    assert kit.lines == []


def a_model_that_never_stays_the_same_goes_untuned(kit):
    """After a number of states nothing more is compiled: the calls are right, and one warning says why."""
    model, tuned = kit.applied()
    for _ in range(12):
        model.fc.weight.set_data(drawn(8, 8))
        assert kit.error(model, tuned) < kit.tolerance()
    (line,) = kit.lines
    assert "calls in further states stay untuned" in line


def half_precision_of_one_cell_is_its_own(kit):
    """It rounds neither another's outputs, nor the weights, nor the graphs that the job compiles itself."""
    model, tuned = kit.applied()
    half, plain = kit.model(), kit.model()
    rounding = kit.loaded({**JIT, "amp_level": "O3"})
    rounded = rounding.apply(half, margin=None)
    rounded(kit.x)
    again = rounding.apply(model, margin=None)
    again(kit.x)
    for one, other in ((half, rounded), (model, again)):
        assert 0 < kit.error(one, other) < 2e-2
    assert kit.error(model, tuned) < kit.tolerance()
    assert {str(each.dtype) for each in half.get_parameters()} == {"Float32"}
    assert kit.error(plain, ms.jit(plain)) < kit.tolerance()


def applied_variant(kit, config, model):
    """The job's, after a first call, which is untuned: the author's code could leave something behind."""
    asked = kit.loaded({**config, "variant.act": "doubled"}, variants={"act": "job:use_doubled"})
    tuned = asked.apply(model, variants={"act": {"doubled": use_doubled}}, margin=None)
    tuned(kit.x)
    return tuned


def a_variant_is_put_into_a_copy(execution, kit):
    """The job's Cells, checkpoints and copies have nothing of it; calls follow the weights; another mode goes untuned,
    with one warning."""
    config = {"execution": "pynative"} if execution == "eager" else kit.config
    model = kit.model(Varied)
    model(kit.x)

    def attributes():
        return {path: dict(vars(cell)) for path, cell in model.cells_and_names()}

    def require_variant(tuned, model):
        other = copy.deepcopy(model)
        use_doubled(other)
        assert kit.apart(tuned(kit.x), other(kit.x)) < kit.tolerance()

    held = attributes()
    tuned = applied_variant(kit, config, model)
    require_variant(tuned, model)
    now = attributes()
    assert now.keys() == held.keys()
    assert all(now[path][name] is held[path][name] for path in held for name in held[path])
    model.fc.weight.set_data(drawn(8, 8))
    require_variant(tuned, model)
    ops.assign(model.fc.weight, drawn(8, 8))
    require_variant(tuned, model)
    saved = kit.saved(tuned)
    assert all(kit.apart(saved[name], each) == 0 for name, each in kit.weights(model).items())
    other = copy.deepcopy(tuned)
    assert other.act is activated
    assert kit.error(model, other) < kit.tolerance()
    require_variant(applied_variant(kit, config, tuned), model)
    require_variant(applied_variant(kit, config, other), other)
    assert kit.lines == []
    tuned.set_train()
    assert kit.error(model, tuned) < kit.tolerance()
    tuned.set_train(False)
    require_variant(tuned, model)
    (line,) = kit.lines
    assert "than when its variant was put in" in line


def what_a_call_leaves_behind_is_the_jobs(kit):
    """Attributes that a call sets are set in the job's Cell, with a variant too."""
    model = kit.model(Varied)
    model.counts = True
    tuned = applied_variant(kit, {"execution": "pynative"}, model)
    for _ in range(2):
        tuned(kit.x)
    assert (model.num_calls, tuned.num_calls) == (3, 3)


def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()


def losses(kit, make, change, kind=None):
    """Of five training steps of a new model, with a change after the second one; and the step."""
    net = kit.model(kind).set_train()
    optimizer = nn.Adam(net.trainable_params(), 0.05)
    step, found = make(net, optimizer), []
    for number in range(5):
        if number == 2:
            change(net, optimizer)
        # MindSpore's own optimizers are under ms.jit, and do not see the change themselves.
        os.environ["MS_JIT"] = "0" if make is by_hand else "1"
        found.append(float(step(kit.x, kit.x).asnumpy()))
    return found, step


def by_hand(net, optimizer):
    gradients = ms.value_and_grad(lambda x, y: loss(net, x, y), None, optimizer.parameters)

    def step(x, y):
        value, found = gradients(x, y)
        optimizer(found)
        return value

    return step


FIXED = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
STEPS = {
    "assigned": lambda net, _: ops.assign(net.fc.weight, ms.Tensor(FIXED)),
    "weight": lambda net, _: net.fc.weight.set_data(ms.Tensor(FIXED)),
    "rate": lambda _, optimizer: optimizer.learning_rate.set_data(ms.Tensor(0.5, ms.float32)),
    "attribute": lambda net, _: setattr(net, "scale", 5.0),
    "buffer": lambda net, _: ops.assign(net.shift, ms.Tensor(FIXED[0])),
}


def a_compiled_step_does_not_go_on_with_old_values(change, kit):
    """What it cannot see ends it: the next step is the untuned one, with one warning. What is assigned it sees."""
    loaded = kit.loaded(inputs=[kit.x, kit.x], task="train")
    found, step = losses(kit, lambda net, optimizer: loaded.training_step(net, loss, optimizer), STEPS[change])
    np.testing.assert_allclose(found, losses(kit, by_hand, STEPS[change])[0], atol=1e-4)
    if change == "assigned":
        assert kit.lines == []
    else:
        assert autotune.stats(step).state == "untuned"
        assert ["after the first compiled step" in line for line in kit.lines] == [True]


def a_compiled_step_may_write_a_buffer(kit):
    """It stays tuned, and goes on from what it has written."""
    loaded = kit.loaded(inputs=[kit.x, kit.x], task="train")
    found, step = losses(
        kit, lambda net, optimizer: loaded.training_step(net, loss, optimizer), lambda *_: None, kind=Moving
    )
    np.testing.assert_allclose(found, losses(kit, by_hand, lambda *_: None, kind=Moving)[0], atol=1e-4)
    assert kit.lines == []
    assert autotune.stats(step).state != "untuned"


def a_buffer_that_a_graph_writes_is_live(kit):
    """No graph for each value; one that only reads the buffer, in another mode, sees what was written."""
    model, tuned = kit.applied(kit.model(Moving))
    alone = kit.model(Moving)
    for trains, num_calls in ((False, 2), (True, 2 * compiled_cell.MAX_STATES), (False, 2)):
        for net in (model, alone):
            net.set_train(trains)
        for _ in range(num_calls):
            assert kit.apart(tuned(kit.x), alone(kit.x)) < kit.tolerance()
            assert kit.apart(model.shift, alone.shift) == 0
    assert kit.lines == []
    assert compiled_of(model)._num_made == 3


OWN = {
    case.__name__: case
    for case in (
        a_class_is_patched_through_what_the_job_holds, what_attributes_hold_at_any_depth_is_seen,
        a_model_that_never_stays_the_same_goes_untuned, half_precision_of_one_cell_is_its_own,
        what_a_call_leaves_behind_is_the_jobs, a_buffer_that_a_graph_writes_is_live,
        a_compiled_step_may_write_a_buffer,
    )
}  # fmt: skip
CASES = jobs.cases_of(MindSporeKit, **OWN) | jobs.with_values({
    a_variant_is_put_into_a_copy: ("compiled", "eager"), a_compiled_step_does_not_go_on_with_old_values: STEPS
})  # fmt: skip


def main(config: str, names: str, num_calls: str) -> None:
    """Print what the cases raised, by name."""
    settings = json.loads(config)
    ms.set_context(runtime_num_threads=1)
    ms.set_device("CPU") if hasattr(ms, "set_device") else ms.set_context(device_target="CPU")
    if "amp_level" in settings and settings["execution"] == "pynative":
        ms.set_context(pynative_synchronize=True)  # Its queues take ten times the CPU, for as many small operators.
    found = {}
    for name in json.loads(names):
        kit = MindSporeKit(settings, Path.cwd())
        kit.num_calls = int(num_calls)
        try:
            jobs.run(CASES[name], kit)
        except BaseException:
            found[name] = traceback.format_exc()[-1500:] + "\n".join(kit.lines)
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # MindSpore may hang or abort in the interpreter's shutdown.
