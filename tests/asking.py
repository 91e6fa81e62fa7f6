"""Trials of a study that its own sampler chooses, for tests that do without the loop."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from autotune.study.sampler.sampler import Sampler
from autotune.study.study import AskedTrial, Study

_SAMPLERS: WeakKeyDictionary[Study, Sampler] = WeakKeyDictionary()


def sampler_of(study: Study) -> Sampler:
    """One for each study that was opened."""
    return _SAMPLERS.setdefault(study, Sampler(study))


def ask(study: Study, longest_s: float = 60.0) -> AskedTrial | None:
    """The next trial; None if no config is left."""
    config = sampler_of(study).suggest()
    return None if config is None else study.ask(config, longest_s)
