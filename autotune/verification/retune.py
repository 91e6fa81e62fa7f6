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

from autotune.backends.registry import entry_of
from autotune.config import Config
from autotune.files import write_whole, write_yaml
from autotune.measure.statistics import Speedup, Verdict
from autotune.planning.spaces import bundled_space, bundled_spaces
from autotune.space.load import read_space_file
from autotune.study.budget import Budget
from autotune.study.study import Studies, check_name
from autotune.trial.processes import package_path
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.process_start import INSTANCES
from autotune.workload.traffic import COUNT, Traffic

SEARCHES = "import autotune.api.tuning"
"""What an interpreter must be able to do to search."""
_SEARCH = """
import json, sys
import autotune
try:
    autotune.tune(**json.loads(sys.argv[1]))
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
        cls, tuned: TunedConfig, python: Path, version: str, studies: Studies, *, folder: Path, file: str | None
    ) -> SearchThere:
        """The question of an exported file, which lies at `file`, for the release `version`. `folder`: for its files.

        An export does not say which space was searched: it is that of its study, where the study is still there and the
        space the user's own, and else the bundled one. Raises InputError where there is neither, and for a name that no
        study can have.
        """
        if file is None:
            file = str(folder / "exported.yaml")
            tuned.write(Path(file))
        wanted, own_space = tuned.workload, _own_space(tuned, studies)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{tuned.evidence.study}-{version}")
        check_name(name)
        question: dict[str, Any] = {
            "build": wanted.model,
            "inputs": wanted.inputs,
            "framework": tuned.framework,
            "device": wanted.device,
            "task": wanted.task,
            "ranks": wanted.ranks,
            "arguments": wanted.arguments,
            "objective": wanted.objective,
            "constraints": wanted.constraints,
            "tolerance": wanted.tolerance,
            "reference": wanted.reference_precision,
            "seed": wanted.seed,
            "env": tuned.environment.variables,
            "process_settings": _sets_the_process(tuned.config, own_space or bundled_space(tuned.framework)),
            "instances": "auto" if INSTANCES in tuned.config.root else None,
            "space": [] if own_space is None else [str(own_space)],
            "prior": [file],
            "study": name,
            "studies_dir": str(studies.folder),
        }
        if tuned.shapes is not None:
            question |= _of_traffic(tuned.shapes.traffic, wanted.arguments, folder)
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
            [str(self.python), "-P", "-c", _SEARCH, json.dumps(asked)],
            env={**os.environ, "PYTHONPATH": package_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return None
        said = done.stdout.strip().splitlines()
        why = json.loads(said[-1]) if done.returncode == 1 and said else f"it ended with status {done.returncode}"
        return f"the search there failed: {why}"


def _own_space(tuned: TunedConfig, studies: Studies) -> Path | None:
    """The space file of the study that the file came from, if that is at hand and no bundled one."""
    found = (manifest for manifest in studies.manifests() if manifest.name == tuned.evidence.study)
    manifest = next((each for each in found if each.workload.model == tuned.workload.model), None)
    if manifest is None:
        return None
    path = Path(manifest.space_file)
    is_own = path.is_file() and path not in (*bundled_spaces(), entry_of(tuned.framework).search_space)
    return path if is_own else None


def _sets_the_process(config: Config, space_file: Path) -> bool:
    """The config has a knob, or a value, that is offered only where the job allows settings of its whole process."""
    entries = read_space_file(space_file).knobs
    return any(
        entries[name].process or any(each.process and each.value == value for each in entries[name].entries())
        for name, value in config.root.items()
        if name in entries
    )


def _of_traffic(traffic: Traffic, arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What asks for the traffic, in words or as a log, whose dimensions are no arguments then."""
    asked = traffic.asked
    if "traffic" in asked:
        log = folder / "traffic.jsonl"
        lines = ({**load.sizes, COUNT: max(round(load.share * _PARTS), 1)} for load in traffic.loads)
        write_whole(log, "".join(f"{json.dumps(line)}\n" for line in lines))
        asked = {"traffic": str(log)}
    return {**asked, "arguments": {name: one for name, one in arguments.items() if name not in traffic.dimensions}}
