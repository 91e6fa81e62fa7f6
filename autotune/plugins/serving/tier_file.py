"""`Tiers`: what a model can give under a deadline, as a YAML file. A job uses it through `job.tiers`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from autotune.config import Scalar
from autotune.files import read_stored, write_yaml
from autotune.measure.statistics import Verdict
from autotune.schema import Format, Record
from autotune.version import __version__
from autotune.workload.workload import Device

TIERS = Format(schema=1, oldest=1, release=__version__)
"""The schema of a file of tiers."""


NOISY = 0.5
"""Where 99th percentiles of one config's processes differ by more than this share, that is the machine."""


class Tail(Record):
    """The latencies of a study's answer, measured in fresh processes after the verdict: none of them chose it."""

    trial: int
    num_samples: PositiveInt
    """In all processes together."""
    p50_s: PositiveFloat
    """Seconds that this share of all samples took at most."""
    p99_s: PositiveFloat
    """Seconds that this share of all samples took at most."""
    process_p99_s: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """The 99th percentile of each process by itself."""

    @property
    def promise_s(self) -> float:
        """The largest 99th percentile of a process. A job is one process, and samples of one agree with each other far
        better than with those of the next: the percentile of all together is that of no process."""
        return max(self.process_p99_s)

    @property
    def spread(self) -> float:
        """Share by which the processes' 99th percentiles differ at most."""
        return max(self.process_p99_s) / min(self.process_p99_s) - 1


class Tier(Record):
    """One grade of the model, tuned."""

    name: str
    arguments: dict[str, Scalar]
    """Arguments of the model's function: what builds the model of this tier."""
    file: str
    """Its tuned config, beside the file that names it."""
    verdict: Verdict
    p99_s: Annotated[PositiveFloat, Field(allow_inf_nan=False)]
    """Promised: what the job goes by (`Tail.promise_s`)."""
    evidence: Tail


class Tiers(Record):
    """Tiers in the order of their quality, the best first, those that miss the deadline among them."""

    schema_: Annotated[int, TIERS.within] = Field(alias="schema")
    model: str
    framework: str
    device: Device
    deadline_s: Annotated[PositiveFloat, Field(allow_inf_nan=False)]
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _different_names(self) -> Tiers:
        if len({tier.name for tier in self.tiers}) < len(self.tiers):
            raise ValueError("two tiers have the same name")
        return self

    def fits(self, tier: Tier) -> bool:
        """Its 99th percentile keeps the deadline."""
        return tier.p99_s <= self.deadline_s

    def write(self, path: Path) -> None:
        """Write the YAML file. Raises InputError if it cannot be written."""
        write_yaml(path, self.model_dump(mode="json", by_alias=True), comment=_HEADING + self._marks())

    def _marks(self) -> str:
        marks = {True: "keeps it", False: "MISSES IT"}
        return "".join(
            f"\n  {tier.name}: p99 {tier.p99_s * 1e3:.3g} ms, {marks[self.fits(tier)]}" for tier in self.tiers
        )


_HEADING = """The tiers of a model under a deadline, found by autotune, the best first.
In a job:  import autotune
           model = autotune.load_tiers("tiers.yaml").apply({NAME: MODEL, ...})
Against the deadline:"""


def read_tiers(path: str | PathLike[str]) -> Tiers:
    """Read and check a file of tiers. Raises InputError with file and key."""
    file = Path(path)
    return read_stored(file, Tiers, TIERS, lambda _: None)
