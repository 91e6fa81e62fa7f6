"""`Artifact`: the compile cache of a tuned config as a file beside the YAML, and the key that it is good for.

What is in it runs in the job: shared libraries, and pickles that the framework reads. So it is code, and is read only
from the file that the YAML names, in the YAML's own folder, and only if its checksum is the one in the YAML.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import stat
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from autotune.environment import THREADS_VARIABLE, threads_said
from autotune.errors import InputError
from autotune.measure.measurement import TensorSpec
from autotune.schema import Record

MAX_BYTES = 2 * 2**30
"""Most bytes of the file and of what is in it. Inductor's for a ViT holds 2 MiB, with a C++ library for each kernel."""
SUFFIX = ".cache"
COMPILER_VARIABLES = ("TORCH_COMPILE", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "MS_", "CXX", "OMP_NUM_THREADS")
"""Beginnings of the names of variables that may change what is compiled."""
_MAX_NAMED = 3
"""Differences that a sentence names."""


class Key(Record):
    """Everything that compiled code depends on. The caches of one key are of no use under another."""

    framework: str
    framework_version: str
    autotune_version: str | None
    """None: it runs from a checkout."""
    python: str
    platform: str
    """System, machine and C library."""
    processor: str
    cpu_flags_sha256: str | None
    num_cores: int | None
    """Cores that the process may use, as far as code for a CPU is made for so many; None on other devices."""
    device: str
    driver: str | None = None
    tools: dict[str, str]
    """Compilers and packages besides the framework that make the code -> version."""
    variables: dict[str, str]
    """Variables of the environment; those that name cache folders are left out."""
    structure_sha256: str
    """Digest of the model's parameters."""
    inputs: tuple[TensorSpec, ...]
    """Inputs of the call that compiled."""
    config: str
    """Fingerprint."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class CacheFile(Record):
    """A compile cache in a file: how to know the file again, and what it is for."""

    file: str
    """Its name in the folder of the YAML."""
    sha256: str
    num_bytes: PositiveInt
    key: Key
    check_first_call: bool
    """The framework does not find out by itself whether a cache belongs to a model: compare the first outputs."""


class Artifact(CacheFile):
    """A file that was tried, and what it is worth."""

    compile_s: NonNegativeFloat
    """First call minus a steady one in a new process without caches of its own, reading the file included."""
    compile_cold_s: NonNegativeFloat
    """First call minus a steady one without the file, measured when it was made."""
    calls_ratio: PositiveFloat | None = None
    """Seconds of a call of a process that starts from the file, over those of one that compiles itself, side by side;
    None: not compared."""
    calls_noise: PositiveFloat | None = None
    """Share by which such a ratio differs from 1 by chance."""

    @property
    def is_slower(self) -> bool:
        """Its calls are, by more than twice the noise."""
        known = self.calls_ratio is not None and self.calls_noise is not None
        return known and math.log(self.calls_ratio or 1) > 2 * (self.calls_noise or 0)


def compiler_variables(left_out: Collection[str]) -> dict[str, str]:
    """Variables of this process that may change what is compiled, except those in `left_out`."""
    return {n: v for n, v in sorted(os.environ.items()) if n.startswith(COMPILER_VARIABLES) and n not in left_out}


def why_unfit(made_for: Key, here: Key, *, shapes_matter: bool) -> str | None:
    """The first differences in a sentence; None if there are none.

    `shapes_matter` False leaves the inputs out: frameworks whose caches know them compile for others as without one.
    """
    then, now = _parts(made_for), _parts(here)
    names = [n for n in {**then, **now} if then.get(n) != now.get(n) and (shapes_matter or n != "inputs")]
    if not names:
        return None
    differences = [f"{name} {_short(then.get(name))}, here {_short(now.get(name))}" for name in names[:_MAX_NAMED]]
    more = f"; and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"it was made for {'; '.join(differences)}{more}"


def pack(folder: Path) -> bytes:
    """A folder as a tar file, gzipped: equal files give equal bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size, entry.mode = path.stat().st_size, 0o600
                with path.open("rb") as file:
                    archive.addfile(entry, file)
    return packed.getvalue()


def read_verified(home: Path, artifact: CacheFile) -> bytes:
    """The content of the artifact's file in `home`. Raises InputError where it is not the file that was exported."""
    path = home / artifact.file
    if Path(artifact.file).name != artifact.file:
        raise InputError(f"{artifact.file} is a path: it must be a file beside the YAML", tip=_AGAIN)
    if artifact.num_bytes > MAX_BYTES:
        raise InputError(f"{path}: {artifact.num_bytes} bytes are more than an artifact may have ({MAX_BYTES})")
    with _opened(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes != artifact.num_bytes:
            raise InputError(f"{path} has {num_bytes} bytes, the YAML says {artifact.num_bytes}", tip=_AGAIN)
        content = file.read(num_bytes)
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise InputError(f"{path} is another file than the one that was exported: its checksum differs", tip=_AGAIN)
    return content


def _opened(path: Path) -> BinaryIO:
    # A link could lead to a file that somebody else may write. NONBLOCK: a pipe must not hold the job up.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        what = "is a symbolic link" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise InputError(f"{path} {what}", tip=_AGAIN) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path} is no plain file", tip=_AGAIN)
    return open(descriptor, "rb")


_AGAIN = "copy the YAML together with its artifact, or export again with the cache"


def unpack(content: bytes, folder: Path) -> None:
    """Plain files into a folder, nothing outside of it. Raises InputError for anything else, or too much."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, members=_bounded(archive), filter="data")
    # TypeError: Python 3.11 before 3.11.4 knows no filters.
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, TypeError) as error:
        raise InputError(f"the artifact cannot be unpacked: {type(error).__name__}: {error}", tip=_AGAIN) from None


def _bounded(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    num_bytes = 0
    for entry in archive:
        num_bytes += entry.size
        if not entry.isreg():
            raise InputError(f"the artifact holds {entry.name}, which is no plain file")
        if num_bytes > MAX_BYTES:
            raise InputError(f"the artifact unpacks to more than {MAX_BYTES} bytes")
        yield entry


def _parts(key: Key) -> dict[str, str | None]:
    """Name -> text, each tool and variable by itself. Code for a CPU is made for so many threads, whatever says how
    many there are."""
    parts: dict[str, str | None] = {}
    if key.num_cores is not None:
        threads = threads_said(key.variables) or key.num_cores
        variables = {name: value for name, value in key.variables.items() if name != THREADS_VARIABLE}
        key = key.model_copy(update={"num_cores": threads, "variables": variables})
    for name, value in key:
        if isinstance(value, dict):
            parts |= value
        elif name == "inputs":
            parts[name] = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in key.inputs)
        else:
            parts["threads" if name == "num_cores" else name.replace("_", " ")] = None if value is None else str(value)
    return parts


def _short(text: str | None, max_chars: int = 60) -> str:
    if text is None:
        return "none"
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
