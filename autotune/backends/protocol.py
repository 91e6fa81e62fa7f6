"""`Backend`: what every framework offers. What only some offer is in `capabilities`.

A backend is imported in the child that runs a trial (and in the job that loads a tuned config), never in the parent.
docs/search-spaces.md says how to add one; the conformance test is parametrised over the table in `registry`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.backends.capabilities import Offers
from autotune.backends.contracts.compiler import Compiler
from autotune.backends.contracts.models import Models
from autotune.backends.contracts.runtime import Runtime
from autotune.backends.contracts.values import Values
from autotune.measure.diagnosis import BreakKind, GraphBreak


class Backend(Runtime, Values, Models, Compiler, Offers, Protocol):
    """One framework: four contracts, and what it offers beyond them. Code that needs one contract asks for that alone.

    A backend is a subclass: a method with a body has a default, and so has each capability. Every method runs in the
    process that owns the model; none starts a process. The order of a trial: `prepare`, (the workload builds its
    model), `place`, `compile`, first call, more calls, `diagnose`.
    """


@dataclass(frozen=True)
class PlainCode:
    """A config in the framework's own code. The model is called `model` there."""

    line: str
    """Statements in one line, which can be executed."""
    beside: tuple[str, ...] = ()
    """What the config does that no such statement can say, in words."""


class Reports(Protocol):
    """What a framework writes to stderr about graph breaks, read in the parent. A module has this form."""

    VARIABLES: dict[str, str]
    """Environment variables that make a process write it."""
    CAPTURABLE: tuple[BreakKind, ...]
    """Kinds of graph breaks that can be taken out by a setting: see `BreakCapture`."""

    def breaks(self, text: str) -> tuple[GraphBreak, ...]:
        """Graph breaks that stand in no record of the process; empty where all do."""

    def refusal(self, text: str) -> GraphBreak | None:
        """The place that made the framework refuse to compile, from the traceback of the process."""


class SavedModels(Protocol):
    """A live model and its inputs in a file. A module has this form."""

    LOADER: str
    """Text of a module whose function `build` returns what was saved in `{file}`, a file beside it."""

    def save_model(self, model: Any, inputs: list[Any] | None, path: Path) -> frozenset[str]:
        """Write both, the example inputs first; None: they come from another file. The same model gives the same bytes.
        Returns the modules that loading them needs. Raises InputError for what another process could not load, and
        OSError."""


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Within: the environment with these in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
