"""`RayCluster`: workers as Ray actors, one for each device of a cluster. The only module that imports Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from autotune.command_line import install
from autotune.errors import InputError, MissingDeviceError, SetupError, marked, quoted
from autotune.plugins.ray.device_worker import DeviceWorker
from autotune.plugins.ray.links import Cluster, Link, LinkLostError
from autotune.plugins.ray.messages import Report, WorkerFacts, WorkerOrder, WorkerSettings

LOCAL = "ray"
"""`--on ray`: the cluster that RAY_ADDRESS names, else one of this machine alone, made for the run."""
REMOTE = "ray://"
SLOTS = "autotune"
"""Custom resource of a node: how many CPU workers it may hold, on the word of who started it. Without it a host has
one, since two would disturb each other."""
_RESOURCE = {"gpu": "GPU", "ascend": "NPU"}
_REPORTS = "reports"
_STARTS_WITHIN_S = 120.0
"""A worker imports a framework and starts a child; on a node whose resources are taken it never starts."""
_OBJECT_STORE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class _Seat:
    """A place for a worker: a node, and what the worker takes of it."""

    node: str
    address: str
    resources: dict[str, float]
    num_cpus: float
    num_gpus: float


@dataclass(eq=False)
class RayLink:
    """See `Link`. One call of `reports` is always open; it is answered when there is something to report."""

    name: str
    facts: WorkerFacts
    seat: _Seat
    actor: Any
    open_call: Any

    def send(self, orders: Sequence[WorkerOrder]) -> None:
        self.actor.order.remote(list(orders))

    def kill(self) -> None:
        ray = require_ray()
        with suppress(Exception):  # Dead already, which is what is wanted.
            ray.kill(self.actor)


class RayCluster:
    """See `Cluster`."""

    def __init__(self, on: str) -> None:
        self._on = on
        self._ray = require_ray()
        self._links: list[RayLink] = []
        self._settings: WorkerSettings | None = None
        self._was_connected = self._ray.is_initialized()

    def connect(self) -> None:
        """Find the cluster, or start one. Raises SetupError."""
        if self._was_connected:
            return
        quiet = {"log_to_driver": False, "configure_logging": False}
        address = self._on if self._on.startswith(REMOTE) else None
        try:
            if address is None and not os.environ.get("RAY_ADDRESS"):
                local = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
                try:
                    self._ray.init(address="local", **local, **quiet)
                except Exception:  # Ray gives a node 30 s to come up, and no more on a busy machine.
                    self._ray.shutdown()
                    self._ray.init(address="local", **local, **quiet)
            else:
                self._ray.init(address=address, **quiet)
        except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and its own.
            raise SetupError(
                f"{marked('on', self._on)}: no Ray cluster: {str(error).splitlines()[0]}",
                tip="start one with `ray start --head`, or unset RAY_ADDRESS to use this machine alone",
            ) from None

    def start(self, settings: WorkerSettings) -> list[Link]:
        self.connect()
        try:
            return self._start(settings)
        except BaseException:
            self.close()
            raise

    def replace(self, link: Link) -> Link | None:
        assert isinstance(link, RayLink)
        assert self._settings is not None, "it was started with some"
        link.kill()
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if link.seat.node not in alive:
            return None
        actor = self._actor(link.seat, self._settings)
        replaced = self._links_of([(link.seat, actor)], [link.name])
        self._links = [other for other in self._links if other is not link] + replaced
        return replaced[0] if replaced else None

    def wait(self, links: Sequence[Link]) -> list[tuple[Link, list[Report] | LinkLostError]]:
        by_call = {link.open_call: link for link in links if isinstance(link, RayLink)}
        self._ray.wait(list(by_call), num_returns=1)
        # All that are there, so that a worker that reports often does not keep the others from being heard.
        ready, _ = self._ray.wait(list(by_call), num_returns=len(by_call), timeout=0)
        heard: list[tuple[Link, list[Report] | LinkLostError]] = []
        for call in ready:
            link = by_call[call]
            try:
                reports = self._ray.get(call)
                link.open_call = link.actor.reports.remote()
            except self._ray.exceptions.RayError as error:
                heard.append((link, LinkLostError(quoted(error))))
            else:
                heard.append((link, reports))
        return heard

    def close(self) -> None:
        for link in self._links:
            link.kill()
        self._links.clear()
        if not self._was_connected:
            self._ray.shutdown()

    def _start(self, settings: WorkerSettings) -> list[Link]:
        self._settings = settings
        seats = self._seats(settings.device)
        if not seats:
            raise MissingDeviceError(
                f"{marked('on', self._on)}: no node of the cluster has a {_RESOURCE.get(settings.device, 'CPU')}",
                tip="`ray status` lists what the nodes offer; see docs/many-machines.md",
            )
        started = [(seat, self._actor(seat, settings)) for seat in seats]
        links = self._links_of(started, _names(seats))
        self._links = _without_shared(links, settings)
        for link in links:
            if link not in self._links:
                link.kill()
        if not self._links:
            raise SetupError(
                f"{marked('on', self._on)}: no worker started within {_STARTS_WITHIN_S:.0f} s",
                tip="is autotune installed on the nodes, and are their resources free? `ray status` tells",
            )
        return list(self._links)

    def _seats(self, device: str) -> list[_Seat]:
        seats = []
        for node in sorted(self._ray.nodes(), key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
            if not node["Alive"]:
                continue
            offered = node["Resources"]
            name = _RESOURCE.get(device, SLOTS)
            num_cpus = float(offered.get("CPU", 0))
            num_seats = int(offered.get(name, 1 if device == "cpu" and num_cpus else 0))
            each_cpus = math.floor(num_cpus / num_seats) if num_seats else 0
            num_gpus = 1.0 if name == "GPU" else 0.0
            taken = {name: 1.0} if name in offered and name != "GPU" else {}
            seat = _Seat(node["NodeID"], node["NodeManagerAddress"], taken, each_cpus, num_gpus)
            seats += [seat] * num_seats
        return seats

    def _actor(self, seat: _Seat, settings: WorkerSettings) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self._ray.remote(concurrency_groups={_REPORTS: 1})(_actor_class(self._ray))
        placed = NodeAffinitySchedulingStrategy(seat.node, soft=False)
        return remote.options(
            num_cpus=seat.num_cpus,
            num_gpus=seat.num_gpus,
            resources=seat.resources,
            scheduling_strategy=placed,
            max_restarts=0,
        ).remote(replace(settings, has_own_processors=SLOTS in seat.resources))

    def _links_of(self, started: Sequence[tuple[_Seat, Any]], names: Sequence[str]) -> list[RayLink]:
        """Links to those that answer; an actor whose resources are taken does not."""
        calls = [actor.facts.remote() for _, actor in started]
        ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_STARTS_WITHIN_S)
        links = []
        for call, (seat, actor), name in zip(calls, started, names, strict=True):
            try:
                facts = self._ray.get(call) if call in ready else None
            except self._ray.exceptions.RayError:
                facts = None
            if facts is None:
                with suppress(Exception):
                    self._ray.kill(actor)
            else:
                links.append(RayLink(name, facts, seat, actor, actor.reports.remote()))
        return links


def require_ray() -> Any:
    """The package `ray`. Raises InputError where it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise InputError(f"{marked('on', 'ray')}: Ray is not installed", tip=install("ray")) from None
    return ray


