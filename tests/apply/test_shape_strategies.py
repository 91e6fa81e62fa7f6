"""Shape strategies around a step that notes what it is called with: the fake framework, arrays, no compiler."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from autotune.apply import compile_model
from autotune.apply.config_parts import ConfigParts
from autotune.apply.shape_strategies import sizes_in
from autotune.backends.capabilities import VaryingAxis
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.measure.measurement import Axis
from autotune.measure.objective import LATENCY
from autotune.planning.shapes import known_shapes, with_shapes
from autotune.workload.arguments import Arguments
from autotune.workload.traffic import Load, Shapes, Traffic
from autotune.workload.workload import Workload
from autotune_fake.backend import FakeBackend

BATCHES = {1: 0.5, 3: 0.25, 8: 0.25}
LENGTHS = {2: 0.5, 5: 0.5}


def traffic() -> Traffic:
    return Traffic(
        loads=tuple(
            Load(sizes={"batch": batch, "seq": seq}, share=share * part)
            for batch, share in BATCHES.items()
            for seq, part in LENGTHS.items()
        )
    )


def shapes(**padding: float) -> Shapes:
    """(batch, seq) to (batch, seq) and (batch,); the second argument has the batch alone."""
    inputs = [("batch", 0, 0), ("seq", 0, 1), ("batch", 1, 0)]
    outputs = [("batch", 0, 0), ("seq", 0, 1), ("batch", 1, 0)]
    return Shapes(
        traffic=traffic(),
        inputs=tuple(Axis(dimension=name, leaf=leaf, axis=axis) for name, leaf, axis in inputs),
        outputs=tuple(Axis(dimension=name, leaf=leaf, axis=axis) for name, leaf, axis in outputs),
        padding=padding,
    )


class Model:
    """Row by row, and a sum along the second axis, which appended zeros do not change. Notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, x: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        self.seen.append(x.shape)
        return x * scale[:, None], [x.sum(1), "text", 3]


