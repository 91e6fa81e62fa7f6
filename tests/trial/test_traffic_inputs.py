"""Which axes of a model's inputs and outputs are a dimension of the traffic, and inputs of every shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autotune.backends.outputs import output_arrays
from autotune.backends.registry import load_backend
from autotune.errors import InputError
from autotune.measure.measurement import Axis
from autotune.measure.objective import LATENCY
from autotune.planning.models import make_workload
from autotune.planning.shapes import with_shapes
from autotune.trial.worker.subject import Subject
from autotune.trial.worker.subjects import build_subject
from autotune.workload.traffic import parse_shapes
from autotune.workload.workload import Workload

DEMONSTRATIONS = Path(__file__).resolve().parent.parent.parent / "examples" / "models"
Shaped = Callable[..., Subject]

MODEL = """
import numpy as np

def model(ids, mask=None):
    return {"tokens": ids * 2.0, "pooled": ids.sum(axis=1)}
"""


@pytest.fixture
def shaped(tmp_path: Path) -> Shaped:
    """The subject of a model whose function is given as a source, under traffic in words."""

    def make(source: str, *texts: str, num_calls: int = 8) -> Subject:
        path = tmp_path / "model.py"
        path.write_text(MODEL + source)
        traffic = parse_shapes(texts)
        workload = Workload(
            model="m", reference=f"{path}:f", arguments=traffic.largest, framework="fake", device="cpu",
            traffic=traffic, stream_calls=num_calls, search_path=str(tmp_path),
        )  # fmt: skip
        return build_subject(workload, load_backend("fake"))

    return make


BERT = """
def f(batch=2, seq=8, heads=3):
    ids = np.arange(batch * seq, dtype=float).reshape(batch, seq)
    return {"model": model, "inputs": {"ids": ids, "mask": np.ones((seq, batch, heads))}, "padding": PADDING}
"""


def axis(dimension: str, leaf: int, number: int, name: str | None = None) -> Axis:
    return Axis(dimension=dimension, leaf=leaf, axis=number, name=name)


def test_axes_are_found_by_the_shapes_of_the_inputs(shaped: Shaped) -> None:
    """An axis belongs to the dimension that it changes with, in each input; one that stays is nobody's."""
    subject = shaped(BERT.replace("PADDING", "{}"), "batch=1,3; seq=2..9")
    assert set(subject.work.shapes.inputs) == {
        axis("batch", 0, 0, "ids"), axis("seq", 0, 1, "ids"), axis("seq", 1, 0, "mask"), axis("batch", 1, 1, "mask"),
    }  # fmt: skip
    assert subject.work.shapes.outputs == ()


def test_an_argument_has_one_name_however_it_is_given(shaped: Shaped) -> None:
    """That of the parameter, so that a job's call is known that gives it in another way."""
    source = "def f(seq=2):\n    return model, (np.ones((2, seq)), {'a': np.ones(seq)})"
    assert shaped(source, "seq=2..9").work.shapes.inputs == (axis("seq", 0, 1, "ids"), axis("seq", 1, 0, "mask['a']"))


def test_axes_of_outputs_are_found_for_what_may_be_padded(shaped: Shaped) -> None:
    """Only of dimensions with a declared padding, since only what was padded is cut."""
    subject = shaped(BERT.replace("PADDING", "{'batch': 0}"), "batch=1,3; seq=2..9")
    assert subject.work.shapes.outputs == (axis("batch", 0, 0), axis("batch", 1, 0))
    assert subject.work.shapes.padding == {"batch": 0}


def test_inputs_of_every_shape_are_the_beginnings_of_the_largest(shaped: Shaped) -> None:
    """Contiguous copies, of each shape in the stream, in the stream's order."""
    subject = shaped(BERT.replace("PADDING", "{}"), "batch=1,3; seq=2..9", num_calls=5)
    stream = subject.work
    largest = np.arange(27, dtype=float).reshape(3, 9)
    assert len(stream.calls) == 5
    assert set(stream.calls) == set(range(len(stream.sizes)))
    for sizes, inputs in zip(stream.sizes, stream.inputs, strict=True):
        ids, mask = inputs.leaves()
        np.testing.assert_array_equal(ids, largest[: sizes["batch"], : sizes["seq"]])
        assert mask.shape == (sizes["seq"], sizes["batch"], 3)
        assert ids.flags.c_contiguous
    assert subject.signature.inputs[0].shape == (3, 9)


