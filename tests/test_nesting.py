"""Nested values, taken apart and put together again."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass

import pytest

from autotune.nesting import DEEPEST, leaves, with_leaves

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Box:
    corner: object
    label: str = "a"


class Output(OrderedDict):
    """As Hugging Face's `ModelOutput`: a mapping whose values are attributes as well."""


NESTS = [
    1,
    (1, [2, {"a": 3}], ()),
    Point(1, (2, 3)),
    Box([1, 2]),
    Output(a=1, b=(2,)),
    UserDict({"a": [1]}),
    deque([1, 2]),
    frozenset({5}),
]


@pytest.mark.parametrize("nest", NESTS, ids=lambda each: type(each).__name__)
def test_a_nest_is_put_together_as_it_was(nest):
    """Its class stays, and what changes is each leaf, in the order in which they are walked."""
    found = [leaf for _, leaf in leaves(nest)]
    seen = []
    made = with_leaves(nest, lambda leaf: seen.append(leaf) or (leaf, "changed"))
    assert found == [nest] or type(made) is type(nest)
    assert seen == found
    assert with_leaves(nest, lambda leaf: leaf) is nest


def test_a_path_is_what_one_would_write():
    """Keys and places in brackets, names behind a dot."""
    nest = {"boxes": [Point(1, 2), Box(3)], 4: 5}
    assert [path for path, _ in leaves(nest)] == [
        "['boxes'][0].x",
        "['boxes'][0].y",
        "['boxes'][1].corner",
        "['boxes'][1].label",
        "[4]",
    ]


def test_a_container_in_itself_ends():
    """What is deeper than `DEEPEST` is a leaf."""
    nest: list[object] = [1]
    nest.append(nest)
    assert len(list(leaves(nest))) == DEEPEST + 1
