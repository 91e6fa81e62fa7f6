"""What a model returns, taken apart and put together again."""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from autotune.backends.outputs import flatten, observed, output_arrays
from autotune.backends.registry import load_backend
from autotune.nesting import has_fields, with_leaves
from autotune.workload.arguments import Arguments
from autotune_fake.backend import FakeBackend


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


class Slotted:
    __slots__ = ("inner", "label")

    def __init__(self, inner, label):
        self.inner, self.label = inner, label


class Plain:
    def __init__(self, **held):
        self.__dict__.update(held)


def parts(value, **options):
    found = observed(FakeBackend(), value, **options)
    return {part.name: part.array.tolist() for part in found.parts}, found.not_compared


def test_objects_are_looked_into():
    """Attributes and slots, in containers and in other objects; numbers, texts and None are parts too."""
    value = {
        "cache": Plain(layers=[Slotted(np.ones(2), "a")], length=3),
        "none": None,
        "when": datetime.date(2026, 1, 2),
    }
    assert parts(value) == (
        {
            "output['cache'].layers[0].inner": [1.0, 1.0],
            "output['cache'].layers[0].label": "a",
            "output['cache'].length": 3,
            "output['none']": "None",
            "output['when']": "datetime.date(2026, 1, 2)",
        },
        [],
    )


def test_lists_of_numbers_are_one_part():
    """Token ids and shapes are not taken apart; numbers of several kinds are."""
    assert parts(([5, 6, 7], [1, 2.0])) == (
        {"output[0]": [5, 6, 7], "output[1][0]": 1, "output[1][1]": 2.0},
        [],
    )


def test_what_cannot_be_looked_into_is_named():
    """An object of C++, a lock; not code, which is no result."""
    found, not_compared = parts({"lock": threading.Lock(), "code": len, "kind": Plain, "x": np.ones(1)})
    assert list(found) == ["output['x']"]
    assert not_compared == ["output['lock'] (a _thread.lock)"]


def test_an_iterator_is_read_in_a_trial_only():
    """In a job its items are the job's."""
    assert parts(iter([np.ones(1)]), reads=True) == ({"output[0]": [1.0]}, [])
    _, not_compared = parts(iter([np.ones(1)]))
    assert not_compared == ["output (a builtins.list_iterator)"]


def test_an_object_in_itself_ends():
    """Each container and object is looked at once."""
    value = Plain(x=np.ones(1))
    value.parent = value
    assert parts([value, value]) == ({"output[0].x": [1.0]}, [])


def test_parts_are_copies():
    """A buffer that the next call overwrites stays what it was."""
    buffer = np.zeros(2)
    (part,) = observed(FakeBackend(), buffer).parts
    buffer += 1
    assert part.array.tolist() == [0, 0]


@pytest.mark.torch
def test_tensors_of_torch():
    """Distributions, caches, layouts and nested tensors; a view of an input says so."""
    torch = pytest.importorskip("torch")
    from autotune.backends.torch.backend import TorchBackend

    backend = TorchBackend()
    x = torch.ones(3, 4)
    value = [
        torch.distributions.Normal(x, 2 * x),
        x[0],
        torch.eye(2).to_sparse(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        torch.nn.Linear(1, 1),
    ]
    found = observed(backend, value, inputs=Arguments((x,)))
    assert {part.name: part.form for part in found.parts if part.is_tensor} == {
        "output[0].loc": "float32, a view of argument 1",
        "output[0].scale": "float32",
        "output[1]": "float32, a view of argument 1",
        "output[2]": "float32 sparse_coo",
        "output[3][0]": "float32",
        "output[3][1]": "float32",
    }
    assert found.not_compared == ["output[4] (a torch.nn.modules.linear.Linear)"]


FRAMEWORKS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "mindspore")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_weights_are_nudged(framework):
    """By about the share that was asked for, in place; integers stay, and a tensor is a new one."""
    pytest.importorskip(framework)
    backend = load_backend(framework)
    if framework == "torch":
        import torch

        model, tensor, ids = torch.nn.Linear(50, 50), torch.ones(1000), torch.arange(3)
    else:
        import mindspore as ms

        model, tensor, ids = ms.nn.Dense(50, 50), ms.ops.ones((1000,)), ms.ops.arange(3)
    before = backend.to_array(model.weight).copy()
    backend.nudge(model, 0.01)
    change = backend.to_array(model.weight) / before - 1
    assert 0.005 < change.std() < 0.02
    moved = backend.to_array(backend.nudge(tensor, 0.01))
    assert 0.005 < moved.std() < 0.02
    assert backend.to_array(tensor).std() == 0
    assert backend.nudge(ids, 0.01) is ids
