"""The check of a trial: which output is wrong and how, a wider reference, and why a model cannot be compared with."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.backends.outputs import Observed
from autotune.bench.local import LocalBench
from autotune.errors import AutotuneError, worded
from autotune.measure.accuracy import load_reference
from autotune.measure.measurement import Measurement, Reason, Stage
from autotune.measure.parts import Part
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import repeat_command
from autotune.trial.worker.accuracy_check import OutputGate, Seen, WrongResultError, check, possible_times, save

NAN, INF = float("nan"), float("inf")
RIGHT = [np.array([1.0, 4.0]), np.array([3, 5]), np.array([1.0, INF])]


def seen_of(*calls, left=()):
    """What a run has seen whose calls returned these arrays, in a tuple."""
    return Seen([Observed([part(f"output[{n}]", each) for n, each in enumerate(call)]) for call in calls], list(left))


def part(name, value, *, is_tensor=True):
    array = np.asarray(value)
    return Part(name, str(array.dtype), array, is_tensor)


@pytest.fixture
def checked(make_request):
    """The outcome of the check of one run against the reference of another, both through the file."""

    def run(reference, seen, **overrides):
        request = make_request({}, **overrides)
        gate = OutputGate("m", lambda _: None)
        save(request, reference, gate)
        return check(request, seen, 0.01, gate).output_errors

    return run


def request_path(request):
    return Path(request.reference)


def test_every_output_has_its_own_error(checked):
    """The largest over all inputs for each output, in the order of the outputs."""
    off_first = [np.array([1.0, 4.004]), *RIGHT[1:]]
    off_last = [*RIGHT[:2], np.array([1.002, INF])]
    errors = checked(seen_of(RIGHT, RIGHT, RIGHT), seen_of(RIGHT, off_first, off_last))
    assert errors == pytest.approx((0.001, 0.0, 0.002))


WRONG = [
    (
        0,
        np.array([1.0, 3.8]),
        "output[0]: relative error 0.05, tolerance 0.01; at [1] it is 3.8 instead of 4, and nowhere else",
    ),
    (0, np.array([1.0, NAN]), "output[0]: 1 of 2 elements are NaN"),
    (0, np.array([1.0, INF]), "output[0]: infinity where the reference is finite"),
    (0, np.array([[1.0, 4.0]]), "output[0]: shape (1, 2) instead of (2,)"),
    (0, np.array([1.0, 4.0], np.float32), "output[0]: float32 instead of float64"),
    (1, np.array([3, 6]), "output[1]: 1 of 2 integers differ"),
    (2, np.array([1.0, -INF]), "output[2]: another value where the reference is infinite"),
]


@pytest.mark.parametrize(("place", "output", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_result_names_the_output_the_input_and_the_kind(checked, place, output, words):
    """A number where there is one; else NaN, infinity, shape, type or integers by name."""
    wrong = [*RIGHT[:place], output, *RIGHT[place + 1 :]]
    with pytest.raises(WrongResultError) as caught:
        checked(seen_of(RIGHT, RIGHT, RIGHT), seen_of(RIGHT, wrong, RIGHT))
    assert str(caught.value) == f"on input 2 of 3, {words}"


def test_a_lost_output_is_named(checked):
    """One that is missing, and one that the untuned model does not give."""
    with pytest.raises(WrongResultError, match=r"on input 1 of 2, output\[2\]: it is missing"):
        checked(seen_of(RIGHT, RIGHT), seen_of(RIGHT[:2], RIGHT))
    with pytest.raises(WrongResultError, match=r"on input 2 of 2, output\[2\] is there, and the untuned model gives"):
        checked(seen_of(RIGHT[:2], RIGHT[:2]), seen_of(RIGHT[:2], RIGHT))


def test_what_is_left_behind_counts(checked):
    """A run that loses what the untuned calls wrote is wrong, however right its outputs are."""
    written = part("argument 1 of input 1", [1.0, 2.0])
    assert checked(seen_of(RIGHT, RIGHT, left=[written]), seen_of(RIGHT, RIGHT, left=[written])) == (0, 0, 0)
    with pytest.raises(WrongResultError, match="the untuned model changes argument 1 of input 1, and the config"):
        checked(seen_of(RIGHT, RIGHT, left=[written]), seen_of(RIGHT, RIGHT))


def test_rows_of_nan_are_an_answer(checked):
    """A model whose mask hides a row as a whole gives NaN there for its own example."""
    masked = [np.array([NAN, 1.0]), *RIGHT[1:]]
    assert checked(seen_of(masked, masked), seen_of(masked, masked)) == (0, 0, 0)
    with pytest.raises(WrongResultError, match="1 of 2 elements are numbers where the reference is NaN"):
        checked(seen_of(masked, masked), seen_of(RIGHT, masked))


def test_a_number_that_no_two_calls_share_is_not_compared(make_request):
    """A time among the outputs is named, and the tensors beside it are compared."""
    gate, request = OutputGate("m", lambda _: None), make_request()

    def run(*seconds):
        tensor = part("output[0]", [1.0])
        return Seen([Observed([tensor, part("output[1]", each, is_tensor=False)]) for each in seconds], [])

    outcome = check(request, run(0.5, 0.7), 0.01, gate)
    assert outcome.not_compared == ("output[1] (another value in each call)",)
    assert check(request, run(0.1, 0.2), 0.01, gate).output_errors == (0,)


def test_an_untuned_model_that_gives_nan_names_its_output(make_request):
    """No reference is written from an output that is NaN throughout, and it is named."""
    request = make_request()
    with pytest.raises(WrongResultError, match=r"untuned model itself gives NaN .*\(output\[1\]\)"):
        check(request, seen_of(*[[np.ones(2), np.array([NAN])]] * 2), 0.01, OutputGate("m", lambda _: None))
    assert not request_path(request).exists()


@pytest.mark.parametrize("why", ["it draws random numbers", None])
def test_an_unrepeatable_model_is_refused_with_its_cause(make_request, why):
    """The cause where one is found, else a question; no reference is written."""
    request = make_request()
    with pytest.raises(AutotuneError, match="gives another output when called again with the same input") as caught:
        check(request, seen_of([np.ones(2)], [np.zeros(2)]), 0.01, OutputGate("m", lambda _: why))
    assert str(caught.value).endswith(why or "the same input")
    assert (caught.value.tip is None) is (why is not None)
    assert not request_path(request).exists()


def test_the_reference_survives_the_file():
    """Parts with their names and forms, what is left behind, and the spreads."""
    gate = OutputGate("m", lambda _: None)
    texts = part("output['label']", "ok", is_tensor=False)
    seen = replace(
        seen_of([np.ones((2, 3))], left=[part("model.count", 3, is_tensor=False)]),
        spreads=[[np.array([[0.5, 0.25], [1, 0]])]],
        has_forms=False,
    )
    seen.calls[0].parts.append(texts)
    seen.spreads[0].append(None)
    found = gate.unpacked(gate.packed(seen))
    assert [each.name for each in found.calls[0].parts] == ["output[0]", "output['label']"]
    assert (str(found.calls[0].parts[1].array), found.calls[0].parts[1].form) == ("ok", texts.form)
    assert [(each.name, each.array.item()) for each in found.left] == [("model.count", 3)]
    assert found.spreads[0][0].tolist() == [[0.5, 0.25], [1, 0]]
    assert found.spreads[0][1] is None
    assert not found.has_forms


@pytest.fixture
def run_untuned(tmp_path, make_request, model_file):
    """Untuned runs of a model file in real children, one after the other, with one reference."""

    def run(content, *, runs=1, **overrides):
        model_file.write_text("import sys\nimport numpy as np\n" + content)
        with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
            request = make_request(**overrides)
            return [runner.run(TrialFolder(tmp_path / f"{number}"), request) for number in range(runs)]

    return run


DROPOUT = """
class Model:
    dropout = {p}
    def __call__(self, x):
        return x * (np.random.rand(*x.shape) > self.dropout)
