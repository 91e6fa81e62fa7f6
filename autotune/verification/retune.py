"""The search that another environment is given on the day of an upgrade: the question of an exported file, asked there.

A study belongs to one release, so the search is a study of its own. The other environment's interpreter runs it, with
this package's own files, and begins with the exported config. What it found is read here, as of any study.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.config import Config
from autotune.errors import InputError
from autotune.files import write_whole, write_yaml
from autotune.job.mismatch import question_of
from autotune.measure.statistics import Speedup, Verdict
from autotune.planning.spaces import bundled_space
from autotune.study.budget import Budget
from autotune.study.study import Studies, check_name
from autotune.trial.processes import last_json, package_path
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.traffic import COUNT, Traffic

SEARCHES = "import autotune.api.tuning"
"""What an interpreter must be able to do to search."""
_SEARCH = """
import json, sys
import autotune
try:
    autotune.tune(**json.load(sys.stdin))
except autotune.AutotuneError as error:
    print(json.dumps(str(error)))
    sys.exit(1)
except KeyboardInterrupt:
    sys.exit(130)
"""
_PARTS = 10**9
"""Calls of a log that stands for shares."""


@dataclass(frozen=True)
class Retuned:
    """What a search in the other environment found: `why` is a sentence. The rest is None, and False, without one."""

    study: str
    """Study of the search."""
    why: str
    verdict: Verdict | None = None
    """About the best config there against the untuned model there."""
    config: Config | None = None
    """The one to use there; that of the untuned model where nothing is better."""
    is_other: bool = False
    """It is another one than the exported config, and no other name for the same program."""
    gain: Speedup | None = None
    """Speed-up of the best config over the untuned model, there."""
    over_exported: Speedup | None = None
    """That over the exported config, there; None where they are the same, or were not compared side by side."""
    command: str | None = None
    """The command line that exports what it found; None where that is the untuned model, or nothing."""


@dataclass(frozen=True)
class SearchThere:
    """A search that is about to be made."""

    python: Path
    """Interpreter of the other environment."""
    studies: Studies
    """Where its study will be."""
    question: Mapping[str, Any]
    """What `autotune.tune` is asked there, as plain data."""

    @classmethod
    def of(
        cls,
        tuned: TunedConfig,
        python: Path,
        version: str,
        studies: Studies,
        *,
        folder: Path,
        file: str | None,
        storage: str | None = None,
    ) -> SearchThere:
        """The question of an exported file, which lies at `file`, for the release `version`. `folder`: for its files.
        `storage`: as of `tune`.

        Raises InputError where there is no space to search, and for a name that no study can have.
        """
        if file is None:
            file = str(folder / "exported.yaml")
            tuned.write(Path(file))
        _require_space(tuned, file)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{tuned.evidence.study}-{version}")
        check_name(name)
        question = {
            **question_of(tuned),
            "env": tuned.environment.variables,
            "prior": [file],
            "study": name,
            "studies_dir": str(studies.folder),
            "storage": storage,
        }
        if tuned.shapes is not None and "traffic" in question:
            question["traffic"] = str(_log_of(tuned.shapes.traffic, folder))
        return cls(python, studies, question)

    @property
    def study(self) -> str:
        return str(self.question["study"])

    def run(self, budget: Budget, folder: Path, *, progress: bool) -> str | None:
        """Search within the budget; why there is no answer, if there is none. `folder`: for its file."""
        limits = folder / "budget.yaml"
        write_yaml(limits, budget.model_dump(mode="json"))
        asked = {**self.question, "budget": str(limits), "progress": progress}
        done = subprocess.run(
            [str(self.python), "-P", "-c", _SEARCH],
            env={**os.environ, "PYTHONPATH": package_path()},
            # Not in the command line, which others on this machine can read: a database's URL may hold a password.
            input=json.dumps(asked),
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return None
        said = last_json(done.stdout, str) if done.returncode == 1 else None
        why = said or f"it ended with status {done.returncode}"
        return f"the search there failed: {why}"


def _require_space(tuned: TunedConfig, file: str) -> None:
    """Raises InputError where the space that was searched is not here, or the framework has none."""
    space = tuned.search.space
    if space is None:
        bundled_space(tuned.framework)
    elif not Path(space).is_file():
        raise InputError(
            f"{file}: key search.space: {space} is not there, and nothing else is the same search",
            tip="put that file back, or name another there (null: the bundled one)",
        )


def _log_of(traffic: Traffic, folder: Path) -> Path:
    """A log that stands for the traffic."""
    log = folder / "traffic.jsonl"
    lines = ({**load.sizes, COUNT: max(round(load.share * _PARTS), 1)} for load in traffic.loads)
    write_whole(log, "".join(f"{json.dumps(line)}\n" for line in lines))
    return log
