"""The smallest setting that three equal failures have in common, from synthetic outcomes with a known cause."""

from __future__ import annotations

import random

import pytest

from autotune.answer.sections import news
from autotune.measure.measurement import Failure
from autotune.study.folder import FolderStudies
from autotune.tuning.events import RuleLearned
from autotune.tuning.failure_rules import FAILURES_NEEDED, FailureRules, find_failure_rules
from tests.asking import ask, sampler_of
from tests.conftest import fake_space, trial_record

pytestmark = pytest.mark.usefixtures("in_memory")

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


@pytest.fixture
def space():
    return fake_space(SPACE)


def failure(error="RuntimeError: no", reason="compile_error", stage="compile", **more):
    return Failure(reason=reason, stage=stage, error=error, **more)


def compiled(space, **settings):
    """The default compile with these settings."""
    return space.walk(lambda name, values: settings.get(name, space.default().root.get(name, values[0])))


def search(space, outcome_of, num_trials=24, seed=0):
    """The records of untuned, default, then configs at random that no rule excludes."""
    others = list(space.configs())[2:]
    random.Random(seed).shuffle(others)
    records, rules = [], []
    for config in (space.untuned(), space.default(), *others):
        if len(records) < num_trials and not any(each.excludes(config) for each in rules):
            records.append(trial_record(outcome_of(config), len(records), config))
            rules = find_failure_rules(space, records)
    return records


MODES = ("default", "max", "lite")
CAUSES = [
    {"fullgraph": True},
    {"dynamic": True},
    {"mode": "max"},
    {"backend": "other"},
    {"fullgraph": True, "freezing": True},
]