def tiny():
    return Model(), np.ones((20, 20))
"""
UNREPEATABLE = [
    (DROPOUT.format(p=0.1), "Dropout 'drop' (p=0.1) is active: call model.eval()"),
    ("def tiny():\n    return (lambda x: x + np.random.rand()), np.ones(3)\n", "draws random numbers"),
    (
        "import random\ndef tiny():\n    return (lambda x: x + random.random()), np.ones(3)\n",
        "draws random numbers",
    ),
    (
        "def model(x, *, y):\n    y += 1\n    return x + y\n"
        "def tiny():\n    return model, {'x': np.ones(3), 'y': np.ones(3)}\n",
        "it writes into its input (y)",
    ),
    (
        "def model(x, y):\n    z = y.sum()\n    y[:] = 0\n    return x + z\n"
        "def tiny():\n    return model, (np.ones(3), np.ones(3))\n",
        "it writes into its input (argument 2)",
    ),
    (
        "def model(x):\n    x += 1\n    return x\ndef tiny():\n    return model, np.ones(3)\n",
        "it writes into its input (argument 1)",
    ),
    (
        "calls = []\ndef model(x):\n    calls.append(1)\n    return x + len(calls)\n"
        "def tiny():\n    return model, np.ones(3)\n",
        "keep state from call to call?",
    ),
]


@pytest.mark.parametrize("precision", ["model", "float64"])
@pytest.mark.parametrize(
    ("content", "words"), UNREPEATABLE, ids=[f"{n} {words}" for n, (_, words) in enumerate(UNREPEATABLE)]
)
def test_the_cause_of_an_unrepeatable_model_is_named(run_untuned, content, words, precision):
    """Dropout by name, else random numbers, else a written input, else a question; never a config's fault."""
    (outcome,) = run_untuned(content, reference_precision=precision)
    assert (outcome.reason, outcome.stage) == (Reason.SETUP, Stage.CHECK)
    assert words in outcome.error


