"""Files that a framework's compiler needs for every model: made once for a user, checked, and given to each trial.

Inductor precompiles two C++ headers (7 s and 150 MB each) and tries which instruction sets the C++ compiler knows
(8 s). It keeps the headers in the temporary folder, whatever its cache folder is, and uses a header that a killed
process left half written. A trial has its own temporary folder and caches; links and copies of files that a process
without a time limit made before are put there.

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
from autotune.user_folders import cache_folder

MIN_FREE_BYTES = 2**30
"""Free space needed on the disk of the user's caches; with less, each trial makes its own files."""
MAX_KEPT = 3
"""Number of toolchains: one for each release of a framework and of the C++ compiler."""

_WHOLE_HEADER = (b"gpch", b"CPCH")
"""First bytes of a complete precompiled header of g++ and clang; g++ writes `gpcW` until the rest is written."""
_DECISIVE = ("CXX", "CC", "CPATH", "CPLUS_INCLUDE_PATH")


def ensure_toolchain(
    framework: str, version: str, variables: Mapping[str, str], make: Callable[[TrialFolder], None]
) -> Path | None:
    """The toolchain's folder; `make` fills it if it does not exist yet. None: it cannot be made.

    Processes that need it at the same time share one.
    """
    caches = cache_folder()
    if caches is None:
        return None
    home = caches / "toolchain"
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


def is_complete(toolchain: Path) -> bool:
    """Whether it exists and no precompiled header in it is half written."""
    try:
        return (toolchain / "cache").is_dir() and all(
            _begins_with(path, _WHOLE_HEADER) for path in toolchain.rglob("*.gch")
        )
    except OSError:
        return False


def install_toolchain(toolchain: Path, cache: Path, temporary: Path) -> None:
    """Put it where a trial's compiler looks. A missing or damaged one is skipped: the compiler then makes its own."""
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
    """Make it under a temporary name and rename it when complete; remove what a killed process left first."""
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
    """Remove the older ones: each takes 300 MB. A trial whose links are dangling makes its own files."""
    found = sorted((path for path in home.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in found[:-MAX_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _digest(variables: Mapping[str, str]) -> str:
    """Digest of what decides how the compiler is called. The framework names files of other calls differently."""
    stands = {**os.environ, **variables}
    chosen = {
        name: value
        for name, value in sorted(stands.items())
        if name in _DECISIVE or (name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR")
    }
    processor = [platform.machine(), environment.processor(), environment.cpu_flags_sha256()]
    facts = [sys.prefix, *processor, _compiler(stands.get("CXX")), chosen]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def _compiler(declared: str | None) -> str | None:
    for name in filter(None, (declared, "g++", "clang++")):
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    return None


def _begins_with(path: Path, beginnings: tuple[bytes, ...]) -> bool:
    with path.open("rb") as file:
        return file.read(4) in beginnings
