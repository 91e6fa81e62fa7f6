"""`CacheStore`: compile caches of finished trials, kept for as long as somebody may start from a copy of them; and
what a trial of the search takes over from earlier ones.

A cache counts only while its marker stands beside it, and the marker is written last: what a killed run left half
written is never used. Whoever opens the shelf clears what an earlier run left, and leaves it empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune import own_folders
from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.study.own_files import KERNELS, clear_caches
from autotune.study.records import TrialRecord
from autotune.study.study import Study
from autotune.trial.request import ColdCompile, TrialRequest

MAX_KEPT_BYTES = 2 * 2**30
"""Size of all caches on the shelf. One of inductor's holds 1 to 3 MiB here; with frozen weights in it, a model."""


class CacheStore:
    """A folder with a cache for each trial that has one, by the trial's number."""

    def __init__(self, folder: Path, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.kernels: Path | None = None
        """Absolute folder of the kernels that all trials share, while it is open: one that this run has made, since
        they are run. None where there is no room for it."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Empty at the beginning and at the end, however it ends."""
        self.clear()
        with suppress(OSError):
            self.kernels = own_folders.make_new(own_folders.absolute(self._folder), KERNELS)
        try:
            yield
        finally:
            self.kernels = None
            self.clear()

    def clear(self) -> None:
        """Remove all caches that there are, markers first."""
        clear_caches(self._folder)

    def place(self, number: int) -> Path:
        """Where a trial's own cache belongs; absolute, and there only once somebody makes it."""
        return own_folders.absolute(self._folder / f"{number:04d}")

    def shelve(self, number: int) -> None:
        """The trial has ended and its cache is whole. An empty one spares nobody anything."""
        with suppress(OSError):  # A disk that is full leaves no marker, and so no cache.
            if any(self.place(number).glob("*")):
                self._marker(number).touch()

    def take_in(self, number: int, cache: Path) -> None:
        """Move a whole cache here, from the same disk; nothing where it is not there."""
        with suppress(OSError):
            own_folders.move(cache, self.place(number))
            self.shelve(number)

    def holds(self, number: int) -> bool:
        """A whole cache of this trial is there."""
        return self._marker(number).exists() and own_folders.is_folder(self.place(number))

    def keep(self, numbers: Sequence[int]) -> None:
        """Remove all others; and of these, given in the order of their worth, what there is no room for."""
        worth = list(dict.fromkeys(numbers))
        for path in self._folder.glob("*"):
            if path.is_dir() and path.name.isdecimal() and int(path.name) not in worth:
                self._drop(int(path.name))
        num_bytes = 0
        for number in filter(self.holds, worth):
            size = own_folders.size_bytes(self.place(number))
            if num_bytes + size > self._max_bytes:
                self._drop(number)
            else:
                num_bytes += size

    def copy(self, number: int, target: Path) -> bool:
        """Copy a whole cache to a folder that is not there yet. False, and no folder, where that cannot be."""
        if not self.holds(number):
            return False
        try:
            own_folders.copy(self.place(number), target)
        except (OSError, shutil.Error):
            # No room, or not readable: the compile is then paid again, and nothing worse happens.
            own_folders.remove(target)
            return False
        return True

    def _drop(self, number: int) -> None:
        own_folders.remove(self._marker(number))
        own_folders.remove(self.place(number))

    def _marker(self, number: int) -> Path:
        return self.place(number).with_suffix(".whole")


MAX_DONORS = 8
"""Caches that are kept for configs which differ in runtime knobs alone, besides those of the likely finalists."""
MAX_FASTEST = 8
"""Caches of the fastest trials that are kept for the confirmation."""


def with_reuse(request: TrialRequest, study: Study, shelf: CacheStore) -> TrialRequest:
    """The request of a search's trial: its cache on the shelf, which may begin as a copy of an earlier trial's.

    The untuned model takes nothing over: it is what all others are compared with. Only the search does: the noise
    floor, drift checks, probes and the confirmation measure for themselves.
    """
    place = shelf.place(request.number)
    request = request.cached_in(place, cold=request.cold)
    if request.untuned:
        return request
    if study.manifest.objective.quantity in ("compile", "total"):
        return request  # The calls that compile are part of what is compared: each trial makes its own from nothing.
    donor = _donor(request.config, study, shelf)
    if donor is None or not shelf.copy(donor.number, place):
        return request
    return request.compiled_already(_cold_compile(donor))


def keep_caches(record: TrialRecord, wanted: Sequence[int], study: Study, shelf: CacheStore) -> None:
    """A trial has ended: keep its cache if it worked, and those of the trials `wanted`; remove the others. Who is
    fast is kept though it is no finalist now: a drift of the machine, or a failure, may make one of it."""
    if isinstance(record.outcome, Measurement):
        shelf.shelve(record.number)
    shelf.keep([*wanted, *_likely_donors(study), *_fastest(study)])


def _fastest(study: Study) -> list[int]:
    value = study.manifest.objective.value
    untuned = study.manifest.space.untuned()
    measured = [record for record in study.records() if record.state == "measured" and record.config != untuned]
    return [record.number for record in sorted(measured, key=lambda record: value(record.measurement))][:MAX_FASTEST]


def _donor(config: Config, study: Study, shelf: CacheStore) -> TrialRecord | None:
    """A trial that compiled the very same, with its cache on the shelf."""
    space = study.manifest.space
    compiled = space.compiled_part(config)
    return next(
        (
            record
            for record in study.records()
            if _was_compiled(record) and shelf.holds(record.number) and space.compiled_part(record.config) == compiled
        ),
        None,
    )


def _likely_donors(study: Study) -> list[int]:
    """The newest trials with a compiled part of their own; none where no knob is a runtime knob."""
    space = study.manifest.space
    if not any(knob.runtime for knob in space.knobs):
        return []
    newest: dict[Config, int] = {}
    for record in study.records():
        if _was_compiled(record):
            newest[space.compiled_part(record.config)] = record.number
    return sorted(newest.values(), reverse=True)[:MAX_DONORS]


def _was_compiled(record: TrialRecord) -> bool:
    return isinstance(record.outcome, Measurement) and record.outcome.diagnosis.compiled is not False


def _cold_compile(donor: TrialRecord) -> ColdCompile:
    """Its own figures, or those of the trial that it started from itself."""
    measured = donor.measurement
    return ColdCompile(
        trial=donor.number if measured.compiled_from is None else measured.compiled_from,
        compile_s=measured.compile_s,
        peak_memory_bytes=measured.compile_peak_memory_bytes,
        host_bytes=measured.compile_host_bytes,
    )
