"""How many trials may be compiled at the same time, on this machine and in this study."""

from __future__ import annotations

from autotune.environment import available_memory_bytes, num_usable_cores
from autotune.measure.measurement import Measurement
from autotune.study.study import Study
from autotune.workload.kinds import kind_of

MOST_JOBS = 8
SPARE_BYTES = 2**30
"""A compiler's own memory, and what the system needs, for each trial."""
MEMORY_FACTOR = 2
"""A process that compiles holds the model and what it makes of it: times the largest peak of a trial so far."""
FEWEST_AT_ONCE = 3
"""Trials that a search may begin with, side by side: with the untuned model as many as make a first forecast."""
MOST_WARMING, CORES_TO_COMPILE = 4, 2
_OF_COMPILING = ("compile", "compile_memory", "total")


def num_jobs_in(study: Study, wanted: int | None) -> int:
    """`wanted`, or as many as fit; one where trials must compile alone, and until the untuned model was measured. On a
    device no more than processes of a block: two cores each."""
    if study.untuned_record() is None or not compiles_unobserved(study):
        return 1
    if not may_compile_ahead(study):
        return min(num_warming(study), wanted or MOST_WARMING)
    return fitting_jobs(_peak_bytes(study)) if wanted is None else wanted


def num_at_once(num_places: int, num_recorded: int) -> int:
    """Trials to run side by side in a search that may end early: at first fewer than there are places for them.

    What is recorded chooses what comes next. Figures: docs/decisions/0028-ray.md.
    """
    return min(num_places, max(FEWEST_AT_ONCE, num_recorded))


def fitting_jobs(peak_bytes: int | None) -> int:
    """Trials that the machine can hold at a time: one for each core, as far as there is memory for them."""
    return max(1, min(num_usable_cores(), available_memory_bytes() // _bytes_of_one(peak_bytes), MOST_JOBS))


def holds_another(study: Study) -> bool:
    """The machine has memory for one more live process beside those of trials and blocks."""
    return available_memory_bytes() >= 2 * _bytes_of_one(_peak_bytes(study))


def _bytes_of_one(peak_bytes: int | None) -> int:
    """Memory to allow a process whose calls were seen to take so much."""
    return SPARE_BYTES + MEMORY_FACTOR * (peak_bytes or 0)


def may_compile_ahead(study: Study) -> bool:
    """Trials may compile until another one is timed, and go on behind it. Not where what compiling costs is compared,
    and not on a device, where nothing stands still while another process is timed."""
    return study.manifest.workload.device == "cpu" and compiles_unobserved(study)


def num_warming(study: Study) -> int:
    """Processes of one block that become warm at the same time where trials run one by one. On a device they compile on
    the machine's cores, and have the device for what they run there one after the other."""
    if study.manifest.workload.device == "cpu" or not compiles_unobserved(study):
        return 1
    return max(1, min(MOST_WARMING, num_usable_cores() // CORES_TO_COMPILE))


def compiles_unobserved(study: Study) -> bool:
    """What compiling costs is not compared."""
    manifest = study.manifest
    quantities = {manifest.objective.quantity, *(constraint.quantity for constraint in manifest.constraints)}
    return not kind_of(manifest.workload).has_many_shapes and quantities.isdisjoint(_OF_COMPILING)


def _peak_bytes(study: Study) -> int | None:
    peaks = [
        max(record.outcome.peak_memory_bytes or 0, record.outcome.compile_peak_memory_bytes or 0)
        for record in study.records()
        if isinstance(record.outcome, Measurement)
    ]
    return max(peaks, default=None)
