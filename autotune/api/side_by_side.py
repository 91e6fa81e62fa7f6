"""`verify` and `compare`: two configs measured against each other, outside of any study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from autotune.api.callbacks import notify_all
from autotune.api.events import Callback, PairMeasured
from autotune.api.running import BudgetLike, parse_budget
from autotune.api.scratch import bench_in, scratch
from autotune.api.studies import studies_at
from autotune.errors import InputError, shown_at_the_call
from autotune.measure.objective import Objective
from autotune.question.question import DEFAULT_STUDIES_DIR
from autotune.study.study import Studies
from autotune.tuned.tuned_config import TunedConfig, load_tuned
from autotune.verification.comparison import ComparisonResult, OnBlock, PairedRun, measure, paired_run_of_trials
from autotune.verification.verify import Verification, paired_run_of_configs, paired_run_with_untuned
from autotune.verification.verify import verify as verify_tuned
from autotune.workload.process_start import given_again

Exported = str | PathLike[str] | TunedConfig
"""The path of an exported YAML file, or what is in one."""


@dataclass(frozen=True)
class Comparison(ComparisonResult):
    """Either a comparison of two configs or the failure of one of them (or of the untuned model) and its name."""

    names: tuple[str, str] = ("first", "second")
    """What the two are called: their files, or `trial N`."""


@shown_at_the_call
def verify(
    file: Exported,
    *,
    max_loss: float = 0.0,
    budget: BudgetLike | None = None,
    env: Mapping[str, str] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
) -> Verification:
    """Measure an exported config against the untuned model again, on this machine.

    `max_loss`: share (0 to 1) of the promised speed-up that may be lost without being a regression. `budget`: a time
    such as `"10m"`, seconds, or a `Budget`. `env`: variables of the processes; those of the file that no file may set
    have to be given again. `callbacks` receive a `PairMeasured` for each block.

    Returns a `Verification`: `outcome` is `"holds"`, `"regressed"`, `"wrong"` (it fails or computes something else) or
    `"unclear"` (the machine is too noisy to tell), `why` a sentence, `promised` and `result.speedup` the `Speedup` of
    then and of today. Raises InputError for a file that cannot be read, MissingFrameworkError or MissingDeviceError
    where it cannot be measured here, and SetupError if the untuned model fails or is not the one that was tuned.
    """
    require_share(max_loss)
    limits, notify = parse_budget(budget), notify_all(callbacks)
    tuned = read_exported(file, env)
    with scratch() as folder:
        pair = paired_run_with_untuned(tuned, folder)
        on_block = _on_block(Objective.parse(tuned.workload.objective), notify)
        with bench_in(folder, tuned.environment.variables) as bench:
            return verify_tuned(tuned, pair, bench, limits, on_block, max_loss=max_loss)


@shown_at_the_call
def compare(
    first: Exported | int,
    second: Exported | int,
    *,
    study: str | None = None,
    budget: BudgetLike | None = None,
    studies_dir: str | PathLike[str] = DEFAULT_STUDIES_DIR,
    storage: str | None = None,
    env: Mapping[str, str] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
) -> Comparison:
    """Measure two configs of a model side by side, with the method of a study's verdict.

    `first` and `second` are two exported YAML files of the same workload, or with `study` the numbers of two of its
    trials; `studies_dir` and `storage` as of `tune`. Both run with the first one's seed. `budget`, `env` and
    `callbacks` as of `verify`.

    Returns a `Comparison`: `speedup` is that of the second over the first (`median`, `low`, `high`: above 1 the second
    is better), `values` the medians of the objective (seconds or bytes), `verdict` is about the second. Where one of
    them fails, `failure` says how and `failed` which (`"untuned"`, `"first"` or `"second"`), and the others are None.
    Raises InputError for files that are not comparable and for an unknown study or trial, else like `verify`.
    """
    limits, notify = parse_budget(budget), notify_all(callbacks)
    with scratch() as folder:
        studies = studies_at(studies_dir, storage)
        pair, names = _asked(first, second, study, studies, folder=folder, env=env or {})
        with bench_in(folder, pair.variables) as bench:
            found = measure(pair, bench, limits, _on_block(pair.objective, notify))
    return Comparison(**vars(found), names=names)


def _asked(
    first: Exported | int,
    second: Exported | int,
    study: str | None,
    studies: Studies,
    *,
    folder: Path,
    env: Mapping[str, str],
) -> tuple[PairedRun, tuple[str, str]]:
    """What is to be measured, and what the two are called."""
    if isinstance(first, int) and isinstance(second, int) and study is not None:
        with closing(studies.open(study)) as opened:
            opened.accept(env)
            return paired_run_of_trials(opened, first, second, folder), (f"trial {first}", f"trial {second}")
    if isinstance(first, int) or isinstance(second, int) or study is not None:
        raise InputError(
            f"compare({first!r}, {second!r}, study={study!r}): not understood",
            tip='give two exported files, or two numbers of trials with their study: compare(3, 7, study="NAME")',
        )
    pair = paired_run_of_configs(read_exported(first, env), read_exported(second, env), folder)
    return pair, (file_of(first) or "first", file_of(second) or "second")


def require_share(max_loss: float) -> None:
    """Raises InputError."""
    if not 0 <= max_loss <= 1:
        raise InputError(f"max_loss={max_loss}: is not a share", tip="give a number from 0 to 1, e.g. 0.1")


def file_of(exported: Exported) -> str | None:
    """Where it lies; None where it is in no file."""
    return None if isinstance(exported, TunedConfig) else fspath(exported)


def read_exported(exported: Exported, env: Mapping[str, str] | None) -> TunedConfig:
    """What is in it, under the variables that it may set and those that the user gives. Raises InputError."""
    tuned = exported if isinstance(exported, TunedConfig) else load_tuned(exported)
    known = tuned.environment
    variables = given_again(known.variables, env or {}, file_of(exported) or "the exported config")
    return tuned.model_copy(update={"environment": known.model_copy(update={"variables": variables})})


def _on_block(objective: Objective, notify: Callable[[PairMeasured], None]) -> OnBlock:
    return lambda first, second: notify(PairMeasured(objective, first, second))
