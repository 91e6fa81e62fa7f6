"""`verify_against`: what another environment changes for an exported config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

from autotune.api.callbacks import notify_all
from autotune.api.events import BothMeasured, Callback
from autotune.api.running import BudgetLike, parse_budget
from autotune.api.scratch import bench_in, scratch
from autotune.api.side_by_side import Exported, read_exported, require_share
from autotune.errors import shown_at_the_call
from autotune.measure.objective import Objective
from autotune.verification.upgrade import BothEnvironments, Environment, Upgrade, upgrade


@shown_at_the_call
def verify_against(
    file: Exported,
    environment: str | PathLike[str],
    *,
    max_loss: float = 0.0,
    budget: BudgetLike | None = None,
    env: Mapping[str, str] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
) -> Upgrade:
    """Measure an exported config and the untuned model here and under the releases of another environment.

    `environment`: the folder of a virtual environment, or its interpreter, where this package and the framework are
    installed. `max_loss` as of `verify`, of the speed here; `budget` and `env` too; `callbacks` receive a
    `BothMeasured` for each block.

    Returns an `Upgrade`: `outcome` is `"holds"`, `"regressed"`, `"wrong"` (something fails there, or gives other
    outputs) or `"unclear"`; `untuned` and `tuned` are the `Speedup` of either model there over that here, `gains` those
    of the config here and there. Raises InputError for a file or an environment that
    is of no use, else like `verify`.
    """
    require_share(max_loss)
    limits, notify = parse_budget(budget), notify_all(callbacks)
    tuned = read_exported(file, env)
    other = Environment.of(environment, tuned.framework)
    objective, variables = Objective.parse(tuned.workload.objective), tuned.environment.variables
    with (
        scratch() as folder,
        bench_in(folder, variables) as here,
        bench_in(folder, variables, other.python) as there,
    ):
        return upgrade(
            tuned,
            other.framework_version,
            BothEnvironments(here, there),
            limits,
            folder,
            on_block=lambda values: notify(BothMeasured(objective, dict(values))),
            max_loss=max_loss,
        )
