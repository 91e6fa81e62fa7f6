"""What a framework's compiler needs whatever it compiles: made once for a user, checked, and handed to each trial.

Inductor precompiles two C++ headers (7 s and 150 MB each) and tries which instruction sets the C++ compiler knows
(8 s). It keeps the headers in the temporary folder, whatever its cache folder is, and takes one that a killed process
left half written for whole. A trial has a temporary folder and caches of its own; it finds links and copies there of
what a process without a limit of its own made before.

    cache/       copied into the trial's caches
    temporary/   linked into the trial's temporary folder
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from autotune import environment
from autotune.backends.registry import MADE
from autotune.trial.folder import TrialFolder

MIN_FREE_BYTES = 2**30
"""On the disk of the user's caches; else each trial makes its own."""
MAX_KEPT = 3
"""Toolchains: one for each release of a framework and of the C++ compiler."""

_WHOLE_HEADER = (b"gpch", b"CPCH")
"""What g++ and clang write at the beginning of a precompiled header: g++ once the rest is written, `gpcW` before."""
_DECISIVE = ("CXX", "CC", "CPATH", "CPLUS_INCLUDE_PATH")


def ensure_toolchain(
    framework: str, version: str, variables: Mapping[str, str], make: Callable[[TrialFolder], None]
) -> Path | None:
    """The toolchain, which `make` is asked for in a folder if it is not there yet. None: it cannot be had.

    Two processes that want it at the same time make one.
    """
    home = caches_home() / "toolchain"
    folder = home / f"{framework}-{version}-{_digest(variables)}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_complete(folder) and shutil.disk_usage(home).free >= MIN_FREE_BYTES:
                _make(folder, make)
            if not is_complete(folder):
                return None
            os.utime(folder)
            _keep_newest(home)
    except OSError:
        return None
    return folder


def caches_home() -> Path:
    """Where a user's caches belong: https://specifications.freedesktop.org/basedir-spec/latest/"""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "autotune"


def is_complete(toolchain: Path) -> bool:
    """It is there, and no precompiled header in it is half written."""
    try:
        return (toolchain / "cache").is_dir() and all(
            _begins_with(path, _WHOLE_HEADER) for path in toolchain.rglob("*.gch")
        )
    except OSError:
        return False


def install_toolchain(toolchain: Path, cache: Path, temporary: Path) -> None:
    """Put it where a trial's compiler looks. One that is gone or damaged is left out: the compiler makes its own."""
    if not is_complete(toolchain):
        return
    shutil.copytree(toolchain / "cache", cache, dirs_exist_ok=True)
    home = toolchain / "temporary"
    for path in home.rglob("*"):
        link = temporary / path.relative_to(home)
        if path.is_file() and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)


def _make(folder: Path, make: Callable[[TrialFolder], None]) -> None:
    """It appears under its name once it is whole; what a killed process left is removed first."""
    shutil.rmtree(folder, ignore_errors=True)
    making = TrialFolder(folder.with_name(f"{folder.name}.making"))
    shutil.rmtree(making.path, ignore_errors=True)
    making.path.mkdir()
    try:
        make(making)
        if is_complete(making.path / MADE):
            (making.path / MADE).replace(folder)
    finally:
        making.drop_temporary()
        shutil.rmtree(making.path, ignore_errors=True)


def _keep_newest(home: Path) -> None:
    """A toolchain takes 300 MB. A trial whose links lead nowhere makes its own."""
    found = sorted((path for path in home.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in found[:-MAX_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _digest(variables: Mapping[str, str]) -> str:
    """Of what decides how the compiler is called. The framework's own names tell files of other calls apart."""
    stands = {**os.environ, **variables}
    chosen = {
        name: value
        for name, value in sorted(stands.items())
        if name in _DECISIVE or (name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR")
    }
    facts = [sys.prefix, platform.machine(), environment.processor(), _compiler(stands.get("CXX")), chosen]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def _compiler(declared: str | None) -> str | None:
    for name in filter(None, (declared, "g++", "clang++")):
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    return None


def _begins_with(path: Path, beginnings: tuple[bytes, ...]) -> bool:
    with path.open("rb") as file:
        return file.read(4) in beginnings
