"""Fresh processes of the plain script, and pairs of measurements whose order is swapped from pair to pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.intervals import Pair

PLAIN = Path(__file__).with_name("plain.py")


@dataclass(frozen=True)
class PlainScript:
    """`plain.py` for one model, each time in a new process. Compile caches are kept in `folder`, as a job keeps its."""

    model: str
    folder: Path
    seed: int = 0
    warmup_s: float = 2.0
    sampling_s: float = 4.0

    def median_s(self, *way: str) -> float:
        """Median seconds a call; `way` as on the script's command line. Raises CalledProcessError."""
        output = self.folder / "seen.json"
        subprocess.run(
            [
                sys.executable, str(PLAIN), self.model, *way, "--seed", str(self.seed), "--output", str(output),
                "--warmup-s", str(self.warmup_s), "--sampling-s", str(self.sampling_s),
            ],
            cwd=self.folder,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")},
            # A model may print at every call (the planner does), and nobody must wake up beside it to read.
            stdout=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
        return float(json.loads(output.read_text())["median_s"])


def alternate(num_pairs: int, first: Callable[[], float], second: Callable[[], float]) -> list[Pair]:
    """Pairs `(first, second)`, measured one after the other: first before second, then second before first."""
    pairs = []
    for number in range(num_pairs):
        if number % 2 == 0:
            one = first()
            pairs.append((one, second()))
        else:
            other = second()
            pairs.append((first(), other))
    return pairs
