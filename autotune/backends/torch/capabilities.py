"""What the backend of PyTorch offers beyond the core."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.protocol import variables_set
from autotune.backends.proxy_object import original
from autotune.backends.torch import counters, npu, regions, shapes, training
from autotune.backends.torch.knobs import settings_of
from autotune.backends.torch.model_copy import ModelCopy
from autotune.backends.torch.proxy import make_proxy
from autotune.backends.torch.tensors import array_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.environment import package_version
from autotune.measure.diagnosis import Compilations
from autotune.measure.sampling import Clock
from autotune.workload.arguments import Arguments
from autotune.workload.regions import Region


class TorchTraining:
    """See `Training`."""

    def check_optimizer(self, optimizer: Any) -> str | None:
        if isinstance(optimizer, torch.optim.Optimizer):
            return training.why_unsuitable(optimizer)
        return f"a {type(optimizer).__name__}; the torch backend needs a torch.optim.Optimizer"

    def set_training(self, model: Any) -> None:
        if not model.training:
            model.train()

    def training_step(
        self, model: Any, loss: Callable[..., Any], optimizer: Any, config: Config, changes: UndoLog
    ) -> Callable[..., Any]:
        return training.training_step(model, loss, optimizer, config, changes)

    def calls_as_compiled(self, config: Config) -> bool:
        """A step is under autocast as a whole, its loss too."""
        settings = settings_of(config)
        return settings.scope == "model" and settings.autocast is None and settings.region == Region()

    def snapshot(self, model: Any, optimizer: Any) -> Callable[[], None]:
        return training.snapshot(model, optimizer)

    def trained(self, optimizer: Any) -> list[Any]:
        return training.trained_parameters(optimizer)

    def weights(self, optimizer: Any) -> list[NDArray[Any]]:
        return [array_of(each).copy() for each in training.trained_parameters(optimizer)]

    def set_weights(self, optimizer: Any, arrays: Iterable[NDArray[Any]]) -> None:
        training.set_weights(optimizer, arrays)

    def gradients(self, optimizer: Any) -> list[NDArray[Any]]:
        return training.gradients(optimizer, array_of)


class TorchShapes:
    """See `ShapeStrategies`."""

    def marker(
        self, model: Any, varying: Sequence[VaryingAxis], changes: UndoLog
    ) -> Callable[[Arguments], AbstractContextManager[None]]:
        return shapes.marker(varying)

    def uncompiled(self) -> AbstractContextManager[Any]:
        eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return eager

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        return shapes.pad(tensor, axis, size, fill)

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        return shapes.cut(tensor, axis, start, stop)

    def join(self, tensors: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(tensors), axis)

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        if not settings_of(config).compiles_anything:
            return Compilations(num_graphs=0, num_given_up=0)
        return counters.compilations()


class TorchRegions:
    """See `Regions`."""

    rewrites = True

    def modules(self, model: Any) -> Mapping[str, Any]:
        return regions.modules(model)

    def check_region(self, model: Any, region: str) -> None:
        regions.check(model, Region.parse(region))

    def copy_modules(self, model: Any) -> ModelCopy:
        return ModelCopy(model)


class TorchCompileCache:
    """See `CompileCache`."""

    def use(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        """The whole folder, not what `torch.compiler.save_cache_artifacts` gives: that leaves the compiled C++ out, and
        nothing at all remains of frozen code (docs/decisions/0013-cache-artifact.md)."""
        return variables_set(cache_variables(str(folder)))

    def build_tools(self) -> dict[str, str]:
        versions = {name: package_version(name) for name in ("triton", "torch-npu", "triton-ascend")}
        tools = {"C++ compiler": _cpp_compiler(), "CUDA": torch.version.cuda, "ROCm": torch.version.hip, **versions}
        return {name: version for name, version in tools.items() if version is not None}


class TorchSharedKernels:
    """See `SharedKernels`."""

    def __call__(
        self, folder: Path, num_threads: int, clock: Clock, spare: Callable[[float], object]
    ) -> AbstractContextManager[Any]:
        from autotune.backends.torch.shared_kernels import shared_kernels  # Imports the compiler.

        return shared_kernels(folder, num_threads, clock, spare)


class TorchProxies:
    """See `ModelProxies`."""

    def proxy(self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog) -> Any:
        return make_proxy(model, call)

    def original(self, model: Any) -> Any:
        return original(model)

    def direct(self, step: Any) -> Callable[..., Any]:
        called: Callable[..., Any] = step
        return called


def cache_variables(folder: str) -> dict[str, str]:
    """Inductor keeps its AOTAutograd and FX graph caches under its own folder; Triton has one of its own."""
    home = Path(folder)
    own = {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"), "TRITON_CACHE_DIR": str(home / "triton")}
    return {**own, **npu.cache_variables(home)}


def _cpp_compiler() -> str | None:
    """What the compiler that inductor would call says of itself."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        with suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30, check=True)
            return told.stdout.partition("\n")[0]
    return None
