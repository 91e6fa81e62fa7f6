"""`Budget`: how much a run of the loop may spend."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from autotune.errors import InputError, marked
from autotune.measure.objective import Objective
from autotune.measure.sampling import SamplingPlan
from autotune.measure.units import seconds_of
from autotune.schema import Record
from autotune.trial.request import Limits


class BusyMachinePlan(Record):
    """What is done about other programs that run on this machine meanwhile."""

    look_s: PositiveFloat = 0.5
    """Seconds for which the load of the machine is watched."""
    max_wait_s: NonNegativeFloat = 30.0
    """Before a disturbed trial is repeated, the most that is waited for a quiet machine. After a wait in vain nothing
    is waited for in the same run."""
    max_repeats: NonNegativeInt = 3
    """Disturbed trials that one run repeats, once each."""


LONGEST_LOOK_S = 1800.0
"""Where no time was given: if the blocks up to the next look take longer, nobody is made to wait for them unasked."""


class BlockPlan(Record):
    """How much is measured in a block, and how many blocks there may be."""

    num_rounds: PositiveInt = 4
    fewest_rounds: PositiveInt = 3
    max_sampling_s: PositiveFloat = 15.0
    """For all turns of a block together; after it, and after `fewest_rounds`, no further round begins."""
    first_look: Annotated[int, Field(ge=2)] = 4
    """Blocks before the first look at the data; each further look doubles them. Even, to balance starting orders."""
    num_looks: PositiveInt = 3
    """The data are looked at this often at most; what is not clear then stays undecided."""
    max_s: PositiveFloat = 240.0
    """After the first look and this time no further block begins that only tells which of proven configs is the best.
    What is not proven has all the time that the run has."""

    @property
    def looks(self) -> tuple[int, ...]:
        """Blocks after which the data are looked at."""
        return tuple(self.first_look << look for look in range(self.num_looks))

    @property
    def most_blocks(self) -> int:
        """After the last look."""
        return self.looks[-1]

    def beyond(self, num_blocks: int) -> BlockPlan:
        """This plan, with as many looks as it takes to have one after more than so many blocks."""
        plan = self
        while plan.most_blocks <= num_blocks:
            plan = plan.model_copy(update={"num_looks": plan.num_looks + 1})
        return plan

    def seconds_to_look(self, num_blocks: int, block_s: float) -> float:
        """What the blocks up to the next look take; 0 after the last."""
        return block_s * min((look - num_blocks for look in self.looks if look > num_blocks), default=0)

    def fit_for(self, objective: Objective) -> BlockPlan:
        """One turn a block where the duration of steady calls does not matter."""
        return self if objective.needs_turns else self.model_copy(update={"num_rounds": 1})


class Budget(Record):
    """Limits and counts are no part of the question that a study asks: they may change between runs."""

    num_trials: PositiveInt | None = 24
    """Trials of the whole study, earlier runs included, that say something about a config. None: as many as there is
    time for."""
    wall_s: PositiveFloat | None = Field(None, allow_inf_nan=False)
    """Seconds that one run may take in all; None: as long as it takes."""
    stop_early: bool = True
    """Leave trials unused that promise too little (`forecast`)."""
    thorough: bool = False
    """Go on until more trials in a row gained nothing, where the search began with a portfolio."""
    portfolio: bool = True
    """Begin with configs that were best on other models."""
    num_jobs: PositiveInt | None = None
    """Trials that are compiled at the same time, where that changes nothing that is compared. None: as many as fit."""
    limits: Limits = Limits()
    cuts_slow_compiles: bool = True
    """A compile that takes many times what the others took is cut off before the limit of its stage."""
    sampling: SamplingPlan = SamplingPlan()
    """How a trial of the search is timed."""
    noise_floor: BlockPlan = BlockPlan(num_rounds=5, max_sampling_s=6.0, first_look=2, num_looks=1)
    """How the untuned model is compared with itself."""
    sentinel: SamplingPlan = SamplingPlan(min_samples=10, max_sampling_s=1.0, max_warmup_s=2.0)
    """How the untuned model is timed again between trials."""
    trials_per_sentinel: PositiveInt = 4
    quiet: BusyMachinePlan = BusyMachinePlan()
    confirmation: BlockPlan = BlockPlan()

    def but(
        self,
        *,
        num_trials: int | None = None,
        wall_s: float | None = None,
        stop_early: bool | None = None,
        num_jobs: int | None = None,
        compile_s: float | None = None,
        total_s: float | None = None,
    ) -> Budget:
        """This budget, except for what is given. With a time and no number of trials, the time alone is the limit; with
        seconds for a compile, they alone are that of a compile."""
        of_compile = {} if compile_s is None else {"compile": compile_s, "check": compile_s}
        of_trial = {} if total_s is None else {"total": total_s}
        return self.model_copy(
            update={
                "num_trials": num_trials or (None if wall_s else self.num_trials),
                "wall_s": wall_s or self.wall_s,
                "stop_early": self.stop_early if stop_early is None else stop_early,
                "num_jobs": num_jobs or self.num_jobs,
                "limits": self.limits.model_copy(update={**of_compile, **of_trial}),
                "cuts_slow_compiles": self.cuts_slow_compiles and compile_s is None,
            }
        )


def duration_s(text: str) -> float | None:
    """Seconds of `90s`, `10m`, `1.5h` or `600`; None where the text is no duration. Raises InputError for 0."""
    seconds = seconds_of(text, bare="s")
    if seconds == 0:
        raise InputError(f"{marked('budget', text)}: not a duration above 0", tip="give e.g. 90s, 10m or 1h")
    return seconds
