"""Dynamo and inductor, and what the model imports, imported by a fork server for all trials that it forks.

Some of these modules keep what they read at import: the temporary folder, the cache folder, the working folder. Each
trial has its own. So the import is made in stand-in folders, whose name then tells which values hold a path of them,
whatever the release calls these; a fork puts its own folders in their place. Where one cannot be replaced, the import
is of no use, and trials import for themselves. So it is where an import changes the environment, which all that starts
later would have.

A large model is built ahead, too (`built_once`).
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import torch

from autotune.backends.protocol import variables_set
from autotune.backends.torch.compile_cache import cache_variables
from autotune.backends.torch.instruments import ASKS_NVML, require_found
from autotune.errors import SetupError
from autotune.own_folders import TemporaryFolder
from autotune.workload.workload import Device

_MODULES = ("torch._dynamo", "torch._inductor.compile_fx")
"""What `torch.compile` imports in its first call, with all that these import."""
_FIT_FOR_FORKS = {**ASKS_NVML, "TORCH_WARM_POOL": "0"}
"""Inductor asks at import whether there is a GPU, and no fork would survive an initialised driver.
Where Triton is installed, older releases start inductor's pool of compilers at import, with a thread; a fork starts its
own when it compiles."""
_NOT_INITIALISED = 3
"""CUDA_ERROR_NOT_INITIALIZED."""

Replace = Callable[[str], None]
T = TypeVar("T")
_SETTERS, _CACHE = "set_num_threads", "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True)
class ImportedAhead:
    """See `autotune.backends.capabilities.ImportedAhead`."""

    seconds: float
    resident_bytes: int
    model_bytes: int
    _stand_ins: Mapping[str, str]
    """Kind of folder -> the path in whose place a fork's own is put."""
    _values: tuple[tuple[str, Replace], ...]

    def adopt(self, cache: str) -> None:
        own = {"temporary": tempfile.gettempdir(), "cache": cache, "working": os.getcwd()}
        for value, replace in self._values:
            own_value = value
            for kind, stand_in in self._stand_ins.items():
                own_value = own_value.replace(stand_in, own[kind])
            replace(own_value)


def import_ahead(modules: Sequence[str] = ()) -> ImportedAhead:
    """Import the compiler, and these modules of a model. Raises SetupError where a path cannot be replaced in a fork,
    the environment is changed, or there is a driver now; and whatever an import raises."""
    folder = TemporaryFolder("imports")
    # Under a name that nothing else has: every string with it is looked for.
    home = os.path.join(folder.path, secrets.token_hex(8))
    stand_ins = _made_in(home)
    try:
        with _in_folders(stand_ins, {**cache_variables(stand_ins["cache"]), **_FIT_FOR_FORKS}):
            # It may be made beside other work, and does nothing but compute.
            start, resident_bytes = time.process_time(), _resident_bytes()
            for module in _MODULES:
                importlib.import_module(module)
            seconds, resident_bytes = time.process_time() - start, _resident_bytes() - resident_bytes
            # It imports some more of torch, and is no part of a first call.
            importlib.import_module("autotune.backends.torch.backend")
            model_bytes = _import_unchanged(modules)
        if _has_driver():
            raise SetupError("it has initialised the GPU's driver")
        values = tuple(_values_with(Path(home).name, but_in=stand_ins))
        return ImportedAhead(seconds, max(resident_bytes, 0), model_bytes, stand_ins, values)
    finally:
        folder.remove()


def _import_unchanged(modules: Sequence[str]) -> int:
    """Returns the bytes by which the process grew. Raises SetupError where one changes the environment, or where all
    imports are made from."""
    environment, working, before = dict(os.environ), os.getcwd(), _resident_bytes()
    for module in modules:
        importlib.import_module(module)
        if (dict(os.environ), os.getcwd()) != (environment, working):
            raise SetupError(f"the import of {module} changes the environment")
    return max(_resident_bytes() - before, 0)


def _has_driver() -> bool:
    """A driver of a device is initialised in this process, which no fork would survive: torch's own of a GPU or an NPU,
    or CUDA's by whatever means."""
    modules = (getattr(torch, name, None) for name in ("cuda", "npu"))
    if any(module is not None and module.is_initialized() for module in modules):
        return True
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALISED)


def _resident_bytes() -> int:
    resident: int = psutil.Process().memory_info().rss
    return resident


def _made_in(home: str) -> dict[str, str]:
    folders = {}
    for kind in ("temporary", "cache", "working"):
        folders[kind] = str(Path(home, kind))
        Path(folders[kind]).mkdir(parents=True)
    return folders


