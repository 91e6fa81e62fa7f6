"""`TunedConfig`: a study's answer as a YAML file. A job uses it through `job.load`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.errors import InputError
from autotune.files import read_stored, write_yaml
from autotune.measure.accuracy import ReferencePrecision
from autotune.measure.limits import InputLimits
from autotune.measure.measurement import Component, Latency, Signature
from autotune.measure.objective import GOAL_PATTERN
from autotune.measure.statistics import COMPILED, Speedup, Verdict
from autotune.question.question import Scope
from autotune.schema import Change, Format, Record, SparseRecord, gone, refused, renamed
from autotune.tuned.cache_file import Artifact
from autotune.version import __version__
from autotune.workload.kinds import kind_named
from autotune.workload.kinds.infer import Infer
from autotune.workload.kinds.pipeline import PipelineCalls
from autotune.workload.kinds.stream import Stream
from autotune.workload.kinds.text import Text
from autotune.workload.kinds.train import Train
from autotune.workload.kinds.work import Work
from autotune.workload.traffic import Shapes, Traffic
from autotune.workload.workload import Device, Task

EXPORT = Format(
    schema=1,
    oldest=1,
    release=__version__,
    # Keys that went before a schema was counted up for that.
    changes=(
        Change(1, "", "baseline", refused("its evidence compares with another framework, as no study does now")),
        Change(1, "evidence", "process_pairs_s", renamed("process_pairs")),
        Change(1, "workload", "not_checked", gone),
        Change(1, "workload", "ranks", gone),
        Change(1, "", "adaptive", gone),
    ),
)
"""The schema of a tuned config, and what became of its earlier keys."""


class TunedWorkload(Record):
    """What was tuned: how the study named the model, and what it looked like when it ran."""

    model: str
    arguments: dict[str, Scalar]
    device: Device
    task: Task
    objective: Annotated[str, Field(pattern=GOAL_PATTERN)]
    """What was made less: a call's median, 90th or 99th percentile, the seconds of an item (`throughput`), the peak
    memory, the time to the first result (`compile`), or that of the first N calls (`total:N`)."""
    constraints: tuple[str, ...] = ()
    """What the config had to keep besides, as the user wrote it."""
    seed: int
    tolerance: float | None
    """Largest relative error of an output that counts as right; None: by the precision of the model."""
    reference_precision: ReferencePrecision
    """What outputs are compared with: those of the untuned model as it is, or in a wider type."""
    signature: Signature
    inputs: str | None = None
    """File of the real calls that were checked or timed, where it lay; None: the model's function gave all inputs."""


class TunedTexts(Record):
    """The stream of prompts that a model was tuned to continue."""

    lengths: tuple[PositiveInt, ...] = Field(min_length=1)
    """Tokens of each prompt."""
    new_tokens: PositiveInt
    """Tokens that each is continued by."""
    batch: PositiveInt
    """Sequences that are generated at a time."""

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(self.lengths) + self.new_tokens


class TunedEnvironment(Environment):
    """Where the evidence was gathered."""

    framework_version: str


class Figures(Record):
    """What a trial measured. Seconds, bytes, counts; None where the framework cannot tell."""

    trial: int
    latency_s: Latency
    peak_memory_bytes: int | None
    compile_cold_s: float
    graph_breaks: int | None
    recompiles: int | None
    relative_error: float | None
    page_faults: float | None = None
    """In a steady call, the median; None on a device."""


class SecondFigures(Record):
    """What settings that cost nothing and compile nothing give the untuned model by themselves."""

    settings: dict[str, Scalar]
    value: PositiveFloat
    """The objective's, in seconds."""
    speedup: Speedup
    """Over the untuned model as it is, by processes that took turns."""
    is_beyond_noise: bool
    """Whether the ratio is sure, above 5 %, and above what two processes of the untuned model differ by."""


class Evidence(Record):
    """Why to believe the verdict."""

    study: str
    autotune_version: str
    num_trials: int
    best: Figures
    untuned: Figures
    speedup: Speedup | None
    """Untuned value of the objective over the tuned one, over blocks of live processes; None if nothing was worth
    comparing."""
    process_pairs: tuple[tuple[float, float], ...]
    """(untuned, tuned) values of the objective in each block, in seconds or bytes."""
    without_start: Figures | None = None
    """A trial of the same config in a process that was started as any other; None: none was made, or the config asks
    for no start of its own."""
    noise_floor: float | None
    """Share by which two processes of the untuned model differed on that machine."""
    second_baseline: SecondFigures | None = None
    """What of the speed-up is had for nothing; None: nothing costs so little here, or it was not measured."""
    compile_warm_s: float | None
    break_even_calls: int | None
    not_compared: tuple[str, ...] = ()
    """What the model's calls give or leave behind and no check has looked into, in words."""
    not_varied: tuple[str, ...] = ()
    """What the inputs that results were compared on have in common, each as a sentence: nothing is proven beyond."""
    assumed: tuple[str, ...] = ()
    """What was taken where the model's author gave nothing, each as a sentence: the loss and optimizer of a step."""


