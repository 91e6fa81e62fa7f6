"""Variants: functions of the author's that change the model in place, found again in a job, and undone."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from autotune.apply import compile_model
from autotune.apply.config_parts import ConfigParts
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError, MissingVariantError

CONFIG = Config({"execution": "compile", "program": "p", "variant.activation": "fused", "variant.attention": "math"})


class Layer:
    factor = 2

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def __call__(self, x: float) -> float:
        return x * self.factor + len(self.parts)


class Fused(Layer):
    factor = 3


def make_fused(model: Layer) -> None:
    """Sets an attribute, another class and an entry of a dict."""
    model.bias = 1  # type: ignore[attr-defined]
    model.__class__ = Fused
    model.parts["new"] = Layer()


def fails(model: Layer) -> None:
    raise ZeroDivisionError


DECLARED = {"activation": {"plain": None, "fused": make_fused}, "attention": {"sdpa": None, "math": fails}}


def test_the_functions_of_a_config() -> None:
    """Those of the values that it has, in its order; the model as it is needs none; an unknown value is invalid."""
    assert compile_model.declared_functions(CONFIG, DECLARED) == [make_fused, fails]
    assert compile_model.declared_functions(Config({"variant.activation": "plain"}), DECLARED) == []
    for unknown in ({"variant.activation": "x"}, {"variant.norm": "fused"}):
        with pytest.raises(InvalidConfigError, match="declares no variant"):
            compile_model.declared_functions(Config(unknown), DECLARED)


def test_a_variant_is_applied_to_a_copy() -> None:
    """What is called has the variant; the model that it was made of is not touched."""
    model = Layer()
    step = compile_model.compile_under(load_backend("fake"), model, Config({}), [make_fused], UndoLog())
    assert step(1) == 4
    assert (type(model), model(1), vars(model)) == (Layer, 2, {"parts": {}})


def test_what_a_variant_raises_comes_through() -> None:
    """It is the author's code: its error is not ours to rephrase."""
    with pytest.raises(ZeroDivisionError):
        compile_model.compile_under(load_backend("fake"), Layer(), Config({}), [fails], UndoLog())


def test_variants_tell_programs_apart() -> None:
    """Two configs that differ in a variant are two programs, whatever a backend says; without any it has the word."""
    backend = load_backend("fake")
    plain = Config({**CONFIG.root, "variant.activation": "plain"})
    digests = {compile_model.program(backend, Layer(), each) for each in (CONFIG, plain)}
    assert len(digests) == 2
    assert compile_model.program(backend, Layer(), ConfigParts.of(CONFIG).settings) == "p"
    assert compile_model.program(backend, Layer(), Config({"variant.activation": "plain"})) is None


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (make_fused, f"{__name__}:make_fused"),
        (Layer.__call__, f"{__name__}:Layer.__call__"),
        (lambda model: None, None),
        (functools.partial(make_fused), None),
        (None, None),
    ],
)
def test_where_a_function_is_found(function: Any, place: str | None) -> None:
    """By module and name, if it is what stands there; what is made on the way has no place."""
    assert compile_model.place_of(function) == place


def test_a_function_of_a_models_file_has_no_place() -> None:
    """Its module exists in a trial only."""

    def function(model: Any) -> None: ...

    function.__module__, function.__qualname__ = "_autotune_model_net", "function"
    assert compile_model.place_of(function) is None


PLACES = {"activation": f"{__name__}:make_fused"}


def test_a_job_gives_its_variants() -> None:
    """Only what the job gives is called; what the exported file does not name is the model as it is."""
    assert compile_model.given_functions(CONFIG, PLACES, {"activation": {"fused": fails}}) == [fails]
    assert compile_model.given_functions(CONFIG, {}, {}) == []


@pytest.mark.parametrize("place", [None, f"{__name__}:make_fused", "os:system", ""])
def test_a_variant_that_is_not_at_hand(place: str | None) -> None:
    """A sentence with the variant and what to write; nothing that the file names is imported."""
    with pytest.raises(MissingVariantError, match="variant activation=fused") as caught:
        compile_model.given_functions(CONFIG, {"activation": place}, {"activation": {}})
    assert not place or place in str(caught.value)
    assert caught.value.tip == "give it: apply(model, variants={'activation': {'fused': FUNCTION}})"
    assert isinstance(caught.value, InputError)
