"""`record`: a few real calls of a job's model, kept in a file on which a study can compare results."""

from __future__ import annotations

import logging
import os
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np

from autotune.backends.capabilities import require
from autotune.backends.registry import framework_of, load_backend
from autotune.errors import InputError
from autotune.job.stats import recorder_of
from autotune.workload.arguments import Arguments

_LOG = logging.getLogger("autotune")


class Recording:
    """Calls of a model that are being kept. Its `with` block ends it; so does the last call that is kept."""

    def __init__(self, model: Any, path: Path, num_calls: int) -> None:
        framework = framework_of(model)
        if framework is None:
            raise InputError(
                f"a {type(model).__name__} is no model of an imported framework", tip="give a torch.nn.Module or a Cell"
            )
        if recorder_of(model) is not None:
            raise InputError("a tuned model's calls are not recorded", tip="record the model before `apply`")
        self._backend = load_backend(framework)
        self._file = require(self._backend.calls_file, "autotune.record")
        if path.suffix not in self._file.suffixes[:1]:
            raise InputError(f"{path}: calls of {framework} are kept in a file that ends in {self._file.suffixes[0]}")
        ranks = self._backend.ranks()
        if ranks is not None and ranks.rank > 0:
            path = path.with_stem(f"{path.stem}-rank{ranks.rank}")
            _LOG.info("autotune: rank %d keeps its calls in %s", ranks.rank, path)
        if path.exists():
            raise InputError(f"{path} is there already", tip="remove it, or choose another place")
        self._path = path
        self._num_calls = num_calls
        self._lock = Lock()
        self.calls: list[Arguments] = []
        """What is kept so far: copies."""
        self._is_open = True
        self._stop = require(self._backend.watch_calls, "autotune.record")(model, self._keep)

    def close(self) -> None:
        """Watch no more calls, and write the file if there were any. Raises OSError and InputError."""
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, arguments: Arguments) -> None:
        """Never raises: a call of the job must not fail because it was watched."""
        with self._lock:
            if not self._is_open:
                return
            try:
                self.calls.append(_copied(arguments, self._backend))
                if len(self.calls) >= self._num_calls:
                    self._close()
            except Exception as error:
                self._stop()
                _LOG.warning("%s: no more calls are recorded: %s", self._path, error)

    def _close(self) -> None:
        self._stop()
        is_open, self._is_open = self._is_open, False
        if not is_open or not self.calls:
            return
        if self._path.exists():  # Processes that do not know of each other were given one name.
            taken, self._path = self._path, self._path.with_stem(f"{self._path.stem}-{os.getpid()}")
            _LOG.warning(
                "autotune: %s was written by another process meanwhile: the calls are in %s", taken, self._path
            )
        self._file.write(self.calls, self._path)


def record(model: Any, path: str | PathLike[str], calls: int = 8) -> Recording:
    """Keep the arguments of the next `calls` calls of a job's model in the file at `path`, for `tune --inputs`.

    The calls are watched from now on, each is made as ever, and its tensors, numbers and texts are copied before. The
    file is written when so many calls were made, or at the end of a `with` block; it ends in `.pt` for PyTorch, in
    `.npz` for MindSpore. Give the model as it is, before `apply`. Raises InputError for any other object, and for a
    file that is there already. In a distributed job rank N keeps its own in `NAME-rankN`, and rank 0 in the file of
    this name. A call that cannot be kept, such as one with an object that no safe file holds, ends the
    recording with a warning; the calls before it are written.
    """
    if calls < 1:
        raise InputError(f"calls={calls}: at least one is needed")
    return Recording(model, Path(fspath(path)).absolute(), calls)


def _copied(arguments: Arguments, backend: Any) -> Arguments:
    """What the call is made with, however the job goes on to use its tensors. Raises InputError for what no file can
    hold."""
    copies = []
    for name, leaf in arguments.named_leaves():
        array = backend.to_array(leaf)
        if array is None and not (leaf is None or isinstance(leaf, (bool, int, float, str))):
            raise InputError(f"{name} is a {type(leaf).__name__}")
        copies.append(leaf if array is None else backend.like(np.array(array), leaf))
    return arguments.with_leaves(copies)
