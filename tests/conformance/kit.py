"""`Kit`: what the cases of `jobs` need of a framework."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import autotune
from tests.stand_ins.exports import export

Change = Callable[[Any, Any], object]
"""Changes the model of a job, by the job's own object or by what it holds since `apply`."""


class Kit:
    """One framework, one config, and the folder of a job."""

    framework: ClassVar[str]
    CONFIGS: ClassVar[dict[str, dict[str, Any]]]
    CHANGES: ClassVar[dict[str, Change]]
    PATCHES: ClassVar[dict[str, Callable[[Any], Callable[[], object]]]]
    """Change what the model does; the function that takes it back is returned."""
    OTHERS: ClassVar[dict[str, Callable[[Any], Any]]]
    """Make another model from what the job holds."""
    COPIES: ClassVar[tuple[Callable[[Any], Any], ...]] = (copy.deepcopy,)
    WRITERS: ClassVar[tuple[type, ...]]
    """Classes of models whose calls, of `x` and a cache, change what they read."""
    Cloned: ClassVar[type]
    """A class of models that says how its objects are copied, and is told of classes that derive from it."""
    WAYS_OUT: ClassVar[tuple[str, ...]] = ()
    """What the warning of a call that records gradients names."""
    UnfitError: ClassVar[type[Exception] | tuple[type[Exception], ...]] = ValueError
    """What the model raises for `unfit` inputs."""
    WRONG: ClassVar[dict[str, Any]]
    """A config whose outputs are outside of a tolerance of 1e-6."""
    stays_tuned: ClassVar[bool] = True
    """After a change of the model, too."""
    x: Any

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.lines: list[str] = []
        """What the product has said since the case began."""
        """What is compiled can be kept apart by shape."""
        self.num_calls = 500
        """Of each thread of `no_call_is_torn`."""

    def model(self, kind: type | None = None) -> Any:
        """A model for inference, of the kit's class or a derived one; each of a class has the same weights."""
        raise NotImplementedError

    def rows(self, num: int) -> Any:
        """Inputs, of which `x` has four."""
        raise NotImplementedError

    def unseen(self) -> Any:
        """Inputs that are none of `rows`, for which something must be compiled."""
        return self.rows(7)

    def parts(self, model: Any) -> dict[str, Any]:
        """By the path of each module its class and the names of its attributes."""
        raise NotImplementedError

    def unfit(self) -> Any:
        """An input that the model does not take."""
        raise NotImplementedError

    def is_of_unfit(self, error: Exception) -> bool:
        """Whether a call of another thread may raise this error since one of `unfit` inputs does."""
        return False

    def plain(self, model: Any) -> Any:
        """What the model's class gives for `x`, by its own code."""
        raise NotImplementedError

    def cache(self) -> Any:
        """The second input of a writer."""
        raise NotImplementedError

    def array(self, value: Any) -> np.ndarray:
        raise NotImplementedError

    def weights(self, model: Any) -> dict[str, Any]:
        """The weights and buffers themselves, by name."""
        raise NotImplementedError

    def saved(self, model: Any) -> dict[str, Any]:
        """The same from a checkpoint of the model's."""
        raise NotImplementedError

    def gradients(self, call: Callable[..., Any], model: Any) -> list[Any]:
        """By the model's weights and by the input, of a scalar of what the call gives."""
        raise NotImplementedError

    def switch(self, model: Any, training: bool) -> None:
        raise NotImplementedError

    def containers(self, model: Any) -> list[Callable[..., Any]]:
        """Models that have this one as their first part, and nothing else that changes its outputs."""
        raise NotImplementedError

    def settings(self) -> object:
        """What holds for the whole process."""
        raise NotImplementedError

    def tolerance(self) -> float:
        return 1e-5

    def calls(self) -> AbstractContextManager[Any]:
        """Around inference."""
        return nullcontext()

    def refusing(self, x: Any) -> AbstractContextManager[Any]:
        """Whatever compiled code would serve this input fails."""
        raise NotImplementedError

    def loaded(
        self, config: dict[str, Any] | None = None, kind: type | None = None, inputs: Any = None, **changes: Any
    ) -> Any:
        """An export that fits the model, loaded."""
        path, model = self.folder / "best.yaml", self.model(kind)
        return autotune.load(export(path, self.framework, config or self.config, model, inputs or [self.x], **changes))

    def applied(self, model: Any = None, **policy: Any) -> tuple[Any, Any]:
        """A job's model, and what it holds after its first call."""
        model = self.model() if model is None else model
        tuned = self.loaded().apply(model, **{"margin": None, **policy})
        tuned(self.x)
        return model, tuned

    def apart(self, one: Any, other: Any) -> float:
        """The largest difference of two outputs, as a share of them where they are larger than 1."""
        got, wanted = (self.array(each).astype(np.float64) for each in (one, other))
        return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))

    def error(self, model: Any, tuned: Any, x: Any = None) -> float:
        """Of the tuned call."""
        x = self.x if x is None else x
        return self.apart(tuned(x), model(x))

    @contextmanager
    def listening(self) -> Iterator[None]:
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("autotune").addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger("autotune").removeHandler(handler)
