"""The outcome of a trial: a `Measurement` or a `Failure`, both plain data.

Rules of this file: seconds, bytes and counts only; every sample is stored and statistics are derived; a quantity that
a framework does not report is None, never 0; nothing here knows a framework or a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from autotune.environment import Environment
from autotune.measure.device_state import DeviceState, DeviceTimes
from autotune.measure.diagnosis import Compilations, Diagnosis
from autotune.measure.generated import Generated
from autotune.measure.limits import InputLimits
from autotune.schema import Record, SparseRecord


class Stage(StrEnum):
    """The stage of a trial. The child writes each one, so that the stage of a crash is known."""

    START = "start"
    BUILD = "build"
    COMPILE = "compile"
    CHECK = "check"
    RUN = "run"
    WAIT = "wait"
    """Warm and idle: a live process that waits for its turn."""


class Reason(StrEnum):
    """Why a trial failed. Every reason except the last three is attributed to the config."""

    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    RUN_ERROR = "run_error"
    WRONG_RESULT = "wrong_result"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    SLOW_COMPILE = "slow_compile"
    """Its compile was cut off: it took many times what the other configs' took. It might have worked."""
    CRASH = "crash"
    SETUP = "setup"
    """The trial could not be run: the machine, the model or what it needs is at fault."""
    OUT_OF_TIME = "out_of_time"
    """The run's time was used up, which says nothing about the config: the next run tries it again."""
    LOST = "lost"
    """The worker that ran it died. No study records it: the config is tried again."""


RAGGED = -1
"""In a shape: a dimension in which the parts of a nested tensor have sizes of their own."""


class TensorSpec(Record):
    """Shape and element type of one example input or output, as the framework names them."""

    shape: tuple[int, ...]
    """`RAGGED` for a dimension that has no one size."""
    dtype: str


class Signature(SparseRecord):
    """What was tuned, recognisable in another process: class of the model, its parameters, its inputs."""

    ABSENT: ClassVar[frozenset[str]] = frozenset({"work"})

    model_class: str
    num_parameters: int
    structure_sha256: str
    inputs: tuple[TensorSpec, ...]
    items_per_call: int
    compare: dict[str, float | None] | Literal["function"] | None = None
    """How the model's author has its outputs compared: the tolerance of some by name, None for one that is not
    compared; a function, which no file holds; None: all within the study's tolerance."""
    records_gradients: bool = False
    """Gradients were recorded in every call that was measured: the model differentiates within itself, or an input
    requires them. A job's calls record them as well."""
    method: str | None = None
    """The method that was called, such as `decode`, where one of a model was given; None: a model, or a function."""
    work: str | None = None
    """The entry of the package whose kind of work it is; None: none of a package."""


class Component(Record):
    """A module that the call of a pipeline calls, as one untuned call showed it."""

    path: str
    """From what holds it: `unet`, `vae.decoder`."""
    calls: int
    """How often the pipeline's call calls it."""
    share: float
    """Its part of the time of that call."""
    signature: Signature
    """With the inputs of the first of its calls."""


class Axis(SparseRecord):
    """An axis of a tensor whose size is that of a dimension of the traffic."""

    ABSENT: ClassVar[frozenset[str]] = frozenset({"name"})

    dimension: str
    leaf: NonNegativeInt
    """Which argument of the call (`Arguments.leaves`), or which output tensor (`backends.outputs.output_arrays`)."""
    axis: NonNegativeInt
    name: str | None = None
    """The argument (`workload.arguments.named`), which calls may give in another order; None: an output, or an argument
    in an older file."""


