"""Which models a night tunes, and what each is asked, from a YAML file (`Member`).

budget: 6h                  # any flag of `tune`, for all models; a time is shared
models:
  vit: vit                  # name of the study: the model,
  ranker:                   # or the flags of `tune`
    model: ranker.py:build
    shapes: "batch=1:60%,8:40%"
    budget: 30m             # of its own, not of the time that is shared
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.api.running import parse_budget
from autotune.errors import InputError
from autotune.files import read_yaml
from autotune.question.question import Question
from autotune.study.study import check_name

FlagsIn = Callable[[Mapping[Any, Any], str], Mapping[str, Any]]
"""Fields as they would be typed, of a mapping with flags and what stands before its keys. Raises InputError."""
_MODELS = "models"
_OF_ALL = {
    "study": "its key is the study's name",
    **dict.fromkeys(("studies_dir", "report", "quiet"), "give it on the command line"),
}
"""Field that no model of a fleet has -> what to do."""


@dataclass(frozen=True)
class Member:
    """A model of the fleet."""

    study: str
    question: Question
    shares_time: bool
    """Its budget is that of all models; what is left is divided evenly among those to come."""


def read_spec(path: Path, flags_in: FlagsIn, budget: str | None = None) -> list[Member]:
    """The models in their order. `budget`: for all of them, in place of what the file says. Raises InputError, which
    names file and key."""
    content = read_yaml(path)
    models = content.pop(_MODELS, None)
    if not isinstance(models, dict) or not models:
        raise InputError(
            f"{path}: key {_MODELS}: {'is missing' if models is None else 'names no model'}",
            tip="write e.g. models: {vit: vit, mine: {model: my_model.py:build}} (docs/fleet.md)",
        )
    common = {**_flags(path, content, "", flags_in), **({} if budget is None else {"budget": budget})}
    return [_member(path, str(name), given, common, flags_in) for name, given in models.items()]


def _member(path: Path, name: str, given: Any, common: Mapping[str, Any], flags_in: FlagsIn) -> Member:
    place = f"{_MODELS}.{name}."
    own = _flags(path, {"model": given} if isinstance(given, str) else given, place, flags_in)
    question = Question.of({**common, **own, "study": name}, f"{path}: key {_MODELS}.{name}")
    if not question.build:
        raise InputError(f"{path}: key {place}model: is missing", tip="write what `tune` takes as MODEL")
    with _about(f"{path}: key {place.rstrip('.')}"):
        check_name(name)
    return Member(name, question, shares_time="budget" not in own)


@contextmanager
def _about(place: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise error.about(place) from None


def _flags(path: Path, given: Any, place: str, flags_in: FlagsIn) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"{path}: key {place.rstrip('.')}: is neither a model nor flags of tune")
    found = flags_in(given, place)
    with _about(f"{path}: key {place}budget"):
        parse_budget(found.get("budget"))
    for field, why in _OF_ALL.items():
        if field in found:
            raise InputError(f"{path}: key {place}{field.replace('_', '-')}: is not one model's", tip=why)
    return found
