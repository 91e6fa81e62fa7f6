"""`Backend`: what every framework offers. What only some offer is in `capabilities`.

A backend is imported in the child that runs a trial (and in the job that loads a tuned config), never in the parent.
docs/search-spaces.md says how to add one; the conformance test is parametrised over the table in `registry`.
"""

from __future__ import annotations

import os
import pickle
import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.backends.capabilities import (
    AnsweredProbes,
    BreakCapture,
    CallsFile,
    CallWatch,
    CompileCache,
    ComponentWatch,
    Fingerprint,
    Generates,
    Generation,
    ModelProxies,
    PerShape,
    PlainCalls,
    Profiler,
    Ranks,
    Regions,
    Rehearse,
    ShapeStrategies,
    SharedKernels,
    Training,
)
from autotune.backends.undo import UndoLog
from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError
from autotune.measure.accuracy import WideType
from autotune.measure.device_state import Instruments
from autotune.measure.diagnosis import BreakKind, Diagnosis, GraphBreak, Recompile
from autotune.measure.measurement import Reason, TensorSpec
from autotune.measure.sampling import Clock
from autotune.nesting import is_pythons
from autotune.workload.workload import Device, Task


@dataclass(frozen=True)
class DeviceReport:
    """What a framework sees on this machine: `devices` it can use, and `notes` on what is missing for others."""

    version: str
    devices: dict[Device, str]
    """Device -> its name as the framework gives it."""
    compilers: dict[str, str]
    """Compilers and runtimes that the framework's backends need -> version or where found."""
    notes: tuple[str, ...] = ()
    shared: dict[Device, str] = field(default_factory=dict)
    """Device -> what keeps it from being a study's alone, in words: other processes, or a mode that lets one in."""


class Effects(Protocol):
    """One call, as it is looked at from before it."""

    def found(self) -> str | None:
        """After the call: what it has left behind that a compiled one would not, in words."""


EffectsOf = Callable[[tuple[Any, ...], dict[str, Any]], Effects]
"""Begins to look at a call with these arguments."""