def require_known(on: str) -> None:
    """Raises InputError for a value of `--on` that names no cluster, or where Ray is not installed."""
    if on != LOCAL and not on.startswith(REMOTE):
        raise InputError(f"{marked('on', on)}: unknown", tip="give ray, or ray://HOST:PORT")
    require_ray()


def _actor_class(ray: Any) -> type[DeviceWorker]:
    """Orders are taken one after the other, beside the open call of `reports`, which has a group of its own.

    Ray Client takes no group with a call, so the group is the method's; and the class is made here, so that Ray sends
    it with its group instead of importing it without.
    """

    class DeviceActor(DeviceWorker):
        @ray.method(concurrency_group=_REPORTS)  # type: ignore[untyped-decorator]
        def reports(self) -> list[Report]:
            return super().reports()

    return DeviceActor


def _names(seats: Sequence[_Seat]) -> list[str]:
    """Address and number: several nodes may share an address."""
    numbers: dict[str, int] = {}
    names = []
    for seat in seats:
        numbers[seat.address] = numbers.get(seat.address, 0) + 1
        names.append(f"{seat.address}/{numbers[seat.address]}")
    return names


def _without_shared(links: Sequence[RayLink], settings: WorkerSettings) -> list[RayLink]:
    """On a CPU one worker for each set of processors, unless the node says how many it may hold."""
    kept: list[RayLink] = []
    for link in links:
        is_shared = any(
            link.facts.boot_id == other.facts.boot_id and link.facts.processors & other.facts.processors
            for other in kept
        )
        if settings.device != "cpu" or SLOTS in link.seat.resources or not is_shared:
            kept.append(link)
    return kept


def cluster_for(on: str) -> Cluster:
    """The cluster that a value of `--on` names. Raises InputError."""
    require_known(on)
    return RayCluster(on)
