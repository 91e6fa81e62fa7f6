"""What a trial of the search takes over from earlier ones: compile caches.

Only the search does: noise floor, sentinels, probes and the confirmation measure for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.study.records import TrialRecord
from autotune.study.study import Study
from autotune.trial.request import ColdCompile, TrialRequest
from autotune.tuning.cache_store import CacheStore

MAX_DONORS = 8
"""Caches that are kept for configs which differ in runtime knobs alone, besides those of the likely finalists."""
MAX_RIVALS = 8
"""Caches of the fastest trials that are kept for the confirmation."""


def with_reuse(request: TrialRequest, study: Study, shelf: CacheStore) -> TrialRequest:
    """The request of a search's trial: its cache on the shelf, which may begin as a copy of an earlier trial's.

    The untuned model takes nothing over: it is what all others are compared with.
    """
    place = shelf.place(request.number)
    request = request.cached_in(place, cold=request.cold)
    if request.untuned:
        return request
    if any(each.quantity in ("compile", "total") for each in study.manifest.objectives):
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
    measured = [each for each in study.records() if each.state == "measured" and each.config != untuned]
    return [each.number for each in sorted(measured, key=lambda each: value(each.measurement))][:MAX_RIVALS]


def _donor(config: Config, study: Study, shelf: CacheStore) -> TrialRecord | None:
    """A trial that compiled the very same, with its cache on the shelf."""
    space = study.manifest.space
    compiled = space.compiled_part(config)
    return next(
        (
            each
            for each in study.records()
            if _was_compiled(each) and shelf.holds(each.number) and space.compiled_part(each.config) == compiled
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
    )
