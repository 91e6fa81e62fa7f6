"""The document of one process of a job in a folder.

A process that is killed writes nothing at its end. So the document is written anew now and then, and once more where
the process ends in a way that Python sees. One that was forked has a document of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PROCESSES = "processes"
"""Where in the folder each process has its document. `tune` knows the folder by it."""


class Document(ABC):
    """See the module."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.lock = threading.Lock()
        self.is_over = False
        self._begin()
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self._forked)
        self._leave = os._exit
        self._leave_written = self._written_and_left
        os._exit = self._leave_written

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
        self._written_ns = 0
        self._written_size = -1
        self._token = os.urandom(4).hex()

    def _forked(self) -> None:
        self.lock = threading.Lock()
        self._begin()
        self.forget()

    def _written_and_left(self, status: int) -> NoReturn:
        """In place of `os._exit`, with which processes that multiprocessing forks end."""
        self.write()
        self._leave(status)

    def close(self) -> None:
        """Write what there is; nothing is counted or written any more."""
        self.write()
        self.is_over = True
        atexit.unregister(self.write)
        if os._exit is self._leave_written:
            os._exit = self._leave

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
                path = place / f"{socket.gethostname()}-{os.getpid()}-{self._token}.json"
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(process))
                partial.replace(path)
        except Exception as problem:
            if os.environ.get("AUTOTUNE_WATCH_DEBUG"):
                with suppress(Exception):
                    sys.stderr.write(f"autotune: {self.folder} was not written: {problem!r}\n")
        finally:
            self.lock.release()