def test_dropout_that_changes_nothing_is_not_refused(run_untuned):
    """A model in training mode whose outputs repeat within the tolerance is measured."""
    (outcome,) = run_untuned("class Model:\n    dropout = 0.1\n    def __call__(self, x):\n        return x\n"
                             "def tiny():\n    return Model(), np.ones(3)\n")  # fmt: skip
    assert isinstance(outcome, Measurement)


def test_an_output_that_the_next_call_overwrites_is_kept(run_untuned, tmp_path):
    """A model may return the same buffer from every call: what each input gave is compared all the same."""
    content = "def model(x):\n    buffer[:] = x\n    return buffer\nbuffer = np.zeros(9)\n"
    run_untuned(content + "def tiny():\n    return model, np.arange(9.0)\n")
    _, example, other, *_ = load_reference(tmp_path / "reference.npz")
    assert example[0].tolist() == list(range(9))
    assert other[0].tolist() != example[0].tolist()


REFUSING = """
class Model:
    def __init__(self):
        self.calls = np.zeros(1)
    def __call__(self, x):
        self.calls += 1
        if x.max() < 0.9:
            raise ValueError("outside of the domain")
        return x * 2
def tiny():
    return Model(), np.array([[0.3, 1.0], [0.2, 0.1]])
"""


def test_a_made_up_input_that_fails_after_it_has_changed_something(run_untuned):
    """The study goes on without it; of what the failing call changed only the name is compared, since it is not made
    again."""
    first, again = run_untuned(REFUSING, runs=2)
    for outcome in (first, again):
        assert isinstance(outcome, Measurement), outcome
        assert "fails on the further input" in outcome.not_varied[0]
    assert again.output_errors == (0,)


FLOAT32 = """
def tiny():
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    # Were the model built twice in one process, the second would be warm.
    assert not hasattr(sys, "was_here"), "built before in this process"
    sys.was_here = True
    return (lambda x, ids: [np.tanh(x @ weight), ids * 2]), (x, np.arange(5))
"""


def test_a_wider_reference_measures_the_untuned_models_own_error(run_untuned, tmp_path):
    """The reference is in float64, integers stay; the untuned model is compared with it, in a process of its own."""
    first, again = run_untuned(FLOAT32, runs=2, reference_precision="float64")
    for outcome in (first, again):
        assert isinstance(outcome, Measurement), outcome
        assert 1e-9 < outcome.relative_error < 1e-5
        assert outcome.output_errors == (outcome.relative_error, 0)
    assert [array.dtype for array in load_reference(tmp_path / "reference.npz")[1]] == [np.float64, np.int64]


def test_without_the_flag_the_reference_is_the_model_as_it_is(run_untuned, tmp_path):
    """The first untuned run has no error of its own, the second one has a number; the reference keeps the type."""
    first, again = run_untuned(FLOAT32, runs=2)
    assert (first.relative_error, again.relative_error) == (None, 0)
    assert (first.output_errors, again.output_errors) == (None, (0, 0))
    assert load_reference(tmp_path / "reference.npz")[1][0].dtype == np.float32


def test_a_model_that_does_not_run_so_wide_is_no_fault_of_a_config(run_untuned, tmp_path):
    """The sentence says which precision failed, with the framework's own words, and what to do."""
    (outcome,) = run_untuned(
        "def model(x):\n    if x.dtype != np.float32:\n        raise TypeError('no kernel')\n    return x\n"
        "def tiny():\n    return model, np.ones(3, np.float32)\n",
        reference_precision="float64",
    )
    assert outcome.reason is Reason.SETUP
    error = worded(outcome.error)
    assert "the untuned model does not run in float64: TypeError: no kernel (use reference='model')" in error
    assert not (tmp_path / "reference.npz").exists()


