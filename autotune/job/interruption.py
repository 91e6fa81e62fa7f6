"""What reaches a job's call from outside of it: an exception that is the job's own, and a fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from autotune.backends.origin import Origin, interruption, origin


def raise_interruption(error: BaseException) -> None:
    """Raises the exception that came from outside of a call and that is behind `error`, if there is one: a job ends a
    call that takes too long so, and it is no failure of the call. Raises `error` itself where a backend lets it
    through."""
    found = interruption(error)
    if found is error:
        raise error
    if found is not None:
        raise found from None


def raise_jobs_own(error: BaseException) -> None:
    """The same, also for what a hook of the job's raised in the call."""
    raise_interruption(error)
    if origin(error) is Origin.HOOK:
        raise error


class Forked(Protocol):
    """Something that has to be put right in a child process."""

    def after_fork(self) -> None:
        """Called in the child, by its only thread."""


def tell_of_forks(listener: Forked) -> None:
    """Call `after_fork` of the listener in each child process, for as long as the listener lives."""
    _listeners.add(listener)


def _tell_all() -> None:
    for each in list(_listeners):
        each.after_fork()


_listeners: weakref.WeakSet[Forked] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
