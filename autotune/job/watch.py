"""`Watch`: looks at what a model's first calls leave behind, where compiled code may lose it, or add to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.backends.protocol import EffectsOf
from autotune.job.fallback import Fallback

NUM_WATCHED = 2
"""Untuned calls that are looked at, at most."""


class Watch:
    """The config is given up where each untuned call leaves something behind, and where the first tuned one does after
    an untuned one did not. Once is no reason: a model may fill a table at its first call."""

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

    def call_tuned(self, tuned: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The first tuned call's result."""
        effects = self._effects(args, kwargs)
        result = tuned(*args, **kwargs)
        if (found := effects.found()) is not None:
            self._fallback.give_up(f"a compiled call changed {found}, which the model's own does not")
        return result

    def _note(self, found: str | None) -> None:
        self._num_calls += 1
        self.is_over = found is None or self._num_calls >= NUM_WATCHED
        if found is not None and self.is_over:
            self._fallback.give_up(f"each call of the model changes {found}, which a compiled call does not")
