"""`Budget`: how much a run of the loop may spend."""

from __future__ import annotations

from pydantic import PositiveInt

from autotune.contest import BlockPlan
from autotune.measurement import Record
from autotune.timing import SamplingPlan
from autotune.trial import Limits


class Budget(Record):
    """Limits and counts are no part of the question that a study asks: they may change between runs."""

    num_trials: PositiveInt = 12
    """Trials of the whole study, earlier runs included, that say something about a config."""
    limits: Limits = Limits()
    sampling: SamplingPlan = SamplingPlan()
    """Of a trial of the search."""
    noise_floor: BlockPlan = BlockPlan(num_rounds=5, max_sampling_s=6.0, first_look=2, num_looks=1)
    """Of the untuned model against itself."""
    sentinel: SamplingPlan = SamplingPlan(min_samples=10, max_sampling_s=1.0, max_warmup_s=2.0)
    """Of the untuned model when it is timed again between trials."""
    trials_per_sentinel: PositiveInt = 4
    confirmation: BlockPlan = BlockPlan()

    def but(
        self, *, num_trials: int | None = None, compile_s: float | None = None, total_s: float | None = None
    ) -> Budget:
        """The same, except for what is given."""
        of_compile = {} if compile_s is None else {"compile": compile_s, "check": compile_s}
        of_trial = {} if total_s is None else {"total": total_s}
        return self.model_copy(
            update={
                "num_trials": num_trials or self.num_trials,
                "limits": self.limits.model_copy(update={**of_compile, **of_trial}),
            }
        )
