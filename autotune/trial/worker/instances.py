"""A trial of several instances: processes on cores of their own that call the model at the same time, each its own
copy with its own inputs.

The trial's own process is instance 0. It starts the others, measures, reports and is measured:

    instance 0                                the others
    build, compile, check                     build
    tell them to prepare, wait for all        compile from its caches, check, become warm, say so; rest
    samples: wake them, tell, make calls      call again and again, each call timed
    the last sample: tell                     end the call, answer with what all calls took; rest
    the end: tell                             answer with their memory, end

All begin within a fraction of a millisecond, and nobody ends before instance 0 has its samples, so that each of its
calls has the others beside it. Of theirs all count that began meanwhile, but for the first one of several: other
processes used the processor's caches before it, as before the first call of a turn. At rest they are stopped, as their
supervisor stops a process that waits for its turn (docs/decisions/0002-supervisor.md).

What they say to each other are single bytes, and numbers as bytes, on a pair of sockets for each.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

import psutil

from autotune.apply.config_parts import ConfigParts
from autotune.environment import usable_cpus
from autotune.errors import InvalidConfigError
from autotune.measure.disturbance import LoadMeter
from autotune.measure.measurement import Samples
from autotune.measure.sampling import Clock, SampleLog, SamplingPlan, first_calls, own_cpu_s
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker.further import Further
from autotune.workload.process_start import INSTANCES, core_sets

ONLY = "instance"
"""Second argument of a worker that is a further instance of a trial."""
CORES_VARIABLE = "AUTOTUNE_TRIAL_CORES"
"""The cores that the trial had before its process took its own of them."""
_PIPE_VARIABLE = "AUTOTUNE_INSTANCE_FD"
_PREPARE, _CALL, _REST, _END, _READY = b"p", b"c", b"r", b"e", b"y"


class Others:
    """The further instances of a trial, seen from instance 0."""

    def __init__(self, further: Further, pipes: Sequence[Connection], cores: frozenset[int]) -> None:
        self._further = further
        self._pipes = pipes
        self._cores = cores
        """Those of all instances."""
        self._calls_s: list[list[float]] = [[] for _ in pipes]
        self._switches: list[list[int]] = [[] for _ in pipes]

    @classmethod
    @contextmanager
    def beside(cls, folder: TrialFolder, request: TrialRequest) -> Iterator[Others | None]:
        """They are there within, if the config asks for any. What one of them raised is raised in place of what
        follows from it, and none is left."""
        start = ConfigParts.of(request.config).start
        given = frozenset(int(cpu) for cpu in os.environ.pop(CORES_VARIABLE, "").split(",") if cpu)
        if start.instances == 1:
            yield None
            return
        sets = core_sets(start.cores or 1, given, start.instances)
        if usable_cpus() not in sets[:1]:
            raise InvalidConfigError(f"knob {INSTANCES}: this process was not started as one of {start.instances}")
        pairs = [Pipe() for _ in sets[1:]]
        starts = [partial(_start, cores, theirs) for cores, (_, theirs) in zip(sets[1:], pairs, strict=True)]
        further = Further.start(ONLY, folder, request, starts)
        others = cls(further, [own for own, _ in pairs], frozenset(cpu for cores in sets for cpu in cores))
        try:
            for _, theirs in pairs:
                theirs.close()
            with others._further.blamed(), others._left_alone():
                yield others
        finally:
            for process in others._further.processes:
                process.kill()
                process.wait()

    def prepare(self) -> None:
        """Let them become warm, and wait until all are."""
        self._tell(_PREPARE)
        for pipe in self._pipes:
            pipe.recv_bytes()
        self._signal(signal.SIGSTOP)

    @contextmanager
    def calling(self) -> Iterator[LoadMeter]:
        """They make calls within; what it gives counts what others than all instances use of their cores."""
        self._signal(signal.SIGCONT)
        self._tell(_CALL)
        yield LoadMeter(self._cpu_s, cpus=self._cores)
        self._tell(_REST)
        for calls_s, switches, pipe in zip(self._calls_s, self._switches, self._pipes, strict=True):
            calls_s.extend(array("d", pipe.recv_bytes()))
            switches.extend(array("q", pipe.recv_bytes()))
        self._signal(signal.SIGSTOP)

    def added_to(self, samples: Samples) -> Samples:
        """The samples of instance 0, with the calls that were made beside them."""
        beside = {
            "beside_s": tuple(map(tuple, self._calls_s)),
            "beside_switches": tuple(map(tuple, self._switches)),
        }
        return samples.model_copy(update=beside)

    def end(self) -> list[int]:
        """End them. Peak bytes of each while it made its calls; 0 where the system does not tell."""
        self._signal(signal.SIGCONT)
        self._tell(_END)
        return [int.from_bytes(pipe.recv_bytes()) for pipe in self._pipes]

    def _cpu_s(self) -> float | None:
        """CPU seconds of all instances so far; None where the system does not tell."""
        own_s = own_cpu_s()
        try:
            times = [psutil.Process(process.pid).cpu_times() for process in self._further.processes]
        except psutil.Error:
            return None
        return None if own_s is None else own_s + sum(each.user + each.system for each in times)

    @contextmanager
    def _left_alone(self) -> Iterator[None]:
        """At the end, however it comes, they find their pipes closed, and end."""
        try:
            yield
        finally:
            for pipe in self._pipes:
                pipe.close()
            self._signal(signal.SIGCONT)

    def _tell(self, word: bytes) -> None:
        for pipe in self._pipes:
            pipe.send_bytes(word)

    def _signal(self, number: int) -> None:
        for process in self._further.processes:
            process.send_signal(number)


class First:
    """Instance 0, seen from one of the others."""

    def __init__(self) -> None:
        self._pipe = Connection(int(os.environ.pop(_PIPE_VARIABLE)))
        os.set_inheritable(self._pipe.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._next = 0
        """The next call of a stream: where it was told to rest it goes on, so that each shape keeps its share."""

    def says_to_prepare(self) -> bool:
        """Wait for its word; False where it has ended."""
        return self._heard() == _PREPARE

    def follow(self, calls: Sequence[Callable[[], None]], plan: SamplingPlan, clock: Clock) -> bool:
        """Become warm, and make calls whenever it says so. False where it has ended in between."""
        first_calls(calls, plan, clock)
        self._pipe.send_bytes(_READY)
        while (word := self._heard()) == _CALL:
            log = self._called(calls, plan, clock)
            own = slice(int(len(log.latency_s) > 1), None)  # Others used the processor's caches before the first one.
            self._say(array("d", log.latency_s[own]).tobytes())
            self._say(array("q", log.involuntary_switches[own]).tobytes())
        return word == _END

    def tell_memory(self, peak_bytes: int | None) -> None:
        """The last word."""
        self._say((peak_bytes or 0).to_bytes(8))

    def _called(self, calls: Sequence[Callable[[], None]], plan: SamplingPlan, clock: Clock) -> SampleLog:
        """The calls that were made until it spoke again."""
        log = SampleLog(plan)
        while not self._poll.poll(0) or not log.latency_s:
            log.time_pass([calls[self._next % len(calls)]], clock)
            self._next += 1
        self._heard()
        return log

    def _heard(self) -> bytes | None:
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def _say(self, content: bytes) -> None:
        with suppress(OSError):
            self._pipe.send_bytes(content)


def _start(cores: frozenset[int], pipe: Connection, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """On these cores from its first instruction on: a new process has those of the thread that starts it."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    variables = {**os.environ, _PIPE_VARIABLE: str(pipe.fileno())}
    try:
        return subprocess.Popen(command, env=variables, pass_fds=[pipe.fileno()], stdout=log, stderr=log)
    finally:
        os.sched_setaffinity(0, own)
