"""Which calls a tuned model takes: shapes that were compared, and whole numbers that the untuned model takes."""

from __future__ import annotations

import itertools
import json
import logging
import threading

import numpy as np
import pytest

import autotune
from autotune.job.admission import MANY_LEARNED, SOME_LEARNED, Admission, Numbered
from autotune.job.output_check import OutputCheck
from autotune.job.whole_numbers import FEW, WholeNumbers, named
from autotune.measure.limits import InputLimits, Span
from autotune.workload.arguments import Arguments
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.torch.backend import TorchBackend  # noqa: E402

pytestmark = pytest.mark.torch
NOTHING = frozenset[int]()


@pytest.fixture
def backend():
    return TorchBackend()


class Lookup(torch.nn.Module):
    """Rows of a table, and how often the untuned code ran."""

    def __init__(self, rows=100):
        super().__init__()
        self.table = torch.nn.Embedding(rows, 4)

    def forward(self, ids, more=None):
        return self.table(ids) * 2


@pytest.fixture
def applied(tmp_path, compiler):
    """`applied(model, inputs)`: under a config that compiles for real but for the code; its `tuned` counts calls."""
    torch._dynamo.reset()
    counts = {"compiled": 0, "tuned": 0}

    def backend(graph, _):
        counts["compiled"] += 1

        def run(*inputs):
            counts["tuned"] += 1
            return graph(*inputs)

        return run

    config = compiler(backend)

    def apply(model, inputs, limits=None, **policy):
        path = export(tmp_path / "best.yaml", "torch", config, model, inputs, limits=limits)
        return autotune.load(path).apply(model, margin=None, **policy), counts

    return apply


def limit(name, *spans, axis=None):
    return InputLimits(name=name, axis=axis, spans=spans)


def told(*limits):
    return [json.loads(each.model_dump_json()) for each in limits]


def ids(*numbers, times=16):
    return torch.tensor([numbers] * times)


def test_a_number_that_the_untuned_model_refuses_never_reaches_tuned_code(applied):
    """Its error is the untuned model's, before anything was learned and after it, and the next call is tuned."""
    model, counts = applied(Lookup(), [ids(1, 2)])
    with torch.no_grad():
        for good, bad in ((ids(1, 2), ids(1, 100)), (ids(1, 2), ids(-1, 2)), (ids(3, 4), ids(1, 200))):
            with pytest.raises(IndexError, match="index out of range"):
                model(bad)
            for _ in range(2):
                assert torch.equal(model(good), model.table(good) * 2)
    assert counts["tuned"] == 4
    assert autotune.stats(model).num_fallbacks == 0


def test_a_file_says_what_is_taken(applied):
    """The first call is tuned; a number beyond is the untuned model's. Named inputs and inputs by position are one."""
    model, counts = applied(Lookup(), [ids(1, 2)], told(limit("argument 1", Span(lowest=0, highest=99))))
    with torch.no_grad():
        model(ids(1, 99))
        model(ids=ids(0, 50))
        assert counts["tuned"] == 2
        with pytest.raises(IndexError):
            model(ids=ids(0, 100))
    assert counts["tuned"] == 2


def test_an_input_without_limits_stays_tuned(applied):
    """A count that grows with each call, of which the file says that the model takes any number."""
    counted = torch.nn.Linear(4, 4)
    counted.forward = lambda x, step: torch.nn.functional.linear(x, counted.weight) + step
    x = torch.ones(4, 4)
    model, counts = applied(
        counted, [x, torch.ones(4, dtype=torch.int64)], told(limit("argument 2", Span(lowest=None, highest=None)))
    )
    with torch.no_grad():
        for step in range(5):
            model(x, torch.full((4,), step))
    assert counts["tuned"] == 5


def test_numbers_that_only_grow_are_told_of(applied, caplog):
    """A file that says nothing of them: each call is untuned, which is said after some calls and warned of after many,
    with the axis that keeps them apart."""
    caplog.set_level(logging.INFO, "autotune")
    model, counts = applied(Lookup(1000), [ids(1, 2)])
    with torch.no_grad():
        for step in range(MANY_LEARNED + 50):
            model(torch.full((16, 2), step))
    assert counts["tuned"] == 0
    told_of = "calls had whole numbers in ids that no call before had (each of 2 along axis 1 counts for itself"
    said = [each for each in caplog.records if told_of in each.getMessage()]
    assert [(each.levelname, each.getMessage().split()[1]) for each in said] == [
        ("INFO", str(SOME_LEARNED)), ("WARNING", str(MANY_LEARNED)),
    ]  # fmt: skip


