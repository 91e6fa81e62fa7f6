"""What the backend of MindSpore offers beyond the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
from numpy.typing import NDArray

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.mindspore import ascend, regions, shapes, training
from autotune.backends.mindspore.cell_copy import CellCopy
from autotune.backends.mindspore.compile_cache import compile_cache
from autotune.backends.mindspore.compiled_cell import CompiledCell, call_exclusively, compiled_of
from autotune.backends.mindspore.counters import compilations
from autotune.backends.mindspore.proxy import make_proxy
from autotune.backends.mindspore.tensors import array_of
from autotune.backends.protocol import variables_set
from autotune.backends.proxy_object import original
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.workload.arguments import Arguments
from autotune.workload.regions import Region


class MindSporeTraining:
    """See `Training`."""

    def check_optimizer(self, optimizer: Any) -> str | None:
        if isinstance(optimizer, ms.nn.Optimizer):
            return None
        return f"a {type(optimizer).__name__}; the mindspore backend needs a mindspore.nn.Optimizer"

    def set_training(self, model: Any) -> None:
        if not model.training:
            model.set_train()

    def training_step(
        self, model: Any, loss: Callable[..., Any], optimizer: Any, config: Config, changes: UndoLog
    ) -> Callable[..., Any]:
        return training.training_step(model, loss, optimizer, config, changes)

    def calls_as_compiled(self, config: Config) -> bool:
        return config.get("execution") == "jit" and config.get("scope") == "model" and Region.of(config).is_whole

    def snapshot(self, model: Any, optimizer: Any) -> Callable[[], None]:
        return training.snapshot(model, optimizer)

    def trained(self, optimizer: Any) -> list[Any]:
        return list(optimizer.parameters)

    def weights(self, optimizer: Any) -> list[NDArray[Any]]:
        return [array_of(each).copy() for each in optimizer.parameters]

    def set_weights(self, optimizer: Any, arrays: Iterable[NDArray[Any]]) -> None:
        training.set_weights(optimizer, arrays)

    def gradients(self, optimizer: Any) -> list[NDArray[Any]]:
        return training.optimizer_moments(optimizer, array_of)


class MindSporeShapes:
    """See `ShapeStrategies`."""

    def marker(
        self, model: Any, varying: Sequence[VaryingAxis], changes: UndoLog
    ) -> Callable[[Arguments], AbstractContextManager[None]]:
        return shapes.ShapeMarker(compiled_of(model) or model, varying)

    def uncompiled(self) -> AbstractContextManager[Any]:
        """MindSpore looks at the variable at each call of what it compiled (measured)."""
        return variables_set({"MS_JIT": "0"})

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        return shapes.pad(tensor, axis, size, fill)

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        return ms.ops.narrow(tensor, axis, start, stop - start)

    def join(self, tensors: Sequence[Any], axis: int) -> Any:
        return ms.ops.cat(tuple(tensors), axis)

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        return compilations(compiled_cell(model), config)


class MindSporeRegions:
    """See `Regions`."""

    rewrites = False
    """What is compiled is a copy in any case (`compiled_cell`)."""

    def modules(self, model: Any) -> Mapping[str, Any]:
        return regions.modules(model)

    def check_region(self, model: Any, region: str) -> None:
        regions.cells_of(model, Region.parse(region))

    def copy_modules(self, model: Any) -> CellCopy:
        return CellCopy(model)


class MindSporeCompileCache:
    """See `CompileCache`."""

    def use(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        return compile_cache(folder, key)

    def build_tools(self) -> dict[str, str]:
        return ascend.build_tools()


class MindSporeProxies:
    """See `ModelProxies`."""

    def proxy(self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog) -> Any:
        """Another Cell that shares all that the model holds."""
        return make_proxy(model, call)

    def original(self, model: Any) -> Any:
        return original(model)

    def direct(self, step: Any) -> Callable[..., Any]:
        return partial(call_exclusively, partial(type(step).__call__, step))


def compiled_cell(model: ms.nn.Cell) -> ms.nn.Cell:
    """The Cell that is compiled in place of the model; the model itself where none is."""
    compiled = compiled_of(model)
    return model if compiled is None else compiled.cell if isinstance(compiled, CompiledCell) else compiled
