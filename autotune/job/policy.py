"""`Policy`: how a job wants its tuned model, and `LoadedFile`: what it has of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from autotune.errors import AutotuneError, InputError, quoted
from autotune.job.later_calls import share_of
from autotune.measure.parts import AuthorsWord, Compare
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.build import Variants

OnMismatch = Literal["retune-hint", "untuned", "apply", "raise"]
MARGIN = 1.5
"""Times the recorded latency that the first calls may take before the untuned model is tried."""


@dataclass(frozen=True)
class Policy:
    """How a job wants its tuned model. See `Loaded.apply`."""

    on_mismatch: OnMismatch = "retune-hint"
    check: bool | float | Compare = False
    margin: float | None = MARGIN
    monitor: bool = False
    variants: Variants = field(default_factory=dict)
    process_settings: bool = False
    """What a config sets for the whole process may be set."""
    compiler_options: bool = False
    """Options of the compiler for which no bundled search space has a knob may be set."""
    ranks: Sequence[int] | None = None
    """Ranks of a distributed job that decide together; None: all of them."""

    def __post_init__(self) -> None:
        if self.on_mismatch not in get_args(OnMismatch):
            raise InputError(
                f"on_mismatch={self.on_mismatch!r}: unknown", tip=f"choose one of: {', '.join(get_args(OnMismatch))}"
            )
        share_of(self.check)
        _ = self.word

    @property
    def word(self) -> AuthorsWord | None:
        """How the job has outputs compared; None: as the file says. Raises InputError."""
        return None if isinstance(self.check, (bool, float)) else AuthorsWord.of(self.check)

    def told_of(self, error: Exception, *consequences: str) -> str:
        """What keeps a model from its config, in one line that says what to do where the job wants that."""
        what = str(error) if isinstance(error, AutotuneError) else quoted(error)
        tip = getattr(error, "tip", None) if self.on_mismatch != "untuned" else None
        return "; ".join(filter(None, [what, *consequences, tip]))


@dataclass(frozen=True)
class LoadedFile:
    """What is in a file. `answer` is None where the file cannot be used; `problem` then says why."""

    path: str
    answer: TunedConfig | None
    problem: InputError | None = None
    is_component: bool = False
    """`answer` is for one component of a pipeline."""
