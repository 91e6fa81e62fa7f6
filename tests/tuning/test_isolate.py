"""The smallest set of settings that makes trials fail, from synthetic outcomes with a known cause."""

from __future__ import annotations

import random

import pytest

from autotune.config import Config
from autotune.measure.measurement import Failure
from autotune.space.load import Circumstances, load_space
from autotune.study.records import TrialRecord
from autotune.tuning.failure_rules.isolate import (
    FREE_QUESTIONS,
    LARGEST_CHANCE,
    MOST_QUESTIONS,
    TRIALS_A_QUESTION,
    Question,
    investigate,
    kind_of,
)

KNOB = "  {name}: {{doc: 'https://e.org', values: {values}, default: {default}, when: {{{when}}}}}\n"


def knob(name, values="[false, true]", default="false", when="execution: compile"):
    return KNOB.format(name=name, values=values, default=default, when=when)


SPACE = (
    "schema: 1\nframework: fake\nknobs:\n"
    "  execution: {doc: 'https://e.org', values: [eager, compile], untuned: eager, default: compile}\n"
    + knob("backend", "[inductor, other]", "inductor")
    + knob("mode", "[default, max, lite]", "default", "backend: inductor")
    + knob("gemm", "[plain, fancy]", "plain", "mode: max")
    + knob("dynamic", "[null, true, false]", "null")
    + knob("fullgraph")
    + knob("freezing")
    + knob("fusion", "[0, 1, 2]", "0")
)


def load(tmp_path, content):
    path = tmp_path / "own.yaml"
    path.write_text(content)
    return load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))


@pytest.fixture
def space(tmp_path):
    return load(tmp_path, SPACE)


def failure(error="RuntimeError: no", reason="compile_error", stage="compile", **more):
    return Failure(reason=reason, stage=stage, error=error, **more)


def record(number, config, outcome):
    return TrialRecord(
        number=number, config=config, outcome=outcome, violations={}, started=None, ended=None, running=False
    )


class Search:
    """A study without a disk: untuned, default, then questions first, else configs at random."""

    def __init__(self, space, measurement, causes, seed=0):
        self.space, self.causes, self.measurement = space, causes, measurement
        self.records, self.asked = [], []
        first, others = [space.untuned(), space.default()], list(space.configs())[2:]
        random.Random(seed).shuffle(others)
        self._order = first + others

    def outcome(self, config):
        for cause, error in self.causes:
            if config.matches(cause):
                return failure(error)
        return self.measurement

    def add(self, config):
        self.records.append(record(len(self.records), config, self.outcome(config)))

    def findings(self):
        return investigate(self.space, self.records, self.asked)

    def step(self):
        """One trial more; False where no config is left."""
        found = self.findings()
        if found.question is not None:
            self.asked.append(found.question)
            self.add(found.question.config)
            return True
        seen = {each.config for each in self.records}
        excluding = [each.pattern for each in found.culprits]
        left = (each for each in self._order if each not in seen and not any(each.matches(p) for p in excluding))
        config = next(left, None)
        if config is not None:
            self.add(config)
        return config is not None

    def run(self, num_trials):
        while len(self.records) < num_trials and self.step():
            pass
        return self.findings().culprits


CAUSES = [
    {"fullgraph": True},
    {"dynamic": True},
    {"mode": "max"},
    {"backend": "other"},
    {"fullgraph": True, "fusion": 1},
    {"backend": "inductor", "freezing": True},
    {"dynamic": True, "freezing": True},
    {"gemm": "fancy"},
    {"gemm": "fancy", "freezing": True},
]


