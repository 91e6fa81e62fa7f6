"""What a job does with a model under a config, one module a kind of work.

A module here needs no entry anywhere: its `Use` is found by being here.
"""

from __future__ import annotations

from autotune.job.uses.use import Use
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.kinds import Rows
from autotune.workload.kinds.infer import Infer

_ROWS: Rows[Use] = Rows(__name__, __path__, Use)


def use_of(tuned: TunedConfig | None) -> type[Use]:
    """The use of what a file was tuned for; None: the file cannot be read, and a model stays as it is."""
    return _ROWS.of(Infer if tuned is None else tuned.kind)
