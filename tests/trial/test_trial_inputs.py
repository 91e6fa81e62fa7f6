"""The inputs of a trial: where tensors are found, what is made up, and what the check of results leaves unsaid."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.bench.local import LocalBench
from autotune.errors import AutotuneError, InputError
from autotune.measure.measurement import Measurement, Reason
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.accuracy_check import num_compared
from autotune.trial.worker.subject import NOT_TAKEN, same_in_all
from autotune.trial.worker.subjects import build_subject
from autotune.workload.arguments import Arguments
from autotune_fake.backend import FakeBackend

NESTED = """
import dataclasses
import numpy as np

@dataclasses.dataclass
class Batch:
    images: list
    name: str

def model(batch, more):
    return [each * 2 for each in batch.images] + [more["boxes"]]

def tiny():
    images = [np.linspace(-1, 2, 12).reshape(3, 4), np.linspace(-3, 1, 12).reshape(3, 4) ** 3]
    return model, (Batch(images, "a"), {"boxes": np.ones((2, 4)), "scale": 3})
"""


@pytest.fixture
def subject(model_file, workload):
    """The subject of a model file."""

    def build(content: str, **changes: object):
        model_file.write_text("import numpy as np\n" + content)
        return build_subject(workload.model_copy(update=changes), FakeBackend())

    return build


@pytest.fixture
def run(tmp_path, make_request, model_file, workload):
    """Outcomes of the untuned model and of a compiled config of a model file, in real children."""

    def run(content: str, settings: dict[str, object] | None = None, *, inputs: object = None, **overrides: object):
        model_file.write_text("import numpy as np\n" + content)
        overrides["workload"] = workload.model_copy(update={"inputs": None if inputs is None else str(inputs)})
        with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
            return [
                runner.run(TrialFolder(tmp_path / f"{number}"), make_request(each, **overrides))
                for number, each in enumerate([None, settings or {"latency_ms": 1}])
            ]

    return run


def test_tensors_within_containers_are_inputs(subject):
    """In a list, a dict, a dataclass: described, varied, and compared after a call; texts and numbers stay."""
    made = subject(NESTED)
    assert [spec.shape for spec in made.signature.inputs] == [(3, 4), (3, 4), (2, 4)]
    example, derived, again = made.inputs
    assert example is again
    assert derived is made.derived
    batch, more = derived.positional
    assert (batch.name, more["scale"]) == ("a", 3)
    assert not np.array_equal(batch.images[0], example.positional[0].images[0])
    assert [digest is None for digest in made.example_sha256] == [False, False, True, False, True]


def test_an_input_that_is_written_to_is_named_by_its_path(run):
    """Also deep in a container."""
    content = "def model(batch):\n    batch['x'][0] += 1\n    return batch['x'][0]\n"
    untuned, _ = run(content + "def tiny():\n    return model, ({'x': [np.ones(3)]},)\n")
    assert "it writes into its input (argument 1['x'][0])" in untuned.error


def test_inputs_without_a_tensor_are_refused(subject):
    """The sentence says where tensors are looked for."""
    with pytest.raises(AutotuneError, match="no tensor among its inputs") as caught:
        subject("def tiny():\n    return print, (1, [2, {'a': object()}])\n")
    assert "lists, dicts" in caught.value.tip


def test_an_input_that_cannot_be_read_is_named(subject, monkeypatch):
    """With its path and type, in place of a library's own words alone."""

    def unreadable(self, value):
        if isinstance(value, np.ndarray) and value.ndim == 2:
            raise TypeError("unsupported ScalarType")
        return value if isinstance(value, np.ndarray) else None

    monkeypatch.setattr(FakeBackend, "to_array", unreadable)
    with pytest.raises(AutotuneError, match=r"argument 2\['q'\], a ndarray of type float64, cannot be read: unsupp"):
        subject("def tiny():\n    return print, (np.ones(3), {'q': np.ones((2, 2))})\n")


def test_one_tensor_that_is_there_twice_stays_one(subject):
    """Compilers make code for the case that two arguments are the same object."""
    made = subject("x = np.arange(3.0)\ndef tiny():\n    return print, (x, [x, np.arange(3.0)])\n")
    first, (second, third) = made.derived.positional
    assert first is second
    assert first is not third


PICKY = """
def model(x):
    {check}
    return x * 2

def tiny():
    return model, np.linspace(-1, 2, 12).reshape(3, 4)
"""
NOT_FOR_IT = {
    "it fails": "assert x[0, 0] == -1, 'no such picture'",
    "it gives NaN": "x = x if x[0, 0] == -1 else x * np.nan",
}


@pytest.mark.parametrize("precision", ["model", "float64"])
@pytest.mark.parametrize("check", NOT_FOR_IT.values(), ids=NOT_FOR_IT)
def test_a_study_goes_on_without_an_input_that_the_model_does_not_take(run, tmp_path, check, precision):
    """Where the untuned model fails on what was made up, or gives NaN: all trials leave it out, and say so."""
    for outcome in run(PICKY.format(check=check), reference_precision=precision):
        assert isinstance(outcome, Measurement), outcome
        assert outcome.not_varied == (NOT_TAKEN,)
    assert num_compared(tmp_path / "reference.npz") == 2


def test_a_config_is_still_held_to_the_examples(run):
    """What is left out is the one input."""
    _, wrong = run(PICKY.format(check=NOT_FOR_IT["it fails"]), {"behaviour": "wrong"})
    assert wrong.reason is Reason.WRONG_RESULT


