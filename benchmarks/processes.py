"""What evidence scripts start, and ratios of what that took: the product's command line, the plain script, and pairs.

The intervals are not the product's own statistics: what is judged here must not judge itself.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from scipy import special

from autotune.config import Scalar
from benchmarks.evidence import REPOSITORY

PLAIN = Path(__file__).with_name("plain.py")
TRAINING = Path(__file__).with_name("plain_training.py")

Document = dict[str, Any]
"""What `tune --json` and `compare --json` print (docs/json.md)."""


class ProductError(Exception):
    """A command of the product failed; the message is what it said itself."""


class Product:
    """Runs commands one at a time, in a folder of its own. A context manager: leaving it removes the folder.

    `libraries`: a folder of packages that its processes find beside those of the environment.
    """

    def __init__(self, libraries: Path | None = None) -> None:
        self._libraries = libraries
        self._folder = tempfile.TemporaryDirectory(prefix="autotune-benchmark-")
        self.folder = Path(self._folder.name)

    def __enter__(self) -> Product:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def tune(
        self,
        model: str,
        framework: str,
        *,
        study: str,
        task: str = "infer",
        trials: int | None = None,
        seed: int = 0,
        space: Path | None = None,
        model_arguments: Mapping[str, Scalar] | None = None,
        budget: Path | str | None = None,
        shapes: str | None = None,
        objective: str | None = None,
        process_settings: bool = False,
        device: str = "cpu",
        flags: Sequence[str] = (),
    ) -> Document:
        """The study's document; its verdict is None where the model itself failed. Raises ProductError without one.

        `process_settings`: threads, allocator and matmul precision are searched too. That is fair against a script that
        has its process to itself, and sets them as well. `flags`: further ones of `tune`, as they are typed.
        """
        options = [] if space is None else ["--space", str(space)]
        options += [] if trials is None else ["--trials", str(trials)]
        options += [] if budget is None else ["--budget", str(budget)]
        options += [] if shapes is None else ["--shapes", shapes]
        options += [] if objective is None else ["--objective", objective]
        options += ["--process-settings"] if process_settings else []
        for name, value in (model_arguments or {}).items():
            options += ["--model-arg", f"{name}={value}"]
        return self._json(
            "tune", "--model", model, "--framework", framework, "--device", device, "--study", study,
            "--task", task, "--seed", str(seed), *options, *flags, "--studies-dir", str(self._studies), "--json",
        )  # fmt: skip

    def exported(self, model: str, framework: str, *, study: str, **how: Any) -> Path:
        """Tune, and export the answer: its YAML. Raises ProductError, also where there is nothing to export."""
        path = self.folder / "best.yaml"
        self.tune(model, framework, study=study, **how)
        self.export(study, path)
        return path

    def export(self, study: str, path: Path) -> None:
        """Write the study's YAML to `path`. Raises ProductError, also where there is nothing to export."""
        path.parent.mkdir(parents=True, exist_ok=True)
        done = self._run("export", study, "-o", str(path.resolve()), "--studies-dir", str(self._studies))
        if done.returncode != 0:
            raise ProductError(_last_words(done))

    def rerun_trial(self, study: str, trial: int) -> float:
        """Run a recorded trial again, alone; its median seconds a call. Raises ProductError if it fails now."""
        done = self._run("run", study, str(trial), "--studies-dir", str(self._studies))
        if done.returncode != 0:
            raise ProductError(_last_words(done))
        # The command prints three digits; the child's own outcome has them all.
        outcome = json.loads((self._studies / study / "again" / f"{trial:04d}" / "outcome.json").read_text())
        return float(statistics.median(outcome["samples"]["latency_s"]))

    def compare(self, first: Path, second: Path) -> Document:
        """`verdict` and `speedup` of the second export over the first. Raises ProductError."""
        return self._json("compare", str(first.resolve()), str(second.resolve()), "--json")

    @property
    def _studies(self) -> Path:
        return self.folder / "studies"

    def _json(self, *arguments: str) -> Document:
        # The exit status says less than the document does: 1 and 2 may come with one.
        done = self._run(*arguments)
        try:
            document: Document = json.loads(done.stdout)
        except ValueError:
            raise ProductError(_last_words(done)) from None
        return document

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(REPOSITORY / "cli.py"), *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": _search_path(self._libraries)},
            capture_output=True,
            text=True,
            check=False,
        )


