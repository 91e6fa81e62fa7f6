"""A workload built with the real calls of its file, if it has one."""

from __future__ import annotations

from pathlib import Path

from autotune.backends.capabilities import require
from autotune.backends.protocol import Backend
from autotune.command_line import asked
from autotune.workload.build import Built, build
from autotune.workload.workload import Workload


def built_for(workload: Workload, backend: Backend) -> Built:
    """See `build`. Raises InputError for a file that cannot be used."""
    if workload.inputs is None:
        return build(workload)
    calls = require(backend.calls_file, asked("inputs")).read(Path(workload.inputs))
    return build(workload, calls)
