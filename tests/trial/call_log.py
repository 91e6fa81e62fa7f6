"""A model for the fake framework that notes each of its calls: it shows which processes were timed when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MODEL = """
import os, time
from pathlib import Path
import numpy as np

HOME = Path({home!r})


def tiny():
    def call(x):
        begun, own = time.monotonic(), HOME / str(os.getpid())
        own.touch()
        others = [each for each in HOME.iterdir() if each != own and each.name.isdigit()]
        is_disturbed = any(time.time() - each.stat().st_mtime < 0.015 for each in others)
        time.sleep(0.02 if {is_sensitive} and is_disturbed else 0.004)
        own.touch()
        with open(HOME / "log", "a") as log:
            print(os.getpid(), begun, time.monotonic(), file=log)
        return x
    return call, np.ones((2, 2))
"""
_FEWEST = 10
"""Calls of a process that was timed: others were killed or failed before."""
_LAST = 3
"""Calls at the end of such a process: all of them are timed, in one turn."""


@dataclass(frozen=True)
class CallLog:
    """Of one model. A sensitive one is slow where another process was in a call a moment ago."""

    home: Path

    def write_model(self, path: Path, *, is_sensitive: bool = False) -> None:
        self.home.mkdir(exist_ok=True)
        path.write_text(_MODEL.format(home=str(self.home), is_sensitive=is_sensitive))

    def timed_spans(self, begin: float = 0.0, end: float = float("inf")) -> list[tuple[float, float]]:
        """When each process was timed last, from its first such call to its last one, in order; of the calls that
        began between two readings of `time.monotonic`."""
        calls: dict[str, list[tuple[float, float]]] = {}
        for line in (self.home / "log").read_text().splitlines():
            process, begun, ended = line.split()
            if begin < float(begun) < end:
                calls.setdefault(process, []).append((float(begun), float(ended)))
        last = [each[-_LAST:] for each in calls.values() if len(each) >= _FEWEST]
        return sorted((each[0][0], each[-1][1]) for each in last)
