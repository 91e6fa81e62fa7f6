"""`TrialFolder`: a trial on disk: `request.json` in, `outcome.json` out, logs and caches beside them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotune import own_folders
from autotune.files import write_whole
from autotune.measure.measurement import Measurement, Outcome, Stage
from autotune.measure.sampling import Reading
from autotune.schema import read
from autotune.trial.request import TrialRequest

REQUEST_FILE = "request.json"
OUTCOME_FILE = "outcome.json"
PROFILE_FILE = "profile.json"
FIRST_CRASH = "first_crash"
"""Folder of what a process left that crashed and was run once more."""
KEPT_CACHES = "caches"
KEY_FILE = "key.json"
MAX_TEMPORARY_CHARS = 70
"""Longest path of a temporary folder. A socket's path has at most 107 characters; programs add up to 36."""
_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
_PROFILE = TypeAdapter(dict[str, float])


@dataclass(frozen=True)
class TrialFolder:
    """Paths and files of one trial. Files are written under a temporary name, so none is ever half written."""

    path: Path

    @property
    def stdout(self) -> Path:
        return self.path / "stdout.txt"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr.txt"

    @property
    def scratch(self) -> Path:
        """The child's working folder, since frameworks write files into the current one."""
        return self.path / "scratch"

    @property
    def temporary(self) -> Path:
        """The child's folder for temporary files, removed after the trial with whatever a killed compiler left there.

        It lies in the trial's folder, or in the system's temporary folder if that path is too long for a socket, or is
        taken apart by a compiler.
        """
        inside = own_folders.absolute(self.path) / "tmp"
        if len(os.fsencode(inside)) <= MAX_TEMPORARY_CHARS and own_folders.is_one_word(inside):
            return inside
        digest = hashlib.sha256(os.fsencode(inside)).hexdigest()[:12]
        return own_folders.named(tempfile.gettempdir()) / f"autotune-{os.getuid()}-{digest}"

    @property
    def outcome_file(self) -> Path:
        return self.path / OUTCOME_FILE

    def write_profile(self, at_breaks_s: Mapping[str, float]) -> None:
        """What a `Profiler` saw."""
        write_whole(self._profile, json.dumps(at_breaks_s))

    def read_profile(self) -> dict[str, float]:
        """Empty if the trial was not profiled."""
        try:
            return _PROFILE.validate_json(self._profile.read_bytes())
        except (OSError, ValidationError):
            return {}

    def write_request(self, request: TrialRequest) -> None:
        """Write the request and remove the files of an earlier run, whose outcome must not be taken for this run's."""
        own_folders.make(self.path)
        logs = (self.stdout, self.stderr, self._stage, self._paused, self._turn)
        for stale in (self.outcome_file, *logs, self._profile):
            stale.unlink(missing_ok=True)
        self.drop_temporary()
        write_whole(self._request, request.model_dump_json(by_alias=True, indent=2))

    def read_request(self) -> TrialRequest:
        """Raises OSError, or ValueError where the file is no request of this version."""
        return TrialRequest.model_validate_json(self._request.read_text(encoding="utf-8"))

    def write_outcome(self, outcome: Outcome) -> None:
        write_whole(self.outcome_file, outcome.model_dump_json(indent=2))

    def read_outcome(self) -> Outcome | None:
        """None if the child left no outcome, or an incomplete one."""
        try:
            return _OUTCOME.validate_json(self.outcome_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_stage(self, stage: Stage) -> None:
        write_whole(self._stage, stage.value)  # a trial that is killed while it writes is in one stage or the other

    def read_stage(self) -> Stage:
        try:
            return Stage(self._stage.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Stage.START

    def drop_leftovers(self) -> None:
        """Remove temporary files, the scratch folder and the caches that lie inside the folder; the record stays."""
        self.drop_temporary()
        self._turn.unlink(missing_ok=True)  # Its samples are in the outcome.
        own_folders.remove(self.scratch)
        own_folders.remove(self.path / "cache")

    def drop_temporary(self) -> None:
        """Remove the folder for temporary files."""
        own_folders.remove(self.temporary)

    def write_paused(self, seconds: float) -> None:
        """How long the trial's processes have been paused in all, before they go on."""
        write_whole(self._paused, repr(seconds))

    def read_paused_s(self) -> float:
        """Seconds; 0 where they never were."""
        try:
            return float(self._paused.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0.0

    def write_turn(self, reading: Reading) -> None:
        """What a live process measured in its latest turn."""
        write_whole(self._turn, json.dumps(reading))

    def read_turn(self) -> Reading | None:
        """None before the first turn."""
        try:
            return Reading(*json.loads(self._turn.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    @property
    def _turn(self) -> Path:
        return self.path / "turn"

    @property
    def _paused(self) -> Path:
        return self.path / "paused"

    @property
    def _request(self) -> Path:
        return self.path / REQUEST_FILE

    @property
    def _profile(self) -> Path:
        return self.path / PROFILE_FILE

    @property
    def _stage(self) -> Path:
        return self.path / "stage"


def failed_trials(folder: Path) -> list[TrialFolder]:
    """Trials anywhere below a folder that left a failure or no outcome. What an instance did is in its trial's."""
    requests = list(folder.rglob(REQUEST_FILE))
    trials = [TrialFolder(path.parent) for path in requests if path.parent.with_name(REQUEST_FILE) not in requests]
    return [trial for trial in trials if not isinstance(trial.read_outcome(), Measurement)]


def parse_outcome(content: object) -> Outcome:
    """An outcome from its stored JSON form. Raises ValueError."""
    return read(_OUTCOME.validate_python, content)
