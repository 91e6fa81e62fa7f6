"""What the driver and a worker send each other. Files travel as bytes; a path means nothing on another host."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.environment import Environment
from autotune.measure.measurement import Stage
from autotune.workload.workload import Device


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is made with: the same for all workers of a study."""

    frameworks: tuple[str, ...]
    device: Device
    variables: dict[str, str]
    versions: dict[str, str]
    """Of the frameworks that the study is about."""
    code_sha256: str
    """Of the driver's own sources (`command.code_sha256`)."""
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
    """Of the frameworks that it found."""
    environment: Environment
    code_key: str
    """Of everything on this host that compiled code depends on: caches of one worker serve another of the same key."""
    problem: str | None = None
    """Why it cannot measure this study; None: it can."""


@dataclass(frozen=True)
class File:
    """A file that a trial needs: its content is sent once to each worker, under the digest."""

    place: str
    """Relative to the folder that the worker keeps for the trial's files."""
    digest: str


@dataclass(frozen=True)
class Store:
    """Order: keep this content for later orders."""

    digest: str
    content: bytes


@dataclass(frozen=True)
class Begin:
    """Order: run a trial to its end, or hold a live process until it is warm."""

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
class Turn:
    """Order: let a live process take its samples once."""

    job: str


@dataclass(frozen=True)
class Finish:
    """Order: end a live process."""

    job: str


Order = Store | Begin | Turn | Finish


@dataclass(frozen=True)
class StageReached:
    """Report: the trial is in this stage now."""

    job: str
    stage: Stage


@dataclass(frozen=True)
class Warm:
    """Report: a live process waits for its next turn."""

    job: str


@dataclass(frozen=True)
class Ended:
    """Report: the trial has ended. `files` are those of its folder, by their names, `outcome.json` among them."""

    job: str
    files: dict[str, bytes] = field(default_factory=dict)
    reference: bytes | None = None
    """The reference outputs, if this trial has written them."""
    cache: bytes | None = None
    """The compile cache that it left, packed."""
    refused: str | None = None
    """Why it could not be started; there is no outcome then."""


Report = StageReached | Warm | Ended
