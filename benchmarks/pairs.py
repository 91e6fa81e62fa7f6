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
TRAINING = Path(__file__).with_name("plain_training.py")


@dataclass(frozen=True)
class PlainScript:
    """`plain.py` for one model, each time in a new process. Compile caches are kept in `folder`, as a job keeps its.

    `training`: it is `plain_training.py`, for PyTorch.
    """

    model: str
    folder: Path
    seed: int = 0
    warmup_s: float = 2.0
    sampling_s: float = 4.0
    arguments: tuple[str, ...] = ()
    """Further ones of the script."""
    training: bool = False

    def median_s(self, *way: str) -> float:
        """Median seconds a call; `way` as on the script's command line. Raises CalledProcessError."""
        return self.seen(*way)["median_s"]

    def seen(self, *way: str, timeout_s: float | None = None) -> dict[str, float]:
        """All that the script saw. Raises CalledProcessError, and TimeoutExpired."""
        output = self.folder / "seen.json"
        script = [str(TRAINING), "torch"] if self.training else [str(PLAIN)]
        seed = [] if self.training else ["--seed", str(self.seed)]
        subprocess.run(
            [
                sys.executable, *script, self.model, *way, *seed, *self.arguments, "--output", str(output),
                "--warmup-s", str(self.warmup_s), "--sampling-s", str(self.sampling_s),
            ],
            cwd=self.folder,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")},
            # A model may print at every call (the planner does), and nobody must wake up beside it to read.
            stdout=subprocess.DEVNULL,
            stderr=None if timeout_s is None else subprocess.PIPE,
            text=True,
            timeout=timeout_s,
            check=True,
        )  # fmt: skip
        return dict(json.loads(output.read_text()))


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
