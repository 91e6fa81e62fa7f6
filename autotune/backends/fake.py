"""A framework that is none: plain callables over NumPy arrays, with knobs that misbehave in exactly one way each.

It lets the whole way of a trial be tested (processes, limits, storage, verdicts) in milliseconds and without a
compiler. Knob `behaviour` chooses what goes wrong, `latency_ms` how long a call takes, `compile_ms` how long compiling
takes without its cache, which knows nothing of knob `threads`, and `program` names what is emitted. Knob `most_graphs`
makes it compile for each new shape, and leave further ones to eager execution, which takes `eager_ms`. A model may have
`parts`, modules by their path.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.protocol import Found, ModelCopy, Varying, Versions, python_random_state, variables_set
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, MissingDeviceError
from autotune.measure.accuracy import WideType
from autotune.measure.diagnosis import BreakKind, Compilations, Diagnosis, GraphBreak, Recompile
from autotune.measure.measurement import Reason, TensorSpec
from autotune.measure.profile import Profile
from autotune.workload.arguments import Arguments
from autotune.workload.regions import Region, fitting
from autotune.workload.workload import Device

Shapes = tuple[tuple[int, ...], ...]
"""Of the arguments of a call."""


class FakeOutOfMemoryError(Exception):
    """Stands for a device's own out-of-memory error, which is no MemoryError."""


