"""What the fake framework offers beyond the core of a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.array_file import read_arrays, write_arrays
from autotune.backends.capabilities import Updates, VaryingAxis
from autotune.backends.protocol import variables_set
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.agreement import rms_of
from autotune.measure.diagnosis import Compilations
from autotune.workload.arguments import Arguments
from autotune.workload.regions import Region, matching_paths

if TYPE_CHECKING:
    from autotune_fake.backend import FakeBackend


class FakeCallsFile:
    """See `CallsFile`."""

    def read(self, path: Path) -> list[Arguments]:
        return read_arrays(path, lambda array, _: array)

    def write(self, calls: Sequence[Arguments], path: Path) -> None:
        write_arrays(calls, path, lambda value: (value, str(value.dtype)) if isinstance(value, np.ndarray) else None)


class FakeTraining:
    """See `Training`."""

    silence = None

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    def check_optimizer(self, optimizer: Any) -> str | None:
        return None if hasattr(optimizer, "weights") else f"a {type(optimizer).__name__}, which has no weights"

    def usual_optimizer(self, model: Any) -> Any:
        """What the model brings."""
        return model.optimizer

    def set_training(self, model: Any) -> None:
        model.training = True

    def training_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        config: Config,
        changes: UndoLog,
        *,
        updates: Updates | None = None,
    ) -> Callable[..., Any]:
        """The optimizer has `weights`, a list of arrays; `gradients_of(loss)`, a list too, of any way of computing the
        loss anew; `gradients`, the last ones; and `step()`."""
        run = self._backend.compile(lambda value: value, config, changes)
        behaviour = str(config.get("behaviour", "right"))

        def step(*batch: Any) -> Any:
            value = run(np.asarray(loss(model, *batch)))
            optimizer.gradients = optimizer.gradients_of(lambda: float(loss(model, *batch)))
            if behaviour == "wrong_gradients":
                optimizer.gradients = [-each for each in optimizer.gradients]
            if behaviour != "frozen":
                optimizer.step()
            return value

        return step

    def of_calls(self, config: Config) -> Config:
        return config

    def draws_as_uncompiled(self, config: Config) -> bool:
        return False

    def calls_as_compiled(self, config: Config) -> bool:
        return True

    def draw_as_uncompiled(self) -> None:
        """It always does."""

    def unlike_the_step(self, model: Any, config: Config) -> Callable[[], None]:
        return lambda: None

    def begun_with(self, model: Any, optimizer: Any) -> list[Any]:
        return list(optimizer.weights)

    def held(self, model: Any, optimizer: Any) -> list[Any]:
        return list(optimizer.weights)

    def trained(self, optimizer: Any) -> list[Any]:
        return list(optimizer.weights)

    def copies(self, tensors: Iterable[Any]) -> list[NDArray[Any]]:
        return [each.copy() for each in tensors]

    def write(self, tensors: Iterable[Any], values: Iterable[NDArray[Any]]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor[...] = value

    def rms(self, tensor: NDArray[Any], copy: NDArray[Any] | None = None) -> float:
        return rms_of(tensor if copy is None else tensor - copy)

    def gradients(self, optimizer: Any) -> list[NDArray[Any]]:
        return list(optimizer.gradients)


class FakeShapes:
    """See `ShapeStrategies`."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    def marker(
        self, model: Any, changes: UndoLog
    ) -> Callable[[Arguments, Sequence[VaryingAxis]], AbstractContextManager[None]]:
        """Notes what it is told, so that a test can see it."""

        def marked(arguments: Arguments, varying: Sequence[VaryingAxis]) -> AbstractContextManager[None]:
            self._backend.marked.append(tuple(varying))
            return nullcontext()

        return marked

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        self._backend.is_compiling = False
        try:
            yield
        finally:
            self._backend.is_compiling = True

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        widths = [(0, size - tensor.shape[axis] if each == axis else 0) for each in range(tensor.ndim)]
        return np.pad(tensor, widths, constant_values=fill)

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        return tensor.take(range(start, stop), axis)

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        if config.get("execution") == "eager":
            return Compilations(num_graphs=0, num_given_up=0)
        return Compilations(num_graphs=len(self._backend.compiled_for), num_given_up=int(self._backend.has_given_up))


class FakeRegions:
    """See `Regions`. A model may have `parts`, modules by their path."""

    rewrites = False

    def modules(self, model: Any) -> Mapping[str, Any]:
        return {"": model, **getattr(model, "parts", {})}

    def check_region(self, model: Any, region: str) -> None:
        wanted = Region.parse(region)
        matching_paths((*wanted.compiled, *wanted.left), self.modules(model))

    def copy_modules(self, model: Any) -> FakeCopy:
        return FakeCopy(deepcopy(model))


@dataclass(frozen=True)
class FakeCopy:
    """See `ModelCopy`."""

    model: Any

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return step


class FakeCache:
    """See `CompileCache`."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    def use(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        return variables_set(self._backend.cache_variables(str(folder)))

    def build_tools(self) -> dict[str, str]:
        return {}