def test_what_is_checked_is_of_the_stream(shaped: Shaped) -> None:
    """The most frequent shape first, with other values too, and last again; the smallest and the largest beside it."""
    subject = shaped(BERT.replace("PADDING", "{}"), "seq=2:25%,5:50%,9:25%")
    lengths = [each.leaves()[0].shape[1] for each in subject.inputs]
    assert lengths == [5, 2, 9, 5, 5]
    assert subject.inputs[-1] is subject.inputs[0]
    assert not np.array_equal(subject.inputs[3].leaves()[0], subject.inputs[0].leaves()[0])


def test_a_dimension_of_one_size_has_no_axes(shaped: Shaped) -> None:
    """Nothing varies, so nothing is looked for or cut."""
    subject = shaped(BERT.replace("PADDING", "{'seq': 0}"), "seq=4")
    assert (subject.work.shapes.inputs, subject.work.shapes.outputs, subject.work.shapes.padding) == ((), (), {})
    assert [inputs.leaves()[0].shape for inputs in subject.work.inputs] == [(2, 4)]


REFUSED = {
    "no such argument": "def f(batch=2):\n    return model, np.ones((batch, 4))",
    "have the same shapes whatever it is": "def f(seq=2):\n    return model, np.ones((2, 4))",
    "has shape (18, 4) at 9 and (4, 4) at 2": "def f(seq=2):\n    return model, np.ones((2 * seq, 4))",
    "has shape (9, 1) at 9 and (2,) at 2": "def f(seq=2):\n    return model, np.ones((9, 1) if seq == 9 else (2,))",
    "argument 2 is 9 at 9 and 2 at 2": "def f(seq=2):\n    return model, (np.ones((seq, 4)), seq)",
    "are 9 at 9 and 2 at 2": "def f(seq=2):\n    return model, [np.ones(4)] * seq",
    "the outputs of m: number 1 has shape (3, 2) at 9 and (1, 2) at 2": (
        "def f(seq=2):\n"
        "    return {'model': lambda x: x[1::3], 'inputs': np.ones((seq, 2)), 'padding': {'seq': 0}}"
    ),
    "padding; it must be a dict": "def f(seq=2):\n    return {'model': model, 'inputs': np.ones(seq), 'padding': 0}",
    "padding of seq is a str": (
        "def f(seq=2):\n    return {'model': model, 'inputs': np.ones(seq), 'padding': {'seq': '0'}}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_cut_is_refused(shaped: Shaped, words: str) -> None:
    """One sentence names the dimension or what was returned, and the sizes that were compared."""
    with pytest.raises(InputError) as caught:
        shaped(REFUSED[words], "seq=2..9")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("framework", "model", "shapes", "axes"),
    [
        pytest.param("torch", "intersection", "agents=4..9", {(0, 1)}, marks=pytest.mark.torch),
        pytest.param("torch", "branching", "length=16,24,32", {(0, 1)}, marks=pytest.mark.torch),
        pytest.param("torch", "temporal_decision", "batch=1,2,5", {(0, 0), (1, 0)}, marks=pytest.mark.torch),
        pytest.param("mindspore", "mixed_attention", "batch=1,3", {(0, 0), (1, 0)}, marks=pytest.mark.mindspore),
    ],
)
@pytest.mark.slow
def test_the_demonstrations_see_real_traffic(framework: str, model: str, shapes: str, axes: set) -> None:
    """Agents come and go, signals have lengths, a history has as many rows as there are requests: each shape runs."""
    pytest.importorskip(framework)
    backend, traffic = load_backend(framework), parse_shapes([shapes])
    backend.prepare("cpu", 0)
    subject = build_subject(
        with_shapes(
            make_workload(f"{DEMONSTRATIONS}/{model}.py:{model}", {"dim": 32}, framework, "cpu", 0), traffic, LATENCY
        ),
        backend,
    )
    assert {(each.leaf, each.axis) for each in subject.work.shapes.inputs} == axes
    assert len(subject.work.inputs) == len(traffic.loads)
    with backend.inference():
        for inputs in subject.work.inputs:
            assert output_arrays(backend, inputs.call(subject.model))
