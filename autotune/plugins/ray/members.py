"""`Members`: the workers of a study, what each of them runs, and what it measured of the untuned model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.bench.bench import Process, StageCallback
from autotune.bench.messages import Finish, Turn
from autotune.environment import Environment
from autotune.errors import SetupError, marked
from autotune.measure.measurement import Measurement, OnWorker, Outcome, Stage
from autotune.plugins.ray.links import Link
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

MOST_LOSSES = 2
"""A worker that was lost this often gets no further trial."""


class Job(Process):
    """A trial that was sent to a worker."""

    def __init__(
        self,
        name: str,
        folder: TrialFolder,
        request: TrialRequest,
        member: Member,
        listen: Callable[[], None],
        *,
        is_live: bool = False,
        is_reading: bool = False,
    ) -> None:
        super().__init__(listen)
        self.name = name
        self.folder = folder
        self.request = request
        self.member = member
        self.is_live = is_live
        self.is_reading = is_reading
        """Whether the process times the untuned model for the worker's own sake, and is no trial."""

    @property
    def title(self) -> str:
        """What it is, in words."""
        return "untuned model" if self.is_reading or self.request.untuned else f"trial {self.request.number}"

    @property
    def is_ready(self) -> bool:
        return self.outcome is not None or (self.is_live and self.stage is Stage.WAIT)

    def warm(self, on_stage: StageCallback | None = None) -> None:
        self.watch(on_stage)
        self.wait_until_ready()

    def turn(self) -> None:
        """What it measured comes with the outcome."""
        self.begin_turn()
        self.wait_until_ready()

    def begin_turn(self) -> None:
        """Let it take its samples once, and do not wait."""
        if self.outcome is None:
            self.stage = Stage.RUN
            self.member.link.send([Turn(self.name)])

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        self.watch(on_stage)
        if self.is_live and self.outcome is None:
            self.member.link.send([Finish(self.name)])
        return self.wait()


@dataclass(eq=False)
class Member:
    """A worker of the study, from its first process to the one that replaced the last lost one."""

    link: Link
    jobs: dict[str, Job] = field(default_factory=dict)
    """Sent and not over, in the order in which they run."""
    stored: set[str] = field(default_factory=set)
    """Digests of the contents that it has."""
    untuned_s: list[float] = field(default_factory=list)
    """What it measured of the untuned model, the first reading first."""
    environment: Environment | None = None
    """As the child that measured the untuned model described it."""
    num_since_reading: int = 0
    num_trials: int = 0
    num_lost: int = 0
    dropped: str | None = None
    """Why it gets no further trial."""

    @property
    def name(self) -> str:
        return self.link.name

    @property
    def is_in(self) -> bool:
        return self.dropped is None

    def is_like(self, other: Environment) -> bool:
        """Whether its latencies may be compared with those of an environment as they are."""
        mine = self.environment or self.link.facts.environment
        is_same_device = self.environment is None or self.environment.device == other.device
        return is_same_device and mine.driver == other.driver and not mine.differences(other)

    def note_untuned(self, measurement: Measurement) -> None:
        """Keep a reading of the untuned model."""
        self.untuned_s.append(measurement.latency.p50)
        self.environment = measurement.environment
        self.num_since_reading = 0

    def figures(self, study_s: float) -> OnWorker:
        """What makes its figures comparable with those of the worker that measured the study's untuned trial."""
        return OnWorker(name=self.name, host=self.link.facts.host, untuned_s=self.untuned_s[0], study_s=study_s)


@dataclass
class Members:
    """All workers. The primary one runs the study's untuned trial, the noise floor and the confirmation."""

    members: list[Member]
    answer: Environment | None = None
    """Environment of the study's untuned trial: the answer holds for workers like it."""

    def of(self, link: Link) -> Member:
        """The worker behind a link."""
        return next(member for member in self.members if member.link is link)

    def usable(self) -> list[Member]:
        """Raises SetupError where none is left."""
        left = [member for member in self.members if member.is_in]
        if not left:
            raise SetupError(
                "no worker is left: " + "; ".join(f"{member.name}: {member.dropped}" for member in self.members),
                tip="recorded trials are kept: `resume` continues when the machines are back",
            )
        return left

    def sharing(self) -> list[list[Member]]:
        """Workers of one machine, where it has several. Containers of one machine are one machine: they share its
        kernel, and so its boot."""
        by_boot: dict[str, list[Member]] = {}
        for member in self.members:
            if member.is_in:
                by_boot.setdefault(member.link.facts.boot_id, []).append(member)
        return [group for group in by_boot.values() if len(group) > 1]

    def named(self, name: str) -> Member:
        """The worker of a name."""
        return next(member for member in self.members if member.name == name)

    def primary(self) -> Member:
        """The first worker of the largest group of equal ones, or of the group that the answer is for.

        Raises SetupError where there is none.
        """
        usable = self.usable()
        if self.answer is None:
            return max(usable, key=lambda member: sum(member.is_like(one.link.facts.environment) for one in usable))
        alike = [member for member in usable if member.is_like(self.answer)]
        if not alike:
            other = usable[0].link.facts.environment
            raise SetupError(
                "no worker is left that is like the one that measured the untuned model: "
                + ("; ".join(self.answer.differences(other)) or "another device or driver"),
                tip=f"`resume` continues when such a machine is there, or tune under another {marked('study', 'NAME')}",
            )
        return alike[0]

    def least_busy(self) -> Member:
        """Where the next trial goes. Of equally busy ones the one that has done the least."""
        return min(self.usable(), key=lambda member: (len(member.jobs), member.num_trials))
