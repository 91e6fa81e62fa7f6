"""`TieredModel`: a job's model in several tiers, of which each call takes the best that its time allows.

    tiers = autotune.load_tiers("tiers.yaml")
    model = tiers.apply({"full": full_model, "half_depth": small_model})
    model.warm_up(inputs)
    model(inputs)                           # within the deadline of the file
    model.within(0.03)(inputs)              # within what is left of a request's time, in seconds

Each tier's model goes through `Loaded.apply`, with its policies: whatever is wrong leaves that tier untuned.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from autotune.backends.protocol import Backend
from autotune.backends.registry import framework_of, load_backend
from autotune.errors import AutotuneError, InputError
from autotune.job.apply import agreement_on
from autotune.job.load import load
from autotune.job.policy import Policy
from autotune.job.ranks import Pact, draft_of, level_of, stays_untuned
from autotune.job.stats import StatsRecorder, recorder_of, register
from autotune.plugins.serving.selector import TieredStats, TierSelector
from autotune.plugins.serving.tier_file import Tiers, read_tiers

_log = logging.getLogger("autotune")

FEWEST_TO_WARM_UP = 5
MOST_TO_WARM_UP = 100
"""Calls of each tier in `warm_up`: until its loader has settled, within these bounds; more than the framework's runtime
needs to warm up."""


@dataclass(frozen=True)
class LoadedTiers:
    """What is in a file of tiers. `tiers` is None where it cannot be used; `problem` then says why."""

    path: str
    tiers: Tiers | None
    problem: InputError | None = None

    def apply(self, models: Mapping[str, Any], **policy: Any) -> TieredModel:
        """One callable of the job's models, which are named as the tiers; each is compiled as it was measured.

        Each tier needs an object of its own, since a config may change its model's weights. `policy` is what
        `Loaded.apply` takes, except `monitor`: tiers are always counted. A tier without a model, and a model without a
        tier, are left out with one warning. Where the file cannot be used, or names none of the models, all of them
        stay untuned, in the given order, with no promise and no deadline; with `on_mismatch="raise"` that raises
        InputError. Raises InputError where there is no model at all, or one object for several tiers.
        """
        if not models:
            raise InputError(f"{self.path}: apply() was given no model", tip="give one for each tier: {NAME: MODEL}")
        if len({id(model) for model in models.values()}) < len(models):
            raise InputError(
                f"{self.path}: apply() was given one model for several tiers", tip="copy it: copy.deepcopy(model)"
            )
        return _TiersApplication(self, models, Policy(**policy)).applied()

    def problem_with(self, models: Mapping[str, Any]) -> InputError | None:
        """What is wrong with the file, or that no model has the name of a tier."""
        if self.tiers is None:
            return self.problem
        names = [tier.name for tier in self.tiers.tiers]
        if set(names) & set(models):
            return None
        return InputError(
            f"{self.path} has the tiers {', '.join(names)}, and models were given for {', '.join(models)}",
            tip="give one model for each tier: {NAME: MODEL}",
        )


class _TiersApplication:
    """The models of all tiers under one policy."""

    def __init__(self, loaded: LoadedTiers, models: Mapping[str, Any], policy: Policy) -> None:
        self._loaded = loaded
        self._models = models
        self._policy = policy
        tiers = () if loaded.tiers is None else loaded.tiers.tiers
        folder = Path(loaded.path).parent
        self._files = {tier.name: load(folder / tier.file) for tier in tiers if tier.name in models}
        # The best tier last: what a config sets for the whole process is then as the best one wants it.
        names = reversed([*self._files])
        self._uses = {name: self._files[name].application(models[name], policy) for name in names}
        self._refusals: dict[str, Exception | None] = {}
        """Refusal of each tier that was begun; None: it has none."""

    def applied(self) -> TieredModel:
        """What the job calls."""
        answers = [each.answer for each in self._files.values()]
        draft, first = (
            draft_of("tiers", self._loaded.path, self._loaded.tiers, *answers),
            next(iter(self._models.values())),
        )
        with agreement_on(draft, self._loaded.tiers, first, self._policy) as agreement:
            refusal = self._begin(agreement.pact)
            if refusal is None or self._policy.on_mismatch != "raise":
                refusal = agreement.reached(refusal, self._left_out())
            return self._end(refusal, agreement.pact, _backend_of(first))

    def _begin(self, pact: Pact | None) -> Exception | None:
        """Apply each tier's config, and return what keeps all of them from theirs."""
        problem = self._loaded.problem_with(self._models)
        for name, use in {} if problem is not None else self._uses.items():
            self._refusals[name] = refusal = use.begin(None if pact is None else pact.part(name))
            if refusal is not None and self._policy.on_mismatch == "raise":
                return refusal
        return problem

    def _left_out(self) -> dict[str, str]:
        """Tiers, and parts of tiers, that stay untuned, and why."""
        left_out = {name: self._policy.told_of(why) for name, why in self._refusals.items() if why is not None}
        for name in self._refusals:
            left_out |= {f"{name} ({part})": why for part, why in self._uses[name].left_out.items()}
        tiers = () if self._loaded.tiers is None else self._loaded.tiers.tiers
        return left_out | {tier.name: "no model was given for it" for tier in tiers if tier.name not in self._models}

    def _end(self, refusal: Exception | None, pact: Pact | None, backend: Backend | None) -> TieredModel:
        if refusal is not None:
            for name in self._refusals:
                self._uses[name].withdraw()
            if self._policy.on_mismatch == "raise":
                raise refusal
            stay = f"{stays_untuned('the tiers stay', pact)}, in the order in which they were given"
            _log.log(level_of(pact), "autotune: %s", self._policy.told_of(refusal, stay))
            return TieredModel([(name, model, None) for name, model in self._models.items()], math.inf, backend)
        assert self._loaded.tiers is not None
        self._say_what_is_left_out(self._loaded.tiers, level_of(pact))
        given = {name: use.end(self._refusals[name])[0] for name, use in self._uses.items()}
        present = [tier for tier in self._loaded.tiers.tiers if tier.name in given]
        tiers = [(tier.name, given[tier.name], tier.p99_s) for tier in present]
        return TieredModel(tiers, self._loaded.tiers.deadline_s, backend)

    def _say_what_is_left_out(self, tiers: Tiers, level: int) -> None:
        names = [tier.name for tier in tiers.tiers]
        left_out = [*(f"tier {name}, which has no model" for name in names if name not in self._models)]
        left_out += [f"the model {name}, which is no tier there" for name in self._models if name not in names]
        if left_out:
            _log.log(level, "autotune: %s: left out: %s", self._loaded.path, "; ".join(left_out))


