"""Which whole numbers a model takes in an input: found by calls, with models that are plain functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.measure.limits import InputLimits, Span, find_limits, hold_for

Array = np.ndarray[Any, Any]


def taken_by(model: Callable[[Array], object]) -> Callable[[Array], bool]:
    """As the trial asks a model: what raises is not taken."""

    def takes(array: Array) -> bool:
        takes.calls += 1  # type: ignore[attr-defined]
        try:
            model(array)
        except IndexError:
            return False
        return True

    takes.calls = 0  # type: ignore[attr-defined]
    return takes


def embedding(rows: int) -> Callable[[Array], object]:
    """Takes no negative number, as PyTorch's embedding."""

    def model(ids: Array) -> None:
        if ids.min() < 0 or ids.max() >= rows:
            raise IndexError

    return model


def cross_entropy(classes: int, ignored: int = -100) -> Callable[[Array], object]:
    def model(labels: Array) -> None:
        embedding(classes)(labels[labels != ignored])

    return model


IDS = np.random.default_rng(0).integers(0, 950, (8, 40))
EDGES = np.stack([np.random.default_rng(1).integers(0, 50, 90), np.random.default_rng(2).integers(0, 30, 90)])
ONE_SPAN = [
    pytest.param(embedding(1000), IDS, (1000,), Span(lowest=0, highest=999), id="a table whose size is known"),
    pytest.param(embedding(50257), IDS, (768, 12), Span(lowest=0, highest=50256), id="a table of another size"),
    pytest.param(embedding(950), IDS + 3 - 3, (), Span(lowest=0, highest=949), id="no sizes"),
    pytest.param(np.zeros(1000).__getitem__, IDS, (1000,), Span(lowest=-1000, highest=999), id="indexing wraps"),
    pytest.param(np.zeros(1000).__getitem__, IDS, (), Span(lowest=-1000, highest=999), id="indexing, no sizes"),
    pytest.param(np.sin, IDS, (1000,), Span(lowest=None, highest=None), id="no limit"),
    pytest.param(np.sin, np.array(7), (), Span(lowest=None, highest=None), id="a step counter"),
    pytest.param(embedding(2), IDS % 2, (2, 9), Span(lowest=0, highest=1), id="types of tokens"),
    pytest.param(lambda x: embedding(9)(x - 1), IDS % 9 + 1, (9,), Span(lowest=1, highest=9), id="counted from one"),
    pytest.param(
        cross_entropy(10), IDS[0] % 9, (10,), Span(lowest=0, highest=9, also=(-100,)), id="labels, none is ignored"
    ),
    pytest.param(
        cross_entropy(10), np.array([3, -100, 5, -100]), (), Span(lowest=0, highest=9, also=(-100,)), id="labels"
    ),
    pytest.param(
        cross_entropy(21, 255),
        np.array([0, 4, 20, 255, 3], np.uint8),
        (21,),
        Span(lowest=None, highest=20, also=(255,)),
        id="255 is ignored",
    ),
    pytest.param(np.sin, IDS.astype(np.uint8), (), Span(lowest=None, highest=None), id="pixels"),
]


@pytest.mark.parametrize(("model", "array", "sizes", "span"), ONE_SPAN)
def test_the_limits_of_an_input(model, array, sizes, span):
    """The last numbers on both sides that the model takes are found, and the example is never changed."""
    before = array.copy()
    assert find_limits("ids", array, sizes, taken_by(model)) == InputLimits(name="ids", spans=(span,))
    assert (array == before).all()


def pairs_of(users: int, items: int, axis: int) -> Callable[[Array], object]:
    def model(pairs: Array) -> None:
        user, item = np.moveaxis(pairs, axis, 0)
        np.zeros(users)[user], np.zeros(items)[item]

    return model


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_with_limits_of_their_own(axis):
    """Edges between nodes of two kinds, and cells of a grid, have limits for each row or column."""
    array = EDGES if axis == 0 else EDGES.T
    found = find_limits("edges", array, (), taken_by(pairs_of(50, 30, axis)))
    spans = (Span(lowest=-50, highest=49), Span(lowest=-30, highest=29))
    assert found == InputLimits(name="edges", axis=axis, spans=spans)


def test_the_wider_row_is_found_where_it_does_not_hold_the_greatest_number():
    """A row that takes more than the one with the greatest number gets what it takes."""
    edges = np.array([[1, 2, 3, 4], [5, 29, 2, 1]])
    found = find_limits("edges", edges, (), taken_by(pairs_of(50, 30, 0)))
    assert found is not None
    assert [span.highest for span in found.spans] == [49, 29]


def test_a_known_size_takes_few_calls():
    """A slow model is asked a few times: by one, a size of its tables, and what lies before that."""
    takes = taken_by(embedding(32000))
    assert find_limits("ids", np.array([3, 31000]), (4096, 32000), takes) is not None
    assert takes.calls <= 10


def test_a_number_that_is_a_size_is_not_raised_without_end():
    """The model takes what it was seen to take; nothing greater is tried once a call takes long."""
    most = 0

    def takes(array: Array) -> bool | None:
        nonlocal most
        most = max(most, int(array.max()))
        return False if array.min() < 0 else None if array.max() > 2000 else True

    found = find_limits("length", np.array(100), (), takes)
    assert found is not None
    assert found.spans[0].lowest == 0
    assert 2000 < (found.spans[0].highest or 0) == most < 2000 * 40


def test_limits_of_another_call():
    """Limits hold for inputs of other sizes, or they do not: the number of nodes follows the graph."""
    ids = InputLimits(name="ids", spans=(Span(lowest=0, highest=999),))
    assert hold_for(ids, IDS[:, :7], taken_by(embedding(1000)))
    assert not hold_for(ids, IDS, taken_by(embedding(1001))), "more is taken"
    assert not hold_for(ids, IDS, taken_by(embedding(950))), "less is taken"
    assert not hold_for(ids, IDS + 900, taken_by(embedding(2000))), "the input itself is beyond"
    by_row = InputLimits(name="edges", axis=0, spans=(Span(lowest=-50, highest=49), Span(lowest=-30, highest=29)))
    assert hold_for(by_row, EDGES[:, :20], taken_by(pairs_of(50, 30, 0)))
    assert not hold_for(by_row, np.concatenate([EDGES, EDGES]), taken_by(np.sin)), "other rows"


def test_numbers_below_zero_are_not_bisected():
    """Less than what is taken is told of negative numbers, in few calls."""
    takes = taken_by(lambda ids: embedding(1700)(ids + 700))
    found = find_limits("ids", np.array([5, 990]), (1000,), takes)
    assert found == InputLimits(name="ids", spans=(Span(lowest=-1, highest=999),))
    assert takes.calls <= 10