def call(batch: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
    values = np.arange(1.0, batch * seq + 1).reshape(batch, seq)
    return values, np.arange(1.0, batch + 1)


def stepped(
    knobs: Mapping[str, Any], known: Shapes | None, backend: FakeBackend | None = None, model: Any = None
) -> Any:
    config = Config({"execution": "compile", **knobs})
    place = backend or FakeBackend()
    return compile_model.compile_under(place, model or Model(), config, [], UndoLog(), shapes=known)


SIZES = [(1, 2), (3, 5), (2, 3), (8, 5), (9, 2), (20, 7), (1, 1), (7, 4)]
"""Of the traffic, between its sizes, and above them."""

STRATEGIES: dict[str, tuple[dict[str, Any], dict[str, float], set[tuple[int, ...]]]] = {
    "marked": ({"shapes": "marked"}, {}, set(SIZES)),
    "bounded": ({"shapes": "bounded"}, {}, set(SIZES)),
    "all padded": (
        {"shapes": "bucketed", "num_buckets": 2},
        {"batch": 0, "seq": 0},
        {(3, 2), (3, 5), (8, 5), (9, 2), (20, 7)},
    ),
    "one padded": ({"shapes": "bucketed", "num_buckets": 1}, {"seq": 0}, {(b, max(s, 5)) for b, s in SIZES}),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_outputs_are_those_of_the_model(name: str) -> None:
    """For every size, in form, shape and value: of the traffic, between its sizes, one, and larger than all of them;
    and the step is called with nothing but what the strategy is for."""
    knobs, padding, expected = STRATEGIES[name]
    model, plain = Model(), Model()
    step = stepped(knobs, shapes(**padding), model=model)
    for batch, seq in SIZES:
        given, right = step(*call(batch, seq)), plain(*call(batch, seq))
        assert type(given) is tuple
        np.testing.assert_array_equal(given[0], right[0])
        np.testing.assert_array_equal(given[1][0], right[1][0])
        assert given[1][1:] == ["text", 3]
    assert set(model.seen) == expected


def test_a_call_by_keyword_is_the_same_call() -> None:
    """The leaves of a call are its positional arguments, then its keywords."""
    model = Model()
    step = stepped({"shapes": "bucketed", "num_buckets": 1}, shapes(batch=0, seq=0), model=model)
    x, scale = call(2, 3)
    np.testing.assert_array_equal(step(x=x, scale=scale)[0], Model()(x, scale)[0])
    assert model.seen == [(8, 5)]


def pairwise(x: np.ndarray, y: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
    """(batch, seq) and (seq, batch), to (batch, seq)."""
    return (x + y.T) * scale


PAIRWISE = shapes(batch=0, seq=0).model_copy(
    update={
        "inputs": tuple(
            Axis(dimension=dimension, leaf=leaf, axis=axis, name=name)
            for name, leaf, dimensions in (("x", 0, ("batch", "seq")), ("y", 1, ("seq", "batch")))
            for axis, dimension in enumerate(dimensions)
        ),
        "outputs": (Axis(dimension="batch", leaf=0, axis=0), Axis(dimension="seq", leaf=0, axis=1)),
    }
)
ORDERS: dict[str, Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "by position": lambda x, y: ((x, y), {}),
    "the first by position": lambda x, y: ((x,), {"scale": 2.0, "y": y}),
    "as measured": lambda x, y: ((), {"x": x, "y": y}),
    "in another order": lambda x, y: ((), {"y": y, "x": x}),
    "with another in front": lambda x, y: ((), {"scale": 2.0, "y": y, "x": x}),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("strategy", ["bucketed", "bounded"])
def test_arguments_may_come_in_any_order(strategy: str, order: str) -> None:
    """Each dimension is that of the arguments that had it in the study."""
    backend, seen = FakeBackend(), []

    def model(x: np.ndarray, y: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
        seen.append((x.shape, y.shape))
        return pairwise(x, y, scale=scale)

    step = stepped({"shapes": strategy, "num_buckets": 1}, PAIRWISE, backend, model)
    args, kwargs = ORDERS[order](np.arange(10.0).reshape(2, 5), np.arange(10.0).reshape(5, 2))
    np.testing.assert_array_equal(step(*args, **kwargs), pairwise(*args, **kwargs))
    if strategy == "bucketed":
        assert seen == [((8, 5), (5, 8))]
    else:
        leaves = Arguments(args, kwargs).leaves()
        marked = [(leaves[each.leaf].shape[each.axis], each.largest) for each in backend.marked[0]]
        assert marked == [(2, 8), (5, 5), (5, 5), (2, 8)]


def test_what_is_none_of_the_traffics_calls_goes_through() -> None:
    """An argument less, no tensor, too few axes, or two sizes of one dimension: the step gets what came."""
    seen: list[tuple[Any, ...]] = []
    known = shapes(batch=0, seq=0)
    step = stepped({"shapes": "bucketed", "num_buckets": 1}, known, model=lambda *args: seen.append(args) or 1)
    x, scale = call(2, 3)
    for given in ((x,), (x, 7), (x[0], scale), (x, scale[:1]), ()):
        seen.clear()
        assert step(*given) == 1
        assert [id(each) for each in seen[0]] == [id(each) for each in given]


Pair = namedtuple("Pair", ["rows", "note"])


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows,
        lambda rows: Pair(rows, None),
        lambda rows: OrderedDict(rows=rows, note="x"),
        lambda rows: {"deep": [rows, (rows, 1.5)]},
    ],
    ids=["tensor", "namedtuple", "a dict of a class", "nested"],
)
def test_outputs_keep_their_form(form: Callable[[np.ndarray], Any]) -> None:
    """Whatever containers a model returns, a strategy returns the same ones, of the same classes."""
    known = Shapes(
        traffic=traffic(),
        inputs=(Axis(dimension="batch", leaf=0, axis=0),),
        outputs=tuple(Axis(dimension="batch", leaf=leaf, axis=0) for leaf in (0, 1)),
        padding={"batch": 0},
    )
    got = stepped({"shapes": "bucketed", "num_buckets": 1}, known, model=form)(np.ones((5, 2)))
    expected = form(np.ones((5, 2)))
    assert type(got) is type(expected)
    np.testing.assert_equal(got, expected)


def test_calls_of_several_threads_outside_the_bounds_overlap() -> None:
    """Nothing is compiled until the last of them is done, and then compiling goes on."""
    backend = FakeBackend()
    both, seen = threading.Barrier(2), []
    leave = {9: threading.Event(), 10: threading.Event()}

    def model(x: np.ndarray, _: np.ndarray) -> np.ndarray:
        both.wait(10)
        assert leave[len(x)].wait(10)
        seen.append(backend.is_compiling)
        return x

    step = stepped({"shapes": "bounded"}, shapes(), backend, model)
    threads = {batch: threading.Thread(target=step, args=call(batch, 5)) for batch in leave}
    for thread in threads.values():
        thread.start()
    for batch, thread in threads.items():
        leave[batch].set()
        thread.join()
    assert (seen, backend.is_compiling) == ([False, False], True)


def test_sizes_that_vary_are_marked() -> None:
    """Each of their axes before each call; with bounds those of the traffic, and calls outside run uncompiled."""
    for name, bounds in (("marked", {}), ("bounded", {"batch": (1, 8), "seq": (2, 5)})):
        backend = FakeBackend()
        step = stepped({"shapes": name}, shapes(), backend)
        for batch, seq in SIZES:
            step(*call(batch, seq))
        varying = tuple(
            VaryingAxis(leaf, axis, *bounds.get(dimension, (None, None)))
            for dimension, leaf, axis in (("batch", 0, 0), ("seq", 0, 1), ("batch", 1, 0))
        )
        inside = [each for each in SIZES if not bounds or (each[0] <= 8 and 2 <= each[1] <= 5)]
        assert backend.marked == [varying] * len(inside)


def test_what_does_not_vary_is_not_marked() -> None:
    """A dimension of one size is fixed."""
    backend = FakeBackend()
    one = Traffic(loads=tuple(Load(sizes={"batch": 2, "seq": seq}, share=0.5) for seq in (1, 3)))
    stepped({"shapes": "marked"}, shapes().model_copy(update={"traffic": one}), backend)(*call(2, 3))
    assert backend.marked == [(VaryingAxis(0, 1),)]


@pytest.mark.parametrize("name", [None, "automatic", "static", "dynamic"])
def test_nothing_stands_around_what_a_compiler_does_itself(name: str | None) -> None:
    """The step is the backend's own, traffic or not."""
    knobs = {} if name is None else {"shapes": name}
    for known in (None, shapes()):
        assert stepped(knobs, known).__qualname__.startswith("FakeBackend.compile")


REFUSED = [
    ({"shapes": "marked"}, None, "none is known"),
    ({"shapes": "bucketed", "num_buckets": 2}, shapes(), "the model declares none"),
    ({"shapes": "bucketed"}, shapes(batch=0), "knob num_buckets: None is no whole number"),
    ({"shapes": "bucketed", "num_buckets": 0}, shapes(batch=0), "knob num_buckets: 0 is no whole number"),
    ({"shapes": "bucketed", "num_buckets": True}, shapes(batch=0), "knob num_buckets: True is no whole number"),
]


@pytest.mark.parametrize(("knobs", "known", "words"), REFUSED)
def test_what_cannot_be_done_is_refused(knobs: dict[str, Any], known: Shapes | None, words: str) -> None:
    """Before the first call, in a sentence."""
    with pytest.raises(InvalidConfigError, match=words):
        stepped(knobs, known)


def zeroes_its_input(x: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As a model that writes to a cache of keys and values: called again it gives the same."""
    scale[:] = 0.0
    return x + scale[:, None], scale


def test_a_model_that_writes_to_its_inputs_is_refused() -> None:
    """The outputs would be right, and what the job gave would not be written to."""
    step = stepped({"shapes": "bucketed", "num_buckets": 1}, shapes(batch=0), model=zeroes_its_input)
    with pytest.raises(InvalidConfigError, match="writes to its inputs"):
        step(*call(3, 5))


@pytest.mark.parametrize("size", [(3, 5), (9, 5)], ids=["marked", "uncompiled"])
def test_what_a_model_writes_reaches_the_jobs_inputs(size: tuple[int, int]) -> None:
    """Where a call gets the very tensors of the job."""
    x, scale = call(*size)
    stepped({"shapes": "bounded"}, shapes(), model=zeroes_its_input)(x, scale)
    assert not scale.any()


def test_what_is_known_of_the_traffic() -> None:
    """It decides which strategies are offered: a dimension counts only if it varies."""
    one = Traffic(loads=(Load(sizes={"batch": 2, "seq": 5}, share=1.0),))

    def known(shapes: Traffic | None, padded: str) -> frozenset[str]:
        plain = Workload(model="m", reference="m:f", framework="fake", device="cpu", search_path="/")
        return known_shapes(with_shapes(plain, shapes, LATENCY), (padded,))

    assert known(None, "seq") == {"one shape"}
    assert known(traffic(), "seq") == {"traffic", "padding"}
    assert known(traffic(), "length") == {"traffic"}
    assert known(one, "seq") == {"traffic"}


def test_sizes_are_read_from_a_call() -> None:
    """One for each dimension, wherever it shows; None where they disagree."""
    assert sizes_in(call(3, 5), shapes().inputs) == {"batch": 3, "seq": 5}
    assert sizes_in((np.ones((3, 5)), np.ones(2)), shapes().inputs) is None


def test_a_backend_is_not_asked_for_a_strategys_numbers() -> None:
    """They are no knobs of a framework; which code it makes of the strategy itself is."""
    config = Config({"execution": "compile", "shapes": "bucketed", "num_buckets": 2})
    assert ConfigParts.of(config).settings == Config({"execution": "compile", "shapes": "bucketed"})


def test_strategies_tell_programs_apart() -> None:
    """The same code under another strategy is another program: what later calls meet differs."""
    plain = {"execution": "compile", "program": "p"}
    digests = {
        compile_model.program(FakeBackend(), Model(), Config({**plain, **knobs}))
        for knobs in (
            {},
            {"shapes": "bucketed", "num_buckets": 2},
            {"shapes": "bucketed", "num_buckets": 4},
            {"shapes": "static", "recompile_limit": 8},
            {"shapes": "static", "recompile_limit": 64},
        )
    }
    assert len(digests) == 5
    assert "p" in digests
