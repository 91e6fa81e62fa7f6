"""Findings about a study, one a module: what is measured, in words, as tables and figures, and as keys of a document.

A module here needs no entry anywhere: its `Section` is found by being here. It imports `answer` and the rows above. A
kind of work of another package has those of its module `sections`, in its studies.
"""

from __future__ import annotations

from functools import cache

from autotune.answer.content import Section
from autotune.answer.result import StudyResult
from autotune.doors import classes_in, modules_in
from autotune.tuning.events import Event
from autotune.workload.kinds import PACKAGES, kind_named, modules_of


def sections(answer: StudyResult) -> list[Section]:
    """All findings about a study, in the order of their places."""
    entry = None if answer.untuned is None else answer.untuned.measurement.signature.work
    own = (
        []
        if entry is None or not PACKAGES.has(entry)
        else classes_in(modules_of(kind_named(entry), "sections"), Section)
    )
    return [each(answer) for each in sorted((*_kinds(), *own), key=lambda each: each.place)]


def news(event: Event) -> list[str]:
    """Lines for whoever watches a run: what an event has to tell about any finding."""
    return [line for kind in _kinds() for line in kind.news(event)]


@cache
def _kinds() -> tuple[type[Section], ...]:
    return tuple(sorted(classes_in(modules_in(__name__, __path__), Section), key=lambda kind: kind.place))
