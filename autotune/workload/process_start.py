"""`ProcessStart`: what a process has to be started with, as knobs of a config: environment variables, libraries that
are loaded before all others, a core set.

A library reads a variable when it is loaded, an allocator serves a process from its first byte, and a runtime counts
its cores once. So none of this can be set in a process that runs: a trial starts its Python anew, and a job has to be
started so, which `autotune launch` does. In the job nothing is set: it looks at what it was started with (decision 81).

    knob           value                     the process is started with
    env.NAME       a number, or a word       the variable, if it is one of `VARIABLES`
    allocator      jemalloc, tcmalloc        the library in LD_PRELOAD
                   huge_pages                glibc's own allocator, told by GLIBC_TUNABLES to ask for huge pages
    openmp         iomp                      Intel's OpenMP in LD_PRELOAD: it serves code that was built for GNU's
    cores          C                         C of its cores: one thread of each core first, neighbours first
    instances      NxC                       as many threads as C, on the I-th of N sets of C cores: it is one of N
                                             processes that run side by side (decision 81)

A file names no path, command or code here: variables take numbers or one of a few words, and a library is one of a few
names, which is looked for in the folders of this machine's own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.config import Scalar
from autotune.environment import usable_cpus
from autotune.errors import InputError, InvalidConfigError, did_you_mean, marked

PREFIX = "env."
"""What the name of a knob begins with that is a variable."""
CORES = "cores"
INSTANCES = "instances"
PRELOAD = "LD_PRELOAD"

MOST = 2**31 - 1
MOST_INSTANCES = 1024
FEWEST_THREADS = 256
"""So many threads may be asked for on any machine, or four for each processor if those are more: each takes memory."""

_SWITCH = ("true", "false")
_ANY_TIME = range(MOST + 1)
VARIABLES: dict[str, tuple[str, ...] | range] = {
    "OMP_DYNAMIC": _SWITCH,
    "OMP_PROC_BIND": (*_SWITCH, "master", "primary", "close", "spread"),
    "OMP_PLACES": ("threads", "cores", "sockets"),
    "OMP_WAIT_POLICY": ("active", "passive"),
    "GOMP_SPINCOUNT": _ANY_TIME,
    "KMP_BLOCKTIME": _ANY_TIME,
    "MKL_DYNAMIC": _SWITCH,
    "ONEDNN_DEFAULT_FPMATH_MODE": ("STRICT", "BF16", "F16", "TF32", "ANY"),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": range(2**16 + 1),
    "MALLOC_ARENA_MAX": range(MOST_INSTANCES + 1),
    "MALLOC_MMAP_THRESHOLD_": range(2**14, MOST + 1),
    "MALLOC_TRIM_THRESHOLD_": range(MOST + 1),
    "CUDA_DEVICE_MAX_CONNECTIONS": range(1, 33),
    "NVIDIA_TF32_OVERRIDE": ("0", "1"),
    "TASK_QUEUE_ENABLE": ("0", "1", "2"),
}
"""Variable -> the words that it takes, or the numbers: those that make sense, as a mapping of memory for each few bytes
does not."""
_OF_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that no config asks for, since there is a knob, and that processes are started with all the same."""

_OWN_KNOBS = {
    **dict.fromkeys(_OF_THREADS, "the knob threads"),
    **{"TORCHINDUCTOR_": "the knob inductor.NAME", "TORCHDYNAMO_": "the knob dynamo.NAME"},
}
"""Variable, or the beginning of its name -> what is there for it."""


@dataclass(frozen=True)
class _Library:
    """A library that may be loaded before all others."""

    files: tuple[str, ...]
    """Its names as a file; the first that is found is taken."""
    symbol: str
    """A function that the process then has from it. One that Python itself does not call: in a program that is linked
    at a fixed place, as Debian's Python, such a function seems to be the program's own."""


LIBRARIES: dict[tuple[str, str], _Library] = {
    ("allocator", "jemalloc"): _Library(("libjemalloc.so.2", "libjemalloc.so"), "malloc_usable_size"),
    ("allocator", "tcmalloc"): _Library(
        ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so"),
        "malloc_usable_size",
    ),
    ("openmp", "iomp"): _Library(("libiomp5.so",), "GOMP_parallel"),
}
"""Knob and value -> the library."""
_BY_VARIABLE: dict[tuple[str, str], tuple[str, str]] = {
    ("allocator", "huge_pages"): ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
}
"""Knob and value -> the variable that means it, whose name and value no file can give. Its value is one setting of
several, which stand in one text with colons between them."""
_OF_SETTINGS = "GLIBC_TUNABLES"
_KNOBS = frozenset(knob for knob, _ in (*LIBRARIES, *_BY_VARIABLE))


