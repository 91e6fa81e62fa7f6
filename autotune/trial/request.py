"""The contract between the parent and the child of a trial: a folder with `request.json` in and `outcome.json` out.

The folder is the evidence as well: `stage` (where the child was last), `stdout.txt`, `stderr.txt`. Nothing else crosses
the process boundary: no pickles, no exceptions. The worker, started by hand on the folder, repeats the trial.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, TypeAdapter, ValidationError

from autotune.config import Config
from autotune.files import write_whole
from autotune.measure.accuracy import ReferencePrecision, default_tolerance
from autotune.measure.diagnosis import Ailment
from autotune.measure.measurement import Measurement, Outcome, Record, Stage
from autotune.measure.profile import Profile
from autotune.measure.sampling import SamplingPlan
from autotune.tuned.cache_file import CacheFile
from autotune.workload.workload import Workload

REQUEST_FILE = "request.json"
OUTCOME_FILE = "outcome.json"
PROFILE_FILE, TRACE_FILE = "profile.json", "trace.json"
KEPT_CACHES, KEY_FILE = "caches", "key.json"
MAX_TEMPORARY_CHARS = 70
"""Of the path of a temporary folder. The path of a socket has 107 at most, and what programs add takes up to 36."""
_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


class Limits(Record):
    """Wall seconds that a trial may take, for each stage and in all."""

    model_config = ConfigDict(allow_inf_nan=False)

    start: PositiveFloat = 120.0
    build: PositiveFloat = 180.0
    compile: PositiveFloat = 300.0
    check: PositiveFloat = 300.0
    """Other inputs may compile again, so checking may take as long as compiling."""
    run: PositiveFloat = 180.0
    total: PositiveFloat = 900.0


class ColdCompile(Record):
    """What a compile from empty caches cost, and in which trial."""

    trial: int
    compile_s: NonNegativeFloat
    peak_memory_bytes: NonNegativeInt | None


class Shipped(Record):
    """An artifact, and the folder that its file lies in, absolute."""

    artifact: CacheFile
    home: str


class TrialRequest(Record):
    """Everything that a child needs to know; a bug report needs no more than this file and the model's."""

    schema_: Literal[1] = Field(1, alias="schema")
    number: int
    workload: Workload
    config: Config
    untuned: bool
    """The config is the untuned model: the one whose outputs are the reference."""
    tolerance: PositiveFloat | None
    """None: by the precision of the model."""
    reference_precision: ReferencePrecision = "model"
    reference: str
    """Path of the reference outputs. The first untuned run of a study writes the file, all others compare with it."""
    cache: str
    """Folder for every compile cache, absolute."""
    cold: bool
    """Empty the cache folder first."""
    toolchain: str | None = None
    """Folder, absolute: what the framework's compiler needs whatever it compiles, made once (see `toolchain`)."""
    compiled_before: ColdCompile | None = None
    """Whose compile the caches hold, where they are a copy: its cold figures are the ones to record."""
    keep_cache_in: str | None = None
    """Folder, absolute: what the first call compiles stays there, in `KEPT_CACHES`, beside its key, `KEY_FILE`."""
    shipped: Shipped | None = None
    """The first call starts from these caches, or the trial fails."""
    known_programs: dict[str, str] = {}
    """Program -> absolute path of the outcome.json of the trial that measured it: its samples serve again."""
    sampling: SamplingPlan = SamplingPlan()
    without: tuple[Ailment, ...] = ()
    """Kinds of graph breaks that the compiler is told to capture after all, as far as the framework can: what do they
    cost?"""
    judged: bool = True
    """Outputs are compared with the reference; a model that does not repeat itself fails."""
    incumbent_s: PositiveFloat | None = None
    """Best latency known so far: a config that is clearly slower is not sampled to the end."""
    profile_in: str | None = None
    """Folder of a trial, absolute: once all is measured, the model is called under a profiler, and what that says is
    left there."""
    limits: Limits = Limits()
    variables: dict[str, str] = {}
    """Environment variables that stand before the child's Python starts."""

    def tolerance_for(self, dtypes: Iterable[str]) -> float:
        """The relative error that is still right for a model with tensors of these element types."""
        return self.tolerance or default_tolerance(dtypes)


