"""What the parent, its supervisor, and a driver and its workers send each other: typed, in one place.

Two pairs speak. A bench of this machine gives `Order`s to its supervisor and hears `Event`s, each as one line of JSON
(`encode`, `decode`). The driver of a cluster gives `WorkerOrder`s to a worker and hears `Report`s, as objects; the
worker has a bench of its own machine in turn. In both a `job` names the trial: the path of its folder here, and a name
that the driver makes there. Files travel as bytes, since a path means nothing on another host.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import get_args

from autotune.bench.bench import Waits
from autotune.environment import Environment
from autotune.measure.measurement import Stage
from autotune.workload.workload import Device

FORK_SERVER = "bench.fork_server"
"""The program of a fork server, which waits as soon as it has imported what the supervisor has."""


@dataclass(frozen=True)
class Start:
    """Order: start a process for a trial's folder."""

    job: str
    limits: dict[str, float]
    """Seconds by stage, and `total`."""
    program: str
    """Module of the package that is run."""
    waits: Waits
    fresh: bool
    """In a new Python, though this process could be forked."""
    stops: bool
    """Stop it (SIGSTOP) while it waits for its turn."""
    echo: bool
    """Its output goes where the supervisor's goes, and not into its folder."""
    fork_of: str | None = None
    """Job of the fork server that it is to come from, which rests; None, or where that has ended: the supervisor."""


@dataclass(frozen=True)
class Turn:
    """Order: let it take its samples: a live process once, a gated one all of them."""

    job: str


@dataclass(frozen=True)
class Finish:
    """Order: let a live process end."""

    job: str


@dataclass(frozen=True)
class Pause:
    """Order: stop all processes of a trial until `Resume`; what waits for its turn is at rest anyway."""

    job: str


@dataclass(frozen=True)
class Resume:
    """Order: let them go on."""

    job: str


@dataclass(frozen=True)
class Kill:
    """Order: end a trial whose outcome nobody needs."""

    job: str


@dataclass(frozen=True)
class Ready:
    """Event: the supervisor has imported what it was told to."""


@dataclass(frozen=True)
class StageReached:
    """Event and report: the trial is in this stage now; a live process in `wait` is ready for a turn."""

    job: str
    stage: Stage


@dataclass(frozen=True)
class Queued:
    """Event: the trial waits for the device, which one of another run has."""

    job: str


@dataclass(frozen=True)
class Exited:
    """Event: the trial's main process has ended, and all that it left was killed."""

    job: str
    status: int
    """As of `wait`."""
    timed_out: str | None
    """The stage whose limit ended it."""
    stuck: bool
    """It was killed but did not end: the kernel waits for a device or a disk (state D)."""


@dataclass(frozen=True)
class Refused:
    """Event and report: the trial could not be started."""

    job: str
    error: str


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


Order = Start | Turn | Finish | Pause | Resume | Kill
Event = Ready | StageReached | Queued | Exited | Refused
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
    """Hash of the driver's own sources (`processes.code_sha256`)."""
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


_KINDS: dict[str, type[Order | Event]] = {kind.__name__: kind for kind in get_args(Order | Event)}


def encode(message: Order | Event) -> bytes:
    """One line of JSON."""
    return json.dumps({"is": type(message).__name__, **vars(message)}).encode() + b"\n"


def decode(line: bytes) -> Order | Event:
    """The message that a line holds."""
    content = json.loads(line)
    if "stage" in content:
        content["stage"] = Stage(content["stage"])
    return _KINDS[content.pop("is")](**content)
