"""Objects that take each other's places in a model: which one is there counts, that it was made anew does not."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from autotune.backends.call_state import CallState
from autotune.backends.protocol import Backend
from autotune_fake.backend import FakeBackend


class WithAttributes(FakeBackend):
    """Looks at all attributes, as backends do by default."""

    def attributes(self, value):
        return Backend.attributes(self, value)


class Stage:
    def enter(self):
        return 1

    def leave(self):
        return 2


class OtherStage:
    pass


class Phase(enum.Enum):
    WARM = enum.auto()
    COLD = "cold"


@dataclass
class Slot:
    name: str


def double(x):
    return 2 * x


def halve(x):
    return x / 2


STAGE = Stage()
PAIRS = {
    "plain objects": (object(), object()),
    "objects without attributes": (Stage(), Stage()),
    "objects of two classes": (Stage(), OtherStage()),
    "functions": (double, halve),
    "lambdas": (lambda x: x, lambda x: -x),
    "functions of C": (abs, len),
    "classes": (Stage, OtherStage),
    "bound methods": (STAGE.enter, STAGE.leave),
    "enum members": (Phase.WARM, Phase.COLD),
    "dataclasses": (Slot("a"), Slot("b")),
    "equal dataclasses": (Slot("a"), Slot("a")),
    "texts": ("a", "b"),
    "None and an object": (None, Stage()),
    "an object and None": (Stage(), None),
    "a list and a tuple": ([], ()),
}


def changes(before, change, model):
    change(model)
    return {part.name: str(part.array) for part in CallState(WithAttributes(), {"model": model}).changed_since(before)}


@pytest.mark.parametrize("kind", PAIRS)
def test_an_object_that_took_anothers_place_is_a_change(kind):
    """It is told where the model holds both elsewhere, with which of them it is now."""
    first, second = PAIRS[kind]
    model = SimpleNamespace(first=first, second=second, now=first)
    before = CallState(WithAttributes(), {"model": model})
    found = changes(before, lambda model: setattr(model, "now", second), model)
    assert [name for name in found if name.startswith("model.now")] != []
    assert not any(name.startswith(("model.first", "model.second")) for name in found)
    assert changes(before, lambda model: setattr(model, "now", first), model) == {}


@pytest.mark.parametrize("kind", sorted(PAIRS.keys() - {"objects without attributes", "equal dataclasses"}))
def test_it_is_a_change_where_nothing_else_holds_them(kind):
    """An object of other content, class or code is another one; so is one that can be told by its identity alone."""
    first, second = PAIRS[kind]
    model = SimpleNamespace(now=first)
    assert changes(CallState(WithAttributes(), {"model": model}), lambda model: setattr(model, "now", second), model)


def test_which_object_is_there_is_told_by_its_other_place():
    """In words that are the same in every process."""
    model = SimpleNamespace(slots=[object(), object(), object()], now=None)
    before = CallState(WithAttributes(), {"model": model})
    for number in range(3):
        found = changes(before, lambda model, number=number: setattr(model, "now", model.slots[number]), model)
        assert found == {"model.now": f"model.slots[{number}]"}


@pytest.mark.parametrize(
    "make",
    [
        list,
        lambda: {"a": [1]},
        lambda: Slot("a"),
        Stage,
        lambda: lambda x: x + 1,
        lambda: STAGE.enter,
        lambda: (1, "b"),
    ],
)
def test_a_new_object_with_the_same_in_it_is_no_change(make):
    """A model may make its lists, its configuration or its callbacks anew in each call."""
    model = SimpleNamespace(now=make(), twice=[make()])
    before = CallState(WithAttributes(), {"model": model})
    assert (
        changes(before, lambda model: (setattr(model, "now", make()), model.twice.__setitem__(0, make())), model) == {}
    )


def test_an_equal_tuple_may_be_one_or_two():
    """Python keeps one constant where compiled code makes a tuple for each place."""
    shape = (1, 2)
    model = SimpleNamespace(first=shape, second=shape)
    before = CallState(WithAttributes(), {"model": model})
    assert changes(before, lambda model: setattr(model, "second", (*shape,)), model) == {}