class Replay(Record):
    """The stream of calls that a trial replays under traffic, and its first pass, in which everything is compiled."""

    sizes: tuple[dict[str, PositiveInt], ...] = Field(min_length=1)
    """The shapes that are called."""
    stream: tuple[NonNegativeInt, ...] = Field(min_length=1)
    """Indices into `sizes`, one for each call."""
    cold_s: tuple[NonNegativeFloat, ...]
    """Seconds of each call of the first pass; wrapping the model counts as part of the first one."""
    compilations: tuple[Compilations, ...] | None
    """After each call of the first pass; None: the framework does not report them."""
    inputs: tuple[Axis, ...] = ()
    """Axes of the inputs whose sizes are dimensions."""
    outputs: tuple[Axis, ...] = ()
    padding: dict[str, float] = {}
    """See `Shapes`."""

    @property
    def num_compilations(self) -> int | None:
        """Graphs that were compiled in the first pass."""
        return None if self.compilations is None else self.compilations[-1].num_graphs

    @property
    def num_fallbacks(self) -> int | None:
        """Functions that reached the limit of compilations and fell back to eager execution."""
        return None if self.compilations is None else self.compilations[-1].num_given_up

    def fewest_calls(self, enough: int) -> int:
        """The fewest calls that a turn may have: a whole pass."""
        del enough
        return len(self.stream)

    def is_slow(self, steady_s: float, slow_s: float) -> bool:
        """A pass has several calls, however slow they are."""
        del steady_s, slow_s
        return False

    def cold_of(self, first_s: float, second_s: float | None) -> tuple[float, ...]:
        """Seconds of the calls in which everything is compiled: those of the first pass."""
        del first_s, second_s
        return self.cold_s

    def steady_s(self, latency: Latency, samples: Samples) -> float:
        """Seconds of a call once everything is compiled: the mean over the stream of each call's median over the
        passes."""
        del latency
        return float(np.mean(np.median(self.passes_s(samples), axis=0)))

    def passes_s(self, samples: Samples) -> NDArray[np.float64]:
        """Seconds of the timed calls: a row for each pass, a column for each call of the stream."""
        return np.reshape(samples.latency_s, (-1, len(self.stream)))

    def shape_s(self, shape: int, samples: Samples) -> float:
        """The median of a steady call of one of the shapes."""
        return float(np.median(self.passes_s(samples)[:, np.array(self.stream) == shape]))

    def compiled_for(self, shape: int) -> int | None:
        """Graphs that were compiled in calls of one of the shapes."""
        if self.compilations is None:
            return None
        counts = [reading.num_graphs for reading in self.compilations]
        return sum(
            after - before
            for index, before, after in zip(self.stream, [0, *counts], counts, strict=False)
            if index == shape
        )


class SameCall:
    """In place of a `Replay` where the same inputs are called again and again: a pass is one call."""

    num_compilations: None = None
    """It is counted over many shapes."""
    num_fallbacks: None = None

    def fewest_calls(self, enough: int) -> int:
        """The fewest calls that a turn may have, where so many are `enough`."""
        return enough

    def is_slow(self, steady_s: float, slow_s: float) -> bool:
        """A pass takes so long that a turn is this one alone."""
        return steady_s > slow_s

    def cold_of(self, first_s: float, second_s: float | None) -> tuple[float, ...]:
        """Seconds of the calls in which everything is compiled, of which the second may still record something."""
        return (first_s,) if second_s is None else (first_s, second_s)

    def steady_s(self, latency: Latency, samples: Samples) -> float:
        """Seconds of a call once everything is compiled: the median."""
        del samples
        return latency.p50


