"""`--framework both`: a study for each of two frameworks, and then their answers side by side.

Each is an ordinary study with a budget and an answer of its own; nothing below this module knows of the other one. Time
and trials are divided evenly, and what the first study leaves over goes to the second. The two answers are measured
against each other as `compare` measures two trials, with the first framework's untuned model as the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from autotune import models
from autotune.api.events import PairMeasured
from autotune.api.given_model import named_model
from autotune.api.result import TuneResult
from autotune.api.running import Terms
from autotune.api.scratch import bench_in, scratch
from autotune.api.side_by_side import Comparison
from autotune.backends.registry import bundled_names
from autotune.errors import InputError, NoUsableTrialError, SetupError, marked
from autotune.measure.measurement import Reason
from autotune.measure.statistics import Verdict
from autotune.planning.manifest import make_manifest
from autotune.planning.models import named_models
from autotune.planning.targets import PREFERRED, choose_target
from autotune.question.allows import BOTH
from autotune.question.question import Question
from autotune.space.load import read_space_file
from autotune.study.budget import Budget
from autotune.study.study import Studies, Study
from autotune.trial.deadline import Deadline, LimitsNow
from autotune.trial.request import Limits
from autotune.tuning.events import ModelSaved
from autotune.verification.comparison import measure, paired_run_of_trials, second_failure
from autotune.workload.workload import Device

COMPARISON_SHARE = 0.2
"""Share of the whole time that is kept for measuring the two answers against each other."""

Search = Callable[[Study, Terms], None]
"""Runs one study up to its verdict, and tells whoever watches."""


class BothResult(TuneResult):
    """The result of the framework to use, with what was found in either."""

    def __init__(
        self, study: Study, results: dict[str, TuneResult], left_out: dict[str, str], comparison: Comparison | None
    ) -> None:
        super().__init__(study)
        self.results = results
        """Framework -> its result, the preferred framework first; one that gave no answer is missing."""
        self.left_out = left_out
        """Framework -> why it gave no answer."""
        self.comparison = comparison
        """The second framework's answer against the first one's; None where only one gave an answer, or where no time
        was left: the studies' own figures then decide."""


def requests_of(question: Question, limits: LimitsNow = Limits) -> dict[str, Question]:
    """Framework -> the request of its study, still without a model; the preferred one for the device is the first, or
    with `A+B` the one that was written first.

    Raises InputError for what two frameworks cannot be asked for, and like `choose_target`.
    """
    frameworks, device = _choose_targets(str(question.framework), question.device, limits)
    spaces = spaces_of(question.space, frameworks)
    return {
        framework: question.model_copy(
            update={
                "build": (),
                "framework": framework,
                "device": device,
                "study": None if question.study is None else f"{question.study}-{framework}",
                "space": (spaces[framework],) if framework in spaces else (),
            }
        )
        for framework in frameworks
    }


@contextmanager
def open_both(
    question: Question,
    build: Any,
    limits: LimitsNow,
    place: Studies,
    tell: Callable[[ModelSaved], None] = lambda _: None,
) -> Iterator[dict[str, Study]]:
    """Framework -> its study, opened for the block. `build`: what `tune` takes for both frameworks, or the values of
    `--model`; `place`: where the studies are.

    Raises like `requests_of` and `make_manifest`.
    """
    requests = requests_of(question, limits)
    builds = _builds_of(build, tuple(requests))
    with ExitStack() as stack:
        studies = {}
        for framework, own in requests.items():
            with named_model(builds[framework], None, own, place.folder, tell) as named:
                studies[framework] = place.open_or_create(make_manifest(named, limits))
            stack.callback(studies[framework].close)
        yield studies


def tune(
    question: Question,
    build: Any,
    terms: Terms,
    place: Studies,
    run: Search,
    *,
    tell: Callable[[ModelSaved], None],
    notify: Callable[[PairMeasured], None],
) -> BothResult:
    """What `autotune.tune` does with `framework="both"`. Raises like `open_both` and `tune_both`."""
    with open_both(question, build, terms.limits, place, tell) as studies:
        return tune_both(studies, terms, run, notify)


