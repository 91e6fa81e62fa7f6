"""What the bench of this machine and its supervisor send each other: typed, in one place.

The bench gives `Order`s and hears `Event`s, each as one line of JSON (`encode`, `decode`). A `job` names the trial: the
path of its folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args

from autotune.bench.bench import Waits
from autotune.measure.measurement import Stage

FORK_SERVER = "bench.fork_server"
"""The program of a fork server, which waits as soon as it has imported what the supervisor has."""
PROBE = "bench.probe"
"""The program that answers what is asked of a framework or a model before there is a study."""
QUESTION_FILE = "question.json"
"""In the folder of that program: what is asked."""
TRIAL = "trial.worker.main"
LACKS = "lacks:"
"""Begins the argument with which a supervisor is started again with less: what it lacks, and why."""


@dataclass(frozen=True)
class Start:
    """Order: start a process for a trial's folder."""

    job: str
    limits: dict[str, float]
    """Seconds by stage, `total`, and `wall` where there is such a limit."""
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
class LogTo:
    """Order: what the supervisor writes to its stderr goes to this file from now on."""

    path: str


@dataclass(frozen=True)
class Ready:
    """Event: the supervisor has imported what it was told to, or what it could."""

    lacks: str | None = None
    """What it did without, and why, for the end of a sentence."""


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
    """Whether the process was killed but did not end: the kernel waits for a device or a disk (state D)."""


@dataclass(frozen=True)
class Refused:
    """Event and report: the trial could not be started."""

    job: str
    error: str


Order = Start | Turn | Finish | Pause | Resume | Kill
Event = Ready | StageReached | Queued | Exited | Refused

Message = Order | LogTo | Event

_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line of JSON."""
    return json.dumps({"is": type(message).__name__, **vars(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message that a line holds."""
    content = json.loads(line)
    if "stage" in content:
        content["stage"] = Stage(content["stage"])
    return _KINDS[content.pop("is")](**content)