class Latency(Record):
    """Percentiles of the per-call latency, in seconds (linear interpolation between samples)."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, samples_s: tuple[float, ...]) -> Latency:
        p50, p90, p99 = (float(value) for value in np.quantile(samples_s, [0.5, 0.9, 0.99]))
        return cls(p50=p50, p90=p90, p99=p99)


class Usage(Record):
    """Counters of the whole process (all its threads) during each sample: evidence of disturbance.

    In the order of the samples. An involuntary switch means that another process needed the core; page faults of a
    steady call come from an allocator that returns memory and requests it again. Source: getrusage(2).
    """

    cpu_s: tuple[NonNegativeFloat, ...]
    page_faults: tuple[NonNegativeInt, ...]
    involuntary_switches: tuple[NonNegativeInt, ...]
    taken_s: NonNegativeFloat | None = None
    """CPU seconds of the usable cores that others (programs, the hypervisor) used while all of these samples were
    taken. None where the system does not report it. Source: /proc/stat."""
    watched_s: NonNegativeFloat | None = None
    """Wall seconds of these readings: of the samples and of what lies between them."""
    stolen_s: NonNegativeFloat | None = None
    """CPU seconds that were kept from this process meanwhile, by the hypervisor (a part of `taken_s`) or a quota of its
    control group. None where that was not recorded. Source: /proc/stat, cpu.stat."""


class Samples(SparseRecord):
    """Per-call wall times in seconds, device-synchronised, in the order taken.

    `steady` says whether the warm-up had settled, `ended_by` which rule stopped the sampling: the median was precise
    enough, there were enough samples, the time was used up, or (a live process) there were no more turns.

    Under traffic they are whole passes of the stream, in its order: each shape has its share, and the percentiles are
    those of the traffic.
    """

    ABSENT: ClassVar[frozenset[str]] = frozenset({"parts_s", "beside_s", "beside_switches", "as_rate"})

    latency_s: tuple[PositiveFloat, ...] = Field(min_length=1)
    warmup_s: tuple[PositiveFloat, ...] = ()
    steady: bool
    ended_by: Literal["precision", "num_samples", "time", "turns"]
    turns: tuple[PositiveInt, ...] = ()
    """Number of samples in each turn of a live process; empty where all were taken in one go."""
    usage: Usage | None = None
    """None where the system has no such counters."""
    calls_per_sample: PositiveInt = 1
    """More than one: each sample is the mean of so many calls with one wait for the device at their end."""
    parts_s: tuple[tuple[NonNegativeFloat, ...], ...] = ()
    """Moments within each sample, in seconds from where they are counted; empty where a call has no parts."""
    device: DeviceState | None = None
    """None without an accelerator whose driver tells."""
    beside_s: tuple[tuple[PositiveFloat, ...], ...] = ()
    """Wall times of the calls that further instances, processes on other cores, made at the same time."""
    beside_switches: tuple[tuple[NonNegativeInt, ...], ...] = ()
    """Involuntary switches during each of these, as in `usage`, whose `taken_s` is of the cores of all instances."""
    as_rate: bool = False
    """Instances are compared: throughput is what is counted in a time, and follows from the mean of a call."""

    @property
    def call_every_s(self) -> float:
        """Seconds from one call that is done to the next: the median of a call, or by the rates of all instances."""
        if not self.as_rate:
            return Latency.of(self.latency_s).p50
        return 1 / sum(len(calls_s) / sum(calls_s) for calls_s in (self.latency_s, *self.beside_s))


class OnWorker(Record):
    """The worker of a cluster that measured a trial, and how fast it is: its figures mean something beside its own
    untuned model only."""

    name: str
    host: str
    untuned_s: PositiveFloat
    """Median latency of the untuned model on this worker."""
    study_s: PositiveFloat
    """Median latency in the study's untuned trial, whose worker all others are compared with."""

    @property
    def scale(self) -> float:
        """Seconds of this worker times this are seconds of the one that ran the untuned trial."""
        return self.study_s / self.untuned_s


class Compiled(Record):
    """What compiling took: the part of a measurement that is about the calls in which everything is compiled."""

    first_call_s: float
    """Wrapping the model plus its first call, by the child's clock."""
    second_call_s: NonNegativeFloat | None = None
    """The second call, where something is still recorded in it (CUDA graphs); None where the first one does it all. It
    counts as compiling."""
    compile_s: float
    """First call minus a steady call, and so the second where something is recorded in it (`second_call_s`): cold,
    unless the request let earlier caches stand. See `compiled_from`. Under traffic it is about the first pass."""
    compile_spared_s: NonNegativeFloat = 0.0
    """Part of `first_call_s`, and so of a `compile_s` of its own, that other processes paid, as measured there: a fork
    server that had imported the compiler, and earlier trials whose kernels were found."""
    compile_peak_memory_bytes: int | None
    """As `Timed.peak_memory_bytes`, but up to the end of the first call: compiling included."""
    compile_host_bytes: int | None = None
    """Memory of the machine that compiling takes at its peak: what this process has grown by since before the model was
    built, and all that processes hold which it started. None where the system does not tell."""
    compiled_from: int | None = None
    """Trial that compiled the very same cold: `compile_s` and the compile's peak memory are its figures, and this one
    started from a copy of its caches; None: these are its own."""