def _builds_of(build: Any, frameworks: tuple[str, ...]) -> Mapping[str, Any]:
    if isinstance(build, (str, tuple)):
        return models_of((build,) if isinstance(build, str) else build, frameworks)
    if not isinstance(build, Mapping) or build.keys() != set(frameworks):
        raise InputError(
            f"one function or model is one framework's, and there are {_listed(frameworks)}",
            tip=f"give a dict: {{{', '.join(f'{name!r}: build_{name}' for name in frameworks)}}}",
        )
    return build


def models_of(texts: tuple[str, ...], frameworks: tuple[str, ...]) -> dict[str, str]:
    """Framework -> its model, from the values of `--model`. Raises InputError.

    A bundled model exists under one name in several frameworks. A function of the user's gives one framework's model,
    so several frameworks need one each: `--model torch=FILE.py:FUNCTION --model mindspore=FILE.py:FUNCTION`.
    """
    named = named_models(texts)
    if len(texts) == 1 and not named:
        if len(frameworks) > 1 and texts[0] not in models.names():
            raise InputError(
                f"{marked('build', texts[0])}: one function gives one framework's model, the study has "
                f"{_listed(frameworks)}",
                tip=f"name one for each, with the same weights and inputs: {_one_for_each(frameworks)}",
            )
        return dict.fromkeys(frameworks, texts[0])
    if len(named) < len(texts) or named.keys() != set(frameworks):
        raise InputError(
            f"{marked('build', list(texts))}: one model for each framework is needed: {_listed(frameworks)}",
            tip=f"write: {_one_for_each(frameworks)}",
        )
    return named


def _listed(frameworks: tuple[str, ...]) -> str:
    return " and ".join(frameworks)


def _one_for_each(frameworks: tuple[str, ...]) -> str:
    return marked("build", dict.fromkeys(frameworks, "FILE.py:FUNCTION"))


def spaces_of(files: tuple[Path, ...], frameworks: tuple[str, ...]) -> dict[str, Path]:
    """Framework -> its space file, of those given with `--space`: each file says whose it is. Raises InputError."""
    spaces: dict[str, Path] = {}
    for path in files:
        framework = read_space_file(path).framework
        if framework not in frameworks:
            raise InputError(f"{path}: key framework: is {framework!r}, but the study uses {_listed(frameworks)}")
        if framework in spaces:
            raise InputError(
                f"{marked('space', path)}: {spaces[framework]} is for {framework} too", tip="give one for each"
            )
        spaces[framework] = path
    return spaces


def tune_both(
    studies: Mapping[str, Study], terms: Terms, search: Search, notify: Callable[[PairMeasured], None]
) -> BothResult:
    """Run one study after the other, and compare their answers. The studies are open, and stay so.

    Raises SetupError where the two models are not the same, and NoUsableTrialError where neither gave an answer.
    """
    first, second = studies.values()
    if not second.records():
        _require_same_function(first, second, terms)
    results: dict[str, TuneResult] = {}
    left_out: dict[str, str] = {}
    for number, (framework, study) in enumerate(studies.items()):
        own, ends = _share_of(terms, len(studies) - number)
        of_it = [source for source in terms.sources if source.framework == framework or source.framework not in studies]
        try:
            search(study, Terms(own, ends, of_it))
        except (SetupError, NoUsableTrialError) as problem:
            left_out[framework] = str(problem)
            continue
        result = TuneResult(study)
        if result.best is None:
            left_out[framework] = "no config keeps every constraint"
        else:
            results[framework] = result
    if not results:
        raise NoUsableTrialError("; ".join(f"{name}: {why}" for name, why in left_out.items()))
    comparison = _compared(first, second, results, terms, notify) if len(results) == 2 else None
    return BothResult(studies[_to_use(results, comparison)], results, left_out, comparison)