@dataclass(frozen=True)
class TrialFolder:
    """Paths and files of one trial. Writing goes through a temporary name: a file is there whole or not at all."""

    path: Path

    @property
    def stdout(self) -> Path:
        return self.path / "stdout.txt"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr.txt"

    @property
    def scratch(self) -> Path:
        """The child's working folder: frameworks drop files where they stand."""
        return self.path / "scratch"

    @property
    def temporary(self) -> Path:
        """The child's folder for temporary files: what a killed compiler leaves there goes with the trial.

        In the trial's folder; where that path is too long for a socket, in the system's temporary folder.
        """
        inside = self.path.resolve() / "tmp"
        if len(os.fsencode(inside)) <= MAX_TEMPORARY_CHARS:
            return inside
        digest = hashlib.sha256(os.fsencode(inside)).hexdigest()[:12]
        return Path(tempfile.gettempdir(), f"autotune-{os.getuid()}-{digest}")

    @property
    def outcome_file(self) -> Path:
        return self.path / OUTCOME_FILE

    @property
    def trace_file(self) -> Path:
        """What the profiler saw, for chrome://tracing or Perfetto."""
        return self.path / TRACE_FILE

    def write_profile(self, profile: Profile) -> None:
        write_whole(self._profile, profile.model_dump_json(indent=2))

    def read_profile(self) -> Profile | None:
        """None if the trial was not profiled."""
        try:
            return Profile.model_validate_json(self._profile.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_request(self, request: TrialRequest) -> None:
        """Start (again) from an empty record: an outcome of an earlier run must not be taken for this one's."""
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in (self.outcome_file, self._stage, self.stdout, self.stderr, self._profile, self.trace_file):
            stale.unlink(missing_ok=True)
        self.drop_temporary()
        write_whole(self._request, request.model_dump_json(by_alias=True, indent=2))

    def read_request(self) -> TrialRequest:
        """Raises OSError, or ValueError where the file is no request of this version."""
        return TrialRequest.model_validate_json(self._request.read_text(encoding="utf-8"))

    def write_outcome(self, outcome: Outcome) -> None:
        write_whole(self.outcome_file, outcome.model_dump_json(indent=2))

    def read_outcome(self) -> Outcome | None:
        """None if the child left no outcome, or not a whole one."""
        try:
            return _OUTCOME.validate_json(self.outcome_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_stage(self, stage: Stage) -> None:
        self._stage.write_text(stage.value, encoding="utf-8")

    def read_stage(self) -> Stage:
        try:
            return Stage(self._stage.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Stage.START

    def drop_leftovers(self) -> None:
        """Remove temporary files, the scratch folder and the caches that lie inside the folder; the record stays."""
        self.drop_temporary()
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.path / "cache", ignore_errors=True)

    def drop_temporary(self) -> None:
        """Remove the folder for temporary files."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def _request(self) -> Path:
        return self.path / REQUEST_FILE

    @property
    def _profile(self) -> Path:
        return self.path / PROFILE_FILE

    @property
    def _stage(self) -> Path:
        return self.path / "stage"


def failed_trials(folder: Path) -> list[TrialFolder]:
    """Trials anywhere below a folder that left a failure, or nothing."""
    trials = [TrialFolder(path.parent) for path in folder.rglob(REQUEST_FILE)]
    return [each for each in trials if not isinstance(each.read_outcome(), Measurement)]


def module_command(name: str, *arguments: str) -> list[str]:
    """The command line that runs one of the package's modules as a program.

    As a file and not with `-m`: MindSpore's capture `trace` reads the source line of every frame on the stack, and
    `-m` puts one there that has none. `-P`, or the package's own modules would hide Python's of the same names.
    """
    return [sys.executable, "-P", str(Path(__file__).parent / f"{name}.py"), *arguments]


def package_path(declared: str | None = None) -> str:
    """PYTHONPATH for a child: it must import this very package, then what was declared or stands already."""
    home = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [home, declared or os.environ.get("PYTHONPATH")]))


def parse_outcome(content: object) -> Outcome:
    """An outcome from its stored JSON form. Raises ValueError."""
    return _OUTCOME.validate_python(content)
