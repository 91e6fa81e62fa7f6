"""`Toolchains`: what a compiler needs for every model, found or made for the trials of a framework on a CPU.

It is made beside the untuned model and the first config that compiles, so that nobody waits for an idle core; all
further configs wait for it, before their limits begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from autotune.backends.registry import entry_of, framework_version
from autotune.bench.builder import Quiet
from autotune.measure.measurement import Outcome
from autotune.trial.deadline import SHORTEST_S
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.toolchain import Toolchain
from autotune.workload.workload import Workload

LIMIT_S = 600.0
"""Making it takes 30 s of CPU time with inductor; the machine may be slow or busy."""


class Maker(Protocol):
    """The process that makes it, as whoever waits for it sees it."""

    @property
    def outcome(self) -> Outcome | None:
        """None: it has not ended."""

    def wait(self) -> Outcome:
        """Until it has."""


class Making(Protocol):
    """Whoever runs the trials."""

    @property
    def quiet(self) -> Quiet:
        """To be ended before anything is waited for."""

    @property
    def requests(self) -> Sequence[TrialRequest]:
        """What the trials that run were asked."""

    def begin(self, program: str, folder: TrialFolder, limits: Limits) -> Maker:
        """Start a program in a new Python, which may be paused."""


class Toolchains:
    """See the module. `has_any`: False for another environment, whose release may need another one."""

    def __init__(self, by: Making, framework: str, variables: Mapping[str, str], *, has_any: bool) -> None:
        self._by = by
        self._framework = framework
        self._variables = variables
        self._limit_s = LIMIT_S
        self._is_begun_ahead = False
        self._found: tuple[Path | None] | None = None if has_any else (None,)
        """In a tuple: (None,) means that it cannot be made."""
        self._making: tuple[Toolchain, Maker] | None = None

    def begin_ahead(self, workload: Workload, most_s: float) -> None:
        """Trials of this workload follow: it is made beside them, within `most_s`."""
        self._is_begun_ahead = True
        self._limit_s = min(LIMIT_S, max(most_s, SHORTEST_S))
        if self._is_needed(workload) and self._found is None and self._making is None:
            self._begin(waits=False)

    def given_to(self, request: TrialRequest) -> TrialRequest:
        """The request with it. It is waited for before a config that compiles on a CPU, whose limits do not include
        that. One that would compile alone, while it is made beside it, takes what it needs upon itself: that is sooner
        than to wait."""
        if not self._is_needed(request.workload) or not compiles(request):
            return request
        if self._is_begun_ahead and self._making is not None and not any(map(compiles, self._by.requests)):
            return request
        if self._found is None and self._making is None:
            self._begin(waits=True)
        if self._making is not None:
            self._by.quiet.end()
            self._making[1].wait()
        (found,) = self._found or (None,)
        return request if found is None else request.with_toolchain(found)

    def settle(self) -> None:
        """Once its maker has ended: it is there, or cannot be made."""
        if self._making is not None and self._making[1].outcome is not None:
            (toolchain, _), self._making = self._making, None
            self._found = (toolchain.settle(),)

    def _is_needed(self, workload: Workload) -> bool:
        return entry_of(self._framework).toolchain is not None and workload.device == "cpu"

    def _begin(self, *, waits: bool) -> None:
        """Look for it, and start making it where there is none."""
        toolchain = Toolchain.begin(self._framework, framework_version(self._framework), self._variables, waits=waits)
        if toolchain is None:
            self._found = (None,) if waits else None
            return
        if toolchain.making is None:
            self._found = (toolchain.settle(),)
            return
        program = entry_of(self._framework).toolchain
        assert program is not None, "it is needed"
        limits = Limits(start=self._limit_s, total=self._limit_s)
        self._making = toolchain, self._by.begin(program, toolchain.making, limits)
        self.settle()


def compiles(request: TrialRequest) -> bool:
    """Its config is compiled."""
    return not request.untuned and entry_of(request.workload.framework).compiles(request.config)
