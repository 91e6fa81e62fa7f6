"""The document of one process of a job in a folder.

A process that is killed writes nothing at its end. So the document is written anew now and then, and once more where
the process ends in a way that Python sees. One that was forked has a document of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from autotune import own_folders
from autotune.errors import InputError

PROCESSES = "processes"
"""Where in the folder each process has its document. `tune` knows the folder by it."""


def made(output: str | Path) -> Path:
    """The folder from the root, made so far as it is not there. Raises StoreError at a link, and InputError where it
    cannot be made or written."""
    place = own_folders.absolute(output)
    try:
        own_folders.make(place / PROCESSES)
    except OSError as error:
        raise InputError(f"{output}: no folder can be made there: {error.strerror}", tip="name another") from None
    require_writable(place)
    return place


def require_writable(place: Path) -> None:
    """Raises InputError for a folder on what is read only, or that belongs to others."""
    if not os.access(place, os.W_OK):
        raise InputError(f"{place}: the folder cannot be written", tip="name another, or copy it to where it can be")


UNWRITTEN = "what was seen could not be written: is the disk full?"


def is_unwritten(folder: Path) -> bool:
    """Whether the latest document of a process could not be written there, as on a disk that is full."""
    return any((folder / PROCESSES).glob("*.partial"))


class _Here:
    """What is written at the end of this process, and how it leaves."""

    documents: ClassVar[list[Document]] = []
    leave = os._exit


def _leave_written(status: int) -> NoReturn:
    """In place of `os._exit`, with which processes that multiprocessing forks end."""
    for document in tuple(_Here.documents):
        document.write()
    _Here.leave(status)


def _begin_in_child() -> None:
    for document in _Here.documents:
        document.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def raise_of_signal(problem: BaseException) -> None:
    """Raise an error that a signal's handler of the job's has raised, such as that of a time limit, while something was
    done here: it is not for this package to deal with."""
    handlers = filter(callable, map(signal.getsignal, signal.valid_signals()))
    codes = {getattr(each, "__code__", None) or getattr(type(each).__call__, "__code__", None) for each in handlers}
    error: BaseException | None = problem
    while error is not None:
        place = error.__traceback__
        while place is not None:
            if place.tb_frame.f_code in codes:
                raise error
            place = place.tb_next
        error = error.__context__


class Document(ABC):
    """See the module."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.is_over = False
        self._begin()
        atexit.register(self.write)
        _Here.documents.append(self)
        if os._exit is not _leave_written:
            _Here.leave, os._exit = os._exit, _leave_written

    @abstractmethod
    def size(self) -> int:
        """Another number once there is something new to write; 0: there is nothing."""

    @abstractmethod
    def content(self) -> Mapping[str, Any]:
        """What is written, beside host and process."""

    @abstractmethod
    def forget(self) -> None:
        """Nothing happened yet: for a process that was forked."""

    def _begin(self) -> None:
        self.lock = threading.RLock()  # A signal's handler may end the process in the middle of a call.
        self._written_ns = 0
        self._written_size = -1
        self.token = os.urandom(4).hex()
        """What tells this process from others of its number, on other machines and in other runs."""

    def begin_in_child(self) -> None:
        """This is the process that was forked."""
        self._begin()
        self.forget()

    def close(self) -> None:
        """Write what there is; nothing is counted or written any more."""
        self.write()
        self.is_over = True
        atexit.unregister(self.write)
        if self in _Here.documents:
            _Here.documents.remove(self)
        if not _Here.documents and os._exit is _leave_written:
            os._exit = _Here.leave

    def is_due(self, number: int, now_ns: int, every_s: float) -> bool:
        """Whether it is time to write, after so many calls: after 2, 4, 8, ... and every few seconds."""
        return (number > 1 and number & (number - 1) == 0) or now_ns - self._written_ns > every_s * 1e9

    def write(self) -> None:
        """Write what there is, if anything is new. Never raises: the job goes on, or ends, as ever."""
        if self.is_over or not self.lock.acquire(timeout=5):
            return
        try:
            size = self.size()
            if size and size != self._written_size:
                self._written_size, self._written_ns = size, time.perf_counter_ns()
                process = {"host": socket.gethostname(), "pid": os.getpid(), **self.content()}
                place = self.folder / PROCESSES
                place.mkdir(parents=True, exist_ok=True)
                path = place / f"{socket.gethostname()}-{os.getpid()}-{self.token}.json"
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(process))
                partial.replace(path)
        except Exception as problem:
            raise_of_signal(problem)
            if os.environ.get("AUTOTUNE_WATCH_DEBUG"):
                with suppress(Exception):
                    sys.stderr.write(f"autotune: {self.folder} was not written: {problem!r}\n")
        finally:
            self.lock.release()
