"""Errors that an operator can fix. Each carries one sentence that says what happened, where, and what to do.

A trial that fails is not an error: it is a `Failure`, a value (see `measurement`). Everything that is not an
`AutotuneError` is a bug of this package and keeps its traceback.

What comes from outside is shown without the characters that act on a terminal or begin a new line of a log: a model's
error, a name or a path may hold escape sequences, which would move the cursor, hide lines or set a title.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, those that turn the direction of text, and what is no text."""


def is_printable(text: str) -> bool:
    """It holds no character that acts on a terminal, not even a new line."""
    return _ACTING.search(text) is None


def as_argument(field: str, value: object) -> str:
    """How a caller in Python says a field of the question, with what was given for it: `tolerance=0.1`."""
    return field if value is None else f"{field}={value!r}"


_words: list[Callable[[str, object], str]] = [as_argument]
"""How this process says a field: by the last one of them."""
_FIELD = re.compile("⟪([a-z_]+)(?:=([^⟫]*))?⟫")


@contextmanager
def answering(words: Callable[[str, object], str]) -> Iterator[None]:
    """In the block `worded` says fields in these words."""
    _words.append(words)
    try:
        yield
    finally:
        _words.pop()


def marked(field: str, value: object = None) -> str:
    """A field of the question, and what was given for it, in a text that `worded` completes: the text can be stored, or
    come from another process, before it is known who is answered."""
    if value is None:
        return f"⟪{field}⟫"
    return f"⟪{field}={json.dumps(dict(value) if isinstance(value, Mapping) else value, default=str)}⟫"


def worded(text: str) -> str:
    """A text whose fields are as the user says them who is answered.

    `marked("tolerance", 0.1)` becomes `tolerance=0.1`, and `--tolerance 0.1` where the command line answers. Several
    values are a list, pairs NAME=VALUE a mapping.
    """
    return _FIELD.sub(lambda match: _words[-1](match[1], match[2] and json.loads(match[2])), text)


def printable(text: str) -> str:
    """The text as a face shows it in one line: its fields worded, and such characters as escapes, ESC as `\\x1b`."""
    return _ACTING.sub(_written_out, worded(text))


def printable_lines(text: str) -> str:
    """Text as `printable` gives it, whose line ends and tabs stay."""
    return _ACTING.sub(lambda match: match[0] if match[0] in "\n\t" else _written_out(match), worded(text))


def _written_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


class AutotuneError(Exception):
    """Base class. `exit_code` is what the command line returns; `tip` says what to do about it.

    Both texts are safe to print: names, paths and other people's errors in them may hold control characters. The fields
    in them (`marked`) are worded by `str` and `tip`; in a text that the error is formatted into they stay.
    """

    exit_code = 2

    def __init__(self, what: str, *, tip: str | None = None) -> None:
        super().__init__(what)
        self.unworded = (what, tip)
        # A traceback, as a notebook shows it, has the tip below the sentence.
        self.__notes__ = [] if self.tip is None else [f"tip: {self.tip}"]

    def __str__(self) -> str:
        return printable(self.unworded[0])

    def __format__(self, form: str) -> str:
        return format(self.unworded[0], form)

    @property
    def tip(self) -> str | None:
        """What to do, in a sentence; None where there is nothing to say."""
        tip = self.unworded[1]
        return None if tip is None else printable(tip)

    def about(self, place: str) -> InputError:
        """An error with the same tip, whose sentence begins with the place."""
        return InputError(f"{place}: {self}", tip=self.unworded[1])

    def with_tip(self) -> str:
        """The sentence with the tip in brackets, in one text whose fields are not worded yet."""
        what, tip = self.unworded
        return f"{what} ({tip})" if tip else what


class InputError(AutotuneError):
    """A flag, name, file or value that the operator gave cannot be used."""


class MissingVariantError(InputError):
    """A tuned config uses a variant of the model that the job neither gives nor can import."""


class MissingFrameworkError(AutotuneError):
    """A framework is needed that this Python environment does not have."""


class MissingDeviceError(AutotuneError):
    """The requested device is not on this machine, or the installed framework cannot use it."""


class StoreError(AutotuneError):
    """A study's folder or database cannot be opened, read or written."""


class SetupError(AutotuneError):
    """Trials cannot be run at all: the machine or the workload is at fault, not a config."""


class NoUsableTrialError(AutotuneError):
    """Trials ran, and none of them gave a usable measurement."""

    exit_code = 1


class InvalidConfigError(AutotuneError):
    """A config asks for something that the installed framework does not accept (found in the child)."""


class UnsuitableCallError(InvalidConfigError):
    """A call that compiled code must not serve, found before any of it ran: the untuned model has to.

    `lasting`: so it is with every later call.
    """

    def __init__(self, what: str, *, tip: str | None = None, lasting: bool = False) -> None:
        super().__init__(what, tip=tip)
        self.lasting = lasting


def shown_at_the_call(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors show the caller's own line last: frames of this package tell nothing of a mistake."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except AutotuneError as error:
            raise error.with_traceback(None) from error.__cause__

    return call


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question with the name that is most like the one that was given, for the beginning of a tip; else nothing."""
    # Two dashes in front make no flags alike.
    bare = {name.lstrip("-"): name for name in known}
    near = get_close_matches(given.lstrip("-"), bare, n=1)
    return f"did you mean {bare[near[0]]}? " if near else ""


def quoted(error: BaseException, *, max_lines: int = 1, max_chars: int = 200) -> str:
    """An exception as a person would quote it: its type and the first lines that say something, in one line. A
    compiler's message can be pages."""
    lines = [line.strip() for line in f"{error}".splitlines() if line.strip()]
    text = " ".join(lines[:max_lines])[:max_chars]
    # A message can hold an undecodable file name, which JSON cannot.
    text = text.encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it came from in turn."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


OUTPUT = "standard output"


@contextmanager
def naming(place: str) -> Iterator[None]:
    """An error of the system in the block says that it is of this place: it has a name only where a file is opened."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or place
        raise


def let_through(error: BaseException) -> None:
    """Mark an exception by which a call's own caller ends it: it is no failure, and reaches the caller as it is."""
    error.__dict__["autotune_lets_through"] = True


def is_let_through(error: BaseException) -> bool:
    """Whether it was marked."""
    return "autotune_lets_through" in error.__dict__


def finish_by(error: BaseException, rest: Callable[[], Any] | None) -> None:
    """Note on an exception what brings the call that it ended to its end, untuned, and returns the call's result.
    Nothing that the call has done is done twice by it. None: there is no such thing."""
    error.__dict__["autotune_rest"] = rest


def rest_of_call(error: BaseException, otherwise: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """What was noted; `otherwise` where nothing was."""
    rest: Callable[[], Any] | None = error.__dict__.get("autotune_rest", otherwise)
    return rest
