"""The watching of one framework's models in this process: what its `calls` does for any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.plugins.watch import saving
from autotune.plugins.watch.document import raise_of_signal
from autotune.plugins.watch.recorder import MOST_KEPT, Recorder, Seen, Wanted

_ALWAYS_KEPT = 3
"""Calls that are kept first, whatever their shape; later ones are of new shapes."""
_MOST_SAID = 20
Met = tuple[Seen, tuple[Any, ...], tuple[int, Any] | None]
"""The model of a call that is about to be made, what the call is counted by, and a copy of its arguments with its size,
or None."""


class Watching:
    """There is one for each framework. It begins and ends as often as the job asks."""

    def __init__(self, files: Any) -> None:
        """`files`: the framework's `kept`."""
        self._files = files
        self.recorder: Recorder | None = None
        self.by_id: dict[int, Seen] = {}
        self.inside: set[int] = set()
        """Threads that are in a call of a model."""

    def begin(self, wanted: Mapping[str, Any]) -> None:
        self.recorder = Recorder(Wanted(**wanted), self._files)

    def is_over(self) -> bool:
        """As many calls were seen as were asked for."""
        return self.recorder is None or self.recorder.is_over

    def end(self) -> None:
        """Write what was seen."""
        recorder, self.recorder = self.recorder, None
        self.by_id = {}
        if recorder is not None:
            recorder.close()

    def met(self, seen: Seen, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Met:
        """What is remembered of a call until it is over."""
        copy = saving.copied(seen, args, kwargs, self._files) if self.is_to_be_kept(seen, key) else None
        return seen, key, copy

    @staticmethod
    def is_to_be_kept(seen: Seen, key: tuple[Any, ...]) -> bool:
        num = len(seen.kept)
        return num < MOST_KEPT and (num < _ALWAYS_KEPT or key not in seen.counts)

    def note(self, met: Met, begun_ns: int, took_ns: int) -> None:
        """The call is over, and did not fail."""
        seen, key, copy = met
        if (recorder := self.recorder) is not None:
            recorder.note(seen, key, begun_ns, took_ns, copy)

    def say(self, problem: Exception) -> None:
        """A call was not looked at. Raises the problem where it is the job's own."""
        raise_of_signal(problem)
        if self.recorder is not None and len(self.recorder.notes) < _MOST_SAID:
            self.recorder.notes[f"a call was not looked at: {problem!r}"[:300]] = None
