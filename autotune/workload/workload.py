"""`Workload`: what is tuned, as data: a function that builds a model, its arguments, a framework and a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from autotune.command_line import command
from autotune.config import Scalar
from autotune.errors import InputError, marked
from autotune.files import read_file
from autotune.schema import Record
from autotune.workload.function_digest import digest_of
from autotune.workload.hubs import builder_of_today
from autotune.workload.traffic import Traffic

Device = Literal["cpu", "gpu", "ascend"]
Task = Literal["infer", "train", "generate"]
"""What is done with a model: inference, a training step, or generation of text."""
Load = Literal["convolutions", "few rows", "many rows"]
"""What a call is to a device: it convolves, or it multiplies matrices that take longer to read than to compute with, as
those of a decode step, which has few rows of numbers; or less long, as those of the step over a prompt."""

STREAM_CALLS = 64
"""Calls of a stream, unless a job has fewer: enough to include a shape of 2 %, few enough for a search."""


class Workload(Record):
    """A model function with its arguments, a framework and a device: all that is needed to build it again."""

    model: str
    """As the user named it: `vit`, `path/to/file.py:function` or `package.module:function`."""
    reference: str
    """What is imported: `package.module:function` or `/absolute/path/file.py:function`."""
    arguments: dict[str, Scalar] = {}
    framework: str
    device: Device
    task: Task = "infer"
    traffic: Traffic | None = None
    """The shapes that it is called with; `arguments` then hold the largest size of each dimension. None: one shape."""
    stream_calls: PositiveInt = STREAM_CALLS
    """Calls of the stream that a trial replays where there is traffic."""
    inputs: str | None = None
    """Absolute path of a file with real calls (see `Backend.calls_file`); None: the function gives all inputs."""
    inputs_sha256: str | None = None
    """Digest of that file."""
    seed: int = 0
    search_path: str
    """Folder from which `package.module` is importable: where the user started the tool."""
    source_sha256: str | None = None
    """Digest of the function with what it uses from its file, where it is known without an import."""
    imported: tuple[str, ...] = ()
    """Modules of installed packages that building it imports first, each with what it imports itself; empty where that
    is not known."""
    built_once: bool = False
    """Its weights take so much that trials share one build, where that can be forked (`BuiltAhead`)."""

    @model_validator(mode="before")
    @classmethod
    def _with_the_builder_of_today(cls, given: Any) -> Any:
        """A study of an earlier release names the builder of a hub's model where it was then."""
        if not isinstance(given, Mapping) or not isinstance(given.get("model"), str):
            return given
        reference = builder_of_today(given["model"], str(given.get("task", "infer")), given.get("reference"))
        return {**given, "reference": reference}

    def is_built_as(self, other: Workload) -> bool:
        """One build is that of both: they differ at most in what is known of it."""
        known = {"imported": (), "built_once": False}
        return self.model_copy(update=known) == other.model_copy(update=known)

    def is_of_same_model(self, other: Workload) -> bool:
        """Its function makes the same kind of model: the arguments that are text are the same too, since `name` or
        `network` chooses the model; numbers are sizes, of the model or of its inputs."""
        return (self.reference, self.framework, self._texts) == (other.reference, other.framework, other._texts)

    @property
    def _texts(self) -> dict[str, Scalar]:
        return {name: value for name, value in self.arguments.items() if isinstance(value, str)}

    @property
    def shapes(self) -> str | None:
        """The shapes that it is called with, in words and with a digest, since words for many shapes say less; None:
        there is one shape."""
        return None if self.traffic is None else f"{self.traffic} ({self.traffic.fingerprint})"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Arguments whose values are the sizes of these shapes."""
        return () if self.traffic is None else self.traffic.dimensions


def split_reference(model: str) -> tuple[str, str]:
    """Split `file.py:function` or `package.module:function` into its two parts. Raises InputError."""
    place, _, function = model.rpartition(":")
    if not place or not function.isidentifier():
        raise InputError(
            f"{marked('build', model)}: not a bundled model, nor FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION",
            tip=f"run `{command('models')}` for the bundled ones",
        )
    return place, function


def file_reference(place: str | Path, function: str, search_path: Path = Path()) -> tuple[str, str]:
    """Absolute reference of a function in a file, and a digest of it. Raises InputError if unreadable.

    A relative `place` is relative to `search_path`.
    """
    path = (search_path / os.path.expanduser(place)).resolve()
    try:
        content = read_file(path)
    except InputError as error:
        raise error.about(marked("build", f"{path.name}:{function}")) from None
    return f"{path}:{function}", digest_of(content, function)
