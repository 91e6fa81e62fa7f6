"""`Work`: a kind of work, as it shows in a workload and in what the author's function returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, ClassVar, Self

from autotune.errors import InputError, marked
from autotune.workload.arguments import Arguments
from autotune.workload.workload import Task, Workload


class Work(ABC):
    """What is done with a model. The class is the kind; an instance holds what the author's function gave for it."""

    task: ClassVar[Task]
    """What the user asks for it by."""
    words: ClassVar[str]
    """What is measured."""
    entry: ClassVar[str | None] = None
    """The entry of a package by which a file names its kind; None for the kinds here, which other keys show."""
    named: ClassVar[tuple[str, ...]] = ()
    """How a study's own name says it; calls of a model need no word."""
    lacking: ClassVar[tuple[str, str]] = ("inputs", "call")
    """What a bundled model may lack for it, and what is done with those that do not."""
    has_plain_code: ClassVar[bool] = True
    """What a config does can be written in the framework's own code."""
    has_engines: ClassVar[bool] = False
    """An engine beside the framework may run the calls: all are of one model and one shape."""
    times_near_misses: ClassVar[bool] = False
    """A config that rounds and misses the tolerance by little is timed all the same."""
    has_many_shapes: ClassVar[bool] = False
    """Calls differ in their shapes, so that what compiling them takes is compared, and no portfolio is of them."""
    trains: ClassVar[bool] = False
    """It changes the weights, so that no process can share them with another."""
    needs: ClassVar[str] = "inputs"
    """The key that the author's function must return beside `model`."""
    keys: ClassVar[tuple[str, ...]] = ()
    """What it may return for this kind alone."""
    unsuitable: ClassVar[Mapping[str, str]] = {}
    """Declarations of other kinds that are refused -> why. What this kind takes, it honours. `inputs` beside prompts,
    and what is for training beside either, are for another task of the same function."""

    @classmethod
    def is_asked_by(cls, task: Task, *, many_shapes: bool) -> bool:
        """The user asked for this kind, as far as the author's function does not show another."""
        del many_shapes
        return task == cls.task

    @classmethod
    def is_shown_by(cls, parts: Mapping[str, Any]) -> bool:
        """What the author's function returned is for this kind, whatever the user asked for."""
        del parts
        return False

    @classmethod
    def adapted(cls, parts: Mapping[str, Any], workload: Workload) -> Mapping[str, Any]:
        """What the author's function returned, with this kind's own ways to say what is called as a `model`. Every kind
        is asked. Raises InputError."""
        del workload
        return parts

    @classmethod
    @abstractmethod
    def of(cls, parts: Mapping[str, Any], workload: Workload) -> Self:
        """The work that the author's function gave. Raises InputError."""

    @classmethod
    def inputs_of(
        cls, parts: Mapping[str, Any], own: Sequence[Arguments], calls: Sequence[Arguments]
    ) -> list[Arguments]:
        """The inputs of a call, the example first: the author's `own` and the real `calls` of a file."""
        del parts
        return [*own, *calls]

    @classmethod
    def asked_for(cls, workload: Workload) -> str:
        """Subject of a sentence that refuses something of this kind."""
        return marked("task", workload.task)

    @classmethod
    def require_suitable(cls, parts: Mapping[str, Any], workload: Workload) -> None:
        """Raises InputError for a declaration that would be without effect."""
        for key, why in cls.unsuitable.items():
            if _is_declared(parts.get(key)):
                raise InputError(
                    f"{cls.asked_for(workload)}: {key!r} that {workload.model} returned cannot be used, since {why}",
                    tip="leave it out",
                )

    @classmethod
    def in_title(cls) -> str:
        """What is said of it behind a model's name."""
        return f", {cls.words}"

    @classmethod
    def why_no_artifact(cls, framework: str, *, is_exact: bool) -> str | None:
        """Why a file of compiled code is of no use; None where it may be. `is_exact`: what comes from the framework's
        cache is what was put there."""
        del framework, is_exact
        return None

    def called(self, model: Any) -> Callable[..., Any]:
        """What takes the inputs."""
        function: Callable[..., Any] = model
        return function


def _is_declared(value: object) -> bool:
    """An empty declaration says nothing; what the value may be is for its own reader to say."""
    return value is not None and value is not False and not (isinstance(value, Sized) and not len(value))


def noun_of(value: object) -> str:
    """What a value is, for a sentence about one that is wrong."""
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
