"""What a model returns, taken apart and put together again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autotune.backends.fake.backend import FakeBackend
from autotune.backends.outputs import flatten, output_arrays
from autotune.nesting import has_fields, with_leaves


@dataclass(frozen=True, slots=True)
class Scores:
    logits: object
    hidden: object = ()
    note: str = field(default="", init=False)


def test_a_dataclass_is_taken_apart_like_a_tuple():
    """Its fields in their order, nested ones too; the class itself is a leaf."""
    scores = Scores(np.ones(2), {"a": Scores(np.zeros(3), 0.5)})
    assert [array.shape for array in output_arrays(FakeBackend(), scores)] == [(2,), (3,), ()]
    assert flatten(Scores) == [Scores]
    assert not has_fields(Scores)


def test_a_dataclass_is_put_together_again():
    """A frozen one with slots too, and fields that its `__init__` does not take."""
    scores = Scores(1, 2)
    object.__setattr__(scores, "note", "n")
    made = with_leaves(scores, lambda each: each * 2)
    assert (made.logits, made.hidden, made.note) == (2, 4, "nn")
    assert (scores.logits, scores.note) == (1, "n")