@dataclass(frozen=True)
class ProcessStart:
    """What a process has to be started with. Nothing of it is false."""

    variables: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    """Knob -> the library's name."""
    cores: int | None = None
    """The number of cores that the process may use; None: those that it is given."""
    instances: int = 1
    """So many processes are started, each with all of this, on cores of its own."""

    @classmethod
    def taken_from(cls, knobs: MutableMapping[str, Scalar]) -> ProcessStart:
        """What the knobs ask of a start; they are taken away. Raises InvalidConfigError for what no config may ask
        for."""
        variables: dict[str, str] = {}
        libraries: dict[str, str] = {}
        cores: int | None = None
        instances = 1
        for name, value in [*knobs.items()]:
            pair = (name, str(value))
            if name.startswith(PREFIX) and value is not None:
                _require(name, value)
                variables[name.removeprefix(PREFIX)] = text_of(value)
            elif pair in _BY_VARIABLE:
                variables.update([_BY_VARIABLE[pair]])
            elif pair in LIBRARIES:
                libraries[name] = pair[1]
            elif name == CORES and value is not None:
                cores = _number_of_cores(value)
            elif name == INSTANCES and value is not None:
                instances, cores = instances_of(value)
                variables[_OF_THREADS[0]] = str(cores)
            elif value is not None or not (name.startswith(PREFIX) or name in (CORES, INSTANCES) or name in _KNOBS):
                continue
            del knobs[name]
        return cls(variables, libraries, cores, instances)

    def __bool__(self) -> bool:
        return bool(self.variables or self.libraries or self.cores)

    @property
    def facts(self) -> dict[str, Scalar]:
        """All of it as plain data, by names that tell what they are."""
        cores: dict[str, Scalar] = {} if self.cores is None else {CORES: self.cores}
        instances: dict[str, Scalar] = {} if self.instances == 1 else {INSTANCES: self.instances}
        return {**self.variables, **self.libraries, **cores, **instances}

    def texts(self) -> list[str]:
        """All of it, a phrase for each, as a user would say it."""
        return [
            *(f"{name}={value}" for name, value in self.variables.items()),
            *(f"{value} preloaded" for value in self.libraries.values()),
            *([] if self.cores is None else [f"{self.cores} {'core' if self.cores == 1 else 'cores'}"]),
        ]

    def lacking(self) -> list[str]:
        """What of it this process does not have, a phrase for each that says what is here instead."""
        lacking = [
            f"{name}={value} (here it is {os.environ.get(name, 'not set')})"
            for name, value in self.variables.items()
            if os.environ.get(name) != _among(name, value, os.environ.get(name, ""))
        ]
        for pair in self.libraries.items():
            library = LIBRARIES[pair]
            loaded = Path(file_of(library.symbol) or "").name
            if not loaded.startswith(tuple(name.partition(".so")[0] for name in library.files)):
                lacking.append(f"{pair[1]} preloaded (here {loaded or 'nothing'} is)")
        num_cores = len(usable_cpus())
        # An instance computes with as many threads as cores, which its variables say: it may stay on more of them.
        if self.cores is not None and (num_cores < self.cores or (num_cores != self.cores and self.instances == 1)):
            lacking.append(f"{CORES}: {self.cores} (here {num_cores})")
        return lacking

    def unavailable(self) -> list[str]:
        """What of it no process can be started with on this machine, a sentence for each."""
        sentences = [
            f"{value} is not installed here: none of {', '.join(LIBRARIES[knob, value].files)} was found"
            for knob, value in self.libraries.items()
            if library_file(knob, value) is None
        ]
        if self.libraries and not sys.platform.startswith("linux"):
            sentences = [f"{value} cannot be preloaded on {sys.platform}" for value in self.libraries.values()]
        num_cores = len(usable_cpus())
        wanted = self.instances * (self.cores or 0)
        if num_cores < wanted or (wanted and not hasattr(os, "sched_setaffinity")):
            sets = "a set" if self.instances == 1 else f"{self.instances} sets"
            sentences.append(f"{sets} of {self.cores} cores cannot be had here, of {num_cores}")
        return sentences

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables to set for a process that would have `given` ones, as far as this machine has what they name.
        What was preloaded anyway still is, behind it."""
        found = [path for pair in self.libraries.items() if (path := library_file(*pair)) is not None]
        wanted = {name: _among(name, value, given.get(name, "")) for name, value in self.variables.items()}
        already = given.get(PRELOAD, "")
        new = [str(path) for path in found if str(path) not in already.replace(" ", ":").split(":")]
        if new:
            wanted[PRELOAD] = ":".join(filter(None, [*new, already]))
        return {name: value for name, value in wanted.items() if given.get(name) != value}

    def replaced(self, given: Mapping[str, str]) -> list[str]:
        """What a process with the `given` variables loses by `environment`, a sentence for each: a setting of several
        that the user has given another value."""
        before, now = _settings(given.get(_OF_SETTINGS, "")), _settings(self.variables.get(_OF_SETTINGS, ""))
        return [
            f"{name}={before[name]} of your {_OF_SETTINGS} is replaced by {name}={value}, as the config asks for it"
            for name, value in now.items()
            if before.get(name, value) != value
        ]

    def core_set(self, instance: int = 0) -> frozenset[int] | None:
        """The cores for a process that may use this one's; None: all of them, or there are too few."""
        if self.cores is None:
            return None
        sets = core_sets(self.cores, num=self.instances)
        return sets[instance] if sets else None