class Checked(Record):
    """How far the outputs are from the reference: the part of a measurement that is about correctness."""

    relative_error: float | None
    """Largest over all checked inputs and outputs of max|y - reference| / max|reference|; None for the reference."""
    output_errors: tuple[float, ...] | None = None
    """The largest error of each output tensor, in order; None for the reference."""
    not_compared: tuple[str, ...] = ()
    """What calls give or leave behind and no check looks into: names of outputs with their classes, in words."""
    not_varied: tuple[str, ...] = ()
    """What the inputs that results were compared on have in common, each as a sentence: nothing is known beyond."""
    assumed: tuple[str, ...] = ()
    """What was taken where the model's author gave nothing, each as a sentence: the loss and optimizer of a step."""


class Growth(Record):
    """Memory that steady calls keep, over further calls after the samples."""

    per_1000_calls_bytes: NonNegativeInt
    resolution_bytes: PositiveInt
    """Less than this for 1,000 calls cannot be told from nothing."""
    num_calls: PositiveInt

    @property
    def at_most_bytes(self) -> int:
        """For 1,000 calls."""
        return max(self.per_1000_calls_bytes, self.resolution_bytes)


class DeviceMemory(Record):
    """Memory of an accelerator, right after the samples of a process."""

    own_bytes: NonNegativeInt
    """What the process had taken at its peak: by its allocator, with what that keeps, and by the driver."""
    free_bytes: NonNegativeInt
    """What nobody had."""


class Timed(Record):
    """What steady calls take: the part of a measurement that is about running."""

    samples: Samples
    peak_memory_bytes: int | None
    """Device: the allocator's peak while running. CPU: growth of the resident set since before the model was built."""
    device_times: DeviceTimes | None = None
    """The timed calls by the device's own clock, and pipelined; None without an accelerator, and under traffic."""
    copies_s: NonNegativeFloat | None = None
    """Seconds of each call that copying the outputs of a captured graph takes, which the next replay writes over: a
    part of each latency. None where nothing is copied, under traffic, and in training."""
    device_memory: DeviceMemory | None = None
    """None without an accelerator, and where the framework does not tell."""
    growth: Growth | None = None
    """None where no constraint is about it, and where calls take so long that there were too few of them."""


