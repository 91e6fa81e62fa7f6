"""`Cluster` and `Link`: what the driver needs of the thing that starts workers and carries messages. Ray is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.errors import SetupError
from autotune.plugins.ray.messages import Report, WorkerFacts, WorkerOrder, WorkerSettings


class LinkLostError(SetupError):
    """The worker died, or its node did."""


class Link(Protocol):
    """A running worker."""

    @property
    def name(self) -> str:
        """Unique, and readable: host and device."""

    @property
    def facts(self) -> WorkerFacts:
        """As the worker told them."""

    def send(self, orders: Sequence[WorkerOrder]) -> None:
        """Does not wait. That the worker is dead is found when its reports are read."""

    def kill(self) -> None:
        """End the worker and all its processes."""


class Cluster(Protocol):
    """Starts workers and hears from them."""

    def start(self, settings: WorkerSettings) -> list[Link]:
        """A worker for each device that is there. Raises SetupError."""

    def replace(self, link: Link) -> Link | None:
        """A new worker on the device of one that died; None: its node is gone."""

    def wait(self, links: Sequence[Link]) -> list[tuple[Link, list[Report] | LinkLostError]]:
        """Wait until at least one of them reports or is lost."""

    def close(self) -> None:
        """End all workers, and the cluster itself if it was started for this run."""
