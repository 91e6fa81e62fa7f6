"""What a cluster has for tuning: a worker for each device, with its versions, and what differs between them."""

from __future__ import annotations

from typing import get_args

from autotune.backends.registry import bundled_names, framework_version
from autotune.bench.messages import WorkerSettings
from autotune.bench.ray.cluster import cluster_for
from autotune.bench.ray.links import Link
from autotune.doctor.machine import MachineFinding
from autotune.environment import Environment
from autotune.errors import MissingDeviceError, MissingFrameworkError
from autotune.trial.processes import code_sha256
from autotune.workload.workload import Device


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
    """Of the frameworks that the driver has: a study needs the same on its workers."""
    versions = {}
    for name in bundled_names():
        try:
            versions[name] = framework_version(name)
        except MissingFrameworkError:
            continue
    return versions


def _examine(on: str, device: Device, versions: dict[str, str]) -> list[MachineFinding]:
    cluster = cluster_for(on)
    settings = WorkerSettings(tuple(versions), device, {}, versions, code_sha256())
    links = cluster.start(settings)
    try:
        return [finding_of(each, links[0]) for each in links]
    finally:
        cluster.close()


def finding_of(link: Link, first: Link) -> MachineFinding:
    """One worker, and how it differs from the first one."""
    facts, environment = link.facts, link.facts.environment
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    found = f"{facts.device} of {facts.host}; {environment.processor}, {environment.num_cores} cores; {versions}"
    others = differences(first.facts.environment, environment)
    if others:
        found += f"; differs from {first.name}: {', '.join(others)}"
    return MachineFinding(what=f"worker {link.name}", ok=facts.problem is None, found=found, cure=facts.problem)


def differences(first: Environment, other: Environment) -> list[str]:
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
