"""What reaches a job's call from outside of it: an exception that a signal's handler raises, and a fork."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Protocol

from autotune.errors import is_let_through


def raise_interruption(error: BaseException) -> None:
    """Raises the exception that a signal's handler raised and that is behind `error`, if there is one; and `error`
    itself where a backend lets it through.

    Neither is a failure of the call that it came into: a job ends a call that takes too long so.
    """
    if is_let_through(error):
        raise error from None
    handlers = _handlers()
    for each in (error, error.__cause__):
        if each is not None and not handlers.isdisjoint(_codes(each)):
            raise each from None


class Forked(Protocol):
    """Something that has to be put right in a child process."""

    def after_fork(self) -> None:
        """Called in the child, by its only thread."""


def tell_of_forks(listener: Forked) -> None:
    """Call `after_fork` of the listener in each child process, for as long as the listener lives."""
    _listeners.add(listener)


def _handlers() -> set[CodeType]:
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return {code for each in handlers if callable(each) and (code := _code_of(each)) is not None}


def _code_of(function: Callable[..., object]) -> CodeType | None:
    found = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return found if isinstance(found, CodeType) else None


def _codes(error: BaseException) -> Iterator[CodeType]:
    """Of all functions that the exception came through."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next


def _tell_all() -> None:
    for each in list(_listeners):
        each.after_fork()


_listeners: weakref.WeakSet[Forked] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
