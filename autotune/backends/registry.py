"""Which frameworks there are, known without importing any: the bundled ones, and those of installed packages.

A package adds one by an entry point of the group `autotune.backends`: its name is the framework's, its value a
`BackendEntry`. Entry points are looked up when a framework is asked for, and loaded one by one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from autotune.backends.protocol import Backend, PlainCode, Reports, SavedModels
from autotune.command_line import install
from autotune.config import Config, Scalar
from autotune.doors import Door
from autotune.environment import package_version
from autotune.errors import InputError, MissingFrameworkError, did_you_mean, marked
from autotune.workload.workload import Device, Task


@dataclass(frozen=True)
class CheapSettings:
    """What an informed user would set for the untuned model on a CPU: it compiles nothing and changes no result. A
    study says what it gives by itself (docs/decisions/0080-what-is-had-for-nothing.md)."""

    settings: dict[str, Scalar]
    deed: str
    """What it is, as in "1.6x of it by keeping memory alone"."""
    by_hand: str
    """How to have it without this package."""


def _one_each(num_cores: int) -> int:
    return num_cores


def _mindspores(num_cores: int) -> int:
    """Half of the cores, for four operators at a time: its own rule, which counts the machine's processors."""
    return min(max(num_cores // 8, 1), 16)


@dataclass(frozen=True)
class BackendEntry:
    """Everything that can be said of a framework without importing it."""

    backend: str
    """Module and class: `package.module:Class`."""
    distribution: str | None
    """Package whose presence and version stand for the framework; None: always there."""
    oldest: str
    """Oldest release that is supported."""
    install: str
    untuned: dict[str, Scalar]
    """The config that leaves a model as it is: what its search space calls so."""
    compiled: dict[str, Scalar]
    """Settings under which modules can be compiled by themselves: where knob `region` means something."""
    process_variables: dict[str, str] = field(default_factory=dict)
    """Variables that must stand before the framework is imported, for every process that uses it."""
    preload: str | None = None
    """Module that a fork server may import ahead of the trials; None: never preload."""
    cache_is_exact: bool = True
    """Its compiler finds what it cached by what is compiled. False: it takes what lies there for whatever is compiled
    next, so that the outputs of a first call from a cache have to be checked."""
    shares_compilations: bool = False
    """Equal modules share one, so that the blocks of a deep model are worth compiling by themselves, unasked."""
    picks_by_timing: tuple[dict[str, Scalar], ...] = ()
    """Settings under any of which its compiler times candidates and keeps the fastest: another compile may keep others.
    """
    picks_in_each_process: tuple[dict[str, Scalar], ...] = ()
    """Settings under which it does so, and keeps nothing of it for the next process."""
    reports: str | None = None
    """Module that reads what the framework writes about graph breaks; it does not import the framework."""
    plain: str | None = None
    """Module with a function `plain_code`, which does not import the framework: see `PlainCode`."""
    saved_models: str | None = None
    """Module that writes a live model to a file (see `SavedModels`); None: such a model cannot be tuned as it is."""
    toolchain: str | None = None
    """Program (see `module_command`) that makes what its compiler needs for every compile on CPU: see `toolchain`."""
    forks_on: tuple[Device, ...] = ("cpu",)
    """Devices on whose driver a fork of a process that has imported it may open (docs/decisions/0002)."""
    imports_ahead: str | None = None
    """Module with a function `import_ahead`, with which a fork server imports the compiler too: see `ImportedAhead`. It
    takes the modules that the model imports.
    On a CPU alone: on a GPU the import starts a thread of the driver, after which nothing may be forked."""
    generates: bool = False
    """Whether the framework has task `generate` (see `Generation`)."""
    options: tuple[str, ...] = ()
    """Beginnings of the names of knobs that are options of its compiler, as in `inductor.NAME`: see `check_option`."""
    compilers: tuple[str, ...] = ()
    """Packages that make the code of an accelerator, next to the framework."""
    holds_fresh: bool = True
    """Live processes start a Python of their own: how processes differ is what they sample. False for the fake."""
    cheap: CheapSettings | None = None
    """The second baseline of its studies on a CPU; None: nothing costs so little."""
    threads_of: Callable[[int], int] = _one_each
    """Threads of an operator on so many cores, where OMP_NUM_THREADS does not say it."""
    sees_core_sets: bool = True
    """Whether the framework counts the processors that its process may run on; False: the machine's."""
    search_space: Path | None = None
    """Its space file; None: the bundled `search_spaces/<framework>.yaml`, or what is given with `--space`."""

    def preloaded_on(self, device: Device) -> tuple[str, ...]:
        """What a fork server of trials on this device imports: `preload`, and on a CPU `imports_ahead`."""
        ahead = self.imports_ahead if device == "cpu" else None
        return tuple(module for module in (self.preload, ahead) if module is not None)

    def compiles(self, config: Config) -> bool:
        """Anything: the config does not leave the model as it is."""
        return not config.matches(self.untuned)

    def picks(self, config: Config) -> bool:
        """Its compiler times candidates under this config."""
        return any(config.matches(settings) for settings in self.picks_by_timing)


DOOR = Door("autotune.backends", "backend", BackendEntry)
"""Where a package adds a framework."""

BACKENDS: dict[str, BackendEntry] = {
    "torch": BackendEntry(
        backend="autotune.backends.torch.backend:TorchBackend",
        distribution="torch",
        oldest="2.6",
        install=install("torch"),
        untuned={"execution": "eager"},
        preload="torch",
        forks_on=("cpu", "gpu"),
        compiled={"execution": "compile"},
        shares_compilations=True,
        picks_by_timing=(
            {"mode": "max-autotune"},
            {"mode": "max-autotune-no-cudagraphs"},
            {"max_autotune_gemm": True},
            {"coordinate_descent_tuning": True},
        ),
        picks_in_each_process=({"cudnn_benchmark": True},),
        reports="autotune.backends.torch.break_kinds",
        plain="autotune.backends.torch.plain",
        saved_models="autotune.backends.torch.files",
        toolchain="backends.torch.toolchain",
        imports_ahead="autotune.backends.torch.imported_ahead",
        generates=True,
        options=("inductor", "dynamo"),
        compilers=("triton", "torch-npu", "triton-ascend"),
        cheap=CheapSettings(
            settings={"allocator": "keep"},
            deed="keeping memory",
            by_hand="MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0 in the environment of the process",
        ),
    ),
    "mindspore": BackendEntry(
        backend="autotune.backends.mindspore.backend:MindSporeBackend",
        distribution="mindspore",
        oldest="2.3",
        install=install("mindspore"),
        # Its log level can only be set before the import; 3 leaves errors and drops a flood of warnings.
        process_variables={"GLOG_v": "3"},
        cache_is_exact=False,
        untuned={"execution": "pynative"},
        preload="mindspore",
        # Graph mode is the process's: it compiles whatever is called.
        compiled={"execution": "jit"},
        reports="autotune.backends.mindspore.break_kinds",
        plain="autotune.backends.mindspore.plain",
        threads_of=_mindspores,
        sees_core_sets=False,
    ),
}
"""The bundled ones."""

MADE = "made"
"""Folder, in that of the process that makes a toolchain, which holds it in the end."""


def bundled_names() -> tuple[str, ...]:
    """The bundled frameworks, which are chosen from where none is named."""
    return tuple(BACKENDS)


def framework_names() -> tuple[str, ...]:
    """All frameworks that a user can choose, the bundled ones first. Raises InputError where two have one name."""
    for name in filter(DOOR.has, BACKENDS):
        raise InputError(f"a package adds a backend {name!r}, which is autotune's own", tip="uninstall that package")
    return (*bundled_names(), *DOOR.names())


def entry_of(framework: str) -> BackendEntry:
    """What is known of a framework. Raises InputError for an unknown name, and for a package that is broken."""
    if framework in BACKENDS:
        return BACKENDS[framework]
    found = DOOR.find(framework)
    if found is not None:
        return found
    names = framework_names()
    tip = f"{did_you_mean(framework, names)}choose one of: {', '.join(names)}"
    raise InputError(f"{marked('framework', framework)}: unknown", tip=tip)


def framework_version(framework: str) -> str:
    """The installed version, without importing the framework. Raises MissingFrameworkError, also if it is too old."""
    entry = entry_of(framework)
    if entry.distribution is None:
        return "0"
    version = package_version(entry.distribution)
    if version is None:
        raise MissingFrameworkError(
            f"{framework} is not installed in this Python environment", tip=f"run: {entry.install}"
        )
    if Version(version) < Version(entry.oldest):
        raise MissingFrameworkError(
            f"{framework} {version} is too old: {entry.oldest} is the oldest that is supported",
            tip=f"run: {entry.install}",
        )
    return version


def reports_of(framework: str) -> Reports | None:
    """The reader of a framework's reports, without importing the framework; None where there is none."""
    module = entry_of(framework).reports
    found: Any = None if module is None else importlib.import_module(module)
    return found  # type: ignore[no-any-return]


def plain_code(framework: str, config: Config, version: str, device: Device, task: Task) -> PlainCode | None:
    """What a config is in the framework's own code, without importing the framework; None where nobody can say it."""
    module = entry_of(framework).plain
    if module is None:
        return None
    found: PlainCode | None = importlib.import_module(module).plain_code(config, version, device, task)
    return found


def saved_models_of(framework: str) -> SavedModels | None:
    """The writer of a framework's live models; None where there is none. It imports the framework."""
    module = entry_of(framework).saved_models
    found: Any = None if module is None else importlib.import_module(module)
    return found  # type: ignore[no-any-return]


def is_imported(framework: str) -> bool:
    """The job has imported it, so far as its entry tells. Raises like `entry_of`."""
    return entry_of(framework).preload in sys.modules


def framework_of(model: Any) -> str | None:
    """The framework of a job's model, among those that the job has imported; None for a model of none of them."""
    return framework_that(lambda backend: backend.check_model(model) is None)


def framework_that(*signs: Callable[[Backend], bool]) -> str | None:
    """The first of the frameworks that the job has imported for which a sign holds, the first sign before the second;
    None where none holds."""
    names = list(imported_frameworks())
    return next((name for sign in signs for name in names if sign(load_backend(name))), None)


def imported_frameworks() -> Iterator[str]:
    """Those that the job has imported. A broken package of somebody else's is passed over: it must not end a job that
    does not use it."""
    yield from (name for name in bundled_names() if is_imported(name))
    for name in sorted({*DOOR.names()} - {*BACKENDS}):
        with suppress(InputError):
            if entry_of(name).preload in sys.modules:
                yield name


def load_backend(framework: str) -> Backend:
    """Import a framework and its backend. Raises MissingFrameworkError, InputError."""
    entry = entry_of(framework)
    framework_version(framework)
    module, _, name = entry.backend.partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    return backend
