"""Everything that can be asked stands once: each face has each field, with one default and the same limits."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import autotune
from autotune.cli import app
from autotune.command_line import as_flag, flag
from autotune.errors import InputError, answering
from autotune.question.question import Asked, AskedAgain, Question, as_typed, parse_arguments

ASKED_FOR = {name for name, field in Question.model_fields.items() if field.description}


def flags_of(command: str) -> dict:
    """Field -> its flag of a command."""
    parameters = typer.main.get_command(app).commands[command].params
    return {one.name: one for one in parameters if one.param_type_name == "option"}


def test_each_field_has_a_flag():
    """Its help, default and environment variable are those of the field."""
    flags = flags_of("tune")
    assert flags.keys() == ASKED_FOR | {"help_all"}
    for name, parameter in ((one, flags[one]) for one in ASKED_FOR):
        field = Question.model_fields[name]
        assert (parameter.help, parameter.envvar) == (field.description, field.json_schema_extra["variable"])
        if parameter.default is not None and not parameter.required:
            assert parameter.default == field.default


@pytest.mark.parametrize(("function", "fields"), [(autotune.tune, Asked), (autotune.resume, AskedAgain)])
def test_a_call_from_python_takes_the_fields(function, fields):
    """The signature that an editor and `help` show has them all, with the defaults of the model."""
    parameters = inspect.signature(function).parameters
    assert fields.__annotations__.keys() <= parameters.keys() & ASKED_FOR
    for name in fields.__annotations__:
        assert parameters[name].default == Question.model_fields[name].default
    words = rf"{function.__name__}\(\) got an unexpected keyword argument 'trails'; did you mean trials\?"
    with pytest.raises(TypeError, match=words):
        function("vit", trails=3)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("trials", 0),
        ("jobs", 0),
        ("tolerance", 0.0),
        ("tolerance", 1e4),
        ("seed", -1),
        ("seed", 2**32),
        ("trial_timeout", 0.5),
    ],
)
def test_limits_are_the_same_by_every_door(field, wrong):
    """A call from Python and a command refuse the same values, each in its words."""
    with pytest.raises(InputError, match=rf"^{field}={wrong}: should be"):
        Question.of({field: wrong})
    refused = CliRunner().invoke(app, ["tune", "--model", "vit", flag(field), str(wrong)])
    assert refused.exit_code == 2
    assert f"'{flag(field)}'" in refused.output
    assert "should be" in refused.output


def test_a_choice_is_worded_for_who_is_answered():
    """What is like it, and what there is."""
    with pytest.raises(InputError, match=r"^effort='quik': unknown") as caught:
        Question.of({"effort": "quik"})
    assert caught.value.tip == "did you mean quick? choose quick, normal or exhaustive"
    with answering(as_flag), pytest.raises(InputError, match=r"^--effort quik: unknown"):
        Question.of({"effort": "quik"})


def test_what_is_typed_and_what_is_given_in_python_are_one_question():
    """Texts or a list of them, NAME=VALUE or a dict, None or nothing."""
    typed = Question.of({"arguments": ["rows=2", "name=a b"], "env": ["A=1"], "space": "x.yaml", "objective": None})
    given = Question.of({"arguments": {"rows": 2, "name": "a b"}, "env": {"A": 1}, "space": Path("x.yaml")})
    assert typed == given
    assert typed.objective is None


@pytest.mark.parametrize("field", ["traffic", "inputs", "report", "studies_dir", "space"])
def test_a_path_begins_at_home(field, monkeypatch):
    """A shell leaves `--studies-dir=~/x` as it is, and a file of flags has no shell: no folder `~` is made."""
    monkeypatch.setenv("HOME", "/home/me")
    found = getattr(Question.of({field: "~/x"}), field)
    assert found in (Path("/home/me/x"), (Path("/home/me/x"),))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"arguments": {"rows": [1]}}, "arguments={'rows': [1]}: rows is no number, text, True, False or None"),
        ({"arguments": ["rows"]}, "arguments rows: expected NAME=VALUE"),
        ({"arguments": ["rows=1e999"]}, "arguments rows: inf is no number that can be given"),
        ({"env": ["=1"]}, "env =1: expected NAME=VALUE"),
        ({"prior": 3}, "prior=3: is neither a text nor a list of texts"),
    ],
)
def test_what_cannot_be_used_is_named(given, words):
    """The field and what is wrong with it."""
    with pytest.raises(InputError) as caught:
        Question.of(given)
    assert str(caught.value) == words


@pytest.mark.parametrize("value", [1, -2.5, True, False, None, "a", "1", "None", "true", "it's", ""])
def test_a_value_is_typed_as_it_is_read(value):
    """A text that looks like a number is quoted."""
    assert parse_arguments("arguments", [f"x={as_typed(value)}"]) == {"x": value}
