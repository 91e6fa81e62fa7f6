"""`Session`: a device, a folder for results, the time left, and trials of the product on that device."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from autotune.bench.bench import Bench
from autotune.bench.local import LocalBench
from autotune.config import Config, Scalar
from autotune.measure.measurement import Failure, Reason
from autotune.measure.sampling import SamplingPlan
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Device, Task, Workload
from benchmarks.on_device.records import Tried

MODELS = Path(__file__).resolve().parent.parent / "models" / "on_device_torch.py"
KINDS = MODELS.with_name("kinds_torch.py")
SAMPLING = SamplingPlan(min_samples=20, max_samples=200, max_sampling_s=1.0, max_warmup_s=2.0)
"""Of a single trial: whether a setting matters is told by studies, and not by these figures."""
TOLERANCE = 1e-3
UNTUNED: dict[str, Scalar] = {"execution": "eager"}
LONGEST_TRIAL_S = 240.0


class OutOfTimeError(Exception):
    """The end of the session cut a trial off, which says nothing about its config: the step is tried again."""


@dataclass(frozen=True)
class Subject:
    """A model as it is tried: what makes it, with which arguments, and how much its outputs may differ."""

    function: str = "probe"
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    task: Task = "infer"
    tolerance: float = TOLERANCE

    @property
    def model(self) -> str:
        """As on the command line; bundled models go by their names."""
        return self.function.removeprefix("bundled:") if self.is_bundled else f"{MODELS}:{self.function}"

    @property
    def is_bundled(self) -> bool:
        return self.function.startswith("bundled:")

    @property
    def key(self) -> str:
        """A name for a folder."""
        arguments = "-".join(f"{name}={value}" for name, value in sorted(self.arguments.items()))
        return "-".join(filter(None, [self.function.replace(":", "-"), self.task, arguments]))


class Session:
    """Runs trials on the device until the time is used up. A context manager: its scratch folder is removed."""

    def __init__(self, device: Device, *, small: bool, minutes: float, trials: Bench | None = None) -> None:
        self.device: Device = device
        self.small = small
        self._begun = time.monotonic()
        self._minutes = minutes
        self._scratch = tempfile.TemporaryDirectory(prefix="autotune-device-")
        self.folder = Path(self._scratch.name)
        self._given = trials
        self._runner: LocalBench | None = None
        self._untuned: dict[str, Tried] = {}
        self._tried: dict[str, Tried] = {}
        self._num_trials = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._runner.close()
        self._scratch.cleanup()

    def left_s(self) -> float:
        """Seconds that are left."""
        return 60 * self._minutes - self.spent_s()

    def spent_s(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._begun

    def try_(self, subject: Subject, config: Mapping[str, Scalar], like: Subject | None = None) -> Tried:
        """One trial of the product, in a process of its own with empty caches; the same is tried once in a session.
        The outputs are compared with those of the untuned model, or of `like`, another subject, untuned."""
        reference = like or subject
        untuned = self.untuned(reference)
        if reference == subject and dict(config) == UNTUNED:
            return untuned
        key = f"{subject.key} {Config(dict(config)).fingerprint}"
        if key not in self._tried:
            self._tried[key] = self._run(subject, config, self._reference(reference), untuned=False)
        return self._tried[key]

    def untuned(self, subject: Subject) -> Tried:
        """The model as it is, which writes the reference; once in a session."""
        if subject.key not in self._untuned:
            self._untuned[subject.key] = self._run(subject, UNTUNED, self._reference(subject), untuned=True)
        return self._untuned[subject.key]

    def workload(self, subject: Subject) -> Workload:
        """The subject on this session's device."""
        return make_workload(subject.model, dict(subject.arguments), "torch", self.device, 0, task=subject.task)

    def _run(self, subject: Subject, config: Mapping[str, Scalar], reference: Path, *, untuned: bool) -> Tried:
        self._num_trials += 1
        path = self.folder / "trials" / f"{self._num_trials:04d}"
        request = TrialRequest(
            number=self._num_trials,
            workload=self.workload(subject),
            config=Config(dict(config)),
            untuned=untuned,
            tolerance=subject.tolerance,
            reference=str(reference),
            cache=str(path / "cache"),
            cold=True,
            sampling=SAMPLING,
            limits=self._limits(),
        )
        outcome = self._trials.run(TrialFolder(path), request)
        TrialFolder(path).drop_leftovers()
        was_capped = request.limits.total < LONGEST_TRIAL_S
        if was_capped and isinstance(outcome, Failure) and outcome.reason is Reason.TIMEOUT:
            raise OutOfTimeError("the session's time was used up within a trial")
        return Tried.of(dict(config), outcome)

    @property
    def _trials(self) -> Bench:
        if self._given is not None:
            return self._given
        if self._runner is None:
            self._runner = LocalBench({}, preload=True, log=self.folder / "supervisor.log")
        return self._runner

    def _limits(self) -> Limits:
        """A trial that hangs must not cost more than what is left."""
        total = max(30.0, min(LONGEST_TRIAL_S, self.left_s()))
        return Limits(compile=total, check=total, total=total)

    def _reference(self, subject: Subject) -> Path:
        folder = self.folder / "references" / subject.key
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "reference.npz"
