"""Compile caches that travel: how one is packed on a worker, where the driver keeps it, and which worker may use it.

The driver never unpacks one. On its shelf (`CacheStore`) a trial's cache is a folder with the packed file and the key
of the worker that made it; a copy of that folder is what another trial begins with.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

from autotune import environment
from autotune.files import write_whole
from autotune.tuned.cache_file import compiler_variables, pack

MOST_BYTES = 64 * 2**20
"""Size of the files of a cache that travels. Inductor's hold a few MiB; with frozen weights in it, a model."""
_PACKED, _MADE_FOR = "packed.tar.gz", "made_for"


def code_key(device: str, versions: Mapping[str, str], compilers: Mapping[str, Mapping[str, str]]) -> str:
    """Hash of what compiled code depends on here: hardware, system, packages, compilers and variables. The config,
    the model and its inputs are those of the study."""
    parts = [
        *(device, environment.driver(), environment.processor(), environment.cpu_flags_sha256()),
        *(environment.num_usable_cores(), environment.platform_name(), platform.python_version()),
        *(environment.installed_packages(), dict(versions), {name: dict(facts) for name, facts in compilers.items()}),
        compiler_variables(left_out=()),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def packed_cache(folder: Path) -> bytes | None:
    """None for an empty one, and for one that is too large to travel."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return pack(folder) if sizes and sum(sizes) <= MOST_BYTES else None


def keep(folder: Path, packed: bytes, key: str) -> None:
    """On the driver, where the trial's cache belongs."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _PACKED, packed)
    write_whole(folder / _MADE_FOR, key)


def kept_for(folder: Path, key: str) -> bytes | None:
    """The packed cache in a folder of the driver; None where there is none, or it was made under another key."""
    try:
        is_equal = (folder / _MADE_FOR).read_text() == key
        return (folder / _PACKED).read_bytes() if is_equal else None
    except OSError:
        return None


def code_sha256() -> str:
    """A digest of this package's sources: two hosts with the same one measure in the same way."""
    package, digest = Path(environment.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
