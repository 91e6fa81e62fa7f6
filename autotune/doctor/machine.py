"""What this machine, or a cluster, has and lacks for tuning: frameworks, devices, compilers, disk, equal workers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from autotune.backends.registry import bundled_names, entry_of, framework_names, framework_version
from autotune.bench.exit_status import MIN_FREE_BYTES
from autotune.bench.probe import find_devices
from autotune.environment import (
    Environment,
    memory_limit_bytes,
    package_version,
    usable_cores,
    usable_cpus,
    usable_memory_bytes,
)
from autotune.errors import AutotuneError, MissingDeviceError, MissingFrameworkError
from autotune.schema import Record
from autotune.trial.processes import code_sha256
from autotune.workload.workload import Device

if TYPE_CHECKING:
    from autotune.bench.ray.links import Link


class MachineFinding(Record):
    """One thing looked at: there or not, what was found, what to do about it."""

    what: str
    ok: bool
    found: str
    cure: str | None = None
    is_framework: bool = False


def examine(studies_dir: Path) -> list[MachineFinding]:
    """Look at everything. Never raises for what is missing: that is the finding."""
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


def examine_cluster(on: str) -> list[MachineFinding]:
    """Start a worker on each accelerator, or on each host where there is none, and ask it. Raises an AutotuneError."""
    versions = _versions_here()
    *accelerators, last = sorted(get_args(Device), key=("gpu", "ascend", "cpu").index)
    for device in accelerators:
        try:
            return _examine(on, device, versions)
        except MissingDeviceError:
            continue
    return _examine(on, last, versions)


def _versions_here() -> dict[str, str]:
    """Releases of the frameworks that the driver has: a study needs the same on its workers."""
    versions = {}
    for name in bundled_names():
        try:
            versions[name] = framework_version(name)
        except MissingFrameworkError:
            continue
    return versions


def _examine(on: str, device: Device, versions: dict[str, str]) -> list[MachineFinding]:
    from autotune.bench.messages import WorkerSettings
    from autotune.bench.ray.cluster import cluster_for

    cluster = cluster_for(on)
    links = cluster.start(WorkerSettings(tuple(versions), device, {}, versions, code_sha256()))
    try:
        return [_worker_finding(link, links[0]) for link in links]
    finally:
        cluster.close()


def _worker_finding(link: Link, first: Link) -> MachineFinding:
    """One worker, and how it differs from the first one."""
    facts, environment = link.facts, link.facts.environment
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    found = f"{facts.device} of {facts.host}; {environment.processor}, {environment.num_cores} cores; {versions}"
    others = _differences(first.facts.environment, environment)
    if others:
        found += f"; differs from {first.name}: {', '.join(others)}"
    return MachineFinding(what=f"worker {link.name}", ok=facts.problem is None, found=found, cure=facts.problem)


def _differences(first: Environment, other: Environment) -> list[str]:
    """What another worker has in place of what the first one has."""
    pairs = [
        ("processor", first.processor, other.processor),
        ("vector instructions", first.vector_instructions, other.vector_instructions),
        ("cores", str(first.num_cores), str(other.num_cores)),
        ("device", first.device, other.device),
        ("driver", first.driver, other.driver),
        ("python", first.python, other.python),
    ]
    names = sorted({*first.packages, *other.packages})
    pairs += [(name, first.packages.get(name), other.packages.get(name)) for name in names]
    return [
        f"{name} {theirs or 'missing'} and not {mine or 'missing'}" for name, mine, theirs in pairs if mine != theirs
    ]