class TieredModel:
    """A callable that takes, in each call, the best tier that is expected to keep the call's budget.

    All tiers take the same inputs. What a miss does, and for how long: see `selector`. Threads may share it.
    """

    def __init__(
        self, tiers: Iterable[tuple[str, Any, float | None]], deadline_s: float, backend: Backend | None
    ) -> None:
        """(name, model, promised 99th percentile in seconds or None) of each tier, the best first. `backend` is that of
        their framework; None: a call returns with its result."""
        known = list(tiers)
        self.tiers: Mapping[str, Any] = {name: model for name, model, _ in known}
        """The models, as `apply` gave them."""
        self.deadline_s = deadline_s
        self._models = [model for _, model, _ in known]
        self._selector = TierSelector([(name, promised_s) for name, _, promised_s in known])
        self._wait: Callable[[], None] = (lambda: None) if backend is None else backend.synchronise
        self._fewest_to_warm_up = max(FEWEST_TO_WARM_UP, 0 if backend is None else backend.warmup_calls + 1)
        register(self, _Statistics(self._selector, self._models))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call that has the file's deadline."""
        return self._serve(self.deadline_s, *args, **kwargs)

    def within(self, budget_s: float) -> Callable[..., Any]:
        """The model for a call that has this long, in seconds from the call on."""
        return partial(self._serve, budget_s)

    def warm_up(self, /, *args: Any, **kwargs: Any) -> None:
        """Make the first calls of every tier with these inputs: they compile, and the loader looks at the next ones.

        Nothing of it is counted. Without it the first calls miss their budgets.
        """
        for model in self._models:
            for number in range(MOST_TO_WARM_UP):
                if number >= self._fewest_to_warm_up and _state_of(model) != "settling":
                    break
                model(*args, **kwargs)
                self._wait()

    def _serve(self, budget_s: float, /, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        choice = self._selector.choose(budget_s)
        result = self._models[choice.tier](*args, **kwargs)
        self._wait()
        self._selector.record(choice, time.perf_counter() - start)
        return result


class _Statistics:
    """What `autotune.stats` finds; it must not refer to the model that it is found by."""

    def __init__(self, selector: TierSelector, models: list[Any]) -> None:
        self._selector = selector
        self._models = models

    def stats(self) -> TieredStats:
        return self._selector.stats([_state_of(model) for model in self._models])


def load_tiers(path: str | PathLike[str]) -> LoadedTiers:
    """The tiers in the YAML file at `path` that `tune --deadline` wrote, ready to `.apply({NAME: MODEL, ...})`.

    Never raises, like `load`: what is wrong with the file is for `apply` to deal with.
    """
    try:
        return LoadedTiers(fspath(path), read_tiers(path))
    except InputError as problem:
        return LoadedTiers(fspath(path), None, problem)


def _state_of(model: Any) -> str | None:
    recorder = recorder_of(model)
    return recorder.state if isinstance(recorder, StatsRecorder) else None


def _backend_of(model: Any) -> Backend | None:
    """That of the model's framework, on the model's device; None for a model of no framework."""
    framework = framework_of(model)
    if framework is None:
        return None
    backend = load_backend(framework)
    try:
        backend.adopt(model)
    except AutotuneError:
        return None  # What is wrong is said when the model is loaded.
    return backend