class FakeBackend:
    """See `Backend`. The model is any callable that takes and returns NumPy arrays, and has dropout if it says so."""

    warmup_calls = 1
    regions_rewrite = False
    evaluation_call = "model.eval()"

    def __init__(self) -> None:
        self._num_hits = 0
        self.is_compiling = True
        self.marked: list[tuple[Varying, ...]] = []
        self._compiled: set[Shapes] = set()
        """What was compiled for: shapes, or none where code serves them all."""
        self._has_given_up = False

    def find(self) -> Found:
        return Found(version="0", devices={"cpu": "fake"}, compilers={})

    def prepare(self, device: Device, seed: int) -> None:
        if device != "cpu":
            raise MissingDeviceError(f"the fake framework has no {device}")
        random.seed(seed)
        np.random.seed(seed)

    def adopt(self, model: Any) -> None:
        pass

    def device_name(self) -> str:
        return "fake"

    def check_model(self, model: Any) -> str | None:
        return None

    def modules(self, model: Any) -> Mapping[str, Any]:
        return {"": model, **getattr(model, "parts", {})}

    def check_region(self, model: Any, region: str) -> None:
        wanted = Region.parse(region)
        fitting((*wanted.compiled, *wanted.left), self.modules(model))

    def place(self, value: Any) -> Any:
        return value

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        behaviour = str(config.get("behaviour", "right"))
        if behaviour not in _BEHAVIOURS:
            raise InvalidConfigError(f"behaviour {behaviour!r} is unknown to the fake framework")
        latency_s = float(config.get("latency_ms") or 1) / 1e3
        most_graphs = config.get("most_graphs")
        eager_s = float(config.get("eager_ms") or 0) / 1e3
        self._compiled = compiled = set[Shapes]()
        self._has_given_up = False

        def step(*args: Any, **kwargs: Any) -> Any:
            wanted: Shapes = () if most_graphs is None else tuple(np.shape(each) for each in args)
            if self.is_compiling and wanted not in compiled:
                if len(compiled) == most_graphs:
                    self._has_given_up = True
                else:
                    self._compile_or_load(config, wanted)
                    compiled.add(wanted)
            time.sleep(latency_s if self.is_compiling and wanted in compiled else eager_s)
            return _BEHAVIOURS[behaviour](model(*args, **kwargs))

        return step

    def process_settings(self, config: Config) -> tuple[str, ...]:
        return tuple(name for name in ("threads",) if config.get(name) is not None)

    def copy_modules(self, model: Any) -> ModelCopy:
        return _Copy(deepcopy(model))

    def original(self, model: Any) -> Any:
        return model

    def versions(self, model: Any, config: Config, changes: UndoLog) -> Versions | None:
        """None for a config with a `region`."""
        return None if "region" in config.root else FakeVersions(self, model, config)

    def capture_despite(self, ailment: BreakKind, changes: UndoLog) -> None:
        pass

    def marker(self, model: Any, varying: Sequence[Varying], changes: UndoLog) -> Callable[[Arguments], None]:
        """Notes what it is told, so that a test can see it."""

        def mark(arguments: Arguments) -> None:
            self.marked.append(tuple(varying))

        return mark

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        self.is_compiling = False
        try:
            yield
        finally:
            self.is_compiling = True

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        widths = [(0, size - tensor.shape[axis] if each == axis else 0) for each in range(tensor.ndim)]
        return np.pad(tensor, widths, constant_values=fill)

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        return tensor.take(range(start, stop), axis)

    def join(self, tensors: Sequence[Any], axis: int) -> Any:
        return np.concatenate(tensors, axis)

    def direct(self, step: Any) -> Callable[..., Any]:
        called: Callable[..., Any] = step
        return called

    def stand_in(self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog) -> Any:
        return call

    def inference(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def check_optimizer(self, optimizer: Any) -> str | None:
        return None if hasattr(optimizer, "weights") else f"a {type(optimizer).__name__}, which has no weights"

    def set_training(self, model: Any) -> None:
        model.training = True

    def training_step(
        self, model: Any, loss: Callable[..., Any], optimizer: Any, config: Config, changes: UndoLog
    ) -> Callable[..., Any]:
        """The optimizer has `weights`, a list of arrays; `gradients_of(loss)`, a list too, of any way of computing the
        loss anew; `gradients`, the last ones; and `step()`."""
        run = self.compile(lambda value: value, config, changes)
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

    def keep(self, model: Any, optimizer: Any) -> Callable[[], None]:
        copies = [each.copy() for each in optimizer.weights]

        def put_back() -> None:
            for weight, copy in zip(optimizer.weights, copies, strict=True):
                weight[...] = copy

        return put_back

    def weights(self, optimizer: Any) -> list[NDArray[Any]]:
        return [each.copy() for each in optimizer.weights]

    def gradients(self, optimizer: Any) -> list[NDArray[Any]]:
        return [each.copy() for each in optimizer.gradients]

    def synchronise(self) -> None:
        pass

    def to_array(self, value: Any) -> NDArray[Any] | None:
        return value if isinstance(value, np.ndarray) else None

    def like(self, array: NDArray[Any], original: Any) -> Any:
        return array.astype(original.dtype)

    def spec(self, value: Any) -> TensorSpec | None:
        return TensorSpec(shape=value.shape, dtype=str(value.dtype)) if isinstance(value, np.ndarray) else None

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        return ()

    def widen(self, value: Any, dtype: WideType) -> Any:
        """A callable computes in the type of its inputs, as NumPy does."""
        is_float = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
        return value.astype(dtype) if is_float else value

    def active_dropout(self, model: Any) -> list[str]:
        return [f"Dropout 'drop' (p={p:g})" for p in [getattr(model, "dropout", 0)] if p]

    def random_state(self) -> bytes:
        return python_random_state()

    def reset_peak_memory(self) -> None:
        pass

    def peak_memory_bytes(self) -> int | None:
        return None

    def cache_variables(self, folder: str) -> dict[str, str]:
        return {"FAKE_CACHE": folder}

    def compile_cache(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        return variables_set(self.cache_variables(str(folder)))

    def build_tools(self) -> dict[str, str]:
        return {}

    def classify(self, error: BaseException) -> Reason | None:
        return Reason.OUT_OF_MEMORY if isinstance(error, FakeOutOfMemoryError) else None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        if config.get("behaviour", "right") == "breaks":
            breaks = (GraphBreak(reason="told to", location="model.py:7"),)
            return Diagnosis(compiled=True, num_graphs=2, graph_breaks=breaks, recompiles=(), cache_hits=self._num_hits)
        compiled = config.get("execution") != "eager"
        again = Recompile(reason="another shape")
        return Diagnosis(
            compiled=compiled,
            num_graphs=int(compiled),
            graph_breaks=(),
            recompiles=(again,) * (len(self._compiled) - 1),
            cache_hits=self._num_hits,
        )

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        if config.get("execution") == "eager":
            return Compilations(num_graphs=0, num_given_up=0)
        return Compilations(num_graphs=len(self._compiled), num_given_up=int(self._has_given_up))

    def profile(self, call: Callable[[], None], num_calls: int, trace: Path) -> Profile:
        """The model is a function: one operator."""
        start = time.perf_counter()
        for _ in range(num_calls):
            call()
        self_s = time.perf_counter() - start
        event = {"name": "function", "ph": "X", "ts": 0, "dur": self_s * 1e6, "pid": os.getpid(), "tid": 0}
        trace.write_text(json.dumps({"traceEvents": [event]}), encoding="utf-8")
        return Profile.of({"function": (self_s, num_calls)}, num_calls)

    def program(self, model: Any, config: Config) -> str | None:
        """Knob `program` says it; without that knob each config is its own."""
        named = config.get("program")
        return None if named is None else str(named)

    def _compile_or_load(self, config: Config, shapes: Shapes) -> None:
        """The cache is written in two halves, as a compiler killed in between leaves it."""
        compiled = Config({name: value for name, value in config.root.items() if name != "threads"})
        cache = os.environ.get("FAKE_CACHE")
        made = None if cache is None else Path(cache) / f"{compiled.fingerprint}{list(shapes) or ''}"
        if made is not None and made.exists():
            if made.read_text() != "whole":
                raise RuntimeError("the fake compiler's cache is half written")
            self._num_hits += 1
            return
        if made is not None:
            made.write_text("half")
        time.sleep(float(config.get("compile_ms") or 0) / 1e3)
        if made is not None:
            made.write_text("whole")


@dataclass(frozen=True)
class _Copy:
    """See `backends.ModelCopy`."""

    model: Any

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return step


class FakeVersions:
    """See `Versions`. An eager call takes `eager_ms`."""

    gives_back = True

    def __init__(self, backend: FakeBackend, model: Any, config: Config) -> None:
        self._backend = backend
        self._model = model
        self._config = config
        self._versions: list[Callable[..., Any]] = []

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(float(self._config.get("eager_ms") or 0) / 1e3)
        return self._model(*args, **kwargs)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        return tuple((each.shape, str(each.dtype)) for each in (*args, *kwargs.values()))

    def new(self) -> Callable[..., Any]:
        version = self._backend.compile(self._model, self._config, UndoLog())
        self._versions.append(version)
        return version

    def warm(self) -> None:
        pass

    def drop(self, version: Callable[..., Any]) -> None:
        self._versions.remove(version)

    def memory_bytes(self) -> int | None:
        """So many for each version as `version_bytes` says."""
        return len(self._versions) * int(self._config.get("version_bytes") or 0)


def _right(output: Any) -> Any:
    return output


def _wrong(output: Any) -> Any:
    return output + 1


def _nan(output: Any) -> Any:
    return output * np.nan


def _compile_error(output: Any) -> Any:
    raise RuntimeError("the fake compiler does not know this operator\nand says so on a second line")


def _out_of_memory(output: Any) -> Any:
    raise FakeOutOfMemoryError("tried to allocate 1 TiB")


def _crash(output: Any) -> Any:
    print("about to crash", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(output: Any) -> Any:
    """Hangs together with a helper in a session of its own, as compilers' worker pools do."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)


def _silence(output: Any) -> Any:
    os._exit(3)


_BEHAVIOURS: dict[str, Callable[[Any], Any]] = {
    "right": _right,
    "breaks": _right,
    "wrong": _wrong,
    "wrong_gradients": _right,
    "frozen": _right,
    "nan": _nan,
    "compile_error": _compile_error,
    "out_of_memory": _out_of_memory,
    "crash": _crash,
    "hang": _hang,
    "silence": _silence,
}
