"""What a model keeps from call to call is named, with the line that writes it."""

from __future__ import annotations

import inspect

import pytest

from autotune.trial.worker.kept_state import kept_state


class Counter:
    def __init__(self):
        self.num = 0
        self.seen = []
        self.table = {}

    def __call__(self, x):
        self.num += 1  # counts
        self.seen.append(x)  # remembers
        self.table["last"] = x  # stores
        return x


class Layers:
    """`model.layers[1]`, as a module's containers are."""

    def __init__(self):
        self.layers = [Counter(), Counter()]


def line_of(comment):
    source, first = inspect.getsourcelines(Counter)
    return first + next(number for number, line in enumerate(source) if line.rstrip().endswith(f"# {comment}"))


@pytest.mark.parametrize(
    ("name", "comment"), [("model.num", "counts"), ("model.seen[0]", "remembers"), ("model.table['last']", "stores")]
)
def test_an_attribute_with_its_line(name, comment):
    found = kept_state(Counter(), [name])
    assert found is not None
    assert found.startswith(f"its calls change {name} (test_kept_state.py, line {line_of(comment)}): make it anew")


def test_one_of_a_part_of_the_model():
    found = kept_state(Layers(), ["model.layers[1].num"])
    assert found is not None
    assert f"line {line_of('counts')}" in found


def test_an_input_is_to_be_copied():
    assert kept_state(Counter(), ["cache.keys[0] of input 1"]) == (
        "its calls change cache.keys[0] of input 1: let it work on a copy, made within the call, or return a reset "
        "that puts it back"
    )


def test_many_are_counted_and_none_is_none():
    found = kept_state(Counter(), [f"model.other{number}" for number in range(5)])
    assert found is not None
    assert "model.other2 and 2 more" in found
    assert kept_state(Counter(), []) is None


def test_what_has_no_source_has_no_line():
    made = type("Made", (), {"num": 0})()
    assert kept_state(made, ["model.num"]) == (
        "its calls change model.num: make it anew in each call, take it as an input and return it, or return a "
        "reset that puts it back"
    )
