"""What this machine has and lacks for tuning: frameworks, devices, compilers, disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from autotune.backends.registry import entry_of, framework_names
from autotune.bench.exit_status import MIN_FREE_BYTES
from autotune.bench.probe import find_devices
from autotune.environment import num_usable_cores, package_version
from autotune.errors import AutotuneError, MissingFrameworkError
from autotune.schema import Record


class MachineFinding(Record):
    """One thing looked at: there or not, what was found, what to do about it."""

    what: str
    ok: bool
    found: str
    cure: str | None = None
    is_framework: bool = False


def examine(studies_dir: Path) -> list[MachineFinding]:
    """Look at everything. Never raises for what is missing: that is the finding."""
    findings = [each for name in framework_names() for each in _examine_framework(name)]
    return [*findings, _numpy(), _cores(), _disk(studies_dir)]


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
    return findings


def _numpy() -> MachineFinding:
    broken = package_version("mindspore") is not None and int(np.__version__.split(".")[0]) >= 2
    cure = f"MindSpore is built against NumPy 1: pip install 'numpy<2' (or {entry_of('mindspore').install})"
    return MachineFinding(what="numpy", ok=not broken, found=np.__version__, cure=cure if broken else None)


def _cores() -> MachineFinding:
    return MachineFinding(what="cores", ok=True, found=str(num_usable_cores()))


def _disk(studies_dir: Path) -> MachineFinding:
    place = studies_dir.resolve()
    existing = next(each for each in (place, *place.parents) if os.path.exists(each))
    free = shutil.disk_usage(existing).free
    enough = free >= MIN_FREE_BYTES
    cure = f"a trial needs {MIN_FREE_BYTES / 2**20:.0f} MiB" if not enough else None
    return MachineFinding(what=f"disk of {studies_dir}/", ok=enough, found=f"{free / 2**30:.1f} GiB free", cure=cure)
