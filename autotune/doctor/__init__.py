"""What this machine has and lacks for tuning: frameworks, devices, compilers, disk. Imports `planning` and the rows
above it; never `tuning`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from autotune.backends.engine import engines_for
from autotune.backends.registry import entry_of, framework_names
from autotune.bench.elsewhere import MachineFinding, elsewhere
from autotune.bench.exit_status import MIN_FREE_BYTES
from autotune.bench.probe import find_devices
from autotune.command_line import install
from autotune.environment import (
    memory_limit_bytes,
    package_version,
    usable_cores,
    usable_cpus,
    usable_memory_bytes,
)
from autotune.errors import AutotuneError, MissingFrameworkError


def examine(studies_dir: Path, on: str | None = None) -> list[MachineFinding]:
    """Look at everything here, or where trials run elsewhere. Never raises for what is missing here: that is the
    finding."""
    if on is not None:
        return elsewhere(on).examine(on)
    findings = [finding for name in framework_names() for finding in _examine_framework(name)]
    return [*findings, _numpy(), _cores(), _memory(), _disk(studies_dir)]


def _examine_framework(framework: str) -> list[MachineFinding]:
    try:
        found = find_devices(framework)
    except MissingFrameworkError as error:
        return [MachineFinding(what=framework, ok=False, found="not installed", cure=error.tip, is_framework=True)]
    except AutotuneError as error:
        return [MachineFinding(what=framework, ok=False, found=str(error), cure=error.tip, is_framework=True)]
    findings = [MachineFinding(what=framework, ok=True, found=found.version, is_framework=True)]
    for device, name in found.devices.items():
        said = "; ".join(filter(None, [name, found.shared.get(device)]))
        findings.append(MachineFinding(what=f"{framework} on {device}", ok=True, found=said))
    for note in found.notes:
        absent, _, cure = note.partition(":")
        findings.append(
            MachineFinding(what=f"{framework} on {absent}", ok=False, found="not usable", cure=cure.strip())
        )
    for name, place in found.compilers.items():
        findings.append(MachineFinding(what=f"{name} for {framework}", ok=not place.startswith("missing"), found=place))
    for engine in engines_for(framework).values():
        is_here, what = engine.is_installed, f"{engine.title} for {framework} on cpu"
        found_it = engine.release if is_here else "not installed"
        tip = None if is_here else install("backends")
        findings.append(MachineFinding(what=what, ok=is_here, found=found_it, cure=tip))
    return findings


def _numpy() -> MachineFinding:
    broken = package_version("mindspore") is not None and int(np.__version__.split(".")[0]) >= 2
    cure = f"MindSpore is built against NumPy 1: pip install 'numpy<2' (or {entry_of('mindspore').install})"
    return MachineFinding(what="numpy", ok=not broken, found=np.__version__, cure=cure if broken else None)


def _cores() -> MachineFinding:
    num_cpus, cores = len(usable_cpus()), usable_cores()
    quota = f"; a quota allows {cores:g} of them at a time" if cores < num_cpus else ""
    return MachineFinding(what="cores", ok=True, found=f"{num_cpus}{quota}")


def _memory() -> MachineFinding:
    limit = "" if memory_limit_bytes() is None else ", the limit of this container"
    return MachineFinding(what="memory", ok=True, found=f"{usable_memory_bytes() / 2**30:.1f} GiB{limit}")


def _disk(studies_dir: Path) -> MachineFinding:
    place = studies_dir.resolve()
    existing = next(folder for folder in (place, *place.parents) if os.path.exists(folder))
    free = shutil.disk_usage(existing).free
    enough = free >= MIN_FREE_BYTES
    cure = f"a trial needs {MIN_FREE_BYTES / 2**20:.0f} MiB" if not enough else None
    return MachineFinding(what=f"disk of {studies_dir}/", ok=enough, found=f"{free / 2**30:.1f} GiB free", cure=cure)
