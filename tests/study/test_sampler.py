"""`EnumSampler` on tables of known responses: what it proposes, what it avoids, and how soon it finds the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import optuna
import pytest

from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.space.space import Knob, SearchSpace
from autotune.study.records import Tried
from autotune.study.sampler import enum_sampler
from autotune.study.sampler.enum_sampler import EnumSampler
from benchmarks.replay import own
from benchmarks.tables import NEAR, Replay, constrained, read_table
from tests.study.synthetic_tables import large_space, make_table, medium_space, small_space

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass
class Search:
    """A search in memory: ask and tell."""

    space: SearchSpace
    values_of: object
    """Config -> what is minimised, None where it fails."""
    violations_of: object = lambda _: {}
    seed: int = 0
    seconds_of: object = lambda _: None
    """Config -> seconds of its trial."""
    asked: list[Config] = field(default_factory=list)

    def __post_init__(self):
        self.sampler = EnumSampler(self.space, self.seed)
        self.trials = []

    def ask(self):
        """Number of a trial that is begun, and its config. Raises ValueError where none is left."""
        config = self.sampler.choose(self.trials)
        if config is None:
            raise ValueError("every config has been tried")
        self.asked.append(config)
        self.trials.append(Tried(len(self.trials), config, None, {}))
        return len(self.trials) - 1, config

    def tell(self, number, config):
        value = self.values_of(config)
        violations = self.violations_of(config).items()
        missed = {name: violation if value is not None else 0.0 for name, violation in violations}
        self.trials[number] = Tried(
            number,
            config,
            1e3 if value is None else value,
            {"ok": -1.0 if value is not None else 1.0, **missed},
            seconds=self.seconds_of(config),
        )

    def run(self, num_trials):
        for _ in range(num_trials):
            self.tell(*self.ask())
        return self.asked

    def is_exhausted(self):
        return self.sampler.choose(self.trials) is None

    def forecast(self):
        return self.sampler.forecast(self.trials)


def search_of(table, seed=0, **constraints):
    """Latencies of a table, and bounds as `compile_s=20.0`."""

    def values_of(config):
        return table.responses[config].latency_s

    def violations_of(config):
        response = table.responses[config]
        return {name: (getattr(response, name) or 0.0) - bound for name, bound in constraints.items()}

    return Search(table.space, values_of, violations_of, seed)


def best_s(table, is_allowed=lambda _: True):
    return min(each.latency_s for each in table.responses.values() if each.latency_s and is_allowed(each))


def trials_until_near(table, seed, limit=60):
    """Trials until a config within 2 % of the best was run."""
    search, near_s = search_of(table, seed), 1.02 * best_s(table)
    for number in range(1, limit + 1):
        search.run(1)
        latency_s = table.responses[search.asked[-1]].latency_s
        if latency_s is not None and latency_s <= near_s:
            return number
    return limit


def test_every_config_once_and_then_none():
    """No config comes twice, failing ones included, until all of the space were tried; then there is nothing to ask."""
    table = make_table(small_space(), 0)
    search = search_of(table)
    assert not search.is_exhausted()
    asked = search.run(49)
    assert len(set(asked)) == 49
    assert search.is_exhausted()
    with pytest.raises(ValueError, match="every config has been tried"):
        search.ask()


@pytest.mark.parametrize("make_space", [small_space, large_space])
def test_the_first_configs_differ_as_much_as_they_can(make_space):
    """Before there is anything to learn from, a config is tried that shares little with the untuned and the default."""
    space = make_space()
    untuned, default, third, _ = search_of(make_table(space, 0)).run(4)
    assert min(len(third.differing(each)) for each in (untuned, default)) >= 3


@pytest.mark.parametrize(("make_space", "mean_trials"), [(small_space, 12), (medium_space, 22)])
def test_it_is_soon_near_the_best(make_space, mean_trials):
    """Within 2 % of the best after a few trials, on average over tables, where a random order takes 23 and 125."""
    space = make_space()
    needed = [trials_until_near(make_table(space, seed), seed) for seed in range(6)]
    assert np.mean(needed) <= mean_trials, needed


def test_what_fails_is_learned_and_avoided():
    """A knob value that always fails is tried a few times, and then left alone while others promise something."""
    table = make_table(medium_space(), 5)

    def values_of(config):
        latency_s = table.responses[config].latency_s
        return None if latency_s is None or config["precision"] == "bfloat16" else latency_s

    asked = Search(table.space, values_of).run(17)
    assert any(config["precision"] == "bfloat16" for config in asked[:7])
    assert sum(config["precision"] == "bfloat16" for config in asked[7:]) <= 1


@pytest.mark.fast_cases("3")
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_constraints_are_learned(seed):
    """Where one config in six or fewer keeps both bounds, the best of those that do is soon found among 400."""
    table = make_table(medium_space(), seed)
    works = [each for each in table.responses.values() if each.latency_s]
    bounds = {
        "compile_s": float(np.quantile([each.compile_s for each in works], 0.4)),
        "peak_memory_bytes": float(np.quantile([each.peak_memory_bytes for each in works], 0.4)),
    }

    def keeps(response):
        return all((getattr(response, name) or math.inf) <= bound for name, bound in bounds.items())

    assert np.mean([keeps(each) for each in works]) < 0.2
    asked = search_of(table, seed, **bounds).run(28)
    kept = [response.latency_s for each in asked if keeps(response := table.responses[each])]
    assert min(kept) <= 1.02 * best_s(table, keeps)


def test_a_bound_kept_exactly_is_kept_well():
    """`graph_breaks == 0` is 0 where it is kept: such configs are not taken for near misses."""
    space = medium_space()
    table = make_table(space, 6)
    search = Search(
        space,
        lambda config: (table.responses[config].latency_s or 1.0) * (0.9 if config["layout"] == "contiguous" else 1.0),
        lambda config: {"graph_breaks == 0": 3.0 * (config["layout"] == "contiguous")},
    )
    asked = search.run(30)
    assert sum(config["layout"] == "contiguous" for config in asked[10:]) <= 4


def test_without_anything_feasible_it_looks_for_that():
    """As long as every trial misses a bound, the next is one that may keep it."""
    space = medium_space()
    search = Search(
        space,
        lambda config: 1.0 + (config["layout"] == "channels_last"),
        lambda config: {"c": 1.0 - 1.5 * (config.get("gemm") == "ALL") - 0.5 * (config["precision"] == "bfloat16")},
    )
    asked = search.run(30)
    assert any(config.get("gemm") == "ALL" for config in asked)


def test_trials_under_way_are_not_asked_again_and_spread_out():
    """Four workers get four different configs, and one that looked best is not followed by its twins alone."""
    table = make_table(medium_space(), 1)
    search = search_of(table)
    search.run(12)
    under_way = [search.ask() for _ in range(4)]
    configs = [config for _, config in under_way]
    assert len({*search.asked}) == 16
    for number, config in under_way:
        search.tell(number, config)
    assert not set(search.run(4)[-4:]) & set(configs)


def test_what_was_given_up_is_asked_again():
    """A trial that ended without a result says nothing: its config is free."""
    search = search_of(make_table(small_space(), 0))
    _, config = search.ask()
    search.trials.pop()
    assert search.ask()[1] == config


def test_the_same_seed_and_trials_give_the_same_configs():
    """A search that stops after ten trials and goes on in another process is the search that did not stop."""
    table = make_table(medium_space(), 2)
    straight = search_of(table, seed=5).run(20)
    broken = search_of(table, seed=5)
    broken.run(10)
    broken.sampler = EnumSampler(table.space, 5)
    assert broken.run(10) == straight
    assert search_of(table, seed=6).run(20) != straight


@pytest.mark.parametrize("make_space", [medium_space, large_space])
def test_a_forecast_serves_the_choice_that_follows(make_space, monkeypatch):
    """Asking for the forecast first changes no choice, and what was computed for it is not computed again."""
    monkeypatch.setattr("autotune.space.space.MOST_LISTED", 500)
    monkeypatch.setattr(enum_sampler, "NUM_DRAWN", 100)
    table = make_table(make_space(), 3)
    straight = search_of(table).run(16)
    search = search_of(table)
    computed = []
    forecast = search.sampler._forecaster.forecast
    search.sampler._forecaster.forecast = lambda *given: computed.append(given) or forecast(*given)
    for _ in range(16):
        search.forecast()
        search.run(1)
    assert search.asked == straight
    assert len(computed) == 14, "one a trial, once the two first configs were tried"


def test_a_choice_heeds_what_was_excluded_after_the_forecast():
    """What was computed for a forecast is of no use once other configs are excluded."""
    search = search_of(make_table(small_space(), 0))
    search.run(8)
    assert search.forecast() is not None
    chosen = search.sampler.choose(search.trials)
    search.sampler.excluded = chosen.__eq__
    assert search.ask()[1] != chosen


@pytest.mark.parametrize("quantity", ["compile", "peak_memory"])
def test_a_study_that_is_opened_before_each_trial_goes_on_as_it_would_have(quantity):
    """On a recorded table: what a process learned from the first trials does not depend on when it learned it."""
    question = constrained(read_table("small_mlp_torch"), quantity)
    assert question is not None
    for seed in (0, 1, 3):
        straight, broken = (search_on(question, seed) for _ in range(2))
        straight.run(19)
        for _ in range(19):
            broken.sampler = EnumSampler(broken.space, seed)
            broken.run(1)
        assert broken.asked == straight.asked


def test_what_was_learned_before_a_trial_ended_late_is_learned_anew():
    """Of eight trials side by side the first ends last: a process that saw the others expects what a new one does."""
    table = make_table(medium_space(), 1)
    search = search_of(table)
    search.run(3)
    late, *others = [search.ask() for _ in range(8)]
    for number, config in [*others, late]:
        search.tell(number, config)
        assert search.forecast() == EnumSampler(table.space, 0).forecast(search.trials)


def search_on(question, seed):
    """On a recorded table, under its bounds."""

    def measured(config):
        outcome = question.outcome(config)
        return outcome if isinstance(outcome, Measurement) else None

    def values_of(config):
        return None if (found := measured(config)) is None else found.latency.p50

    def violations_of(config):
        found = measured(config)
        return {each.text: 0.0 if found is None else each.violation(found) for each in question.constraints}

    return Search(question.table.space, values_of, violations_of, seed)


def test_of_two_that_promise_the_same_the_cheaper_comes_first():
    """Every config takes the same time a call; those with flag `b` take ten times as long to try."""
    flags = [Knob(name=name, doc="", values=(False, True), when={}, default=False, untuned=False) for name in "abcdef"]
    space = SearchSpace(framework="fake", knobs=tuple(flags), forbid=())
    search = Search(space, lambda _: 0.01, seconds_of=lambda config: 100.0 if config["b"] else 10.0)
    asked = search.run(30)
    dear = [config["b"] for config in asked[8:]]
    assert sum(dear) < len(dear) / 4


@pytest.mark.slow
def test_a_bound_does_not_hide_the_best_config():
    """On this recorded table a kernel that takes effects for additive ends 14 % above the best for 3 of 10 seeds."""
    question = constrained(read_table("small_mlp_torch"), "compile")
    replays = [Replay(question, num_trials=200, goal=-1.0) for _ in range(10)]
    for seed, replay in enumerate(replays):
        own(replay, seed, stop_early=True)
    assert [each.regret <= NEAR for each in replays] == [True] * 10


def test_excluded_configs_are_not_proposed():
    """What the predicate rules out is left alone, from the moment on at which it does."""
    table = make_table(small_space(), 0)
    search = search_of(table)
    ruled_out = set()
    search.sampler = EnumSampler(table.space, 0, excluded=lambda c: c.get("mode") in ruled_out)
    search.run(8)
    ruled_out.add("max")
    remaining = 49 - 24 - sum(config.get("mode") != "max" for config in search.asked)
    search.run(remaining)
    assert search.is_exhausted()
    assert not any(config.get("mode") == "max" for config in search.asked[8:])


@pytest.mark.slow
def test_a_space_too_large_to_list_is_searched_all_the_same(monkeypatch):
    """Beyond the limit configs are drawn for each choice: none comes twice, and a good one among many is found."""
    monkeypatch.setattr("autotune.space.space.MOST_LISTED", 500)
    monkeypatch.setattr(enum_sampler, "NUM_DRAWN", 300)
    table = make_table(large_space(), 0)
    search = search_of(table)
    assert search.space.num_configs is None
    asked = search.run(40)
    assert len(set(asked)) == 40
    values = sorted(each.latency_s for each in table.responses.values() if each.latency_s)
    found = min(latency_s for each in asked if (latency_s := table.responses[each].latency_s))
    assert found <= values[len(values) // 200], "among the best 0.5 %"


def knob(name, *values):
    return Knob(name=name, doc="", values=values, when={}, default=values[0], untuned=values[0])


FLAGS = SearchSpace(framework="fake", knobs=tuple(knob(f"k{number}", False, True) for number in range(7)), forbid=())


def test_what_the_space_forbids_is_not_drawn():
    """Nor tried because a config beside it is good."""
    space = SearchSpace(framework="fake", knobs=FLAGS.knobs, forbid=(({"k0": True, "k1": True}, "never together"),))
    drawn = enum_sampler.draw(space, 0, near=[Config({knob.name: knob.name == "k0" for knob in space.knobs})])
    assert len(drawn) == 96
    assert not any(space.forbidden(config) for config in drawn)


def test_a_flat_table_soon_looks_bleak():
    """Where all configs take the same time up to noise, it is known before long, not at once, that nothing helps."""
    generator = np.random.default_rng(0)
    search = Search(FLAGS, lambda _: math.exp(generator.normal(0, 0.005)))
    search.run(11)
    assert not search.forecast().is_negligible
    search.run(13)
    assert search.forecast().is_negligible


def test_a_late_winner_is_waited_for():
    """Effects that add up promise more until the config that has them all was found, which no early trial was near."""
    search = Search(FLAGS, lambda config: math.exp(-0.1 * sum(map(bool, config.root.values()))))
    winner = Config(dict.fromkeys((knob.name for knob in FLAGS.knobs), True))
    while winner not in search.asked:
        forecast = search.forecast()
        assert forecast is None or not forecast.is_negligible
        search.run(1)


@pytest.mark.slow
def test_a_winner_that_takes_two_knobs_at_once_is_waited_for():
    """Neither knob alone does anything: the search goes on until it met them together."""

    def values_of(config):
        return 0.6 if config["k2"] and config["k5"] else 1.0 + 0.002 * sum(map(bool, config.root.values()))

    for seed in range(5):
        search = Search(FLAGS, values_of, seed=seed)
        while (forecast := search.forecast()) is None or not forecast.is_negligible:
            search.run(1)
        assert min(values_of(config) for config in search.asked) < 1


def test_idle_trials_are_those_since_the_last_notable_gain():
    """A trial that is better by less than one per cent does not start the count anew, nor does one that may not win."""
    latencies = iter([1.0, 0.9, 0.895, 0.5, 0.95])
    feasible = iter([True, True, True, False, True])
    search = Search(FLAGS, lambda _: next(latencies), lambda _: {"c": -1.0 if next(feasible) else 1.0})
    search.run(5)
    assert search.forecast().num_idle == 3


def test_there_is_no_outlook_where_nothing_is_forecast():
    """Before the planned configs were tried, and after everything was, there is nothing to tell."""
    search = Search(SearchSpace(framework="fake", knobs=FLAGS.knobs[:2], forbid=()), lambda _: 1.0)
    assert search.forecast() is None
    search.run(3)
    assert search.forecast().num_untried == 1
    search.run(1)
    assert search.forecast() is None