def test_a_reference_never_narrows(run_untuned):
    """A float32 reference of a float64 model would be less exact than the model: refused."""
    (outcome,) = run_untuned("def tiny():\n    return (lambda x: x), np.ones(3)\n", reference_precision="float32")
    assert outcome.reason is Reason.SETUP
    assert "would round the float64 tensors" in outcome.error


def test_an_untuned_model_outside_the_tolerance_of_its_wider_reference(run_untuned):
    """What float32 cancels to nothing float64 does not: the message blames the precision and names the ways out."""
    (outcome,) = run_untuned(
        "def model(x):\n    large = x.dtype.type(1e8)\n    return (x + large) - large\n"
        "def tiny():\n    return model, np.ones(3, np.float32)\n",
        reference_precision="float64",
    )
    assert outcome.reason is Reason.WRONG_RESULT
    assert (
        "the untuned model itself leaves the tolerance of its float64 reference: on input 1 of 3, output:"
        in outcome.error
    )
    assert "reference='model'" in worded(outcome.error)
    assert outcome.relative_error == 1


@pytest.mark.usefixtures("new_python")
def test_a_crash_while_the_reference_is_made_is_a_crash(run_untuned):
    """It is told as the crash that it is, so that the untuned model gets another process."""
    (outcome,) = run_untuned(
        "import os\ndef tiny():\n    return (lambda x: os.kill(os.getpid(), 11)), np.ones(3)\n",
        reference_precision="float64",
    )
    assert (outcome.reason, outcome.stage) == (Reason.CRASH, Stage.CHECK)
    assert "SIGSEGV" in outcome.error


def test_the_plain_command_makes_the_reference_too(run_untuned, tmp_path):
    """A trial repeated by hand, its reference gone, writes it again, whatever outcome lies in the folder."""
    run_untuned(FLOAT32, reference_precision="float64")
    reference = tmp_path / "reference.npz"
    reference.unlink()
    folder = TrialFolder(tmp_path / "0")
    subprocess.run(repeat_command(folder, folder.read_request()), shell=True, check=True, capture_output=True)
    assert isinstance(folder.read_outcome(), Measurement)
    assert reference.exists()


def test_a_model_of_another_framework_is_compared_by_place(checked):
    """Outputs may have other names there, and calls leave other things behind; types and values are the same."""
    theirs = replace(seen_of(RIGHT, RIGHT, left=[part("model.count", 3)]), framework="torch")
    calls = [Observed([part(f"output['{n}']", each) for n, each in enumerate(RIGHT)])] * 2
    ours = Seen(calls, [], framework="mindspore")
    assert checked(theirs, ours) == (0, 0, 0)
    calls[0].parts[0] = part("output['0']", RIGHT[0] + 1)
    with pytest.raises(WrongResultError, match="on input 1 of 2, output 1: relative error"):
        checked(theirs, ours)


FLOATS_LEFT = {
    "of the input": ((1.5, 2.5, 1.5), 1.5, 1.6, "model.x: "),
    "of the input, rounded otherwise": ((1.5, 2.5, 1.5), 1.50001, 1.4999, None),
    "of all calls": ((0.1, 0.2, 0.3), 0.3, 0.27, "model.x: "),
    "the same in all calls": ((0.5, 0.5, 0.5), 0.5, 0.6, "model.x: "),
    "a residual": ((1e-7, 3e-7, 1e-7), 1e-7, 9e-7, None),
    "a time": ((1.0, 2.0, 3.0), 3.1, 9.0, None),
    "the time of the first call": ((7.0, 7.0, 7.0), 7.1, 9.0, None),
    "of an address": ((1.5, 2.5, 1.5), 4.5, 9.0, None),
}
"""What two calls with the same inputs leave, one with others between, another process, and a config: what is said."""


@pytest.mark.parametrize(("values", "again", "configs", "said"), FLOATS_LEFT.values(), ids=FLOATS_LEFT)
def test_a_float_left_behind_is_compared_where_untuned_calls_share_it(values, again, configs, said):
    """It is no time where calls of one process, or the last ones of two, agree."""

    def left(value):
        return [Part("model.x", "float", np.asarray(value), is_tensor=False)]

    gate = OutputGate("m", lambda _: None)
    first, between, last = map(left, values)
    reference = replace(seen_of(RIGHT, left=last), times=possible_times(last, first, between))
    reference = gate.unpacked(gate.packed(reference))
    reference = gate.settled(reference, seen_of(RIGHT, left=left(again)), 1e-3) or reference
    if said is None:
        gate.errors(reference, seen_of(RIGHT, left=left(configs)), 1e-3)
    else:
        with pytest.raises(WrongResultError, match=said):
            gate.errors(reference, seen_of(RIGHT, left=left(configs)), 1e-3)
