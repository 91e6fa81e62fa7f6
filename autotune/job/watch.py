"""`Watch`: looks at a model's first untuned calls for what compiled ones would not leave behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.backends.protocol import EffectsOf
from autotune.job.fallback import Fallback

NUM_WATCHED = 2
"""Untuned calls that are looked at, at most."""


class Watch:
    """The config is given up where each of the calls leaves something behind. Once is no reason: a model may fill a
    table at its first call."""

    def __init__(self, effects: EffectsOf, fallback: Fallback) -> None:
        self.is_over = False
        self._effects = effects
        self._fallback = fallback
        self._num_calls = 0

    def call(self, untuned: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The untuned call's result."""
        if self.is_over:
            return untuned(*args, **kwargs)
        effects = self._effects(args, kwargs)
        result = untuned(*args, **kwargs)
        self._note(effects.found())
        return result

    def _note(self, found: str | None) -> None:
        self._num_calls += 1
        self.is_over = found is None or self._num_calls >= NUM_WATCHED
        if found is not None and self.is_over:
            self._fallback.give_up(f"each call of the model changes {found}, which a compiled call does not")
