"""`Engine`: a program beside the framework that runs an exported model, such as ONNX Runtime.

What engines give stands beside the verdict of a study as a third baseline. Nothing of them is tuned, exported or used
by a job. Each is behind a door.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.doors import Door
from autotune.environment import package_version
from autotune.errors import InputError
from autotune.workload.arguments import Arguments


@dataclass(frozen=True)
class Engine:
    """What is known of an engine without importing it."""

    title: str
    framework: str
    """Whose models it takes."""
    packages: tuple[str, ...]
    """Distributions that it needs, the one that tells its release first."""
    run: Callable[[Any, Arguments], Callable[..., Any]]
    """Exports a model for the shapes of these inputs. The result is called as the model is, and gives what the model
    gives, in tensors of its own. It computes on as many threads as the framework does, and in the model's precision.
    Raises anything where that is not possible."""

    @property
    def is_installed(self) -> bool:
        """Nothing of it is missing."""
        return all(package_version(name) for name in self.packages)

    @property
    def release(self) -> str:
        """The version of an installed one, e.g. `1.32.0`."""
        return package_version(self.packages[0]) or ""


ENGINES: Door[Engine] = Door("autotune.engines", "engine", Engine)


def engines_for(framework: str) -> dict[str, Engine]:
    """Engines that take models of a framework, installed or not, by name. One whose package is broken is left out."""
    found: dict[str, Engine] = {}
    for name in sorted(ENGINES.names()):
        try:
            engine = ENGINES.find(name)
        except InputError:
            continue
        if engine is not None and engine.framework == framework:
            found[name] = engine
    return found
