"""The contract of a framework, and the lazy table of the frameworks there are.

A backend is one file, or several that share a first word. It is imported in the child that runs a trial (and in the
job that loads a tuned config), never in the parent. To add one: write the file, add a line to `BACKENDS`, add
`search_spaces/<framework>.yaml`; the conformance test is parametrised over the table.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.accuracy import WideType
from autotune.measure.diagnosis import BreakKind, Compilations, Diagnosis, GraphBreak, Recompile
from autotune.measure.measurement import Reason, TensorSpec
from autotune.measure.profile import Profile
from autotune.workload.arguments import Arguments
from autotune.workload.workload import Device


@dataclass(frozen=True)
class Found:
    """What a framework sees on this machine: `devices` it can use, and `notes` on what is missing for others."""

    version: str
    devices: dict[Device, str]
    """Device -> its name as the framework gives it."""
    compilers: dict[str, str]
    """Compilers and runtimes that the framework's backends need -> version or where found."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Varying:
    """An axis of an argument whose size differs from call to call. None: any size."""

    leaf: int
    """Which of `Arguments.leaves`."""
    axis: int
    smallest: int | None = None
    largest: int | None = None


class Versions(Protocol):
    """A model under a config, to be compiled for one shape at a time."""

    @property
    def eager(self) -> Callable[..., Any]:
        """The model under all that the config sets, but not compiled."""

    @property
    def gives_back(self) -> bool:
        """Whether `drop` frees anything."""

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """Equal for calls that one version serves: shapes and types of tensors, and whatever else compiled code is
        specialised to. Quick: it is asked at each call."""

    def new(self) -> Callable[..., Any]:
        """A version: compiled at its first call, for calls of one key."""

    def warm(self) -> None:
        """Do what the framework does once in a process before it compiles, if it was not done yet."""

    def drop(self, version: Callable[..., Any]) -> None:
        """Free what was compiled, so far as the framework lets go of it. The version is never called again."""

    def memory_bytes(self) -> int | None:
        """What the device's allocator has handed out; None where there is none (CPU)."""