class Backend(Protocol):
    """One framework. Every method runs in the process that owns the model; none starts a process.

    A backend is a subclass: a method with a body here has a default, and so has each capability. The order of a trial:
    `prepare`, (the workload builds its model), `place`, `compile`, first call, more calls, `diagnose`. `compile` is the
    same pure mapping from config to the framework's arguments that a job gets through
    `autotune.load(...).apply(model)`: what was measured is what is deployed.
    """

    warmup_calls: int
    """Calls after which this framework's runtime has settled at the earliest (its own measured fact)."""

    evaluation_call: str
    """What a user writes to turn a model's dropout off."""

    call_without_gradients: str = ""
    """What a user does so that a call records no gradients."""

    clock: Clock = time.perf_counter
    """What calls are timed with: seconds from any start. It is read after `synchronise`."""

    input_gradients: bool = False
    """Set before `compile`: calls are measured, and may be made, while gradients are recorded."""
    already_compiled: str | None = None
    """What is compiled already of what `as_model` was given, in a sentence for the user."""

    training: Training | None = None
    generates: Generates | None = None
    generation: Generation | None = None
    shapes: ShapeStrategies | None = None
    regions: Regions | None = None
    versions: PerShape | None = None
    compile_cache: CompileCache | None = None
    shared_kernels: SharedKernels | None = None
    answered_probes: AnsweredProbes | None = None
    profile: Profiler | None = None
    program: Fingerprint | None = None
    capture_despite: BreakCapture | None = None
    proxies: ModelProxies = PlainCalls()
    calls_file: CallsFile | None = None
    watch_calls: CallWatch | None = None
    watch_components: ComponentWatch | None = None
    rehearse: Rehearse | None = None
    watching_recompiles: Callable[[], AbstractContextManager[None]] = nullcontext
    """Within: what is made ready to compile, for a job, refuses calls once it was compiled for too many values of one
    thing, or the framework gives up compiling it."""
    instruments: Instruments | None = None
    """What can be read of the selected accelerator, after `prepare`. None: there is none, or nothing can be read."""

    def find(self) -> DeviceReport:
        """Look for devices and compilers, quietly: absent hardware is data, not an error."""

    def prepare(self, device: Device, seed: int) -> None:
        """Seed the generators and select the device, before the model exists. Raises MissingDeviceError."""

    def seed(self, seed: int) -> None:
        """Seed the generators that `random_state` tells of, those of the selected device included."""

    def adopt(self, model: Any) -> None:
        """In place of `prepare` in a job: go by the device that the job's own model is on. Raises AutotuneError."""
        return

    def ranks(self) -> Ranks | None:
        """The ranks of the distributed job that this process takes part in now; None: it is alone."""
        return None

    def device_name(self) -> str:
        """The selected device as the framework names it; for the record."""

    def device_uuid(self) -> str | None:
        """What the selected accelerator has alone in the world; None where the framework does not tell."""
        return None

    def lock_benchmarks(self, taken: Callable[[], AbstractContextManager[None]]) -> bool:
        """From now on the compiler times its candidates on the device within such a context. False: it has no way to,
        and compiles as before."""
        return False

    def as_model(self, given: Any) -> Any:
        """What is compiled for what a user gives as the model: a backend may wrap a plain function, and takes a model
        that is compiled already as it is uncompiled."""
        return given

    def check_model(self, model: Any) -> str | None:
        """A sentence if `model` is nothing that this framework can compile, else None."""

    def place(self, value: Any) -> Any:
        """A model, or an argument of a call, on the selected device. What is no tensor comes back as it is."""
        return value

    def called(self, model: Any) -> Callable[..., Any]:
        """The function behind a model, whose parameters are those of a call."""
        function: Callable[..., Any] = model
        return function

    def materialise(self, model: Any, call: Callable[[], object]) -> None:
        """Make the parameters that a model gets in its first call, where it is of that kind, by one untuned `call`."""
        return

    def differentiates(self, model: Any, call: Callable[[], object]) -> bool:
        """Whether the model takes gradients within its own calls, so that they have to be recorded there. Where the
        code of its classes leaves that open, by one untuned `call`."""
        return False

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        """The model under `config`, ready to be called like the model itself; lazily compiled is fine.

        Sets what a config sets in the process (contexts, global switches), and notes in `changes` how that is undone.
        Where a region makes it rewrite modules, `model` is what `Regions.copy_modules` gave. What is returned raises
        UnsuitableCallError for a call that must be made untuned. Raises InvalidConfigError for a setting that the
        installed release does not take.
        """

    def effects(self, model: Any, config: Config) -> EffectsOf | None:
        """How to find out, from an untuned call, whether the model leaves something behind that its compiled calls
        would not. None where compiled calls leave what untuned ones do, or the code of the model writes to nothing that
        outlives a call."""
        return None

    def copies_outputs(self, model: Any, config: Config) -> Callable[[Any], Any] | None:
        """What is done to the outputs of each call under a config that replays captured graphs, whose next call would
        write over them: it copies them, so that a job may keep them. Such a graph is recorded by the second call of a
        shape. None: nothing is captured and copied."""
        return None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        """What the compiler did for all calls so far, from its own counters and reports."""

    def process_settings(self, config: Config) -> tuple[str, ...]:
        """The knobs of a config that set something for the whole process, where other models feel it too."""
        return ()

    def check_option(self, knob: str, value: Scalar) -> None:
        """Raises InvalidConfigError if `knob`, an option of the compiler by its own name (`GROUP.NAME`), is none that a
        config may set to `value`. See `BackendEntry.options`."""
        raise InvalidConfigError(f"knob {knob}: this framework's options are no knobs")

    def inference(self) -> AbstractContextManager[Any]:
        """Where a trial of the `infer` task calls the model: no gradients recorded."""
        return nullcontext()

    def records_gradients(self, model: Any, *values: Any) -> bool:
        """Whether a call made now is recorded so that gradients can be taken: of the model's parameters, or of a tensor
        in `values`. Quick: it is asked at each call of a job. `model` None: of `values` alone."""
        return False

    def noting_operators(self) -> AbstractContextManager[Collection[str]]:
        """Within: the names of the operators that uncompiled calls make and that are not the framework's own."""
        return nullcontext(())

    def synchronise(self) -> None:
        """Return when the device has finished all work handed to it so far."""
        return

    def to_array(self, value: Any) -> NDArray[Any] | None:
        """A tensor as a NumPy array, None for what is no tensor. A type that NumPy lacks comes as a wider one."""

    def extremes(self, value: Any, axis: int | None = None) -> Sequence[tuple[int, int]] | None:
        """The smallest and the largest whole number in a tensor: of all, or in each slice along an axis. Quick: it is
        asked at each call of a job. None for what holds none, and what is on a device, which would be waited for."""
        return None

    def like(self, array: NDArray[Any], original: Any) -> Any:
        """What `to_array` gives for a tensor as one of the same kind as `original`: its type, number of dimensions,
        layout and device, and whether it requires gradients."""

    def content(self, value: Any) -> Hashable | None:
        """Another value once a tensor, or a generator of random numbers, was changed; None for what is neither."""
        array = self.to_array(value)
        return None if array is None else (array.shape, str(array.dtype), zlib.crc32(array.tobytes()))

    def attributes(self, value: Any) -> Mapping[str, Any] | None:
        """What a call of the model may change in an object: its attributes and those of its class, without what the
        framework notes there for itself. None for an object that has none."""
        held = getattr(value, "__dict__", None)
        if held is None:
            return None
        kind: type = type(value)
        return {**{name: getattr(kind, name, None) for name in _names_in_classes(kind)}, **held}

    def spec(self, value: Any) -> TensorSpec | None:
        """Shape and type of a tensor, None for what is no tensor. The shape may be another one than its array's."""

    def form(self, value: Any) -> str:
        """What must be equal in two tensors beside their elements: the type of these as NumPy names it, and the layout
        in memory."""
        spec = self.spec(value)
        return "" if spec is None else spec.dtype.lower()

    def storage(self, value: Any) -> Hashable | None:
        """Equal for tensors that share memory; None where that cannot be told."""
        return None

    def opened(self, value: Any) -> Sequence[Any] | None:
        """The tensors of which one consists that is no array, such as a nested one; None for any other value."""
        return None

    def is_model(self, value: Any) -> bool:
        """It is a module of the framework, which holds weights and code."""
        return False

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        """Names and shapes of the model's parameters and buffers, in a stable order."""
        return ()

    def widen(self, value: Any, dtype: WideType) -> Any:
        """A model, changed in place, or a tensor with its floating parameters, buffers or elements in `dtype`.

        What is neither, and what holds no floats, comes back as it is.
        """

    def nudge(self, value: Any, share: float) -> Any:
        """A model, changed in place, or a tensor with each floating element times 1 + `share` times a normal number.

        What is neither, and what holds no floats, comes back as it is.
        """
        return value

    def active_dropout(self, model: Any) -> list[str]:
        """The model's dropout layers that drop when it is called, e.g. `Dropout 'blocks.0.drop' (p=0.1)`."""
        return []

    def acting_in_training(self, model: Any) -> Sequence[str]:
        """The model's modules that act as in training when it is called as it stands, e.g. `BatchNorm1d 'norm'`."""
        return ()

    def written_parts(self, model: Any) -> Sequence[Any]:
        """The objects and functions whose code a call of the model runs."""
        return (model,)

    def takes_constant_weights(self, model: Any) -> bool:
        """Whether a config may make constants of the model's weights, as far as the model as it stands tells: one in
        training mode is no such model."""
        return True

    def random_state(self) -> bytes:
        """The state of the generators that `prepare` seeds: another one after a call means that it drew from them.

        The same does not mean that nothing was drawn: a model can hold generators of its own.
        """
        return python_random_state()

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """The peak of the device's allocator; None where there is none (CPU). `restart`: a new peak begins now."""
        return None

    def cache_variables(self, folder: str) -> dict[str, str]:
        """Environment variables that put every compile cache of the framework under `folder`, and there too what the
        compiler is asked to dump for `program`."""
        return {}

    def classify(self, error: BaseException) -> Reason | None:
        """The reason behind an exception where its type tells (out of memory, invalid), else None."""
        return None

    def hint(self, error: BaseException, task: Task) -> str | None:
        """What to do about an exception that a trial of the task raised, where the framework does not say it."""
        return None


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

    def recompiles(self, text: str) -> tuple[Recompile, ...]:
        """Recompiles that stand in no record of the process."""

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


@cache
def _names_in_classes(kind: type) -> tuple[str, ...]:
    """Attributes of a class and its bases in which the calls of an object may keep something, such as a list."""
    return tuple(
        name
        for base in reversed(kind.__mro__)
        if not is_pythons(base)
        for name, held in vars(base).items()
        if name[:2] != "__" and isinstance(held, (bool, int, float, str, list, dict, set, deque))
    )


def python_random_state() -> bytes:
    """The state of Python's and NumPy's global generators."""
    return pickle.dumps((random.getstate(), np.random.get_state()))