def _search_path(libraries: Path | None) -> str:
    """Folders of packages; another checkout on the path must not be measured in place of this one."""
    given = [Path(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    others = [folder for folder in given if not (folder / "autotune").is_dir()]
    return os.pathsep.join(map(str, [*([] if libraries is None else [libraries]), *others]))


def export_in(folder: Path, model: str, seed: int) -> Path:
    """Where one benchmark keeps the export of a study, and another looks for it."""
    return folder / f"{model}-seed{seed}.yaml"


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("error:", "tip:"))] or lines[-3:]
    return f"exit status {done.returncode}: {' '.join(told)}"


@dataclass(frozen=True)
class Job:
    """A script that does what a job does and writes what it saw, each time in a new process. Compile caches are kept in
    `folder`, as a job keeps its."""

    script: Path
    folder: Path
    libraries: Path | None = None
    """A folder of packages that it finds beside those of the environment."""

    def seen(
        self, *words: str, arguments: Mapping[str, Scalar] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """All that it saw, called with these words and the arguments of its model. Raises CalledProcessError, which has
        what it said on stderr, and TimeoutExpired."""
        output, log = self.folder / "seen.json", self.folder / "job.log"
        of_model = [word for name, value in (arguments or {}).items() for word in ("--argument", f"{name}={value}")]
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")}
        with log.open("w") as said:
            done = subprocess.run(
                [sys.executable, str(self.script), *words, *of_model, "--output", str(output)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": _search_path(self.libraries), **caches},
                # A model may print at every call (the planner does), and nobody must wake up beside it to read.
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=timeout_s,
                check=False,
            )
        if done.returncode != 0:
            text = log.read_text(errors="replace")
            failure = subprocess.CalledProcessError(done.returncode, done.args, stderr=text)
            failure.add_note(text[-2000:])
            raise failure
        return dict(json.loads(output.read_text()))


@dataclass(frozen=True)
class PlainScript:
    """`plain.py` for one model, a `Job`. `training`: it is `plain_training.py`."""

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
        return float(self.seen(*way)["median_s"])

    def seen(self, *way: str, timeout_s: float | None = None) -> dict[str, Any]:
        """All that the script saw. Raises as `Job.seen` does."""
        seed = [] if self.training else ["--seed", str(self.seed)]
        times = ["--warmup-s", str(self.warmup_s), "--sampling-s", str(self.sampling_s)]
        job = Job(TRAINING if self.training else PLAIN, self.folder)
        return job.seen(self.model, *way, *seed, *self.arguments, *times, timeout_s=timeout_s)


Pair = tuple[float, float]


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_over_pairs(pairs: Sequence[Pair]) -> Ratio:
    """Geometric mean of first over second, with the t interval of the log ratios. Needs two pairs."""
    if len(pairs) < 2:
        raise ValueError(f"an interval needs at least 2 pairs, got {len(pairs)}")
    logs = np.log([first / second for first, second in pairs])
    half = special.stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / len(logs) ** 0.5
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return Ratio(mean=float(mean), low=float(low), high=float(high))


def rate_is_below(num_hits: int, num_tries: int, confidence: float = 0.95) -> float:
    """The rate below which the true one lies with this confidence (Clopper and Pearson's one-sided bound)."""
    if num_hits == num_tries:
        return 1.0
    return float(special.betaincinv(num_hits + 1, num_tries - num_hits, confidence))


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