def _settings(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(":") if part)
    return {name: value for name, _, value in pairs}


def _among(name: str, value: str, given: str) -> str:
    """The variable's value, beside the settings that the user has given where it holds several."""
    if name != _OF_SETTINGS:
        return value
    return ":".join(f"{setting}={said}" for setting, said in {**_settings(given), **_settings(value)}.items())


def require_variable(knob: str, value: Scalar) -> None:
    """Raises InputError if a config may not ask for this variable, or not for this value. Null asks for nothing."""
    name = knob.removeprefix(PREFIX)
    for beginning, instead in _OWN_KNOBS.items():
        if name.startswith(beginning):
            raise InputError(f"knob {knob}: no config may ask for this variable", tip=f"use {instead}")
    if name not in VARIABLES:
        raise InputError(
            f"knob {knob}: no config may ask for this variable",
            tip=f"{did_you_mean(name, VARIABLES)}{marked('env', {'NAME': 'VALUE'})} sets any variable for all "
            "processes of a study",
        )
    if value is None:
        return
    taken, text = VARIABLES[name], text_of(value)
    if isinstance(taken, range):
        if not _is_number(text, taken):
            raise InputError(f"knob {knob}: {text!r} is no number from {taken[0]} to {taken[-1]}")
    elif text not in taken:
        raise InputError(f"knob {knob}: {text!r} is none of {', '.join(taken)}", tip=did_you_mean(text, taken) or None)


def _require(knob: str, value: Scalar) -> None:
    """Also for a config that never was in a search space, such as that of a file."""
    try:
        require_variable(knob, value)
    except InputError as error:
        raise InvalidConfigError(f"{error}", tip=error.unworded[1]) from None


def may_be_set(name: str, value: str) -> bool:
    """Whether a file may have a process started with this variable: an export, a study, whoever wrote it. This is all
    that one may set; anything else is for the user to type."""
    if name in _OF_THREADS:
        return _is_number(value, range(1, max(FEWEST_THREADS, 4 * (os.cpu_count() or 1)) + 1))
    taken = VARIABLES.get(name, ())
    return _is_number(value, taken) if isinstance(taken, range) else value in taken