@contextmanager
def _in_folders(folders: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[None]:
    working, temporary = os.getcwd(), tempfile.tempdir
    tempfile.tempdir = None
    os.chdir(folders["working"])
    try:
        with variables_set({"TMPDIR": folders["temporary"], **variables}):
            yield
    finally:
        os.chdir(working)
        # Where an empty text in `sys.path` stands for the working folder.
        sys.path_importer_cache.pop(folders["working"], None)
        tempfile.tempdir = temporary


def _values_with(name: str, but_in: object) -> Iterator[tuple[str, Replace]]:
    """Every string with this name in it that something holds, and what puts another in its place."""
    waiting = gc.get_objects()
    while waiting:
        holder = waiting.pop()
        if holder is but_in:
            continue
        keys = holder if type(holder) is dict else ()  # The collector does not visit them.
        for value in (*gc.get_referents(holder), *keys):
            if type(value) is str and name in value:
                yield from ((value, replace) for replace in _replacements(holder, value))
            elif type(value) in (dict, tuple) and not gc.is_tracked(value):
                # The collector leaves out what can be in no cycle, such as a tuple of strings.
                waiting.append(value)


def _replacements(holder: Any, value: str) -> list[Replace]:
    if isinstance(holder, dict):
        is_open = not _is_of_a_class(holder)
        found: list[Replace] = [partial(holder.__setitem__, key) for key in holder if is_open and holder[key] is value]
    elif isinstance(holder, list):
        found = [partial(holder.__setitem__, index) for index, held in enumerate(holder) if held is value]
    else:
        names = [*getattr(holder, "__dict__", ()), *getattr(type(holder), "__slots__", ())]
        found = [partial(setattr, holder, name) for name in names if getattr(holder, name, None) is value]
    if not found:
        raise SetupError(f"a {type(holder).__name__} holds a path of the import: {value}")
    return found


def _is_of_a_class(holder: dict[Any, Any]) -> bool:
    """Python looks names of a class up without its dictionary, which must not be written to."""
    return "__module__" in holder and "__name__" not in holder


def built_once(device: Device, build: Callable[[], T]) -> tuple[T, Callable[[], None]]:
    """See `BuiltOnce`. What asks within whether there is a GPU begins no driver (`_FIT_FOR_FORKS`).

    The pool of OpenMP does not survive a fork, so the build runs on one thread, and the number that forks have is set
    where OpenMP keeps it: `torch.set_num_threads` would change how MKL chooses its threads, too.
    """
    openmp = _openmp()
    num_threads = torch.get_num_threads()  # The first question makes torch look how many there are.
    openmp.omp_set_num_threads(1)
    folder = TemporaryFolder("caches")
    caches = cache_variables(os.path.join(folder.path, secrets.token_hex(8)))
    home = os.path.dirname(caches[_CACHE])
    try:
        with variables_set({**_FIT_FOR_FORKS, **caches}), _refusing_threads():
            if device == "gpu":
                require_found(device, "cuda")
            built = build()
        if any(files for _, _, files in os.walk(home)):
            raise SetupError("its build compiles")
        # Made for whatever asks for it, and kept: transformers, say, imports such parts of the compiler.
        values = tuple(_values_with(os.path.basename(home), but_in=caches)) if os.path.isdir(home) else ()
    finally:
        folder.remove()
    if torch.get_num_threads() != 1:
        raise SetupError("its build sets the number of threads")
    if _has_driver():
        raise SetupError("its build begins the device's driver; a model that it leaves on the CPU is built once")
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def go_on() -> None:
        for value, replace in values:
            replace(value.replace(caches[_CACHE], os.environ[_CACHE]))
        openmp.omp_set_num_threads(num_threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)

    return built, go_on


def _openmp() -> ctypes.CDLL:
    """The runtime that torch has loaded. Raises SetupError where it has none."""
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    found = [path for path in mapped if Path(path).name.startswith(("libgomp", "libiomp5", "libomp"))]
    if len(found) != 1:
        raise SetupError(f"{len(found)} runtimes of OpenMP are loaded")
    return ctypes.CDLL(found[0])


@contextmanager
def _refusing_threads() -> Iterator[None]:
    """Raises SetupError where `torch.set_num_threads` is called within."""
    asked = False

    def note(num: int) -> None:
        nonlocal asked
        asked = True
        own(num)

    own = torch.set_num_threads
    places = (torch, torch._C)
    try:
        for place in places:
            setattr(place, _SETTERS, note)
        yield
    finally:
        for place in places:
            setattr(place, _SETTERS, own)
    if asked:
        raise SetupError("its build sets the number of threads")
