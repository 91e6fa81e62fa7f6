"""What the driver of a cluster and its workers send each other, as objects: typed, in one place.

The driver gives `WorkerOrder`s and hears `Report`s; the worker has a bench of its own machine in turn. A `job` is a
name that the driver makes. Files travel as bytes, since a path means nothing on another host.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.bench.messages import Finish, Refused, StageReached, Turn
from autotune.environment import Environment
from autotune.workload.workload import Device


@dataclass(frozen=True)
class Store:
    """Order to a worker: keep this content for later orders."""

    digest: str
    content: bytes


@dataclass(frozen=True)
class File:
    """A file that a trial needs: its content is sent once to each worker, under the digest."""

    place: str
    """Relative to the folder that the worker keeps for the trial's files."""
    digest: str


@dataclass(frozen=True)
class Begin:
    """Order to a worker: run a trial to its end, or hold a live process until it is warm."""

    job: str
    request: str
    """`request.json`, with paths of the driver's host."""
    files: tuple[File, ...]
    rewritten: dict[str, str]
    """Path in the request -> place of the file or folder that stands for it on the worker."""
    is_live: bool = False
    fresh: bool = False
    cache: str | None = None
    """Digest of the packed compile cache that the trial begins with, where its own is not there yet."""
    returns_cache: bool = False
    """Send the cache that it leaves, packed, unless it is too large."""


@dataclass(frozen=True)
class Ended:
    """Report: the trial has ended. `files` are those of its folder, by their names, `outcome.json` among them."""

    job: str
    files: dict[str, bytes] = field(default_factory=dict)
    reference: bytes | None = None
    """The reference outputs, if this trial has written them."""
    cache: bytes | None = None
    """The compile cache that it left, packed."""


WorkerOrder = Store | Begin | Turn | Finish
Report = StageReached | Ended | Refused


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is made with: the same for all workers of a study."""

    frameworks: tuple[str, ...]
    device: Device
    variables: dict[str, str]
    versions: dict[str, str]
    """Releases of the frameworks that the study is about."""
    code_sha256: str
    """Hash of the driver's own sources (`code_sha256`)."""
    has_own_processors: bool = False
    """On the word of who started its node: no other worker disturbs it, though it may be on the same machine."""


@dataclass(frozen=True)
class WorkerFacts:
    """A worker as it describes itself, before it has measured anything."""

    host: str
    boot_id: str
    processors: frozenset[int]
    """Numbers of the processors that it may use: two CPU workers that share one would disturb each other."""
    device: str
    """As the framework names it; the worker's only one of its kind."""
    versions: dict[str, str]
    """Releases of the frameworks that it found."""
    environment: Environment
    code_key: str
    """Hash of all on this host that compiled code depends on: caches serve every worker of the same key."""
    problem: str | None = None
    """Why it cannot measure this study; None: it can."""