def _choose_targets(text: str, device: str, limits: LimitsNow) -> tuple[tuple[str, ...], Device]:
    """Two frameworks, and the device that both of them use: with `auto` the CPU where they do not find the same one."""
    names = bundled_names() if text == BOTH else tuple(text.split("+"))
    if len(set(names)) != 2 or len(names) != 2:
        raise InputError(
            f"{marked('framework', text)}: two different frameworks can be asked for", tip="write A+B, or both"
        )
    found = {choose_target(name, device, limits)[1] for name in names}
    chosen = found.pop() if len(found) == 1 else "cpu"
    return tuple(sorted(names, key=PREFERRED[chosen].index)) if text == BOTH else names, chosen


def _share_of(terms: Terms, num_left: int) -> tuple[Budget, Deadline]:
    """The budget of the next of so many studies, and its end."""
    budget, time = terms.budget, terms.time
    num_trials = None if budget.num_trials is None else math.ceil(budget.num_trials / 2)
    own = budget.model_copy(update={"num_trials": num_trials})
    if budget.wall_s is None:
        return own, time
    share_s = max((time.left_s() - COMPARISON_SHARE * budget.wall_s) / num_left, 1e-3)
    return own.model_copy(update={"wall_s": share_s}), Deadline(time.clock() + share_s, time.clock)


def _require_same_function(first: Study, second: Study, terms: Terms) -> None:
    """Raises SetupError where the second framework's untuned model gives other outputs than the first one's.

    Found before anything is searched: no config of the second framework could be right. A model that fails in another
    way is left to its study.
    """
    with scratch() as folder, bench_in(folder, first.variables) as bench:
        pair = paired_run_of_trials(first, None, None, folder, second)
        limits = terms.time.cap(terms.budget.limits)
        failure = second_failure(pair, bench, terms.budget.model_copy(update={"limits": limits}))
    if failure is not None and failure.reason is Reason.WRONG_RESULT:
        raise SetupError(
            f"the untuned model in {second.manifest.framework} does not give what it gives in "
            f"{first.manifest.framework}: {failure.error}",
            tip=f"give both functions the same weights and inputs, or allow more with {marked('tolerance')}; then tune "
            f"under another {marked('study', 'NAME')}",
        )


def _compared(
    first: Study,
    second: Study,
    results: Mapping[str, TuneResult],
    terms: Terms,
    notify: Callable[[PairMeasured], None],
) -> Comparison | None:
    """None where too little time is left, or an untuned model does not run any more."""
    one, other = (result.best for result in results.values())
    assert one is not None
    assert other is not None

    def on_block(one: float, other: float) -> None:
        notify(PairMeasured(first.manifest.objective, one, other))

    left_s = None if terms.budget.wall_s is None else max(terms.time.left_s(), 1e-3)
    with scratch() as folder:
        pair = paired_run_of_trials(first, one.number, other.number, folder, second)
        with bench_in(folder, pair.variables) as bench:
            try:
                found = measure(pair, bench, terms.budget.model_copy(update={"wall_s": left_s}), on_block)
            except SetupError:
                return None
    return Comparison(**vars(found), names=(first.name, second.name))


def _to_use(results: Mapping[str, TuneResult], comparison: Comparison | None) -> str:
    """The second framework where it is proven better; without a comparison the one with the better figure."""

    def value(framework: str) -> float:
        best = results[framework].best
        assert best is not None
        return results[framework].answer.objective.value(best.measurement)

    first, *others = results
    if not others:
        return first
    if comparison is None or (comparison.failure is not None and comparison.failed == "untuned"):
        return min(results, key=value)
    if comparison.failure is not None:
        return others[0] if comparison.failed == "first" else first
    return others[0] if comparison.verdict is Verdict.FASTER else first
