"""Findings about a study, one a module: what is measured, in words, as tables and figures, and as keys of a document.

A module here needs no entry anywhere: its `Section` is found by being here. It imports `answer` and the rows above.
"""

from __future__ import annotations

from functools import cache

from autotune.answer.content import Section
from autotune.answer.result import StudyResult
from autotune.doors import modules_in
from autotune.tuning.events import Event


def sections(answer: StudyResult, *, full: bool = False) -> list[Section]:
    """All findings about a study, in the order of their places. `full`: each config with all settings."""
    return [kind(answer, full=full) for kind in _kinds()]


def news(event: Event) -> list[str]:
    """Lines for whoever watches a run: what an event has to tell about any finding."""
    return [line for kind in _kinds() for line in kind.news(event)]


@cache
def _kinds() -> list[type[Section]]:
    modules_in(__name__, __path__)
    return sorted(Section.__subclasses__(), key=lambda kind: kind.place)
