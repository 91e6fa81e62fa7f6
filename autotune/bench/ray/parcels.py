"""What travels between the driver's folders and the workers: files to them, a trial's outcome and logs from them."""

from __future__ import annotations

from pathlib import Path

from autotune.bench.messages import Ended, Refused
from autotune.bench.ray.parcel import REFERENCE, Parcel, parcel_of
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest


class Parcels:
    """The files of each request. A file is read once: what a run of the tool measures does not change under it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Parcel] = {}

    def of(self, request: TrialRequest, cache: bytes | None) -> Parcel:
        """The model's source with its local imports, the reference outputs once they are there, and a compile cache."""
        key = (request.workload.reference, f"{request.workload.search_path} {request.workload.inputs}")
        if key not in self._made:
            self._made[key] = parcel_of(request)
        parcel = Parcel()
        parcel.include(self._made[key])
        reference = Path(request.reference)
        if reference.exists():
            made = (request.reference, str(reference.stat().st_mtime_ns))
            if made not in self._made:
                self._made[made] = Parcel()
                self._made[made].add(REFERENCE, reference)
            parcel.include(self._made[made])
        if cache is not None:
            parcel.add_cache(cache)
        return parcel


def outcome_in(folder: TrialFolder, ended: Ended) -> Outcome:
    """Write the files of a trial into the driver's folder, and read the outcome there."""
    evidence = str(folder.stderr)
    for name, content in ended.files.items():
        write_whole(folder.path / name, content)
    outcome = folder.read_outcome()
    if outcome is None:
        error = "the worker sent no outcome that this version can read"
        return Failure(reason=Reason.HARNESS, stage=Stage.START, error=error, evidence=evidence)
    if isinstance(outcome, Failure):
        outcome = outcome.model_copy(update={"evidence": evidence})  # The log lies here as well.
        folder.write_outcome(outcome)
    return outcome


def refusal_in(folder: TrialFolder, refused: Refused) -> Failure:
    """The outcome of a trial that a worker could not start."""
    return Failure(reason=Reason.HARNESS, stage=Stage.START, error=refused.error, evidence=str(folder.stderr))
