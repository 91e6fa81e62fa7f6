"""Ways to search a space: the tool's own, and what others would use. Each asks a `Replay` until that has enough."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import optuna
from optuna.samplers import BaseSampler, BruteForceSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from autotune.config import Config
from autotune.measure.measurement import Measurement, Outcome
from autotune.space.space import SearchSpace
from autotune.study.folder import FolderStudies
from benchmarks.replayed import Enough, Replay
from benchmarks.simulated import manifest_of

Search = Callable[[Replay, int], None]
"""Runs configs of the replay's table, with a seed, until the replay raises `Enough` or nothing is left to be run."""


def own(replay: Replay, seed: int, *, stop_early: bool = False) -> None:
    """The tool's own study: SQLite, ask and tell, as `tune` uses them."""
    with tempfile.TemporaryDirectory(prefix="autotune-replay-") as folder:
        manifest = manifest_of(replay.question.table.space, seed)
        manifest = manifest.model_copy(update={"constraints": replay.question.constraints})
        study = FolderStudies(Path(folder)).create(manifest)
        try:
            while (asked := study.ask(longest_s=60)) is not None:
                study.tell(asked, replay.run(asked.config))
                if stop_early and (forecast := study.forecast()) is not None and forecast.is_negligible:
                    break
        except Enough:
            pass
        finally:
            study.close()


def at_random(replay: Replay, seed: int) -> None:
    """Every config once, in a random order, after the untuned model and the default compile."""
    first, others = _split(replay.question.table.space)
    random.Random(seed).shuffle(others)
    _run_all(replay, [*first, *others])


def by_modes(replay: Replay, seed: int) -> None:  # noqa: ARG001  There is nothing random about it.
    """The loop that users write: the default compile once with each of the modes that the framework offers."""
    space = replay.question.table.space
    changed = [
        _default_but(space, knob.name, value) for knob in space.knobs if knob.name in _MODES for value in knob.values
    ]
    _run_all(replay, [each for each in dict.fromkeys([*_first(space), *changed]) if space.forbidden(each) is None])


_MODES = frozenset({"execution", "backend", "mode", "capture", "jit_level"})


def with_optuna(make_sampler: Callable[[int], BaseSampler]) -> Search:
    """A loop around one of Optuna's samplers, as its manual has it: the space defined by run, failures as penalties.

    It starts with the untuned model and the default compile like the others. Constraints are told as Optuna 5 has them.
    """

    def search(replay: Replay, seed: int) -> None:
        study = optuna.create_study(sampler=make_sampler(seed))
        space = replay.question.table.space
        for config in _first(space):
            study.enqueue_trial(dict(config.root))
        worst_s = 0.0
        try:
            while True:
                trial = study.ask()
                config = space.walk(trial.suggest_categorical)
                outcome = replay.run(config) if space.forbidden(config) is None else None
                for name, violation in _violations(replay, outcome).items():
                    trial.set_constraint(name, violation)
                latency_s = outcome.latency.p50 if isinstance(outcome, Measurement) else worst_s
                worst_s = max(worst_s, latency_s)
                study.tell(trial, latency_s)
        except Enough:
            pass
        except RuntimeError:
            # BruteForceSampler has no other way to say outside `optimize` that nothing is left.
            if not isinstance(study.sampler, BruteForceSampler):
                raise

    return search


def searches() -> dict[str, Search]:
    """Name -> what users could take; the tool's own first."""
    return {
        "autotune": own,
        "random, none twice": at_random,
        "TPE (Optuna's default)": with_optuna(lambda seed: TPESampler(seed=seed)),
        "TPE, grouped": with_optuna(
            lambda seed: TPESampler(seed=seed, multivariate=True, group=True, warn_independent_sampling=False)
        ),
        "NSGA-II": with_optuna(lambda seed: NSGAIISampler(seed=seed)),
        "BruteForce": with_optuna(lambda seed: BruteForceSampler(seed=seed)),
        "Random (Optuna)": with_optuna(lambda seed: RandomSampler(seed=seed)),
        "GP (Optuna)": with_optuna(lambda seed: GPSampler(seed=seed)),
        "loop over modes": by_modes,
    }


def _violations(replay: Replay, outcome: Outcome | None) -> dict[str, float]:
    measured = outcome if isinstance(outcome, Measurement) else None
    missed = {each.text: 0.0 if measured is None else each.violation(measured) for each in replay.question.constraints}
    return {"ok": 1.0 if measured is None else -1.0, **missed}


def _run_all(replay: Replay, configs: Iterable[Config]) -> None:
    try:
        for config in configs:
            replay.run(config)
    except Enough:
        pass


def _split(space: SearchSpace) -> tuple[list[Config], list[Config]]:
    first = _first(space)
    return first, [each for each in space.configs() if each not in first]


def _first(space: SearchSpace) -> list[Config]:
    return list(dict.fromkeys([space.untuned(), space.default()]))


def _default_but(space: SearchSpace, changed: str, value: object) -> Config:
    defaults = {knob.name: knob.default for knob in space.knobs}
    return space.walk(lambda name, values: next(v for v in values if v == value) if name == changed else defaults[name])