class ModelCopy(Protocol):
    """A model's modules once more, for what has to rewrite modules: the job's own stay as they are."""

    @property
    def model(self) -> Any:
        """The copy. It has the weights of the original: the same tensors, not equal ones."""

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step`, which calls the rewritten copy. What a call sets in the copy's attributes is brought back to the
        original's. Raises UnsuitableCallError for a call in which the copy is not what the original has become."""


class Backend(Protocol):
    """One framework. Every method runs in the process that owns the model; none starts a process.

    The order of a trial: `prepare`, (the workload builds its model), `place`, `compile`, first call, more calls,
    `diagnose`. `compile` is the same pure mapping from config to the framework's arguments that a job gets through
    `autotune.load(...).apply(model)`: what was measured is what is deployed.
    """

    warmup_calls: int
    """Calls after which this framework's runtime has settled at the earliest (its own measured fact)."""

    regions_rewrite: bool
    """`compile` rewrites modules for a config with a region: it has to be given a copy of them."""

    evaluation_call: str
    """What a user writes to turn a model's dropout off."""

    def find(self) -> Found:
        """Look for devices and compilers, quietly: absent hardware is data, not an error."""

    def prepare(self, device: Device, seed: int) -> None:
        """Seed the generators and select the device, before the model exists. Raises MissingDeviceError."""

    def adopt(self, model: Any) -> None:
        """In place of `prepare` in a job: go by the device that the job's own model is on. Raises AutotuneError."""

    def device_name(self) -> str:
        """The selected device as the framework names it; for the record."""

    def check_model(self, model: Any) -> str | None:
        """A sentence if `model` is nothing that this framework can compile, else None."""

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Every module of a model by its dotted path, in the framework's order; the model itself by the empty one."""

    def check_region(self, model: Any, region: str) -> None:
        """Raises InvalidConfigError for a region (see `regions`) that cannot be compiled in this model."""

    def place(self, value: Any) -> Any:
        """A model, or an argument of a call, on the selected device. What is no tensor comes back as it is."""

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        """The model under `config`, ready to be called like the model itself; lazily compiled is fine.

        Sets what a config sets in the process (contexts, global switches), and notes in `changes` how that is undone.
        Where a region makes it rewrite modules, `model` is what `copy_modules` gave. What is returned raises
        UnsuitableCallError for a call that must be made untuned. Raises InvalidConfigError for a setting that the
        installed release does not take.
        """

    def process_settings(self, config: Config) -> tuple[str, ...]:
        """The knobs of a config that set something for the whole process, where other models feel it too."""

    def copy_modules(self, model: Any) -> ModelCopy:
        """What variants, and `compile` where `regions_rewrite` is set, may rewrite in place of `model`."""

    def original(self, model: Any) -> Any:
        """The model behind what `stand_in` gave for it; the very same object for any other."""

    def versions(self, model: Any, config: Config, changes: UndoLog) -> Versions | None:
        """The same, with what is compiled for one shape kept apart from what is compiled for another. None where this
        config's compiled code cannot be: nothing was set then."""

    def capture_despite(self, ailment: BreakKind, changes: UndoLog) -> None:
        """Before `compile`: let the compiler capture code of this kind, which it breaks at by default. Nothing happens
        where the framework has no safe way (`BackendEntry.capturable` lists those that have one)."""

    def marker(self, model: Any, varying: Sequence[Varying], changes: UndoLog) -> Callable[[Arguments], None]:
        """What is called before each call of what `compile` gave for `model`: from the first one on the compiler takes
        these sizes as open. A size that it cannot take so, such as a 1, it may still take as fixed."""

    def uncompiled(self) -> AbstractContextManager[Any]:
        """Within: what `compile` gave runs as it is written, in its precision and formats, and nothing is compiled."""

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        """A tensor that is longer along an axis, with `fill` appended, in the same type and on the same device."""

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        """What lies from `start` to `stop` along an axis."""

    def join(self, tensors: Sequence[Any], axis: int) -> Any:
        """One tensor of several, one after the other along an axis."""

    def direct(self, step: Any) -> Callable[..., Any]:
        """Calls what `compile` gave, or the model, also once a job's calls of it go elsewhere: see `stand_in`."""

    def stand_in(self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog) -> Any:
        """What a job holds in place of `model`: a model of the same class, with the same parameters under the same
        names, whose calls go to `call`. `step` is what `compile` gave for the model, or the model."""

    def inference(self) -> AbstractContextManager[Any]:
        """Where a trial of the `infer` task calls the model: no gradients recorded."""

    def check_optimizer(self, optimizer: Any) -> str | None:
        """A sentence if `optimizer` is none of this framework's, else None."""

    def set_training(self, model: Any) -> None:
        """Put a model that is in evaluation mode as a whole into training mode; one that is not is left as it is."""

    def training_step(
        self, model: Any, loss: Callable[..., Any], optimizer: Any, config: Config, changes: UndoLog
    ) -> Callable[..., Any]:
        """A function that takes one training step under `config` and returns the loss, a scalar tensor.

        It is called with what `loss` takes after the model: it computes `loss(model, ...)` and its gradients, and lets
        the optimizer change the weights. What a config sets is noted as in `compile`, which raises the same.
        """

    def keep(self, model: Any, optimizer: Any) -> Callable[[], None]:
        """Copy the weights, the model's buffers and what the optimizer holds so far. Returns what puts it all back."""

    def weights(self, optimizer: Any) -> list[NDArray[Any]]:
        """Copies of what the optimizer trains, in its order."""

    def gradients(self, optimizer: Any) -> list[NDArray[Any]]:
        """Copies of the gradients of the last step; where a framework does not keep them, of what the optimizer made of
        them, such as its moments. Their number and order are those of the optimizer, whatever the config."""

    def synchronise(self) -> None:
        """Return when the device has finished all work handed to it so far."""

    def to_array(self, value: Any) -> NDArray[Any] | None:
        """A tensor as a NumPy array (bfloat16 as float32), None for what is no tensor."""

    def like(self, array: NDArray[Any], original: Any) -> Any:
        """`array` as a tensor of the type and on the device of `original`."""

    def spec(self, value: Any) -> TensorSpec | None:
        """Shape and type of a tensor, None for what is no tensor."""

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        """Names and shapes of the model's parameters and buffers, in a stable order."""

    def widen(self, value: Any, dtype: WideType) -> Any:
        """A model, changed in place, or a tensor with its floating parameters, buffers or elements in `dtype`.

        What is neither, and what holds no floats, comes back as it is.
        """

    def active_dropout(self, model: Any) -> list[str]:
        """The model's dropout layers that drop when it is called, e.g. `Dropout 'blocks.0.drop' (p=0.1)`."""

    def random_state(self) -> bytes:
        """The state of the generators that `prepare` seeds: another one after a call means that it drew from them.

        The same does not mean that nothing was drawn: a model can hold generators of its own.
        """

    def reset_peak_memory(self) -> None:
        """Start a new peak. Only called where `peak_memory_bytes` is not None."""

    def peak_memory_bytes(self) -> int | None:
        """The device allocator's peak since the last reset; None where there is none (CPU)."""

    def cache_variables(self, folder: str) -> dict[str, str]:
        """Environment variables that put every compile cache of the framework under `folder`, and there too what the
        compiler is asked to dump for `program`."""

    def compile_cache(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        """Within: what is compiled is taken from the caches in `folder`, or else added to them; then all is as before.

        `key` is a text for all that the compiled code depends on. The folder must stay for as long as the code is used.
        """

    def build_tools(self) -> dict[str, str]:
        """Compilers and packages besides the framework that decide what the compiled code is -> their versions."""

    def classify(self, error: BaseException) -> Reason | None:
        """The reason behind an exception where its type tells (out of memory, invalid), else None."""

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        """What the compiler did for all calls so far, from its own counters and reports."""

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        """How often the compiler was at work so far, cheaply; asked after `compile` and after each call of a stream of
        shapes. None: it does not tell."""

    def profile(self, call: Callable[[], None], num_calls: int, trace: Path) -> Profile:
        """Make `num_calls` calls under the framework's profiler, and leave its Chrome trace in the file `trace`.

        Where the framework has no profiler that can be read, a note says so, no operators are listed and there is no
        trace. Called last: a profiler may leave the process slower than it was.
        """

    def program(self, model: Any, config: Config) -> str | None:
        """A digest of what runs: the emitted code, and the settings under which it runs as read back in the process.

        Called after the first calls, in the folder of `cache_variables`. Equal digests must mean equal speed, so what
        cannot be read back goes in as it was asked for; None where the emitted code cannot be had.
        """


class Reports(Protocol):
    """What a framework writes to stderr about graph breaks, read in the parent. A module has this form."""

    VARIABLES: dict[str, str]
    """Environment variables that make a process write it."""

    def breaks(self, text: str) -> tuple[GraphBreak, ...]:
        """Graph breaks that stand in no record of the process; empty where all do."""

    def recompiles(self, text: str) -> tuple[Recompile, ...]:
        """The same for recompiles."""

    def refusal(self, text: str) -> GraphBreak | None:
        """The place that made the framework refuse to compile, from the traceback of the process."""


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


def python_random_state() -> bytes:
    """The state of Python's and NumPy's global generators."""
    return pickle.dumps((random.getstate(), np.random.get_state()))
