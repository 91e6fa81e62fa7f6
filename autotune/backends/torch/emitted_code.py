"""The code that inductor emitted in this process: read back, made comparable, and its kernels counted."""

from __future__ import annotations

import re
from pathlib import Path

_COMMENT = re.compile(
    r"^[ \t]*(?:#(?!include|pragma|define|if|ifdef|ifndef|endif|else|undef)|//).*$"
    r"|(?<=\S)[ \t]+# .*$",
    re.MULTILINE,
)
"""Comments hold paths, addresses and numbers of graphs. In a kernel, a line with `#` is the preprocessor's."""

_HASHED_NAME = re.compile(r"\b[cs]?[a-z2-7]{50,52}\b")
"""A cache key of inductor's: base32 of a SHA-256, behind a letter."""


_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
"""Names of functions in asserts' messages have theirs."""

_DEFINED = re.compile(r'^(\w+) = async_compile\.|^extern "C"\s+void\s+(\w+)\(', re.MULTILINE)
"""Kernels by name: in a Python wrapper, or in a C++ one. (Inside a Python one, C++ kernels are all called `kernel`.)"""


def emitted_code() -> list[str] | None:
    """Source of every graph that inductor compiled or loaded in this process, in order, without what has no meaning.

    The source of a graph holds those of its kernels, C++ or Triton. None where this release keeps no list of them, or
    a file of the list is gone.
    """
    from torch._inductor.codecache import PyCodeCache

    modules = getattr(PyCodeCache, "modules", None)
    if modules is None:
        return None
    try:
        # The others are single kernels (their text is in the graph's too) and candidates that autotuning tried.
        return [normalised(Path(each.__file__).read_text()) for each in modules if hasattr(each, "call")]
    except OSError:
        return None


def normalised(source: str) -> str:
    """Emitted code without comments, cache keys, addresses and the folder that it lies in."""
    source = _ADDRESS.sub("at ADDRESS", _HASHED_NAME.sub("KEY", _COMMENT.sub("", source)))
    folder = re.escape(_cache_folder())
    return "\n".join(line.rstrip() for line in re.sub(folder, "CACHE", source).splitlines() if line.strip())


def _cache_folder() -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def num_launches(source: str) -> int:
    """How often the code of a graph starts a generated kernel in one call."""
    names = {python or cpp for python, cpp in _DEFINED.findall(source)} - {"kernel"}
    return sum(len(re.findall(rf"^[ \t]+{name}(?:\.run)?\(", source, re.MULTILINE)) for name in names)


def calls_device_from_cpp(source: str) -> bool:
    """A C++ wrapper for a device: its kernels are loaded as binaries, and do not show by these names."""
    return "cpp_wrapper_src" in source and "cpp_wrapper/cpu.h" not in source
