"""The parts of two runs, paired by name, and what a model's author says of how they are compared."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.errors import AutotuneError, InputError
from autotune.measure.parts import AuthorsWord, DisagreementError, Part, Strictness, errors, require_same_changes

BOXES = Part("output['boxes']", "float32", np.array([[0.0, 100.0], [50.0, 200.0]]))
SCORES = Part("output['scores']", "float32", np.array([0.9, 0.1]))
LABEL = Part("output['label']", "str", np.asarray("cat"), is_tensor=False)
EXPECTED = [BOXES, SCORES, LABEL]


def with_array(part: Part, array: object, form: str | None = None) -> Part:
    return Part(part.name, form or part.form, np.asarray(array), part.is_tensor)


def test_each_tensor_has_its_error():
    """Texts are compared, and have none."""
    off = with_array(SCORES, [0.9, 0.10045])
    assert errors(EXPECTED, [off, LABEL, BOXES], Strictness(0.01)) == pytest.approx(
        {"output['boxes']": 0, "output['scores']": 0.0005}
    )


WRONG = {
    "is missing": [BOXES, LABEL],
    "output['more'] is there": [*EXPECTED, Part("output['more']", "int64", np.zeros(1))],
    "output['scores']: relative error 0.111": [BOXES, with_array(SCORES, [0.8, 0.1]), LABEL],
    "output['scores']: float64 instead of float32": [BOXES, with_array(SCORES, SCORES.array, "float64"), LABEL],
    "output['label']: dog instead of cat": [BOXES, SCORES, with_array(LABEL, "dog")],
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_named(words):
    """The part, and how it differs."""
    with pytest.raises(DisagreementError) as caught:
        errors(EXPECTED, WRONG[words], Strictness(0.01))
    assert words in str(caught.value)


def test_forms_and_parts_can_be_left_out():
    """A wide reference has other types; a time is another one in each call."""
    wide = with_array(SCORES, SCORES.array, "float64")
    assert errors(EXPECTED, [BOXES, wide, LABEL], Strictness(0.01, with_forms=False))
    ignored = Strictness(0.01, ignored=frozenset({"output['label']"}))
    assert errors(EXPECTED, [BOXES, SCORES, with_array(LABEL, "dog")], ignored)
    assert errors(EXPECTED, [BOXES, SCORES], ignored)


@pytest.mark.parametrize(
    ("form", "next_to_1"), [("float8_e4m3fn", 1.125), ("float8_e5m2", 1.25), ("bfloat16", 1.0078125)]
)
def test_an_output_is_as_fine_as_its_type(form, next_to_1):
    """Rounded to the next number of a coarse type it is right, in a model of float32 too; further away it is not."""
    expected = [Part("output", form, np.array([1.0, -0.5]))]
    assert errors(expected, [with_array(expected[0], [next_to_1, -0.5])], Strictness(1e-3))
    with pytest.raises(DisagreementError):
        errors(expected, [with_array(expected[0], [2 * next_to_1 - 1 + 1e-3, -0.5])], Strictness(1e-3))


def test_the_same_things_are_left_behind():
    """A write that a config loses, adds, or makes with another value is wrong."""
    written = Part("argument 1", "float32", np.ones(3))
    counted = Part("model.num_calls", "int", np.asarray(3), is_tensor=False)
    terms = Strictness(0.01)
    require_same_changes([written, counted], [counted, written], terms)
    for theirs, ours, words in (
        ([written], [], "the untuned model changes argument 1, and the config leaves it as it is"),
        ([], [counted], "the config changes model.num_calls, and the untuned model leaves it as it is"),
        ([counted], [with_array(counted, 1)], "after the calls, model.num_calls: 1 instead of 3"),
    ):
        with pytest.raises(DisagreementError, match=words):
            require_same_changes(theirs, ours, terms)


class TestAuthorsWord:
    def agreed(self, given, got, tolerance=0.01):
        """Whether the parts pass with what the author said."""
        try:
            errors(EXPECTED, got, Strictness(tolerance, authors=AuthorsWord.of(given)))
        except DisagreementError:
            return False
        return True

    @pytest.mark.parametrize(
        ("rules", "array", "passes"),
        [
            ({"output['scores']": 0.2}, [0.8, 0.1], True),
            ({"output['scores']": 0.2}, [0.5, 0.1], False),
            ({"output['scores']": 1e-6}, [0.9001, 0.1], False),
            ({"output['scores']": None}, [0.0, 7.0], True),
            ({"output": None}, [0.0, 7.0], True),
            ({"output['boxes']": None}, [0.8, 0.1], False),
            ({"output['scores'][1:]": None}, [0.9, 7.0], True),
            ({"output['scores'][1:]": None}, [0.0, 0.1], False),
            ({"output['scores'][...,:1]": 0.2}, [0.8, 0.1], True),
            ({"output['scores'][...,:1]": 0.2}, [0.9, 0.2], False),
            ({"output['scores']": [True, False]}, [0.9, 7.0], True),
            ({"output['scores']": [True, False]}, [0.8, 0.1], False),
        ],
    )
    def test_rules_by_name_and_slice(self, rules, array, passes):
        """A tolerance of its own, not at all, or what a mask says counts; the rest by the study's tolerance."""
        assert self.agreed(rules, [BOXES, with_array(SCORES, array), LABEL]) is passes

    @pytest.mark.parametrize(
        ("said", "passes"), [(None, True), (True, True), (0.005, True), (0.1, False), (False, False), ("no", False)]
    )
    def test_a_function_decides(self, said, passes):
        """None and True are right, an error is held to the tolerance, False and a text are wrong."""
        assert self.agreed(lambda *_: said, [BOXES, with_array(SCORES, [0, 0]), LABEL]) is passes

    def test_a_function_gets_arrays_by_name(self):
        """Of the reference and of the config, without texts."""

        def same_order(reference, outputs):
            assert list(reference) == list(outputs) == ["output['boxes']", "output['scores']"]
            return list(np.argsort(reference["output['scores']"])) == list(np.argsort(outputs["output['scores']"]))

        assert self.agreed(same_order, [BOXES, with_array(SCORES, [0.6, 0.3]), LABEL])
        assert not self.agreed(same_order, [BOXES, with_array(SCORES, [0.1, 0.9]), LABEL])

    def test_a_function_that_fails_is_the_authors_error(self):
        """No config is blamed for it."""
        with pytest.raises(AutotuneError, match="compare function failed: ZeroDivisionError"):
            self.agreed(lambda *_: 1 / 0, EXPECTED)

    @pytest.mark.parametrize("given", [3, {}, {"output": "x"}, {"output": -1}, {"output[:, x]": 1.0}, {4: 1.0}])
    def test_what_is_no_rule_is_refused(self, given):
        """With what it is."""
        with pytest.raises(InputError, match="compare"):
            AuthorsWord.of(given)

    def test_rules_are_data_and_functions_are_not(self):
        """What a file can hold."""
        assert AuthorsWord.of({"output": 0.1, "output[1]": None}).described() == {"output": 0.1, "output[1]": None}
        assert AuthorsWord.of(lambda *_: True).described() == "function"
        assert AuthorsWord.of({"output": [True]}).described() == "function"