@pytest.mark.parametrize("cause", CAUSES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_set_is_found(space, measurement, cause, seed):
    """One knob, a pair, a knob that is there under a condition only: exactly the planted set is blamed in the end.

    At most three trials are asked for it, all of them configs of the space that were not tried before.
    """
    search = Search(space, measurement, [(cause, "RuntimeError: no")], seed)
    culprits = search.run(80)
    assert [each.pattern for each in culprits] == [cause]
    assert all(search.records[number].config.matches(cause) for number in culprits[0].failed)
    assert len(search.asked) <= MOST_QUESTIONS
    configs = [each.config for each in search.records]
    assert len(set(configs)) == len(configs), "nothing is asked twice"
    assert all(each.config in set(space.configs()) for each in search.asked)


@pytest.mark.parametrize("cause", CAUSES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_at_no_time_is_a_rule_too_general(space, measurement, cause, seed):
    """Whatever is blamed on the way holds the planted set: a config that works is never among what it takes away."""
    search = Search(space, measurement, [(cause, "RuntimeError: no")], seed)
    for _ in range(24):
        search.step()
        for each in search.findings().culprits:
            assert Config(each.pattern).matches({n: v for n, v in cause.items() if n != "backend"})
            assert len(each.failed) >= 2
            assert not any(r.config.matches(each.pattern) for r in search.records if r.outcome is measurement)


def test_a_failure_costs_three_trials_instead_of_a_third_of_the_study(space, measurement):
    """The point of it all: of 60 trials, those that fail by a setting which half of the configs have."""
    search = Search(space, measurement, [({"fullgraph": True}, "RuntimeError: no")])
    search.run(60)
    assert sum(each.outcome is not measurement for each in search.records) <= 1 + MOST_QUESTIONS


def test_two_causes_are_told_apart(space, measurement):
    """Two culprits, with two errors or with one: exactly what fails is taken away, by two rules.

    What the first one takes away altogether the second may name as its surroundings.
    """
    for errors in (("RuntimeError: no", "ValueError: no"), ("RuntimeError: no", "RuntimeError: no")):
        causes = [({"fullgraph": True}, errors[0]), ({"freezing": True}, errors[1])]
        patterns = [each.pattern for each in Search(space, measurement, causes, seed=2).run(60)]
        assert len(patterns) == 2
        for config in space.configs():
            assert any(map(config.matches, patterns)) is any(config.matches(cause) for cause, _ in causes)


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_failures_without_a_cause_breed_no_general_rule(space, measurement, share):
    """Configs that fail at random, as a flaky machine makes them: hardly anything is taken away."""
    taken = []
    configs = list(space.configs())
    for seed in range(8):
        lottery = random.Random(f"{share} {seed}")
        unlucky = {each for each in configs[2:] if lottery.random() < share}
        search = Search(space, measurement, [], seed)
        search.outcome = lambda config, unlucky=unlucky: failure() if config in unlucky else measurement
        culprits = search.run(30)
        right = [each for each in configs if each not in unlucky]
        taken.append(sum(any(each.matches(c.pattern) for c in culprits) for each in right) / len(right))
    assert sum(taken) / len(taken) < 0.03
    assert max(taken) < 0.3


def random_crash(draw, measurement, share, *, tries):
    """What a config that works is recorded as where each process crashes with this chance."""
    crashed = [draw.random() < share for _ in range(tries)]
    told = "first_crash" if tries > 1 and crashed[0] else None
    failed = failure("killed by SIGSEGV; last line of stderr: a", reason="crash")
    return (failed if all(crashed) else measurement).model_copy(update={"first_crash": told})


@pytest.mark.parametrize(("share", "tries", "most"), [(0.15, 2, 1), (0.3, 2, 1), (0.15, 1, 3), (0.3, 1, 3)])
def test_processes_that_crash_at_random_breed_no_rule(space, measurement, share, tries, most):
    """Of 50 studies of 24 trials hardly one finds a rule, and few where a crashed config had no second process (older
    records; what these find stays with their study)."""
    num_rules = 0
    for seed in range(50):
        draw = random.Random(f"{seed} {share} {tries}")
        search = Search(space, measurement, [], seed)
        search.outcome = lambda config, draw=draw: (
            measurement if config == space.untuned() else random_crash(draw, measurement, share, tries=tries)
        )
        num_rules += bool(search.run(24))
    assert num_rules <= most


@pytest.mark.parametrize("share", [0.0, 0.15])
def test_settings_that_crash_are_found_beside_random_crashes(space, measurement, share):
    """Both processes of a config with the setting crash, and of others now and then one: the setting is blamed."""
    found = 0
    for seed in range(10):
        draw = random.Random(seed)
        search = Search(space, measurement, [({"fullgraph": True}, "")], seed)
        twice = failure("killed by SIGSEGV; last line of stderr: a", reason="crash", first_crash="x")
        search.outcome = lambda config, draw=draw, twice=twice: (
            twice if config.matches({"fullgraph": True}) else random_crash(draw, measurement, share, tries=2)
        )
        culprits = search.run(40)
        assert all(Config(each.pattern).matches({"fullgraph": True}) for each in culprits)
        assert all(each.is_repeated for each in culprits)
        found += bool(culprits)
    assert found >= 9


def test_questions_are_at_most_a_quarter_of_the_trials(space, measurement):
    """However many failures there are to trace, the search goes on beside it."""
    lottery = random.Random(7)
    unlucky = {each for each in list(space.configs())[2:] if lottery.random() < 0.4}
    search = Search(space, measurement, [])
    search.outcome = lambda config: failure(f"{config.fingerprint}Error: no") if config in unlucky else measurement
    for _ in range(50):
        search.step()
        assert len(search.asked) <= max(FREE_QUESTIONS, len(search.records) // TRIALS_A_QUESTION)
    assert len(search.asked) > FREE_QUESTIONS


class TestTracing:
    """Step by step, where a single step shows the rule."""

    def config(self, space, **settings):
        return space.walk(lambda name, values: settings.get(name, space.default().get(name, values[0])))

    def investigated(self, space, outcomes, asked=()):
        return investigate(space, [record(n, *each) for n, each in enumerate(outcomes)], asked)

    def test_what_is_at_hand_needs_no_trial(self, space, measurement):
        """A config that works and two that fail, all that they share being one setting more: nothing is asked."""
        base = {"dynamic": True, "fusion": 2, "backend": "other", "freezing": True}
        outcomes = [
            (space.untuned(), measurement),
            (space.default(), measurement),
            (self.config(space, **base), measurement),
            (self.config(space, fullgraph=True), failure()),
            (self.config(space, fullgraph=True, **base), failure()),
        ]
        found = self.investigated(space, outcomes)
        assert [each.pattern for each in found.culprits] == [{"fullgraph": True}]
        assert found.culprits[0].num_spent == 0
        assert found.culprits[0].chance is None
        assert found.question is None

    def test_one_failure_is_no_rule(self, space, measurement):
        """The next trial tells more: the setting in another config, not the same one again."""
        outcomes = [
            (space.untuned(), measurement),
            (space.default(), measurement),
            (self.config(space, fullgraph=True, backend="other"), failure()),
        ]
        found = self.investigated(space, outcomes)
        assert found.culprits == []
        assert set(found.question.suspects) == {"backend", "fullgraph"}
        assert found.question.failure == 2
        assert len(found.question.config.differing(space.default())) <= 2

    def test_what_surrounds_the_culprit_is_kept_until_it_is_cleared(self, space, measurement):
        """Two failing configs that share more than the suspect: the rule holds for what they share, no further."""
        outcomes = [
            (space.untuned(), measurement),
            (space.default(), measurement),
            (self.config(space, fullgraph=True, mode="lite"), failure()),
            (self.config(space, fullgraph=True), failure()),
        ]
        (culprit,) = self.investigated(space, outcomes).culprits
        assert culprit.pattern == {
            "backend": "inductor", "dynamic": None, "fullgraph": True, "freezing": False, "fusion": 0,
        }  # fmt: skip
        outcomes.append((self.config(space, backend="other", dynamic=True, freezing=True, fusion=2), measurement))
        question = self.investigated(space, outcomes).question
        assert question.config == self.config(
            space, backend="other", dynamic=True, freezing=True, fusion=2, fullgraph=True
        )
        outcomes.append((question.config, failure()))
        (culprit,) = self.investigated(space, outcomes, [question]).culprits
        assert culprit.pattern == {"fullgraph": True}
        assert culprit.num_spent == 1

    def test_where_no_hybrid_is_valid_the_set_stays_as_it_is(self, tmp_path, measurement):
        """Two knobs that the space allows together only are blamed together."""
        space = load(tmp_path, (
            "schema: 1\nframework: fake\nknobs:\n"
            "  execution: {doc: 'https://e.org', values: [eager, compile], untuned: eager, default: compile}\n"
            + knob("a") + knob("b") + knob("c", "[0, 1]", "0")
            + "forbid:\n  - {if: {a: true, b: false}, because: x}\n  - {if: {a: false, b: true}, because: x}\n"
        ))  # fmt: skip
        both = self.config(space, a=True, b=True)
        outcomes = [(space.untuned(), measurement), (space.default(), measurement), (both, failure())]
        outcomes.append((self.config(space, c=1), measurement))
        question = self.investigated(space, outcomes).question
        assert question.config == self.config(space, a=True, b=True, c=1)
        (culprit,) = self.investigated(space, [*outcomes, (question.config, failure())], [question]).culprits
        assert culprit.pattern == {"a": True, "b": True}

    def test_settings_that_always_come_together_are_named_by_the_first(self, tmp_path, measurement):
        """A knob that another one switches on, with one value to choose: blaming either is the same."""
        space = load(tmp_path, (
            "schema: 1\nframework: fake\nknobs:\n"
            "  execution: {doc: 'https://e.org', values: [eager, compile], untuned: eager, default: compile}\n"
            + knob("kernels") + knob("level", "[2]", "2", "kernels: true") + knob("c", "[0, 1]", "0")
        ))  # fmt: skip
        outcomes = [(space.untuned(), measurement), (space.default(), measurement)]
        outcomes += [(self.config(space, c=1), measurement)]
        outcomes += [(self.config(space, kernels=True, c=c), failure()) for c in (0, 1)]
        (culprit,) = self.investigated(space, outcomes).culprits
        assert culprit.pattern == {"kernels": True}

    @pytest.mark.parametrize("which", ["untuned", "default"])
    def test_what_every_study_needs_is_never_taken_away(self, space, measurement, which):
        """Even where the default itself fails, no rule excludes it or the untuned model."""
        search = Search(space, measurement, [({"dynamic": None}, "RuntimeError: no")], seed=1)
        for _ in range(25):
            search.step()
            needed = getattr(space, which)()
            assert not any(needed.matches(each.pattern) for each in search.findings().culprits)

    def test_nothing_is_asked_before_a_compiled_config_works(self, space, measurement):
        """That the untuned model works tells nothing about settings of the compiler."""
        outcomes = [(space.untuned(), measurement), (space.default(), failure())]
        outcomes += [(self.config(space, fullgraph=True), failure()), (self.config(space, fusion=1), failure())]
        found = self.investigated(space, outcomes)
        assert (found.culprits, found.question) == ([], None)

    def test_the_harness_teaches_nothing(self, space, measurement):
        """A trial that failed through no fault of its config is no evidence."""
        outcomes = [
            (space.untuned(), measurement),
            (space.default(), measurement),
            (self.config(space, fullgraph=True), failure(reason="harness")),
            (self.config(space, fullgraph=True, fusion=1), failure(reason="harness")),
        ]
        assert self.investigated(space, outcomes) == investigate(space, [])

    def test_without_a_hybrid_it_takes_many_trials(self, space, measurement):
        """All with the setting failed and none without: believed when an innocent one would rarely look so bad."""
        asked = [
            Question(failure=2, suspects=(), config=self.config(space, fusion=1, dynamic=value))
            for value in (None, True, False)
        ]
        search = Search(space, measurement, [({"fullgraph": True}, "RuntimeError: no")])
        for config in (space.untuned(), space.default(), self.config(space, fullgraph=True, freezing=True, fusion=2)):
            search.add(config)
        search.asked = asked  # All that may be asked was asked, and told nothing.
        for each in asked:
            search.add(each.config)
        chances = []
        draw = random.Random(3)
        while len(search.records) < 60 and not search.findings().culprits:
            config = space.walk(lambda _, values: draw.choice(values))
            if config not in {each.config for each in search.records}:
                search.add(config)
            assert search.findings().question is None
        (culprit,) = search.findings().culprits
        assert Config(culprit.pattern).matches({"fullgraph": True})
        if culprit.chance is not None:
            chances.append(culprit.chance)
        assert all(each <= LARGEST_CHANCE for each in chances)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (failure("TypeError: kernel 7"), failure("TypeError: buffer 9"), True),
        (failure("TypeError: no"), failure("ValueError: no"), False),
        (failure("TypeError: no"), failure("TypeError: no", reason="run_error"), False),
        (failure("output 1 of 2 on input 3 of 3: relative error 0.5, tolerance 0.001", "wrong_result"),
         failure("output 2 of 2 on input 1 of 3: relative error inf, tolerance 0.001", "wrong_result"), True),
        (failure("output 1 of 2 on input 3 of 3: 7 of 9 elements are NaN", "wrong_result"),
         failure("output 1 of 2 on input 3 of 3: relative error 0.5, tolerance 0.001", "wrong_result"), False),
        (failure("killed by SIGSEGV; last line of stderr: a", "crash"),
         failure("killed by SIGSEGV; last line of stderr: b", "crash"), True),
        (failure("stopped: longer than its limit in stage run", "timeout"),
         failure("stopped: longer than its limit in stage compile", "timeout"), False),
    ],
)  # fmt: skip
def test_kinds_of_errors(one, other, same):
    """What differs from config to config under one cause is left out; the type, the signal and the stage are not."""
    assert (kind_of(one) == kind_of(other)) is same
