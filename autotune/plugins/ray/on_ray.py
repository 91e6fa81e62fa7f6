"""Ray behind the door of benches: what `--on ray` and `--on ray://HOST:PORT` mean."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import get_args

from autotune.backends.registry import bundled_names, framework_version
from autotune.bench.bench import Bench
from autotune.bench.elsewhere import Elsewhere, MachineFinding
from autotune.bench.workers import WorkerEvent
from autotune.environment import Environment
from autotune.errors import MissingDeviceError, MissingFrameworkError
from autotune.measure.measurement import Measurement
from autotune.plugins.ray.bench import RayBench
from autotune.plugins.ray.cluster import cluster_for, require_known
from autotune.plugins.ray.links import Link
from autotune.plugins.ray.messages import WorkerSettings
from autotune.plugins.ray.worker_caches import code_sha256
from autotune.study.budget import Budget
from autotune.study.study import Study
from autotune.workload.workload import Device


class OnRay(Elsewhere):
    """All devices of a Ray cluster."""

    def require(self, on: str) -> None:
        require_known(on)

    def bench(
        self, on: str, study: Study, budget: Budget, notify: Callable[[WorkerEvent], None]
    ) -> AbstractContextManager[Bench]:
        manifest, untuned = study.manifest, study.untuned_record()
        settings = WorkerSettings(
            frameworks=(manifest.framework,),
            device=manifest.workload.device,
            variables=study.variables,
            versions={manifest.framework: manifest.framework_version},
            code_sha256=code_sha256(),
        )
        return RayBench(
            cluster_for(on),
            settings,
            untuned.outcome if untuned is not None and isinstance(untuned.outcome, Measurement) else None,
            budget.trials_per_sentinel,
            notify,
        )

    def examine(self, on: str) -> list[MachineFinding]:
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


ON_RAY = OnRay()
