"""`EquivalentTrial`: an earlier trial that ran the same program, so that its samples hold for this trial too.

Equal programs run equally fast, and what two processes of one program differ by is noise: sampled again, the second
name of a config would only be another chance to look lucky (docs/decisions/0006-same-program.md).
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
    """The trial that measured the program, and what it brought back."""

    number: int
    measurement: Measurement


def find_equivalent_trial(request: TrialRequest, program: str | None, here: Environment) -> EquivalentTrial | None:
    """The earlier trial whose samples serve; None: sample. Whatever is missing, broken or in doubt means None.

    Its samples must be its own, of this very program, made in an environment like this one, after a warm-up that
    settled, and taken to the end, or cut short by a rule that would cut this trial's short as well.
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
    serves = earlier.environment.is_like(here) and _are_enough(earlier.samples, request)
    return EquivalentTrial(number, earlier) if serves else None


def _are_enough(samples: Samples, request: TrialRequest) -> bool:
    if samples.ended_by == "turns" or not samples.steady:
        return False
    if samples.are_whole:
        return True
    # Stopped early it lost to the best of that time. The best has only become better since; but the rule may have
    # changed with the budget, or the noise floor, and then its few samples would be taken for more than they are.
    return is_clearly_slower(samples.latency_s, request.sampling, request.incumbent_s)