def not_for_a_file(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of a file's variables that none may set, but for what this process has as well: they are for the user to
    give again."""
    return {
        name: value
        for name, value in variables.items()
        if not may_be_set(name, value) and os.environ.get(name) != value
    }


def given_again(variables: Mapping[str, str], typed: Mapping[str, str], place: str) -> dict[str, str]:
    """The variables of processes that are measured for a file: its own and those that the user has `typed`. Raises
    InputError where it has one that no file may set and that was not typed."""
    refused = {name: value for name, value in not_for_a_file(variables).items() if name not in typed}
    if refused:
        raise InputError(
            f"{place} was measured with {', '.join(f'{name}={value}' for name, value in refused.items())}, which no "
            "file may set",
            tip=f"if that is what you want, give it yourself: {marked('env', refused)}",
        )
    return {**variables, **typed}


def text_of(value: Scalar) -> str:
    """A knob's value as the variable has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(text: str, among: range = _ANY_TIME) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= len(str(MOST)) and int(text) in among


def _number_of_cores(value: Scalar) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidConfigError(f"knob {CORES}: {value!r} is no number of cores")
    return value


def instances_of(value: Scalar) -> tuple[int, int]:
    """The number of instances, and the cores of each, of `2x4`. Raises InvalidConfigError."""
    num, _, cores = str(value).partition("x")
    if not (_is_number(num) and _is_number(cores) and 1 < int(num) <= MOST_INSTANCES and int(cores) > 0):
        raise InvalidConfigError(f"knob {INSTANCES}: {value!r} is no number of processes and cores, such as 2x4")
    return int(num), int(cores)


# Libraries of this machine.


def library_file(knob: str, value: str) -> Path | None:
    """Where the library is that this value of a knob asks for; None where it is not installed."""
    folders = [*dict.fromkeys(_folders())]
    for name in LIBRARIES[knob, value].files:
        for folder in folders:
            path = folder / name
            # The loader takes a list of paths, which are told apart by colons and spaces.
            if path.is_file() and not set(" :") & set(str(path)):
                return path
    return None


def available() -> frozenset[str]:
    """What processes can be started with here: `variables`, `cores`, and the names of libraries."""
    if not sys.platform.startswith("linux"):
        return frozenset({"variables"})
    return frozenset({"variables", "cores", *(value for knob, value in LIBRARIES if library_file(knob, value))})


def _folders() -> Iterator[Path]:
    """Where libraries are looked for: as the loader does, then beside this Python and in its packages."""
    yield from (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/"))
    multiarch = sysconfig.get_config_var("MULTIARCH")
    system = [Path("/usr/local/lib"), Path("/usr/lib64"), Path("/lib64"), Path("/usr/lib"), Path("/lib")]
    yield from (folder / str(multiarch) for folder in system if multiarch)
    yield from system
    yield Path(sys.prefix) / "lib"  # A wheel of Intel's, and conda, put theirs here.
    ray = importlib.util.find_spec("ray")
    yield from (Path(folder) / "core" for folder in (ray.submodule_search_locations or () if ray else ()))


def file_of(symbol: str) -> str | None:
    """The file from which this process has the function, by its own search order; None where that cannot be told."""
    try:
        # Not what a library sees that was loaded later: what code finds that was linked without a name.
        address = ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value
        lines = Path("/proc/self/maps").read_text().splitlines()
    except (AttributeError, OSError, TypeError):
        return None
    for line in lines:
        span, *_, path = line.split(maxsplit=5)
        first, _, end = span.partition("-")
        if address is not None and int(first, 16) <= address < int(end, 16):
            return path if path.startswith("/") else None
    return None


# Core sets.


def core_sets(size: int, usable: frozenset[int] | None = None, num: int = 1) -> list[frozenset[int]]:
    """So many disjoint sets of so many cores, of those that this process may use; none where there are too few. One
    thread of each core is taken before the second one. Threads of one core, and cores of one memory node, are in one
    set where that can be."""
    cpus = sorted(usable_cpus() if usable is None else usable, key=lambda cpu: (_rank(cpu), _node(cpu), cpu))
    if len(cpus) < num * size:
        return []
    taken = sorted(cpus[: num * size], key=lambda cpu: (_node(cpu), _siblings(cpu)[0], cpu))
    return [frozenset(taken[first : first + size]) for first in range(0, num * size, size)]


_CPUS = Path("/sys/devices/system/cpu")


def _siblings(cpu: int) -> list[int]:
    """All threads of a processor's core."""
    try:
        text = (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
        found = sorted(_listed(text))
    except (OSError, ValueError):
        return [cpu]
    return found if cpu in found else [cpu]


def _rank(cpu: int) -> int:
    """The place of a processor among the threads of its core."""
    return _siblings(cpu).index(cpu)


def _node(cpu: int) -> int:
    try:
        names: Any = (path.name for path in (_CPUS / f"cpu{cpu}").iterdir())
        return min((int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal()), default=0)
    except OSError:
        return 0


def _listed(text: str) -> Iterator[int]:
    """The numbers of a list as the kernel writes it: `0-3,8`."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
