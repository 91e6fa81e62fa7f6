"""What trials and studies cost as they become many, in CPU seconds: `OMP_NUM_THREADS=1 python -m tests.scale`.

The table stands in docs/decisions/0003-study-storage.md.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from autotune.cli.studies_folder import _row
from autotune.space.space import Knob, SearchSpace
from autotune.study.budget import BlockPlan
from autotune.study.folder import FolderStudies
from autotune.study.study import Study
from autotune.tuning.evidence import evidence_of
from autotune.tuning.finalists import EQUALLY_FAST
from autotune.tuning.pruning import NeededSettings
from autotune.tuning.race import Standing
from benchmarks.simulated import manifest_of, measurement_of

NUM_TRIALS, NUM_STUDIES, TRIALS_A_STUDY = (10, 100, 1000), (10, 100, 300), 12
KNOBS = tuple(
    Knob(name=f"k{n}", doc="", values=(False, True), when={}, default=False, untuned=False) for n in range(13)
)
SPACE = SearchSpace(framework="torch", knobs=KNOBS, forbid=())
T = TypeVar("T")


def tell(line: str) -> None:
    """Print it at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def cost_s(operation: Callable[[], T]) -> float:
    """CPU seconds of this process."""
    since = time.process_time()
    operation()
    return time.process_time() - since


def add_trials(study: Study, num: int) -> None:
    """So many measured trials of further configs, each with a program of its own."""
    configs = [SPACE.untuned(), *(config for config in SPACE.configs() if config != SPACE.untuned())]
    for number in range(study.num_recorded(), study.num_recorded() + num):
        center_s = random.uniform(0.01, 0.012)
        outcome = measurement_of(tuple(random.gauss(center_s, 1e-4) for _ in range(100)))
        study.tell(study.ask(configs[number], longest_s=60), outcome.model_copy(update={"program": str(number)}))


def main() -> None:
    """Print a row for each number."""
    with tempfile.TemporaryDirectory() as folder:
        study = FolderStudies(Path(folder)).create(manifest_of(SPACE, 0))
        needed, file = NeededSettings(study.manifest, EQUALLY_FAST), study.folder / "study.db"

        def look() -> None:
            evidence = evidence_of(study, BlockPlan(), (), needed)
            assert evidence is not None
            assert Standing(evidence).field

        with study.writing():
            for num in NUM_TRIALS:
                num_new = num - study.num_recorded()
                told_s = cost_s(lambda num_new=num_new: add_trials(study, num_new - 1)) / num_new
                first_s = cost_s(look)
                add_trials(study, 1)
                tell(f"{num} trials: {told_s:.3f} s to store one, {first_s:.3f} s to look, {cost_s(look):.3f} s again")
        study.close()
        tell(f"{file.stat().st_size / study.num_recorded() / 1024:.1f} KiB a trial once the study is closed")
    with tempfile.TemporaryDirectory() as folder:
        studies = FolderStudies(Path(folder))
        study = studies.create(manifest_of(SPACE, 0).model_copy(update={"name": "s0"}))
        with study.writing():
            add_trials(study, TRIALS_A_STUDY)
        study.close()
        for number in range(1, max(NUM_STUDIES)):
            another = Path(shutil.copytree(study.folder, studies.folder / f"s{number}"))
            study.manifest.model_copy(update={"name": another.name}).write(another / "manifest.json")
            with closing(sqlite3.connect(another / "study.db")) as database, database:
                database.execute("UPDATE studies SET study_name = ?", (another.name,))
        for num in NUM_STUDIES:
            names = studies.names()[:num]
            tell(f"{num} studies: {cost_s(lambda names=names: [_row(name, studies) for name in names]):.2f} s to list")


if __name__ == "__main__":
    main()