def test_a_failure_on_an_authors_input_is_one(run):
    """What an author gives must work."""
    content = PICKY.format(check=NOT_FOR_IT["it fails"]).replace(
        "return model, np", "return model, -np.ones((3, 4)), [np.ones((3, 4)), np"
    )
    untuned, _ = run(content.rstrip() + "]\n")
    assert "no such picture" in untuned.error


def test_what_is_made_up_fails_no_trial_that_compares_nothing(run):
    """As in `diagnose`, which calls the model with it for the sake of recompiles."""
    for outcome in run(PICKY.format(check=NOT_FOR_IT["it fails"]), judged=False):
        assert isinstance(outcome, Measurement), outcome
        assert outcome.not_varied == ()


CALLED = "def model(x, step, *, mode):\n    return x * step\ndef tiny():\n"
SAME = [
    ("((np.arange(3.), 4), {'mode': 'a'})", [], "argument 2 (4), mode ('a') were the same in all calls"),
    ("((np.ones(3), 4), {})", ["((np.ones(3), 5), {})"], "argument 1 (1.0 throughout) was the same in all calls"),
    ("((np.arange(3.), 4), {'mode': 'a'})", ["((np.ones(3), 5), {'mode': 'a'})"], "mode ('a') was the same in all"),
    ("((np.ones(3), 4), {'mode': 'a'})", ["((np.zeros(3), 5), {'mode': 'b'})"], None),
    ("((np.ones(3), True), {'mode': None})", ["((np.zeros(3), False), {'mode': None})"], None),
]


@pytest.mark.parametrize(("example", "more", "words"), SAME, ids=[str(words) for *_, words in SAME])
def test_numbers_that_never_varied_are_said(subject, example, more, words):
    """The compiled code may be made for them. What the author's further inputs vary is not listed."""
    made = subject(f"{CALLED}    return model, {example}, [{', '.join(more)}]\n")
    sentences = same_in_all(made.constants)
    assert (sentences == ()) if words is None else sentences[0].startswith(words)


@pytest.fixture
def calls_file(tmp_path):
    """A file of calls."""

    def write(*calls: Arguments):
        FakeBackend().calls_file.write(calls, tmp_path / "calls.npz")
        return tmp_path / "calls.npz"

    return write


def test_calls_of_a_file_are_further_inputs(run, calls_file, tmp_path):
    """Beside the function's own, in all their values; nothing is made up."""
    file = calls_file(Arguments((np.ones(5), 7)), Arguments((np.ones((2, 2)), 8)))
    untuned, tuned = run("def tiny():\n    return (lambda x, n: x * n), (np.ones(3), 2)\n", inputs=file)
    assert isinstance(tuned, Measurement), tuned
    assert (untuned.signature.inputs[0].shape, untuned.not_varied[1:]) == ((3,), ())
    with np.load(tmp_path / "reference.npz") as stored:
        assert [stored[f"{number}.0"].tolist() for number in range(1, 5)] == [
            [2, 2, 2], [7] * 5, [[8, 8], [8, 8]], [2, 2, 2]
        ]  # fmt: skip


@pytest.mark.parametrize("returned", ["model", "{'model': model}"])
def test_a_function_may_give_the_model_alone(run, calls_file, returned):
    """The first call of the file is timed then."""
    file = calls_file(Arguments((np.ones(5),)), Arguments((), {"x": np.ones(5)}))
    untuned, tuned = run(f"def model(x):\n    return x\ndef tiny():\n    return {returned}\n", inputs=file)
    assert isinstance(tuned, Measurement), tuned
    assert untuned.signature.inputs[0].shape == (5,)


def test_calls_come_back_as_they_were(calls_file):
    """Containers, numbers, texts and arrays of any rank."""
    call = Arguments((np.array(3.0), [1, (2.5, None)], {"a": np.arange(3), 4: True}), {"name": "é"})
    (back,) = FakeBackend().calls_file.read(calls_file(call))
    assert back.named_leaves() != []
    for (name, value), (other_name, other) in zip(call.named_leaves(), back.named_leaves(), strict=True):
        assert name == other_name
        assert type(value) is type(other)
        assert np.array_equal(value, other)
    assert type(back.positional[1][1]) is tuple


@pytest.mark.parametrize("content", [b"junk", b"", None])
def test_a_file_without_calls_is_one_sentence(tmp_path, content):
    """Broken, empty, or of another program."""
    path = tmp_path / "calls.npz"
    if content is None:
        np.savez(path, x=np.ones(3))
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"calls\.npz: holds no calls of a model"):
        FakeBackend().calls_file.read(path)


def test_what_a_file_cannot_hold_is_refused(calls_file):
    """By its class."""
    with pytest.raises(InputError, match="a object cannot be written"):
        calls_file(Arguments((object(),)))


def test_a_model_that_was_left_in_training_mode_is_said(subject, monkeypatch):
    """Its calls are those of training."""
    monkeypatch.setattr(FakeBackend, "acting_in_training", lambda *_: ["Norm 'a'", "Norm 'b'"])
    (said,) = subject("def tiny():\n    return print, np.ones(3)\n").not_varied
    assert said.startswith("Norm 'a', Norm 'b' were in training mode in all calls")
    assert said.endswith("call model.eval() in the function that builds the model")
