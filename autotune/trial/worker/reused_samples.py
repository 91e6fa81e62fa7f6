"""`EquivalentTrial`: an earlier trial that ran the same program, so that its samples are valid for this trial too.

Equal programs run equally fast, and differences between two processes of one program are noise: sampling it again
under a second config would only give it another chance to look fast (docs/decisions/0006-same-program.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.environment import Environment
from autotune.measure.measurement import Measurement, Samples
from autotune.measure.sampling import is_clearly_slower
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest


@dataclass(frozen=True)
class EquivalentTrial:
    """The trial that measured the program, and its measurement."""

    number: int
    measurement: Measurement


def find_equivalent_trial(request: TrialRequest, program: str | None, here: Environment) -> EquivalentTrial | None:
    """The earlier trial whose samples are valid here; None: take samples. Missing or damaged files mean None.

    The samples must be its own, of the same program, taken in an environment like this one after a warm-up that
    settled, and complete, or cut short by a rule that would cut this trial's samples short as well.
    """
    known = request.known_programs.get(program) if program is not None else None
    if known is None:
        return None
    folder = TrialFolder(Path(known).parent)
    try:
        number = folder.read_request().number
    except (OSError, ValueError):
        return None
    earlier = folder.read_outcome()
    if not isinstance(earlier, Measurement) or earlier.program != program or earlier.reused_from is not None:
        return None
    is_valid = earlier.environment.is_like(here) and _are_enough(earlier.samples, request)
    return EquivalentTrial(number, earlier) if is_valid else None


def _are_enough(samples: Samples, request: TrialRequest) -> bool:
    if samples.ended_by == "turns" or not samples.steady:
        return False
    if samples.are_whole:
        return True
    # It was stopped early because it was slower than the best config of that time, which can only have become faster.
    # But the rule may have changed with the budget or the noise floor; then its few samples are not enough.
    return is_clearly_slower(samples.latency_s, request.sampling, request.incumbent_s)