@pytest.mark.parametrize("given", ["nested", "number", "array"])
def test_numbers_in_containers_and_of_python_and_numpy(applied, given):
    """Are looked at as those of a tensor are."""

    class Nested(Lookup):
        def forward(self, x, given):
            index = {"nested": lambda: given["a"][0], "array": lambda: torch.as_tensor(given)}.get(
                kind, lambda: torch.full((16,), given)
            )()
            return self.table(index).sum() + x

    kind, x = given, torch.ones(4, 4)
    make = {
        "nested": lambda n: {"a": [torch.full((16,), n)]},
        "number": lambda n: n,
        "array": lambda n: np.full(16, n),
    }[given]
    specs = [x, torch.ones(16, dtype=torch.int64)] if given == "nested" else [x]
    model, counts = applied(Nested(), specs)
    with torch.no_grad():
        for number in (5, 5, 7, 7):
            assert torch.equal(model(x, make(number)), (model.table(torch.full((16,), number))).sum() + x)
        assert counts["tuned"] == 2
        with pytest.raises(IndexError):
            model(x, make(100))
    assert counts["tuned"] == 2


@pytest.mark.parametrize("surroundings", ["inference_mode", "autocast", "threads"])
def test_wherever_it_is_called(applied, surroundings):
    """In inference mode, under autocast and in two threads a number beyond is the untuned model's."""
    model, counts = applied(Lookup(), [ids(1, 2)])
    refused = []

    def calls():
        around = torch.autocast("cpu", torch.bfloat16) if surroundings == "autocast" else torch.inference_mode()
        with torch.inference_mode(), around:
            for _ in range(5):
                model(ids(1, 2))
                try:
                    model(ids(1, 100))
                except IndexError:
                    refused.append(1)

    threads = [threading.Thread(target=calls) for _ in range(2 if surroundings == "threads" else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 5 * len(threads)
    assert counts["tuned"] >= 4
    assert autotune.stats(model).num_fallbacks == 0


def taken(backend, *values, limits=None, open_axes=NOTHING):
    """What of the values is taken when it comes, each learned if it is not."""
    numbers, found = WholeNumbers(backend, "ids", limits), []
    for value in values:
        found.append(numbers.are_taken(value, open_axes))
        if not found[-1]:
            numbers.learn(numbers.seen(value, open_axes))
    return found


def test_slices_of_a_short_axis_count_for_themselves(backend):
    """Users and items have tables of their own, as rows, as columns, or as two elements."""
    many = torch.arange(FEW + 1)
    for stacked in (torch.stack, lambda each: torch.stack(each, 1)):
        high = stacked([many * 4, many])
        assert taken(backend, high, high, stacked([many, many]), stacked([many, many * 4])) == [
            False,
            True,
            True,
            False,
        ]
    pairs = [torch.tensor(pair) for pair in ([500, 3], [3, 500])]
    assert taken(backend, pairs[0], pairs[0], pairs[1]) == [False, True, False]
    rows = torch.stack([many * 4, many])
    assert taken(backend, rows, rows.flip(0), rows, open_axes=frozenset({0})) == [False, True, True]


def test_a_few_numbers_are_known_one_by_one(backend):
    """What a loss ignores, -100 or 255, does not make classes of what lies between."""
    labels = torch.tensor([0, 1, 9, -100, 255] * 4)
    assert taken(backend, labels, labels[:15], labels.clamp(max=100), labels.clamp(min=-50)) == [
        False,
        True,
        False,
        False,
    ]
    many = torch.cat([torch.arange(FEW + 5), torch.tensor([-100])])
    assert taken(backend, many, many.clamp(min=-100), many.clamp(min=-1)) == [False, True, False]


def test_types_whose_numbers_are_all_taken_are_not_looked_at(backend):
    """Pixels of an image, once all have come. Floats, booleans and empty tensors never are."""
    image = torch.arange(256).to(torch.uint8).reshape(16, 16)
    numbers = WholeNumbers(backend, "image")
    numbers.learn(numbers.seen(image, NOTHING))
    assert numbers._has_all
    for value in (torch.ones(3), torch.tensor([True]), torch.empty(0, dtype=torch.int64), True, 0.5, "text", None):
        assert backend.extremes(value) is None
    assert backend.extremes(torch.tensor([3, 1], dtype=torch.uint16)) == ((1, 3),)


def test_limits_have_the_names_of_parameters():
    """As far as they are known; whatever stands around the place."""
    assert named("argument 2['a'][0]", ["x", "mask"]) == "mask['a'][0]"
    assert named("argument 3", ["x", "mask"]) == "argument 3"
    assert named("mask", ["x", "mask"]) == "mask"


@pytest.mark.parametrize("number", [torch.tensor(0), 0])
def test_a_call_of_another_form_is_looked_at_anew(backend, number):
    """Equal numbers that are one object in one call are two in the next."""
    admission = Admission(lambda _: None, Numbered(backend, lambda a, b: None, ()))
    other = torch.tensor(1) if isinstance(number, torch.Tensor) else 1

    def is_refused(*args):
        refusal = admission.refusal(args, {})
        if refusal is not None:
            refusal.learn()
        return refusal is not None

    assert [is_refused(number, number), is_refused(number, number), is_refused(other, number)] == [True, False, True]
    assert is_refused(number, other)
    assert not is_refused(other, other)


def test_keywords_in_another_order(backend):
    """Numbers in containers are those of their own input, whichever comes first."""
    admission = Admission(lambda _: None, Numbered(backend, lambda **_: None, ()))
    few, many = [torch.arange(FEW + 1)], [torch.arange(1000)]

    def is_refused(**given):
        refusal = admission.refusal((), given)
        if refusal is not None:
            refusal.learn()
        return refusal is not None

    assert is_refused(users=few, items=many)
    assert not is_refused(items=many, users=few)
    assert is_refused(items=few, users=many)


class Shaped(torch.nn.Module):
    """Takes anything, and counts its own calls."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, scale=1.0):
        return x * self.weight * scale


X = torch.ones(4, 8)


@pytest.mark.parametrize(
    "other", [torch.ones(2, 8), torch.ones(4, 8, 1), torch.ones(4, 8, dtype=torch.float64), torch.ones(8, 4)]
)
def test_other_shapes_and_types_stay_untuned_always(applied, caplog, other):
    """After the first call that fits as before it, with one line; a `check` changes nothing about it."""
    for policy in ({}, {"check": True}):
        caplog.clear()
        model, counts = applied(Shaped(), [X], **policy)
        with torch.no_grad():
            for x in (other, X, other, X, other, X):
                assert torch.equal(model(x), x)
            model(X.clone(), scale=1.0)
        assert counts["tuned"] == 4
        assert sum("such calls stay untuned; to tune here: " in each.getMessage() for each in caplog.records) == 1
        counts["tuned"] = 0


def test_applied_to_other_shapes_all_the_same(applied):
    """`on_mismatch="apply"` tunes each call. Numbers are looked at even so."""
    model, counts = applied(Lookup(), [ids(1, 2)], on_mismatch="apply")
    with torch.no_grad():
        for times in (16, 16, 4, 4):
            model(ids(1, 2, times=times))
        with pytest.raises(IndexError):
            model(ids(1, 100, times=4))
    assert counts["tuned"] >= 2


@pytest.mark.parametrize("check", [True, False])
def test_a_call_that_compiles_is_compared(tmp_path, compiler, check):
    """Under `check`: what is compiled for another value of an attribute is wrong, and found out in its first call."""

    class Switched(Shaped):
        is_on = False

        def forward(self, x):
            return x * self.weight * (3.0 if self.is_on else 2.0)

    def wrong_at_the_second(graph, _):
        number = next(numbers)
        return graph if number == 0 else lambda *inputs: tuple(output + number for output in graph(*inputs))

    numbers, own = itertools.count(), Switched()
    torch._dynamo.reset()
    path = export(tmp_path / "best.yaml", "torch", compiler(wrong_at_the_second), own, [X])
    model = autotune.load(path).apply(own, margin=None, check=check)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(X), X * 2)
        own.is_on = True
        assert torch.equal(model(X), X * 3) is check
        assert autotune.stats(model).state == ("untuned" if check else "tuned")
        assert torch.equal(model(X), X * 3) is check


def test_a_model_that_changes_its_state_is_not_called_again_to_be_compared(tmp_path, compiler):
    """Under `check` its first call shows it; where something is compiled later it is called once."""

    class Counting(Shaped):
        def __init__(self):
            super().__init__()
            self.register_buffer("num_calls", torch.zeros(()))
            self.scale = 2.0

        def forward(self, x):
            self.num_calls += 1
            return x * self.weight * self.scale

    own = Counting()
    torch._dynamo.reset()
    path = export(tmp_path / "best.yaml", "torch", compiler(lambda graph, _: graph), own, [X])
    model = autotune.load(path).apply(own, margin=None, check=True)
    with torch.no_grad():
        for number in range(1, 6):
            own.scale = 2.0 if number < 3 else 3.0
            assert torch.equal(model(X), X * own.scale)
            assert own.num_calls == number


@pytest.mark.parametrize(("error", "num_swaps", "is_wrong"), [(0, 1, False), (0, 2, False), (1, 0, True), (1, 1, True)])
def test_weights_that_change_while_a_call_that_compiled_is_compared(error, num_swaps, is_wrong):
    """Both are made once more, and nobody is accused of what somebody else wrote; the result is the untuned model's."""
    own, swaps = Shaped(), iter(range(num_swaps))

    def tuned(x):
        return own(x) + error

    def untuned(x):
        if next(swaps, None) is not None:
            own.weight.data.mul_(3)
        return own(x)

    with torch.no_grad():
        check = OutputCheck(TorchBackend(), own.eval(), 1e-3)
        finding = check.finding_after(tuned(X), tuned, untuned, Arguments((X,), {}))
        assert (finding.wrong is not None, finding.unchecked) == (is_wrong, None)
        assert torch.equal(finding.result, X * (3 if num_swaps else 1))
