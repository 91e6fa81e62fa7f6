"""Trials outside of any study: a folder and processes for the length of one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.bench.local import LocalBench
from autotune.own_folders import TemporaryFolder
from autotune.trial.folder import failed_trials


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the processes of one call. It stays where one of them failed: it is the evidence."""
    folder = TemporaryFolder("trials")
    interrupted = False
    try:
        yield folder.path
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if interrupted or not failed_trials(folder.path):
            folder.remove()
        else:
            folder.keep()


def bench_in(folder: Path, variables: dict[str, str], python: Path | None = None) -> LocalBench:
    """What runs them, with the interpreter of another environment if one is given; a context manager."""
    return LocalBench(variables, log=folder / "supervisor.log", python=python)
