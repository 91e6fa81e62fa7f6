"""Large studies: how long opening, listing and showing one takes, and a question and an answer (`ask`, `tell`) in it.

The recorded trials are synthetic: outcomes as long as real ones, written into the study's database in one go, since
telling ten thousand of them to Optuna one by one takes minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.config import Config
from autotune.measure.measurement import Measurement, Usage
from autotune.space.space import Knob, SearchSpace
from autotune.study.folder import FolderStudies
from autotune.study.lease import Lease
from autotune.study.study import Study
from benchmarks.frame import Benchmark
from benchmarks.record import REPOSITORY, Goal, table
from benchmarks.simulated import manifest_of, measurement_of

SIZES = (0, 1_000, 10_000)
GOAL_OPEN_S = 2.0
NUM_SAMPLES = 60
"""Of each synthetic outcome: what a trial of a ViT takes until its median is known to half a percent."""
LONGEST_S = 900.0
ABOUT = (
    "A study filled with synthetic trials (outcomes as long as a ViT's), in a space that the study lists and "
    "in one that is too large for that. *Open* is `FolderStudies.open` in a process that has imported everything; "
    "*studies* and *show* are whole commands, of which Python's start and imports are what they take at 0 "
    "trials. *First ask* is of a process that has just opened the study; the others are medians."
)


@dataclass(frozen=True)
class Case:
    """A study of so many trials in a space, and how often it is asked and told."""

    space: str
    num_trials: int
    repeats: int

    @property
    def name(self) -> str:
        return f"{self.space}, {self.num_trials:,} trials"


@dataclass(frozen=True)
class Figures:
    """Seconds. `ask_s` and `tell_s` without the first ones, which load what later ones only add to."""

    space: str
    num_trials: int
    database_bytes: int
    open_s: float
    list_s: float
    """`python cli.py studies`, the whole command; of it, most is Python's start and imports."""
    show_s: float
    first_ask_s: float
    ask_s: float
    tell_s: float

    def cells(self) -> list[str]:
        times = (self.open_s, self.list_s, self.show_s, self.first_ask_s, self.ask_s, self.tell_s)
        size = f"{self.database_bytes / 1e6:.0f} MB"
        return [self.space, f"{self.num_trials:,}", size, *(_seconds(each) for each in times)]


def space_of(num_knobs: int, num_values: int) -> SearchSpace:
    """The untuned model, and compiled configs of so many knobs that are all active."""
    execution = Knob(name="execution", doc="", values=("eager", "compile"), when={}, default="compile", untuned="eager")
    values = tuple(f"value-{number}" for number in range(num_values))
    knobs = [
        Knob(name=f"knob_{n}", doc="", values=values, when={"execution": "compile"}, default=values[0], untuned=None)
        for n in range(num_knobs)
    ]
    return SearchSpace(framework="fake", knobs=(execution, *knobs), forbid=())


SPACES = {"4,097 configs": space_of(6, 4), "531,442 configs": space_of(12, 3)}
"""One that the study lists, and one that is too large to be listed."""


def outcome_of(latency_s: float) -> Measurement:
    """A measurement as long as a real one."""
    plain = measurement_of((latency_s,) * NUM_SAMPLES)
    usage = Usage(
        cpu_s=(round(latency_s, 6),) * NUM_SAMPLES,
        page_faults=(12,) * NUM_SAMPLES,
        involuntary_switches=(0,) * NUM_SAMPLES,
    )
    return plain.model_copy(update={"samples": plain.samples.model_copy(update={"usage": usage})})


def latency_of(config: Config) -> float:
    """Some seconds a call for a config: each value of a knob is worth a factor."""
    generator = random.Random(config.canonical())
    return 0.02 * math.exp(generator.gauss(0, 0.3))


