"""Which frameworks there are, known without importing any."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from autotune.backends.protocol import Backend, Reports
from autotune.config import Scalar
from autotune.environment import package_version
from autotune.errors import InputError, MissingFrameworkError
from autotune.measure.diagnosis import BreakKind


@dataclass(frozen=True)
class BackendEntry:
    """A line of the table: everything that can be said of a framework without importing it."""

    module: str
    class_name: str
    distribution: str | None
    """Package whose presence and version stand for the framework; None: always there."""
    oldest: str
    """Oldest release that is supported."""
    install: str
    process_variables: dict[str, str]
    """Variables that must stand before the framework is imported, for every process that uses it."""
    cache_is_exact: bool
    """Its compiler finds what it cached by what is compiled. False: it takes what lies there for whatever is compiled
    next, so that the outputs of a first call from a cache have to be checked."""
    untuned: dict[str, Scalar]
    """The config that leaves a model as it is: what its search space calls so."""
    preload: str | None
    """Module that a fork server may import ahead of the trials; None: never preload."""
    compiled: dict[str, Scalar]
    """Settings under which modules can be compiled by themselves: where knob `region` means something."""
    shares_compilations: bool
    """Equal modules share one, so that the blocks of a deep model are worth compiling by themselves, unasked."""
    reports: str | None = None
    """Module that reads what the framework writes about graph breaks; it does not import the framework."""
    capturable: tuple[BreakKind, ...] = ()
    """Kinds of graph breaks that can be taken out by a setting: see `Backend.capture_despite`."""
    toolchain: str | None = None
    """Program (see `module_command`) that makes what its compiler needs for every compile on CPU: see `toolchain`."""
    bundled_only_for_tests: bool = False
    holds_fresh: bool = True
    """Live processes start a Python of their own: how processes differ is what they sample. False for the fake."""


BACKENDS: dict[str, BackendEntry] = {
    "torch": BackendEntry(
        module="autotune.backends.torch.backend",
        class_name="TorchBackend",
        distribution="torch",
        oldest="2.6",
        install="pip install 'autotune-compile[torch]'",
        process_variables={},
        cache_is_exact=True,
        untuned={"execution": "eager"},
        preload="torch",
        compiled={"execution": "compile"},
        shares_compilations=True,
        reports="autotune.backends.torch.break_kinds",
        capturable=(BreakKind.SCALAR, BreakKind.DATA_SHAPE, BreakKind.PRINT),
        toolchain="backends.torch.toolchain",
    ),
    "mindspore": BackendEntry(
        module="autotune.backends.mindspore.backend",
        class_name="MindSporeBackend",
        distribution="mindspore",
        oldest="2.3",
        install="pip install 'autotune-compile[mindspore]'",
        # Its log level can only be set before the import; 3 leaves errors and drops a flood of warnings.
        process_variables={"GLOG_v": "3"},
        cache_is_exact=False,
        untuned={"execution": "pynative"},
        preload="mindspore",
        # Graph mode is the process's: it compiles whatever is called.
        compiled={"execution": "jit"},
        shares_compilations=False,
        reports="autotune.backends.mindspore.break_kinds",
    ),
    "fake": BackendEntry(
        module="autotune.backends.fake",
        class_name="FakeBackend",
        distribution=None,
        oldest="0",
        install="",
        process_variables={},
        cache_is_exact=True,
        untuned={"execution": "eager"},
        preload="numpy",
        compiled={"execution": "compile"},
        shares_compilations=True,
        bundled_only_for_tests=True,
        holds_fresh=False,
    ),
    # The same once more under another name, with a variable to tell its processes by: for studies of two frameworks.
    "sham": BackendEntry(
        module="autotune.backends.fake",
        class_name="FakeBackend",
        distribution=None,
        oldest="0",
        install="",
        process_variables={"SHAM": "1"},
        cache_is_exact=False,
        untuned={"execution": "eager"},
        preload="numpy",
        compiled={"execution": "compile"},
        shares_compilations=True,
        bundled_only_for_tests=True,
        holds_fresh=False,
    ),
}

MADE = "made"
"""Folder, in that of the process that makes a toolchain, which holds it in the end."""


def framework_names() -> tuple[str, ...]:
    """The frameworks that a user can choose."""
    return tuple(name for name, entry in BACKENDS.items() if not entry.bundled_only_for_tests)


def entry_of(framework: str) -> BackendEntry:
    """The table's line for a framework. Raises InputError for an unknown name."""
    try:
        return BACKENDS[framework]
    except KeyError:
        raise InputError(
            f"--framework {framework}: unknown", tip=f"choose one of: {', '.join(framework_names())}"
        ) from None


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


def framework_of(model: Any) -> str | None:
    """The framework of a job's model, among those that the job has imported; None for a model of none of them."""
    imported = [name for name in framework_names() if BACKENDS[name].preload in sys.modules]
    return next((name for name in imported if _can_compile(name, model)), None)


def load_backend(framework: str) -> Backend:
    """Import a framework and its backend. Raises MissingFrameworkError, InputError."""
    entry = entry_of(framework)
    framework_version(framework)
    backend: Backend = getattr(importlib.import_module(entry.module), entry.class_name)()
    return backend


def _can_compile(framework: str, model: Any) -> bool:
    return load_backend(framework).check_model(model) is None
