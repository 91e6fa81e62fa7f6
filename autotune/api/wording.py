"""Errors in a Python caller's words: the code below names the flags of the command line, here they are arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from autotune.command_line import command
from autotune.errors import AutotuneError

P = ParamSpec("P")
T = TypeVar("T")

_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")
_ARGUMENTS = {"model": "build", "model-arg": "arguments", "constraint": "constraints", "knob": "knobs"}
"""Flag -> the argument, where it is not the same name with underscores."""


def in_python_words(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors and tips name arguments in place of flags. A command line in a tip stays one."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except AutotuneError as error:
            error.reword(_reworded)
            # It is about what was given: frames of this package between the caller and the sentence tell nothing.
            raise error.with_traceback(None) from error.__cause__

    return call


def _reworded(text: str) -> str:
    if command() in text:
        return text
    return _FLAG.sub(lambda flag: _ARGUMENTS.get(flag[1], flag[1].replace("-", "_")), text)