def fill(study: Study, num_trials: int) -> None:
    """So many measured trials of distinct configs. The first one is told; the others are written in its likeness."""
    if num_trials == 0:
        return
    asked = study.ask(LONGEST_S)
    assert asked is not None
    study.tell(asked, outcome_of(latency_of(asked.config)))
    study.close()
    configs = (config for config in _scattered(study.manifest.space) if config != asked.config)
    with closing(sqlite3.connect(study.folder / "study.db")) as connection, connection:
        _write(connection, study.manifest.space, list(islice(configs, num_trials - 1)))


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--repeats", type=int, default=20, help="asks and tells of each study (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Every size in both spaces."""
    sizes, repeats = (SIZES[:2], 3) if given.quick else (SIZES, given.repeats)
    return [Case(name, n, repeats) for name, space in SPACES.items() for n in sizes if n < space.size(n + 1)]


def run(case: Case) -> Figures:
    """Make a study in a temporary folder, fill it, and time what is done with it."""
    with tempfile.TemporaryDirectory(prefix="autotune-large-") as name:
        studies = Path(name) / "studies"
        made = FolderStudies(studies).create(manifest_of(SPACES[case.space], seed=0))
        fill(made, case.num_trials)
        made.close()
        database_bytes = (made.folder / "study.db").stat().st_size
        listed_s, shown_s = (_command_s(Path(name), *words) for words in (("studies",), ("show", made.name)))
        opening_s = [_open_s(studies, made.name) for _ in range(3)]
        asks_s, tells_s = _ask_and_tell(FolderStudies(studies).open(made.name), case.repeats)
    return Figures(
        space=case.space,
        num_trials=case.num_trials,
        database_bytes=database_bytes,
        open_s=statistics.median(opening_s),
        list_s=listed_s,
        show_s=shown_s,
        first_ask_s=asks_s[0],
        ask_s=statistics.median(asks_s[1:]),
        tell_s=statistics.median(tells_s[1:]),
    )


def judge(records: Sequence[Figures]) -> list[Goal]:
    """The largest studies open soon."""
    largest = max(each.num_trials for each in records)
    opened = [each for each in records if each.num_trials == largest]
    return [
        Goal(
            f"a study of {largest:,} trials opens in under {GOAL_OPEN_S:.0f} s",
            ", ".join(f"{each.space}: {_seconds(each.open_s)}" for each in opened),
            all(each.open_s < GOAL_OPEN_S for each in opened),
        )
    ]


def section(records: Sequence[Figures]) -> str:
    """One row for each study."""
    header = ["space", "trials", "database", "open", "`studies`", "`show`", "first ask", "ask", "tell"]
    return f"{ABOUT}\n\n{table(header, [each.cells() for each in records])}"


def _scattered(space: SearchSpace) -> Iterator[Config]:
    """Distinct configs in a random order, the default one first."""
    seen = {space.untuned()}
    yield space.default()
    seen.add(space.default())
    generator = random.Random(0)
    while True:
        config = space.walk(lambda _, values: generator.choice(values[1:] if len(values) == 2 else values))
        if config not in seen:
            seen.add(config)
            yield config


def _write(connection: sqlite3.Connection, space: SearchSpace, configs: list[Config]) -> None:
    """Rows of finished trials, in the form in which the told one stands there."""
    lease = json.dumps(Lease.of_this_process(LONGEST_S).model_dump())
    template = outcome_of(1.0).model_dump(mode="json")
    (study_id, started, ended) = connection.execute(
        "SELECT study_id, datetime_start, datetime_complete FROM trials WHERE trial_id = 1"
    ).fetchone()
    told = dict(connection.execute("SELECT key, value_json FROM trial_system_attributes WHERE trial_id = 1"))
    distributions = {knob.name: _distribution(knob.values) for knob in space.knobs}
    insert: Callable[[str, list[tuple[Any, ...]]], Any] = connection.executemany
    ids = range(2, len(configs) + 2)
    latencies_s = [latency_of(config) for config in configs]
    insert("INSERT INTO trials VALUES (?, ?, ?, 'COMPLETE', ?, ?)", [(i, i - 1, study_id, started, ended) for i in ids])
    insert(
        "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?, 0, ?, 'FINITE')",
        list(zip(ids, latencies_s, strict=True)),
    )
    insert(
        "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?)",
        [
            (i, knob.name, float(knob.values.index(config[knob.name])), distributions[knob.name])
            for i, config in zip(ids, configs, strict=True)
            for knob in space.knobs
        ],
    )
    insert(
        "INSERT INTO trial_system_attributes (trial_id, key, value_json) VALUES (?, ?, ?)",
        [(i, key, value) for i in ids for key, value in told.items()],
    )
    insert(
        "INSERT INTO trial_user_attributes (trial_id, key, value_json) VALUES (?, ?, ?)",
        [
            row
            for i, latency_s in zip(ids, latencies_s, strict=True)
            for row in ((i, "lease", lease), (i, "result", _result(template, latency_s)))
        ],
    )


def _distribution(values: tuple[object, ...]) -> str:
    """As Optuna writes a CategoricalDistribution."""
    return json.dumps({"name": "CategoricalDistribution", "attributes": {"choices": values}})


def _result(template: dict[str, Any], latency_s: float) -> str:
    samples = {**template["samples"], "latency_s": [latency_s * (1 + n % 7 / 1000) for n in range(NUM_SAMPLES)]}
    return json.dumps({"outcome": {**template, "samples": samples}})


def _open_s(studies: Path, name: str) -> float:
    """Seconds that opening takes in a fresh process that has imported all it needs."""
    code = (
        "import sys, time; from pathlib import Path; from autotune.study.folder import FolderStudies\n"
        "start = time.perf_counter(); FolderStudies(Path(sys.argv[1])).open(sys.argv[2]).close()\n"
        "print(time.perf_counter() - start)"
    )
    return float(_python(["-c", code, str(studies), name]).splitlines()[-1])


def _command_s(folder: Path, *words: str) -> float:
    start = time.perf_counter()
    _python([str(REPOSITORY / "cli.py"), *words, "--studies-dir", str(folder / "studies")])
    return time.perf_counter() - start


def _python(arguments: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def _ask_and_tell(study: Study, repeats: int) -> tuple[list[float], list[float]]:
    asks_s, tells_s = [], []
    with study.writing():
        for _ in range(repeats + 1):
            start = time.perf_counter()
            asked = study.ask(LONGEST_S)
            asks_s.append(time.perf_counter() - start)
            assert asked is not None
            outcome = outcome_of(latency_of(asked.config))
            start = time.perf_counter()
            study.tell(asked, outcome)
            tells_s.append(time.perf_counter() - start)
    study.close()
    return asks_s, tells_s


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


BENCHMARK = Benchmark("large_study", "Large studies", __doc__, Figures, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
