"""Callbacks of a caller, as one function for the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.api.events import Callback, Event
from autotune.errors import AutotuneError, InputError, quoted


class CallbackError(AutotuneError):
    """A callback raised an exception, which is the cause of this one. The run stopped there; what is recorded stays."""


def notify_all(callbacks: Callback | Sequence[Callback]) -> Callable[[Event], None]:
    """Calls them in order. Raises InputError for one that cannot be called.

    An exception of one becomes a CallbackError with its name; KeyboardInterrupt and SystemExit pass as they are.
    """
    listed = (callbacks,) if callable(callbacks) else tuple(callbacks)
    for callback in listed:
        if not callable(callback):
            raise InputError(f"callbacks: {callback!r} cannot be called", tip="give functions that take one event")

    def notify(event: Event) -> None:
        for callback in listed:
            try:
                callback(event)
            except BrokenPipeError:
                raise  # The reader of what it prints went away: no fault of the callback.
            except Exception as error:
                raise CallbackError(
                    f"the callback {_name_of(callback)} failed at {type(event).__name__}: {quoted(error)}",
                    tip="recorded trials are kept: fix the callback and make the same call again",
                ) from error

    return notify


def _name_of(callback: Callback) -> str:
    """A function's name, or the class of an object."""
    name: str = getattr(callback, "__qualname__", type(callback).__qualname__)
    return name