@pytest.mark.parametrize("cause", CAUSES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_the_cause_is_found(space, measurement, cause, seed):
    """Whatever is blamed on the way holds the planted setting or pair, so that no config that works is taken away; in
    the end it is blamed alone, or with what all configs that were left to fail have besides."""
    records = search(space, lambda c: failure() if c.matches(cause) else measurement, 60, seed)
    failed = [each for each in records if isinstance(each.outcome, Failure)]
    for num in range(1, len(records) + 1):
        for rule in find_failure_rules(space, records[:num]):
            assert rule.pattern.items() >= cause.items()
    (rule,) = find_failure_rules(space, records)
    assert rule.failed == tuple(each.number for each in failed)
    assert len(failed) <= 3 * FAILURES_NEEDED


def test_it_takes_three_equal_failures(space, measurement):
    """Two failures, or three with three different errors, teach nothing; nor do failures that no config caused."""
    configs = [compiled(space, fullgraph=True, fusion=n) for n in range(3)]
    works = [trial_record(measurement, 0, space.untuned()), trial_record(measurement, 1, space.default())]

    def rules(*errors):
        cases = zip(configs, errors, strict=False)
        failed = [trial_record(failure(error), 2 + n, each) for n, (each, error) in enumerate(cases)]
        return find_failure_rules(space, [*works, *failed])

    assert FAILURES_NEEDED == 3
    assert rules("RuntimeError: 1", "RuntimeError: 2") == []
    assert rules("RuntimeError: 1", "TypeError: 1", "ValueError: 1") == []
    blameless = [trial_record(failure(reason="setup"), n, each) for n, each in enumerate(configs)]
    assert find_failure_rules(space, blameless) == []
    (rule,) = rules("RuntimeError: buf12", "RuntimeError: buf7 [0x7f]", "RuntimeError: 3")
    assert rule.pattern["fullgraph"] is True
    assert rule.failed == (2, 3, 4)
    assert rule.error == "RuntimeError: buf12"


def test_all_that_failed_trials_share_is_blamed(space, measurement):
    """A setting that may be harmless stays in the rule until a trial without it fails too."""
    varied = {"backend": "other", "freezing": True}
    failed = [trial_record(failure(), n, compiled(space, fullgraph=True, fusion=n, **varied)) for n in range(3)]
    works = [
        trial_record(measurement, 7, space.default()),
        trial_record(measurement, 8, compiled(space, freezing=True)),
    ]
    (rule,) = find_failure_rules(space, [*failed, *works])
    assert rule.pattern == {"backend": "other", "dynamic": None, "fullgraph": True, "freezing": True}
    more = [trial_record(failure(), 9, compiled(space, fullgraph=True, dynamic=True))]
    (rule,) = find_failure_rules(space, [*failed, *works, *more])
    assert rule.pattern == {"fullgraph": True}


def test_two_causes_are_two_rules(space, measurement):
    """With one error as well: together they take away exactly what fails."""
    causes = ({"fullgraph": True}, {"dynamic": True})
    records = search(space, lambda c: failure() if any(map(c.matches, causes)) else measurement, 60)
    rules = find_failure_rules(space, records)
    assert sorted(str(each.pattern) for each in rules) == ["{'dynamic': True}", "{'fullgraph': True}"]


def test_what_works_is_never_excluded(space, measurement):
    """Configs fail at random: no rule takes away a config that was measured, the untuned or the default one."""
    for seed in range(4):
        chance = random.Random(seed)
        records = search(space, lambda _, c=chance: failure() if c.random() < 0.5 else measurement, 30, seed)
        rules = find_failure_rules(space, records)
        works = [each.config for each in records if each.outcome is measurement]
        assert not any(r.excludes(c) for r in rules for c in (*works, space.untuned(), space.default()))


@pytest.mark.parametrize(("share", "most"), [(0.1, 0.02), (0.2, 0.06)])
def test_failures_without_a_cause_breed_hardly_a_rule(space, measurement, share, most):
    """In studies of 24 trials in which configs fail at random, rules take away few configs on average."""
    configs, lost = list(space.configs()), 0
    for seed in range(10):
        chance = random.Random(seed)
        records = search(space, lambda _, c=chance: failure() if c.random() < share else measurement, 24, seed)
        rules = find_failure_rules(space, records)
        lost += sum(any(each.excludes(config) for each in rules) for config in configs)
    assert lost / 10 / len(configs) <= most


class TestInAStudy:
    """Through a study on disk, without processes."""

    @pytest.fixture
    def tuned(self, make_study, space, measurement):
        """A study in which `fullgraph` fails, and its events."""
        study, events = make_study(space=space), []
        study.enqueue([compiled(space, fullgraph=True, fusion=n, mode=each) for n, each in enumerate(MODES)])
        rules = FailureRules(study, sampler_of(study), lambda rule, num: events.append(RuleLearned(rule, num)))
        while study.num_recorded() < 8:
            rules.update()
            asked = ask(study)
            study.tell(asked, failure() if asked.config.matches({"fullgraph": True}) else measurement)
        return study, events

    def test_what_failed_three_times_is_not_tried_again(self, tuned, space):
        """The search goes on without the setting; an event tells of the rule, and again of a wider one."""
        study, (*_, event) = tuned
        failed = [each.number for each in study.records() if isinstance(each.outcome, Failure)]
        assert not any(event.rule.excludes(each.config) for each in study.records()[failed[-1] + 1 :])
        assert event.rule.failed == tuple(failed)
        assert event.rule.pattern["fullgraph"] is True
        assert event.num_excluded == sum(map(event.rule.excludes, space.configs())) > FAILURES_NEEDED
        (line,) = news(event)
        assert "fails (compile_error): RuntimeError: no" in line
        assert f"{event.num_excluded} configs have that and are not tried" in line

    def test_a_study_that_goes_on_has_the_same_rules(self, tuned):
        """They follow from the trials: nothing is stored that could be lost or go stale."""
        study, (*_, event) = tuned
        study.close()
        again, heard = FolderStudies(study.folder.parent).open(study.name), []
        FailureRules(again, sampler_of(again), lambda rule, _: heard.append(rule)).update()
        assert heard == [event.rule]

    def test_a_rules_file_of_an_older_release_is_ignored(self, tuned, make_study, space, measurement):
        """Broken or whole: it is neither read nor written, and no error."""
        study, _ = tuned
        file = study.folder.parent / "rules.yaml"
        file.write_text("rules: {")
        other = make_study("other", space=space)
        FailureRules(other, sampler_of(other), lambda *_: None).update()
        other.tell(ask(other), measurement)
        assert find_failure_rules(other.manifest.space, other.records()) == []
        assert file.read_text() == "rules: {"
