"""Ranks of a distributed job: real processes, which run one case after the other, each in a group of its own.

What a case returns, warns of and raises comes back from each rank. A case that takes longer than its limit has hung:
its processes are killed, and the next case gets new ones.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

LIMIT_S = 600.0
"""For a case on a busy machine, where both ranks compile; none waits so long by itself."""
JOBS_S = 30.0
"""Of the job's own collectives."""


@dataclass
class Outcome:
    """What one rank's case came to."""

    value: Any = None
    error: str | None = None
    warnings: list[str] = field(default_factory=list)
    was_killed: bool = False


class HangError(AssertionError):
    """A case took longer than its limit."""


class RankProcesses:
    """So many ranks on this machine."""

    def __init__(self, num_ranks: int, program: Callable[..., subprocess.Popen[bytes]]) -> None:
        """`program` starts one, as `ForkServers.program` does."""
        self.num_ranks, self._program = num_ranks, program
        self._ranks: list[tuple[subprocess.Popen[bytes], Any]] = []

    def run(self, case: Callable[..., Any], *args: Any) -> list[Outcome]:
        """`case(rank, *args)` on each rank. Raises HangError."""
        self._start()
        address = f"tcp://127.0.0.1:{_free_port()}"
        for _, pipe in self._ranks:
            pipe.send((case, args, address))
        deadline = time.monotonic() + LIMIT_S
        outcomes = []
        for rank, (_, pipe) in enumerate(self._ranks):
            try:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise HangError(f"rank {rank} did not come to an end within {LIMIT_S:g} s")
                outcomes.append(pipe.recv())
            except (EOFError, ConnectionError):
                outcomes.append(Outcome(was_killed=True))
            except HangError:
                self.end()
                raise
        if any(outcome.was_killed for outcome in outcomes):
            self.end()
        return outcomes

    def end(self) -> None:
        for process, pipe in self._ranks:
            process.kill()
            process.wait()
            pipe.close()
        self._ranks = []

    def _start(self) -> None:
        for rank in range(len(self._ranks), self.num_ranks):
            ours, theirs = multiprocessing.Pipe()
            code = "import sys; from tests.stand_ins.ranks import work; work(*map(int, sys.argv[1:]))"
            process = self._program(code, str(rank), str(self.num_ranks), pipes=[theirs.fileno()])
            self._ranks.append((process, ours))
            theirs.close()


def work(rank: int, num_ranks: int, descriptor: int) -> None:
    """One rank's process."""
    pipe = Connection(descriptor)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(num_ranks))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    kept = Kept()
    logging.getLogger("autotune").addHandler(kept)
    while True:
        try:
            case, args, address = pipe.recv()
        except EOFError:
            return
        outcome = Outcome()
        kept.lines = outcome.warnings
        torch._dynamo.reset()
        torch.manual_seed(0)
        try:
            dist.init_process_group(
                "gloo", init_method=address, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=JOBS_S)
            )
            outcome.value = case(rank, *args)
        except Exception as error:
            outcome.error = f"{type(error).__name__}: {error}"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(outcome)


class Kept(logging.Handler):
    """Keeps what is warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
