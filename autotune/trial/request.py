"""The contract between the parent and the child of a trial: a folder with `request.json` in and `outcome.json` out.

The folder is the evidence too: `stage` (the stage that the child reached), `stdout.txt`, `stderr.txt`. Nothing else
crosses the process boundary: no pickles, no exceptions. Running the worker by hand on the folder repeats the trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from autotune.config import Config
from autotune.measure.accuracy import ReferencePrecision, default_tolerance
from autotune.measure.diagnosis import BreakKind
from autotune.measure.sampling import SamplingPlan
from autotune.schema import Record
from autotune.tuned.cache_file import CacheFile
from autotune.workload.workload import Workload

Alone = Literal["device", "host"]
"""What one trial at a time has: its device, or the whole machine with all its devices."""


class Limits(Record):
    """Wall seconds that a trial may take, for each stage and in all."""

    model_config = ConfigDict(allow_inf_nan=False)

    start: PositiveFloat = 120.0
    build: PositiveFloat = 180.0
    compile: PositiveFloat = 300.0
    check: PositiveFloat = 300.0
    """Other inputs may trigger recompilation, so a check may take as long as compiling."""
    run: PositiveFloat = 180.0
    total: PositiveFloat = 900.0
    wall: PositiveFloat | None = None
    """From its start to its end, with the time for which it is paused or waits, which counts nowhere else. None: as
    long as that takes; a run that has a time sets what is left of it. Turns of a live process have no such limit."""


class ColdCompile(Record):
    """The cost of a compile from empty caches, and the trial that paid it."""

    trial: int
    compile_s: NonNegativeFloat
    peak_memory_bytes: NonNegativeInt | None
    host_bytes: NonNegativeInt | None = None


class ShippedCache(Record):
    """An artifact, and the absolute path of the folder that holds its file."""

    artifact: CacheFile
    home: str


class Kernels(Record):
    """A folder (absolute) with kernels that earlier trials compiled, and the number of threads that compile."""

    folder: str
    num_threads: PositiveInt


class TrialRequest(Record):
    """Everything that a child needs. A bug report needs only this file and the model's.

    The methods return copies, each with one thing changed.
    """

    schema_: Literal[1] = Field(1, alias="schema")
    number: int
    workload: Workload
    config: Config
    untuned: bool
    """The config is that of the untuned model, whose outputs are the reference."""
    tolerance: PositiveFloat | None
    """None: by the precision of the model."""
    reference_precision: ReferencePrecision = "model"
    reference: str
    """Path of the reference outputs. The first untuned run of a study writes the file; later trials compare with it."""
    cache: str
    """Folder for every compile cache, absolute."""
    cold: bool
    """Empty the cache folder first."""
    toolchain: str | None = None
    """Absolute path of the files that the compiler needs for every model, made once (see `toolchain`)."""
    kernels: Kernels | None = None
    """None: each trial compiles all of its own, with as many threads as the framework's compiler takes by itself."""
    compilers_ahead: bool = False
    """On a device, processes in which its compiler works begin before its driver does (see `CompilersAhead`)."""
    compiled_before: ColdCompile | None = None
    """The compile that left the caches, if they are a copy: its cold figures are recorded for this trial."""
    keep_cache_in: str | None = None
    """Absolute path of a folder that keeps what the first call compiles (`KEPT_CACHES`) and its key (`KEY_FILE`)."""
    shipped: ShippedCache | None = None
    """The first call must start from these caches; otherwise the trial fails."""
    sampling: SamplingPlan = SamplingPlan()
    measures_growth: bool = False
    """Whether steady calls keep memory is measured after the samples, unless they are taken in turns."""
    finds_limits: bool = False
    """Which whole numbers the untuned model takes is looked for, after everything else."""
    rounds: bool = False
    """A setting is known to round: beyond the tolerance by little, the config is timed all the same (`near_miss`)."""
    is_used: bool = False
    """After everything else the model is used as a job will use it, longer than in a trial (see `use`)."""
    engine: str | None = None
    """The untuned model runs in this engine (see `ENGINES`), in place of its framework."""
    without: tuple[BreakKind, ...] = ()
    """Kinds of graph breaks that the compiler is told to capture, where the framework can, to measure their cost."""
    judged: bool = True
    """Compare the outputs with the reference; a model whose outputs are not repeatable fails."""
    profile_in: str | None = None
    """Absolute path of a trial's folder. After the measurement the model is profiled, and what its graph breaks cost is
    written there."""
    limits: Limits = Limits()
    variables: dict[str, str] = {}
    """Environment variables that are set before the child's Python starts."""
    alone_on: tuple[Alone, ...] = ("device",)
    """What no other trial uses while this one is timed."""

    def tolerance_for(self, dtypes: Iterable[str]) -> float:
        """The largest accepted relative error for a model with tensors of these element types."""
        return self.tolerance or default_tolerance(dtypes)

    def timed_alone_on(self, *what: Alone) -> TrialRequest:
        """Nothing else is timed there meanwhile; without arguments it is timed whatever others do."""
        return self.model_copy(update={"alone_on": what})

    def used_longer(self, *, is_used: bool) -> TrialRequest:
        """See `is_used`."""
        return self.model_copy(update={"is_used": is_used})

    def run_by(self, engine: str) -> TrialRequest:
        """See `engine`. What it gives is held to the reference, as what any config gives."""
        return self.model_copy(update={"engine": engine, "untuned": False})

    def limited_to(self, limits: Limits) -> TrialRequest:
        return self.model_copy(update={"limits": limits})

    def sampled_by(self, plan: SamplingPlan) -> TrialRequest:
        return self.model_copy(update={"sampling": plan})

    def cached_in(self, folder: Path, *, cold: bool) -> TrialRequest:
        """`cold`: the folder is emptied first."""
        return self.model_copy(update={"cache": str(folder), "cold": cold})

    def with_toolchain(self, folder: Path) -> TrialRequest:
        return self.model_copy(update={"toolchain": str(folder)})

    def with_kernels(self, folder: Path, num_threads: int) -> TrialRequest:
        """What is compiled is found in the folder, or added to it."""
        return self.model_copy(update={"kernels": Kernels(folder=str(folder), num_threads=num_threads)})

    def with_compilers_ahead(self) -> TrialRequest:
        """See `compilers_ahead`."""
        return self.model_copy(update={"compilers_ahead": True})

    def keeping_cache_in(self, folder: Path) -> TrialRequest:
        """What the first call compiles is kept in the folder."""
        return self.model_copy(update={"keep_cache_in": str(folder)})

    def started_from(self, shipped: ShippedCache) -> TrialRequest:
        """The first call takes what it needs from the artifact."""
        return self.model_copy(update={"shipped": shipped})

    def compiled_already(self, before: ColdCompile) -> TrialRequest:
        """The cache folder holds a copy of the caches that this compile left."""
        return self.model_copy(update={"cold": False, "compiled_before": before})

    def from_empty_caches(self) -> TrialRequest:
        """Compiled for itself."""
        return self.model_copy(update={"cold": True, "compiled_before": None})

    def for_a_further_process(self) -> TrialRequest:
        """The trial's own process goes on meanwhile, with the same caches."""
        return self.model_copy(
            update={"cold": False, "toolchain": None, "keep_cache_in": None, "shipped": None, "profile_in": None}
        )