class Measurement(Compiled, Checked, Timed, SparseRecord):
    """A trial that ran with correct outputs."""

    ABSENT: ClassVar[frozenset[str]] = frozenset(
        {"generated", "growth", "compile_host_bytes", "device_memory", "limits"}
    )

    kind: Literal["measurement"] = "measurement"
    diagnosis: Diagnosis
    signature: Signature
    environment: Environment
    stage_s: dict[Stage, NonNegativeFloat] = {}
    """Seconds that the child spent in each stage."""
    program: str | None = None
    """Digest of the code that the compiler emitted and of the settings under which it runs, as read back in the
    process: two configs with the same program behave the same. None: the framework does not report it."""
    replay: Replay | None = None
    """What was called under traffic; None: the same inputs again and again."""
    generated: Generated | None = None
    """What was generated; None for any other task."""
    limits: tuple[InputLimits, ...] | None = None
    """Which whole numbers the untuned model takes; an input that is not there has none, or its limits were not found.
    None: nobody looked."""
    first_crash: str | None = None
    """Folder with the files of an earlier process of this trial that crashed; None: none did."""
    worker: OnWorker | None = None
    """None: this machine, or a live process of a blocked run, whose finalists share one device."""

    @property
    def has_one_shape(self) -> bool:
        """All calls that were timed have the same sizes."""
        return self.replay is None and self.generated is None

    @property
    def scale(self) -> float:
        """What its seconds are multiplied by before they are compared with those of other trials of the study."""
        return 1.0 if self.worker is None else self.worker.scale

    @property
    def compile_stage_s(self) -> float:
        """Seconds of the stage in which it compiles, had nothing been spared."""
        return self.stage_s.get(Stage.COMPILE, self.first_call_s - self.compile_spared_s) + self.compile_spared_s

    @cached_property
    def latency(self) -> Latency:
        """Percentiles over the calls of all instances."""
        return Latency.of(sum(self.samples.beside_s, self.samples.latency_s))

    @property
    def throughput(self) -> float:
        """Items (rows of the first input's leading dimension, or tokens) per second at the median latency, or of all
        instances together."""
        return self.signature.items_per_call / self.samples.call_every_s

    @property
    def ttft_s(self) -> float | None:
        """Median over the passes of the time to the first token; None where nothing was generated."""
        made = self.generated
        return None if made is None else float(np.median(made.ttft_s(self.samples.parts_s)))

    @property
    def tpot_s(self) -> float | None:
        """Median over the passes of the time for each further token; None where nothing was generated."""
        made = self.generated
        return None if made is None else float(np.median(made.tpot_s(self.samples.parts_s)))

    @property
    def passes(self) -> Replay | SameCall:
        """What is called again and again."""
        return self.replay or SameCall()

    @property
    def cold_s(self) -> tuple[float, ...]:
        """Seconds of the calls in which everything is compiled, in their order: a pass of the stream, or one call."""
        return self.passes.cold_of(self.first_call_s, self.second_call_s)

    @property
    def steady_call_s(self) -> float:
        """Seconds of a call once everything is compiled: the median, and under traffic the mean over the stream of each
        call's median over the passes."""
        return self.passes.steady_s(self.latency, self.samples)


class NearMiss(Record):
    """What a config gave that is known to round and missed the tolerance by little: one process, and nothing rests on
    it."""

    tolerance: PositiveFloat
    """The smallest of 1, 2 and 5 times a power of ten that takes its outputs."""
    measurement: Measurement


class Failure(SparseRecord):
    """A trial without a usable measurement: the reason, the stage and the child's error message."""

    ABSENT: ClassVar[frozenset[str]] = frozenset({"near"})

    kind: Literal["failure"] = "failure"
    reason: Reason
    stage: Stage
    error: str
    """The child's real error: one or a few lines, e.g. `RuntimeError: mat1 and mat2 ...`."""
    evidence: str | None = None
    """Path of the full log (the child's stderr or a traceback)."""
    relative_error: float | None = None
    cut_off_s: NonNegativeFloat | None = None
    """Seconds after which its compile was cut off: it takes longer than that. None: it was not."""
    first_crash: str | None = None
    """Folder with the files of an earlier process of this trial that crashed; None: none did. A `crash` with an earlier
    one is the second of two."""
    near: NearMiss | None = None
    """None: the outputs are no near miss, or it was not timed."""

    @property
    def blames_config(self) -> bool:
        return self.reason not in (Reason.SETUP, Reason.OUT_OF_TIME, Reason.LOST)

    @property
    def shows_fault(self) -> bool:
        """The config does not work, whatever time it is given."""
        return self.blames_config and self.reason is not Reason.SLOW_COMPILE


def structure_sha256(parameters: Sequence[tuple[str, TensorSpec]]) -> str:
    """A digest of the names, shapes and element types of a model's parameters and buffers: the same for two models
    that take the same checkpoint."""
    structure = ";".join(f"{name}{spec.shape}{spec.dtype}" for name, spec in parameters)
    return hashlib.sha256(structure.encode()).hexdigest()


Outcome = Annotated[Measurement | Failure, Field(discriminator="kind")]
