"""Which model and which space file goes with which framework of a study, from what the user typed."""

from __future__ import annotations

from pathlib import Path

from autotune import models
from autotune.backends.registry import BACKENDS
from autotune.errors import InputError
from autotune.space.load import read_space_file


def models_of(texts: tuple[str, ...], frameworks: tuple[str, ...]) -> dict[str, str]:
    """Framework -> its model, from the values of `--model`. Raises InputError.

    A bundled model exists under one name in several frameworks. A function of the user's gives one framework's model,
    so several frameworks need one each: `--model torch=FILE.py:FUNCTION --model mindspore=FILE.py:FUNCTION`.
    """
    named = dict(text.split("=", 1) for text in texts if text.partition("=")[0] in BACKENDS)
    if len(texts) == 1 and not named:
        if len(frameworks) > 1 and texts[0] not in models.names():
            raise InputError(
                f"--model {texts[0]}: one function gives one framework's model, and this study has {_all(frameworks)}",
                tip=f"name one for each, with the same weights and inputs: {_one_for_each(frameworks)}",
            )
        return dict.fromkeys(frameworks, texts[0])
    if len(named) < len(texts) or named.keys() != set(frameworks):
        raise InputError(
            f"--model {' --model '.join(texts)}: one model for each framework is needed: {_all(frameworks)}",
            tip=f"write: {_one_for_each(frameworks)}",
        )
    return named


def spaces_of(files: tuple[Path, ...], frameworks: tuple[str, ...]) -> dict[str, Path]:
    """Framework -> its space file, of those given with `--space`: each file says whose it is. Raises InputError."""
    spaces: dict[str, Path] = {}
    for path in files:
        framework = read_space_file(path).framework
        if framework not in frameworks:
            raise InputError(f"{path}: key framework: is {framework!r}, but the study uses {_all(frameworks)}")
        if framework in spaces:
            raise InputError(f"--space {path}: {spaces[framework]} is for {framework} too", tip="give one for each")
        spaces[framework] = path
    return spaces


def _all(frameworks: tuple[str, ...]) -> str:
    return " and ".join(frameworks)


def _one_for_each(frameworks: tuple[str, ...]) -> str:
    return " ".join(f"--model {name}=FILE.py:FUNCTION" for name in frameworks)
