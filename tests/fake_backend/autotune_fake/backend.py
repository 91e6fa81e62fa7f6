"""A framework that is none: plain callables over NumPy arrays, with knobs that misbehave in exactly one way each.

It lets the whole way of a trial be tested (processes, limits, storage, verdicts) in milliseconds and without a
compiler. Knob `behaviour` chooses what goes wrong, `latency_ms` how long a call takes, `compile_ms` how long compiling
takes without its cache, which knows nothing of knob `threads`, `candidates_ms` how long its compiler then times
candidates, and `program` names what is emitted. Knob `most_graphs`
makes it compile for each new shape, and leave further ones to eager execution, which takes `eager_ms`. A model may have
`parts`, modules by their path.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.contracts.runtime import DeviceReport
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, MissingDeviceError
from autotune.measure.accuracy import WideType
from autotune.measure.diagnosis import Diagnosis, GraphBreak, Recompile
from autotune.measure.findings import EVERYWHERE
from autotune.measure.measurement import Reason, TensorSpec
from autotune.workload.workload import Device
from autotune_fake.behaviours import BEHAVIOURS, FakeOutOfMemoryError
from autotune_fake.capabilities import (
    FakeCache,
    FakeCallsFile,
    FakeRegions,
    FakeShapes,
    FakeTraining,
)
from autotune_fake.clock import RealClock, SimulatedClock, clock_of_a_trial, slowed

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of the arguments of a call."""


class FakeBackend(Backend):
    """See `Backend`. The model is any callable that takes and returns NumPy arrays, and has dropout if it says so."""

    warmup_calls = 1
    evaluation_call = "model.eval()"

    def __init__(self) -> None:
        self.clock: RealClock | SimulatedClock = RealClock()
        self._num_hits = 0
        self._taken: Callable[[], AbstractContextManager[None]] = nullcontext
        self.is_compiling = True
        self.marked: list[tuple[VaryingAxis, ...]] = []
        self.compiled_for: set[Shapes] = set()
        """What was compiled for: shapes, or none where code serves them all."""
        self.has_given_up = False
        self.training = FakeTraining(self)
        self.shapes = FakeShapes(self)
        self.regions = FakeRegions()
        self.compile_cache = FakeCache(self)
        self.calls_file = FakeCallsFile()

    def find(self) -> DeviceReport:
        return DeviceReport(version="0", devices={"cpu": "fake"}, compilers={})

    def prepare(self, device: Device, seed: int) -> None:
        if device != "cpu" and "FAKE_ACCELERATOR" not in os.environ:
            raise MissingDeviceError(f"the fake framework has no {device}")
        self.clock = clock_of_a_trial()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)

    def device_name(self) -> str:
        return "fake"

    def lock_benchmarks(self, taken: Callable[[], AbstractContextManager[None]]) -> bool:
        self._taken = taken
        return True

    def check_model(self, model: Any) -> str | None:
        return None

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        behaviour = str(config.get("behaviour", "right"))
        if behaviour not in BEHAVIOURS:
            raise InvalidConfigError(f"behaviour {behaviour!r} is unknown to the fake framework")
        latency_s = float(config.get("latency_ms") or 1) / 1e3 * slowed(config)
        most_graphs = config.get("most_graphs")
        eager_s = float(config.get("eager_ms") or 0) / 1e3
        self.compiled_for = compiled = set[Shapes]()
        self.has_given_up = False

        def step(*args: Any, **kwargs: Any) -> Any:
            wanted: Shapes = () if most_graphs is None else tuple(np.shape(each) for each in args)
            if self.is_compiling and wanted not in compiled:
                if len(compiled) == most_graphs:
                    self.has_given_up = True
                else:
                    self._compile_or_load(config, wanted)
                    compiled.add(wanted)
            self.clock.sleep(latency_s if self.is_compiling and wanted in compiled else eager_s)
            return BEHAVIOURS[behaviour](model(*args, **kwargs))

        return step

    def process_settings(self, config: Config) -> tuple[str, ...]:
        return tuple(name for name in ("threads",) if config.get(name) is not None)

    def to_array(self, value: Any) -> NDArray[Any] | None:
        return value if isinstance(value, np.ndarray) else None

    def like(self, array: NDArray[Any], original: Any) -> Any:
        return array.astype(original.dtype)

    def refill(self, value: Any, array: NDArray[Any]) -> bool:
        value[...] = array
        return True

    def attributes(self, value: Any) -> Mapping[str, Any] | None:
        """Arrays only: what a model of a test counts is none of its state."""
        return {name: each for name, each in getattr(value, "__dict__", {}).items() if isinstance(each, np.ndarray)}

    def spec(self, value: Any) -> TensorSpec | None:
        return TensorSpec(shape=value.shape, dtype=str(value.dtype)) if isinstance(value, np.ndarray) else None

    def widen(self, value: Any, dtype: WideType) -> Any:
        """A callable computes in the type of its inputs, as NumPy does."""
        is_float = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
        return value.astype(dtype) if is_float else value

    def nudge(self, value: Any, share: float) -> Any:
        is_float = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
        return (value * (1 + share * np.random.standard_normal(value.shape))).astype(value.dtype) if is_float else value

    def active_dropout(self, model: Any) -> list[str]:
        return [f"Dropout 'drop' (p={p:g})" for p in [getattr(model, "dropout", 0)] if p]

    def cache_variables(self, folder: str) -> dict[str, str]:
        return {"FAKE_CACHE": folder}

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
            recompiles=(again,) * (len(self.compiled_for) - 1),
            cache_hits=self._num_hits,
        )

    def profile(self, call: Callable[[], None], num_calls: int) -> dict[str, float]:
        """The model is a function: all of it is outside of compiled code."""
        start = self.clock()
        for _ in range(num_calls):
            call()
        return {EVERYWHERE: (self.clock() - start) / num_calls}

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
        self.clock.sleep(float(config.get("compile_ms") or 0) / 1e3)
        if config.get("candidates_ms"):
            with self._taken():
                self.clock.sleep(float(config.get("candidates_ms") or 0) / 1e3)
        if made is not None:
            made.write_text("whole")
