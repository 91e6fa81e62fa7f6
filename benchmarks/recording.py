"""Recording a table: every config of a space on one workload, each in a fresh process with cold caches.

Trials go through the product's own runner and worker; none starts from the compile cache of another. A killed
recording goes on where it was: each row is appended to `NAME.jsonl` as it comes, and the table is written when the last
one is there. Parts of a table may be recorded at the same time, each on a core of its own.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import time
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from autotune import environment
from autotune.backends.registry import framework_version
from autotune.bench.runner import Runner
from autotune.bench.trials import Trials
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import HarnessError, InputError
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.measure.sampling import SamplingPlan
from autotune.planning.models import make_workload
from autotune.space.load import Circumstances, load_space
from autotune.space.space import SearchSpace
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Workload
from benchmarks.record import REPOSITORY
from benchmarks.table import Definition, Row, Table

SAMPLING = SamplingPlan(max_warmup_s=1.5, min_samples=15, max_samples=100, max_sampling_s=2.5)
"""Short: CPU seconds of a call scatter little within a process, and between processes more samples help nothing."""
LIMITS = Limits(compile=180, check=180, run=60, total=300)
ATTEMPTS = 2
"""A trial that failed through no fault of its config is run once more."""


class Part(NamedTuple):
    """Every so many-th config of a table."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """`1/2`. Raises ValueError."""
        number, of = map(int, text.split("/"))
        if not 1 <= number <= of:
            raise ValueError(text)
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True)
class Recording:
    """A table on its way. `folder` holds `NAME.jsonl`, the trial that runs and, in the end, the table."""

    name: str
    definition: Definition
    spaces: Path
    """Where the definition's space file is."""
    folder: Path
    sampling: SamplingPlan = SAMPLING
    num_cores: int = field(default_factory=num_usable_cores)
    """That every trial may use: a system can take an affinity back in the middle of a recording."""
    part: Part | None = None
    """What is recorded; None: what the parts that are there leave, and the table."""

    @cached_property
    def space(self) -> SearchSpace:
        """Narrowed to this machine. Raises InputError for a space file that is wrong."""
        circumstances = Circumstances(
            version=framework_version(self.definition.framework),
            device="cpu",
            preset=self.definition.preset,
            tolerance=self.definition.tolerance,
            num_cores=self.num_cores,
            process_settings=True,
        )
        path = self.spaces / self.definition.space
        return load_space(path, framework=self.definition.framework, circumstances=circumstances)

    @cached_property
    def workload(self) -> Workload:
        asked = self.definition
        model = str(REPOSITORY / asked.model) if ".py:" in asked.model else asked.model
        return make_workload(model, asked.arguments, asked.framework, "cpu", asked.seed)

    @cached_property
    def order(self) -> list[Config]:
        """Every config: the untuned, the default, then shuffled, so that no knob goes with the time of day."""
        untuned, default, *others = self.space.configs()
        random.Random(self.definition.seed).shuffle(others)
        configs = [untuned, default, *others]
        return configs if self.part is None else configs[self.part.number - 1 :: self.part.of]

    @property
    def rows_file(self) -> Path:
        return self.folder / f"{self._own_name}.jsonl"

    @property
    def work(self) -> Path:
        """Reference outputs and the trial's folder; gone when the table is written."""
        return self.folder / f"{self._own_name}.work"

    @property
    def _own_name(self) -> str:
        return self.name if self.part is None else f"{self.name}.{self.part.number}of{self.part.of}"

    @property
    def table_file(self) -> Path:
        return self.folder / f"{self.name}.json"

    def rows(self) -> dict[Config, Row]:
        """What is recorded so far; a line that was cut off by a kill is not. Raises InputError for another table's."""
        of_parts = self._of_parts("jsonl") if self.part is None else []
        return {row.config: row for file in (self.rows_file, *of_parts) for row in self._rows_in(file)}

    def is_whole(self) -> bool:
        """All that it is to record is there."""
        return self.rows().keys() >= set(self.order)

    def _rows_in(self, file: Path) -> list[Row]:
        if not file.exists():
            return []
        head, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
        if not head.endswith("\n") or json.loads(head) != self._question:
            raise InputError(
                f"{file} was begun with another workload, space, framework release or number of cores",
                tip="move it away to begin anew",
            )
        return [Row.model_validate_json(line) for line in lines if line.endswith("\n")]

    def _of_parts(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}.*of*.{suffix}"))

    def record(self, trials: Trials, limit: int | None = None, ends: float = math.inf) -> dict[Config, Row]:
        """Run what is missing, up to `limit` configs, beginning none after `ends` on the monotonic clock.

        The untuned model runs first where its outputs are not there.
        """
        rows = self.rows()
        self._begin()
        missing = [config for config in self.order if config not in rows]
        if missing and not self._reference.exists() and self.space.untuned() not in missing:
            missing.insert(0, self.space.untuned())
        for number, config in enumerate(islice(missing, limit)):
            if time.monotonic() > ends:
                break
            row = self._try(trials, config)
            rows[config] = row
            self._append(row)
            print(f"{self.name} {_progress(row, rows, len(missing) - number - 1, len(self.order))}", flush=True)
        return rows

    def table(self, rows: dict[Config, Row]) -> Table:
        """The finished table, in the space's own order."""
        measured_by = self.sampling
        return Table(
            schema=1,
            workload=self.definition.model,
            arguments=self.definition.arguments,
            framework=self.definition.framework,
            about=(
                f"Every config in a fresh process with cold compile caches, on {self.num_cores} core(s); latency_s "
                f"is the median CPU time of a call over {measured_by.min_samples} to {measured_by.max_samples} calls "
                f"of that process (at most {measured_by.max_sampling_s:g} s), wall_s the wall time of the same calls. "
                "Recorded by benchmarks/record_table.py."
            ),
            space=self.space,
            environment=environment.describe(device="cpu", variables={}),
            tolerance=self.definition.tolerance,
            rows=tuple(rows[config] for config in self.space.configs()),
        )

    def finish(self, rows: dict[Config, Row]) -> Table:
        """Write the table, and clear away what it was made from."""
        table = self.table(rows)
        write_whole(self.table_file, table.as_json())
        for file in (self.rows_file, *self._of_parts("jsonl")):
            file.unlink()
        for folder in (self.work, *self._of_parts("work")):
            shutil.rmtree(folder)
        return table

    @property
    def _reference(self) -> Path:
        return self.work / "reference.npz"

    @property
    def _question(self) -> dict[str, object]:
        workload = self.workload
        return {
            **self.definition.model_dump(mode="json"),
            "num_cores": self.num_cores,
            "space_fingerprint": self.space.fingerprint,
            "framework_version": framework_version(workload.framework),
            "source_sha256": workload.source_sha256,
        }

    def _begin(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        whole = [line for line in self._lines() if line.endswith("\n")]
        # A torn last line would swallow the first row that is appended to it.
        write_whole(self.rows_file, "".join(whole) or json.dumps(self._question) + "\n")

    def _lines(self) -> list[str]:
        return self.rows_file.read_text(encoding="utf-8").splitlines(keepends=True) if self.rows_file.exists() else []

    def _append(self, row: Row) -> None:
        with self.rows_file.open("a", encoding="utf-8") as file:
            file.write(row.model_dump_json() + "\n")

    def _try(self, trials: Trials, config: Config) -> Row:
        folder = TrialFolder((self.work / "trial").resolve())
        for _ in range(ATTEMPTS):
            start = time.perf_counter()
            outcome = trials.run(folder, self._request(config, folder))
            row = row_of(config, outcome, time.perf_counter() - start)
            if not self._disturbed(outcome):
                return row
        if isinstance(outcome, Failure):
            return row
        raise HarnessError(
            f"trials see {outcome.environment.num_cores} cores, the recording was begun with {self.num_cores}",
            tip="set the affinity again and start once more: what is recorded stays",
        )

    def _disturbed(self, outcome: Outcome) -> bool:
        """It says nothing about its config: the harness failed, or the cores are others than they were."""
        if isinstance(outcome, Failure):
            return not outcome.blames_config
        return outcome.environment.num_cores != self.num_cores

    def _request(self, config: Config, folder: TrialFolder) -> TrialRequest:
        return TrialRequest(
            number=0,
            workload=self.workload,
            config=config,
            untuned=config == self.space.untuned(),
            tolerance=self.definition.tolerance,
            reference=str(self._reference.resolve()),
            cache=str(folder.path / "cache"),
            cold=True,
            sampling=self.sampling,
            limits=LIMITS,
        )


def row_of(config: Config, outcome: Outcome, trial_s: float) -> Row:
    """A trial's outcome as a row of a table."""
    if isinstance(outcome, Failure):
        message = next(iter(outcome.error.splitlines()), "")
        return Row(
            config=config, trial_s=trial_s, error=_finite(outcome.relative_error), failure=outcome.reason.value,
            message=message,
        )  # fmt: skip
    return Row(
        config=config,
        latency_s=_cpu_s(outcome),
        wall_s=outcome.latency.p50,
        compile_s=outcome.compile_s,
        trial_s=trial_s,
        peak_memory_bytes=outcome.peak_memory_bytes,
        graph_breaks=outcome.diagnosis.num_graph_breaks,
        recompiles=outcome.diagnosis.num_recompiles,
        error=_finite(outcome.relative_error),
        program=outcome.program,
    )


def record_table(recording: Recording, minutes: float = math.inf) -> Table | None:
    """Record what is missing and write the table; None of a part, and where the minutes were up before the end."""
    recording.folder.mkdir(parents=True, exist_ok=True)
    log = recording.work.with_suffix(".log")
    with Runner(recording.definition.framework, {}, preload=True, log=log) as runner:
        rows = recording.record(runner, ends=time.monotonic() + 60 * minutes)
    if not recording.is_whole():
        return None
    log.unlink(missing_ok=True)
    return recording.finish(rows) if recording.part is None else None


def estimate(recording: Recording, num_configs: int) -> float:
    """Seconds that the whole table is likely to take, from the first so many configs; nothing is kept."""
    with Runner(recording.definition.framework, {}, preload=True, log=recording.folder / "log") as runner:
        rows = recording.record(runner, limit=num_configs)
    return statistics.mean(row.trial_s for row in rows.values()) * len(recording.order)


def _progress(row: Row, rows: dict[Config, Row], num_left: int, num_all: int) -> str:
    left_min = statistics.mean(each.trial_s for each in rows.values()) * num_left / 60
    what = (
        f"{row.failure}: {row.message}" if row.failure else f"{in_ms(row.latency_s)}, compiled in {row.compile_s:.1f} s"
    )
    return f"[{len(rows)}/{num_all}] {what}; trial {row.trial_s:.1f} s; {left_min:.0f} min left  {row.config}"


def in_ms(seconds: float | None) -> str:
    """A latency as people read it."""
    return "-" if seconds is None else f"{1e3 * seconds:.3f} ms"


def _cpu_s(measured: Measurement) -> float:
    """Where the system does not count, wall time it is: on a core of one's own the two are nearly the same."""
    usage = measured.samples.usage
    used_s = statistics.median(usage.cpu_s) if usage is not None and usage.cpu_s else 0.0
    return used_s or measured.latency.p50


def _finite(error: float | None) -> float | None:
    """JSON knows neither infinity nor NaN, which a wrong output may have as its error."""
    return None if error is None or not float("-inf") < error < float("inf") else error
