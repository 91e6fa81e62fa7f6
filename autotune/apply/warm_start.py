"""`WarmStart`: the caches of an artifact, for the first call of a model. The job's side and the measuring child's.

An artifact that does not fit or is not whole is no failure: the first call then compiles as without one. Everything
that says so is a sentence, raised as an `InputError`, before the framework reads a byte of the file.
"""

from __future__ import annotations

import atexit
import os
import platform
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import environment
from autotune.backends.capabilities import CompileCache
from autotune.backends.protocol import Backend
from autotune.backends.registry import framework_version
from autotune.config import Config
from autotune.errors import InputError
from autotune.measure.measurement import TensorSpec
from autotune.own_folders import TemporaryFolder
from autotune.tuned.cache_file import CacheFile, Key, compiler_variables, read_verified, unpack, why_unfit


@dataclass(frozen=True)
class WarmStart:
    """An artifact that was made for this place and model, verified and unpacked."""

    backend: Backend
    compile_cache: CompileCache
    artifact: CacheFile
    caches: Path

    @property
    def unchecked(self) -> bool:
        """The framework takes these caches for whatever is compiled: the first outputs have to be compared."""
        return self.artifact.check_first_call

    def first_call(self, leaves: Iterable[Any]) -> AbstractContextManager[Any]:
        """Where the tuned model is called for the first time, with these arguments.

        Raises InputError, before anything is entered, where the caches are for other shapes or types.
        """
        made_for = self.artifact.key
        here = made_for.model_copy(update={"inputs": specs_of(self.backend, leaves)})
        unfit = why_unfit(made_for, here, shapes_matter=self.unchecked)
        if unfit is not None:
            raise InputError(f"{self.artifact.file} is not used: {unfit}")
        return self.compile_cache.use(self.caches, made_for.sha256)


def warm_start(
    backend: Backend, artifact: CacheFile, home: Path, here: Key, unpack_to: Path | None = None
) -> WarmStart:
    """Verify and unpack the artifact that lies in the folder `home`; `here` is the key of this place and model.

    `unpack_to` None: a private folder that is removed when the process ends. Raises InputError for why it is not used:
    made for something else, missing, cut off, swapped.
    """
    if backend.compile_cache is None:
        raise InputError(f"{artifact.file} is not used: this framework's backend takes no compile caches")
    unfit = why_unfit(artifact.key, here, shapes_matter=False)
    if unfit is not None:
        raise InputError(f"{artifact.file} is not used: {unfit}")
    content = read_verified(home, artifact)
    caches = _private_folder() if unpack_to is None else unpack_to
    unpack(content, caches)
    return WarmStart(backend, backend.compile_cache, artifact, caches)


def key_here(
    framework: str, backend: Backend, config: Config, structure_sha256: str, leaves: Iterable[Any] = ()
) -> Key:
    """The key of what is about to be compiled in this process, for a call with these arguments.

    Call it before the config is applied: some settings are environment variables.
    """
    device = backend.device_name()
    is_cpu = device.lower() == "cpu"
    return Key(
        framework=framework,
        framework_version=framework_version(framework),
        autotune_version=environment.package_version("autotune-compile"),
        python=platform.python_version(),
        platform=environment.platform_name(),
        processor=environment.processor(),
        cpu_flags_sha256=environment.cpu_flags_sha256(),
        num_cores=environment.num_usable_cores() if is_cpu else None,
        device=device,
        driver=None if is_cpu else environment.driver(),
        tools={} if backend.compile_cache is None else backend.compile_cache.build_tools(),
        variables=compiler_variables(left_out=backend.cache_variables("").keys()),
        structure_sha256=structure_sha256,
        inputs=specs_of(backend, leaves),
        config=config.fingerprint,
    )


def specs_of(backend: Backend, leaves: Iterable[Any]) -> tuple[TensorSpec, ...]:
    """Shapes and types of the tensors among a call's arguments."""
    return tuple(spec for leaf in leaves if (spec := backend.spec(leaf)) is not None)


def _private_folder() -> Path:
    folder = TemporaryFolder("cache")
    atexit.register(_remove, folder, os.getpid())
    return folder.path


def _remove(folder: TemporaryFolder, owner: int) -> None:
    """Only where it was made: a fork leaves its parent's files alone."""
    if os.getpid() == owner:
        with suppress(OSError):
            folder.remove()
