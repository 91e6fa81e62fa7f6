"""The contract between the parent and the child of a trial: a folder with `request.json` in and `outcome.json` out.

The folder is the evidence as well: `stage` (where the child was last), `stdout.txt`, `stderr.txt`. Nothing else crosses
the process boundary: no pickles, no exceptions. The worker, started by hand on the folder, repeats the trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from autotune.config import Config
from autotune.measure.accuracy import ReferencePrecision, default_tolerance
from autotune.measure.diagnosis import BreakKind
from autotune.measure.sampling import SamplingPlan
from autotune.schema import Record
from autotune.tuned.cache_file import CacheFile
from autotune.workload.workload import Workload


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


class ShippedCache(Record):
    """An artifact, and the folder that its file lies in, absolute."""

    artifact: CacheFile
    home: str


class Changes(TypedDict, total=False):
    """The fields of a `TrialRequest` that a copy may differ in, so that a type checker sees their names."""

    reference: str
    cache: str
    cold: bool
    toolchain: str | None
    compiled_before: ColdCompile | None
    keep_cache_in: str | None
    shipped: ShippedCache | None
    known_programs: dict[str, str]
    sampling: SamplingPlan
    incumbent_s: PositiveFloat | None
    profile_in: str | None
    limits: Limits


class TrialRequest(Record):
    """Everything that a child needs to know; a bug report needs no more than this file and the model's.

    The methods return copies, each with one thing changed.
    """

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
    shipped: ShippedCache | None = None
    """The first call starts from these caches, or the trial fails."""
    known_programs: dict[str, str] = {}
    """Program -> absolute path of the outcome.json of the trial that measured it: its samples serve again."""
    sampling: SamplingPlan = SamplingPlan()
    without: tuple[BreakKind, ...] = ()
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

    def limited_to(self, limits: Limits) -> TrialRequest:
        return self._but(limits=limits)

    def sampled_by(self, plan: SamplingPlan, *, incumbent_s: float | None = None) -> TrialRequest:
        """`incumbent_s` is the latency to beat, if there is one."""
        return self._but(sampling=plan, incumbent_s=incumbent_s)

    def profiled_in(self, folder: Path) -> TrialRequest:
        """The profile and its trace go to a trial's folder."""
        return self._but(profile_in=str(folder))

    def compared_with(self, reference: Path) -> TrialRequest:
        """The file of the reference outputs lies here."""
        return self._but(reference=str(reference))

    def cached_in(self, folder: Path, *, cold: bool) -> TrialRequest:
        """`cold`: the folder is emptied first."""
        return self._but(cache=str(folder), cold=cold)

    def with_toolchain(self, folder: Path) -> TrialRequest:
        return self._but(toolchain=str(folder))

    def keeping_cache_in(self, folder: Path) -> TrialRequest:
        """What the first call compiles is kept in the folder."""
        return self._but(keep_cache_in=str(folder))

    def started_from(self, shipped: ShippedCache) -> TrialRequest:
        """The first call takes what it needs from the artifact."""
        return self._but(shipped=shipped)

    def with_known_programs(self, outcomes: Mapping[str, str]) -> TrialRequest:
        """Samples of these programs serve again."""
        return self._but(known_programs=dict(outcomes))

    def compiled_already(self, before: ColdCompile) -> TrialRequest:
        """The cache folder holds a copy of the caches that this compile left."""
        return self._but(cold=False, compiled_before=before)

    def from_empty_caches(self) -> TrialRequest:
        """Compiled for itself."""
        return self._but(cold=True, compiled_before=None)

    def without_reuse(self) -> TrialRequest:
        """Compiled and sampled for itself."""
        return self.from_empty_caches().with_known_programs({})

    def _but(self, **changes: Unpack[Changes]) -> TrialRequest:
        return self.model_copy(update=dict(changes))