class TunedConfig(SparseRecord):
    """The exported answer.

    Unless `verdict` is `faster`, `feasible` or `chosen`, `config` is the untuned model and a job's model is left alone.
    """

    ABSENT: ClassVar[frozenset[str]] = frozenset({"limits"})

    schema_: Annotated[int, EXPORT.within] = Field(alias="schema")
    framework: str
    verdict: Verdict
    config: Config
    untuned: Config
    """The config that leaves the model as it is."""
    variants: dict[str, str | None] = {}
    """Variant of the model that the config asks for -> `package.module:function`, as far as there is such a name."""
    components: tuple[Component, ...] = ()
    """What the call of a pipeline calls; the config names those that are tuned. Empty for one model."""
    workload: TunedWorkload
    search: Scope = Scope()
    """Which configs the study was asked to search."""
    environment: TunedEnvironment
    evidence: Evidence
    shapes: Shapes | None = None
    """What traffic it was tuned for; None: one shape."""
    texts: TunedTexts | None = None
    """What was generated when it was tuned; None: a model's calls were tuned, or training steps."""
    limits: tuple[InputLimits, ...] | None = None
    """Whole numbers in the inputs that the untuned model takes: a call with others is the untuned model's. An input
    that is not there has none, or its limits were not found. None: nobody looked."""
    artifact: Artifact | None = None
    """The config's compile cache in a file beside this one; None: the first call compiles."""

    @property
    def kind(self) -> type[Work]:
        """What was tuned, as the keys of the file show it. Raises InputError for a package's kind that is not there."""
        entry = self.workload.signature.work
        if entry is not None:
            return kind_named(entry)
        shown: dict[type[Work], object] = {Text: self.texts, PipelineCalls: self.components, Stream: self.shapes}
        known: tuple[type[Work], ...] = (*shown, Infer, Train)
        of_task = [kind for kind in known if kind.task == self.workload.task]
        return next((kind for kind in of_task if shown.get(kind)), of_task[-1])

    @property
    def traffic(self) -> Traffic | None:
        """What it was tuned for; None: one shape."""
        return None if self.shapes is None else self.shapes.traffic

    @property
    def sizes_asked(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """The field of the question that asks for the traffic, with its value, and the arguments of the model's
        function that are its sizes; both empty for one shape."""
        return ({}, ()) if self.shapes is None else (self.shapes.traffic.asked, self.shapes.traffic.dimensions)

    @property
    def is_untuned(self) -> bool:
        return self.verdict not in COMPILED

    def write(self, path: Path, remarks: Sequence[str] = ()) -> None:
        """Write the YAML file, with these lines in its comment. Raises InputError if it cannot be written."""
        content = self.model_dump(mode="json", by_alias=True)
        comment = "\n".join([_HEADING.format(verdict=self.verdict.value), *remarks])
        write_yaml(path, content, comment=comment)


_HEADING = """The best compile configuration found by autotune; verdict: {verdict}.
In a job:  import autotune
           model = autotune.load("best.yaml").apply(model)"""


def load_tuned(path: str | PathLike[str]) -> TunedConfig:
    """Read and check a tuned config. Raises InputError with file and key, or for a kind of work that is not there."""
    file = Path(path)
    try:
        tuned = read_stored(file, TunedConfig, EXPORT, _writer)
    except InputError as error:
        if os.path.lexists(file):
            raise
        raise InputError(f"{error}", tip="name a file that `export STUDY -o FILE` wrote") from None
    _ = tuned.kind
    return tuned


def _writer(content: Mapping[str, Any]) -> object:
    evidence = content.get("evidence")
    return evidence.get("autotune_version") if isinstance(evidence, dict) else None


def require_replaceable(path: Path) -> None:
    """Raises InputError where writing an export to `path` would replace a file that is no export."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        beginning = file.read(_LOOKED_AT)
    if beginning and not any(mark in beginning for mark in _MARKS):
        raise InputError(
            f"{path} is there and was not written by autotune: it is not replaced",
            tip="choose another place with -o, or remove that file",
        )


_LOOKED_AT = 1000
_MARKS = (b"autotune", b"schema:", b"\x1f\x8b")
"""Marks of a YAML file, also one that was written by hand, and of a gzipped artifact."""


if __name__ == "__main__":
    print(json.dumps(TunedConfig.model_json_schema(by_alias=True), indent=2))
