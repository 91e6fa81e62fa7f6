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
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
_FORM = 2
"""Counts what the program makes: a toolchain of an earlier form has no answers of probes."""
_DECISIVE = ("CXX", "CC", "CPATH", "CPLUS_INCLUDE_PATH")


@dataclass
class Toolchain:
    """The toolchain of a framework for this user and machine, while it is looked for or made. Processes that need it at
    the same time share one: who makes it holds a lock until `settle`."""

    folder: Path
    making: TrialFolder | None
    """What the program is to fill, under a temporary name; None: there is nothing to make, or no room for it."""
    _lock: IO[str]

    @classmethod
    def begin(
        cls, framework: str, version: str, variables: Mapping[str, str], *, waits: bool = True
    ) -> Toolchain | None:
        """Take the lock, and look. None where it cannot be had, or another process has the lock and this one does not
        wait."""
        caches = cache_folder()
        if caches is None:
            return None
        home = caches / "toolchain"
        folder = home / f"{framework}-{version}-{_digest(framework, variables)}"
        lock = None
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = (home / ".lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            lacks = not is_complete(folder) and shutil.disk_usage(home).free >= MIN_FREE_BYTES
            return cls(folder, _emptied(folder) if lacks else None, lock)
        except OSError:
            if lock is not None:
                lock.close()
            return None

    def settle(self) -> Path | None:
        """Once the program has ended, or nothing is to be made: the folder, under its name. None: it is not whole."""
        with self._lock:
            try:
                if self.making is not None and is_complete(self.making.path / MADE):
                    (self.making.path / MADE).replace(self.folder)
                if not is_complete(self.folder):
                    return None
                os.utime(self.folder)
                _keep_newest(self.folder.parent)
            except OSError:
                return None
            finally:
                if self.making is not None:
                    self.making.drop_temporary()
                    shutil.rmtree(self.making.path, ignore_errors=True)
        return self.folder


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
            _link(path, link)


def _link(path: Path, link: Path) -> None:
    """The file itself where that can be: it stays for the trial if the toolchain is removed meanwhile, as where more
    environments than are kept tune side by side. The compiler has looked for its header once."""
    try:
        link.hardlink_to(path)
    except OSError:  # Another file system.
        link.symlink_to(path)


def _emptied(folder: Path) -> TrialFolder:
    """Where it is made, without what a killed process left."""
    shutil.rmtree(folder, ignore_errors=True)
    making = TrialFolder(folder.with_name(f"{folder.name}.making"))
    shutil.rmtree(making.path, ignore_errors=True)
    making.path.mkdir()
    return making


def _keep_newest(home: Path) -> None:
    """Remove the older ones: each takes 300 MB. A trial has linked what it needs, or makes its own files."""
    found = sorted((path for path in home.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in found[:-MAX_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _digest(framework: str, variables: Mapping[str, str]) -> str:
    """Digest of what decides how the compiler is called. The framework names files of other calls differently: by the
    places of its own headers and of Python's among others, which several environments may share."""
    stands = {**os.environ, **variables}
    chosen = {
        name: value
        for name, value in sorted(stands.items())
        if name in _DECISIVE or (name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR")
    }
    processor = [platform.machine(), environment.processor(), environment.cpu_flags_sha256()]
    found = importlib.util.find_spec(framework)
    places = [None if found is None else found.origin, sysconfig.get_path("include"), platform.python_version()]
    facts = [_FORM, *places, *processor, _compiler(stands.get("CXX")), chosen]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def _compiler(declared: str | None) -> str | None:
    for name in filter(None, (declared, "g++", "clang++")):
        with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    return None


def _begins_with(path: Path, beginnings: tuple[bytes, ...]) -> bool:
    with path.open("rb") as file:
        return file.read(4) in beginnings
