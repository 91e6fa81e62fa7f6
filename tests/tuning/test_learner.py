"""What a study learns from its failing trials: used at once, written down, recalled by studies of the same scope."""

from __future__ import annotations

import pytest

from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.report.failure_rules import news_of, rule_lines, rules_summary
from autotune.report.json import document
from autotune.results.result import result_of
from autotune.study.open import list_studies, open_study
from autotune.tuning.events import IsolationStarted, RuleLearned, RulesRecalled, RulesUnavailable
from autotune.tuning.failure_rules.learner import RuleLearner, rules_in_force
from autotune.tuning.failure_rules.rules import FILE_NAME, add_rule, forget_rules, read_rules
from tests.tuning.test_isolate import SPACE, load

WHOLE = {"fullgraph": True}
ERROR = "Unsupported: Data-dependent branching\nand a second line"


@pytest.fixture
def space(tmp_path):
    return load(tmp_path, SPACE)


@pytest.fixture
def studies_dir(tmp_path):
    return tmp_path / "studies"


@pytest.fixture
def search(measurement):
    """Run a study's trials without processes: configs that match `cause` fail. The events are returned."""

    def run(study, num_trials=20, cause=WHOLE, reason="compile_error", outcome_of=None):
        events = []
        lessons = RuleLearner(study, events.append)
        failure = Failure(reason=reason, stage="compile", error=ERROR)
        while study.num_recorded() < num_trials:
            lessons.apply()
            asked = study.ask(60)
            if asked is None:
                break
            wanted = failure if asked.config.matches(cause) else measurement
            study.tell(asked, wanted if outcome_of is None else outcome_of(asked, wanted))
        lessons.conclude()
        return events

    return run


def of_kind(events, kind):
    return [each for each in events if isinstance(each, kind)]


def failed(study):
    return [each.number for each in study.records() if isinstance(each.outcome, Failure)]


def test_what_is_found_is_used_at_once_and_written_down(make_study, space, search, studies_dir):
    """Once found, no further config with the setting is asked; the rule stands in the file with its evidence."""
    study = make_study(space=space)
    events = search(study, 16)
    (rule,) = read_rules(studies_dir)
    assert rule.pattern == WHOLE
    assert (rule.reason, rule.stage, rule.error) == (Reason.COMPILE_ERROR, "compile", ERROR.splitlines()[0])
    assert rule.evidence.study == "s"
    assert set(rule.evidence.failed) == set(failed(study))
    assert rule.evidence.proof == "hybrid"
    assert rule.evidence.trials_spent == len(of_kind(events, IsolationStarted)) <= 3
    assert max(failed(study)) < 12, "all later trials are without it"
    assert study.num_recorded() == 16
    assert of_kind(events, RuleLearned)[-1].rule.pattern == WHOLE
    assert [each.pattern for each in rules_in_force(study).rules] == [WHOLE]


def test_an_asked_trial_is_an_ordinary_trial(make_study, space, search):
    """It is counted, recorded and never repeated, and comes right after the trial that it traces."""
    study = make_study(space=space)
    events = search(study, 12)
    records = study.records()
    assert len(records) == study.num_recorded() == 12
    assert len({each.config for each in records}) == 12
    first = of_kind(events, IsolationStarted)[0].question
    assert records[first.failure + 1].config == first.config


class TestTheNextStudy:
    """What one study found, another one of the same scope does not try."""

    def configs_with_it(self, study):
        return [each.config for each in study.records() if each.config.matches(WHOLE)]

    @pytest.fixture(autouse=True)
    def _first_study(self, make_study, space, search):
        search(make_study("first", space=space), 16)

    def test_of_the_same_scope(self, make_study, space, search, studies_dir):
        """None of its trials has the setting, and it says so once, with how many configs are excluded."""
        study = make_study("second", space=space)
        events = search(study, 16)
        assert self.configs_with_it(study) == []
        (recalled,) = of_kind(events, RulesRecalled)
        assert (recalled.num_excluded, recalled.num_configs) == (90, 181)
        assert news_of(recalled) == ["1 rule from earlier studies excludes 90 of 181 configs"]
        assert len(read_rules(studies_dir)) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"framework_version": "1"},
            {"variables": {"A": "1"}},
            {"workload": {"arguments": {"rows": 2}}},
            {"workload": {"reference": "another:model"}},
            {"workload": {"device": "gpu"}},
            {"workload": {"source_sha256": "0" * 64}},
        ],
        ids=str,
    )
    def test_of_another_scope(self, make_study, space, search, workload, change):
        """Another release, variable, argument, model, device or source file: the rule says nothing, and is not told."""
        change = {**change}
        if "workload" in change:
            change["workload"] = workload.model_copy(update=change["workload"])
        study = make_study("second", space=space, **change)
        events = search(study, 12)
        assert self.configs_with_it(study) != []
        assert of_kind(events, RulesRecalled) == []

    def test_on_another_machine(self, make_study, space, search, measurement):
        """The processor is read from the untuned model's trial."""
        elsewhere = measurement.environment.model_copy(update={"processor": "another"})
        moved = measurement.model_copy(update={"environment": elsewhere})
        study = make_study("second", space=space)
        search(study, 12, outcome_of=lambda _, wanted: moved if isinstance(wanted, Measurement) else wanted)
        assert self.configs_with_it(study) != []

    def test_a_forgotten_rule_holds_no_more(self, make_study, space, search, studies_dir):
        """Neither in a later study nor, when it goes on, in the study that found it."""
        forget_rules(studies_dir, None)
        first = open_study(studies_dir, "first")
        assert rules_in_force(first).rules == []
        tried = {each.config for each in first.records()}
        again = next(each for each in space.configs() if each.matches(WHOLE) and each not in tried)
        first.enqueue([again])
        events = search(first, first.num_recorded() + 3, cause={"mode": "none of these"})
        assert of_kind(events, RuleLearned) == []
        assert any(each.config == again and each.state == "measured" for each in first.records())
        assert read_rules(studies_dir) == []

    def test_a_rule_that_a_measured_config_contradicts_is_removed(self, make_study, space, search, studies_dir):
        """It worked here under the very same circumstances: the file loses the rule, and the study tells it."""
        (rule,) = read_rules(studies_dir)
        forget_rules(studies_dir, None)
        study = make_study("second", space=space)
        search(study, 20, cause={"mode": "none of these"})
        add_rule(studies_dir, rule)
        assert rules_in_force(study).rules == []
        assert read_rules(studies_dir) == [rule], "reading changes nothing"
        events = search(study, 22, cause={"mode": "none of these"})
        assert of_kind(events, RulesRecalled)[0].refuted == [rule]
        assert read_rules(studies_dir) == []

    @pytest.mark.parametrize(
        "pattern", [{"execution": "eager"}, {"fullgraph": False}, {"backend": "inductor"}], ids=str
    )
    def test_a_rule_against_what_every_study_needs_is_not_used(self, make_study, space, search, studies_dir, pattern):
        """Edited by hand so that it excludes the untuned or the default config, it excludes nothing, and stays."""
        (rule,) = read_rules(studies_dir)
        forget_rules(studies_dir, None)
        add_rule(studies_dir, rule.model_copy(update={"pattern": pattern, "evidence": None}))
        study = make_study("second", space=space)
        search(study, 12, cause={"mode": "none of these"})
        assert rules_in_force(study).rules == []
        assert study.record(0).config == space.untuned()
        assert study.record(1).config == space.default()
        assert any(each.config.matches(pattern) for each in study.records())
        assert len(read_rules(studies_dir)) == 1

    def test_show_lists_it(self, make_study, space, search, studies_dir):
        """The summary has a line and the document an entry, as long as it is in force."""
        study = make_study("second", space=space)
        search(study, 5)
        answer = result_of(study)
        (line,) = rules_summary(answer)
        assert "fullgraph=true fails (compile_error): Unsupported" in line
        (entry,) = document(study.manifest, answer)["rules"]
        assert entry["pattern"] == WHOLE
        assert "study first: trials" in rule_lines(answer.learned.rules[0])[2]


@pytest.mark.parametrize("reason", ["timeout", "out_of_memory"])
def test_limits_do_not_travel(make_study, space, search, studies_dir, reason):
    """A rule about time or memory is used and listed in its own study alone: another one may have other limits."""
    first = make_study("first", space=space)
    search(first, 16, reason=reason)
    (rule,) = read_rules(studies_dir)
    assert rule.scope.study == first.manifest.id
    assert "this study alone" in rule_lines(rule)[1]
    assert [each.pattern for each in rules_in_force(open_study(studies_dir, "first")).rules] == [WHOLE]
    second = make_study("second", space=space)
    events = search(second, 12, cause={"mode": "none of these"})
    assert of_kind(events, RulesRecalled) == []
    assert any(each.config.matches(WHOLE) for each in second.records())


@pytest.mark.parametrize("first_crash", ["first_crash", None], ids=["crashed twice", "crashed once"])
def test_a_crash_travels_once_it_repeated_itself(make_study, space, search, studies_dir, first_crash):
    """Configs that crashed in two processes each teach other studies; those of older records, with one process each,
    the study alone."""
    crash = Failure(reason="crash", stage="compile", error="killed by SIGSEGV; last line: 1", first_crash=first_crash)
    first = make_study("first", space=space)
    search(first, 40, outcome_of=lambda _, wanted: crash if isinstance(wanted, Failure) else wanted)
    (rule,) = read_rules(studies_dir)
    assert rule.pattern == WHOLE
    assert rule.scope.study == (None if first_crash else first.manifest.id)
    assert [each.pattern for each in rules_in_force(open_study(studies_dir, "first")).rules] == [WHOLE]
    second = make_study("second", space=space)
    recalled = of_kind(search(second, 12, cause={"mode": "none of these"}), RulesRecalled)
    assert bool(recalled) is (first_crash is not None)


def test_a_study_that_is_stopped_anywhere_goes_on_the_same(make_study, space, search, measurement, studies_dir):
    """Opened anew before every trial, in the middle of tracing too, it asks the same configs and finds the same."""
    straight = make_study("straight", space=space)
    search(straight, 16)
    (found,) = read_rules(studies_dir)
    forget_rules(studies_dir, None)
    make_study("broken", space=space).close()
    for number in range(1, 17):
        study = open_study(studies_dir, "broken")
        search(study, number)
        study.close()
    again = open_study(studies_dir, "broken")
    assert [each.config for each in again.records()] == [each.config for each in straight.records()]
    (rule,) = read_rules(studies_dir)
    assert (rule.id, rule.pattern) == (found.id, found.pattern)
    assert rule.evidence.model_copy(update={"study": "straight"}) == found.evidence


def test_an_interrupted_question_is_asked_again(make_study, space, measurement, studies_dir):
    """Ctrl-C in the very trial that was to tell more: its config is the next one."""
    study = make_study(space=space)
    events = []
    lessons = RuleLearner(study, events.append)
    failure = Failure(reason="compile_error", stage="compile", error=ERROR)
    while True:
        lessons.apply()
        asked = study.ask(60)
        if of_kind(events, IsolationStarted):
            break
        study.tell(asked, failure if asked.config.matches(WHOLE) else measurement)
    question = of_kind(events, IsolationStarted)[0].question
    assert asked.config == question.config
    study.abandon(asked)
    study.close()
    again = open_study(studies_dir, "s")
    RuleLearner(again, events.append).apply()
    assert again.ask(60).config == question.config
    assert len(of_kind(events, IsolationStarted)) == 1


def test_nothing_is_written_while_everything_fails(make_study, space, search, studies_dir, measurement):
    """From some moment on every config fails: that may be the environment, and is no rule for others."""
    study = make_study(space=space)
    broken = Failure(reason="compile_error", stage="compile", error="OSError: no space left")
    search(study, 16, outcome_of=lambda asked, _: measurement if asked.number < 4 else broken)
    assert read_rules(studies_dir) == []


class TestABrokenFile:
    """One sentence, and no study is lost by it."""

    def test_at_the_start(self, make_study, space, search, studies_dir):
        """The study goes on with what it finds itself, and the file stays as it is."""
        study = make_study(space=space)
        (studies_dir / FILE_NAME).write_text("rules: {")
        events = search(study, 16)
        (told,) = of_kind(events, RulesUnavailable)
        assert FILE_NAME in told.why
        assert of_kind(events, RuleLearned)
        assert max(failed(study)) < 12
        assert (studies_dir / FILE_NAME).read_text() == "rules: {"
        answer = result_of(study)
        assert [each.pattern for each in answer.learned.rules] == [WHOLE]
        assert FILE_NAME in document(study.manifest, answer)["rules_problem"]
        assert any(FILE_NAME in line for line in rules_summary(answer))

    def test_mended_it_gets_what_was_found_meanwhile(self, make_study, space, search, studies_dir):
        """The evidence is in the records."""
        study = make_study(space=space)
        (studies_dir / FILE_NAME).write_text("rules: {")
        search(study, 16)
        (studies_dir / FILE_NAME).unlink()
        search(study, 17)
        assert [each.pattern for each in read_rules(studies_dir)] == [WHOLE]

    def test_broken_while_the_study_runs(self, make_study, space, search, studies_dir, measurement):
        """Edited by hand at the wrong moment: told once, not overwritten."""
        study = make_study(space=space)

        def break_it(asked, wanted):
            if asked.number == 2:
                (studies_dir / FILE_NAME).write_text("rules: {")
            return wanted

        events = search(study, 16, outcome_of=break_it)
        assert len(of_kind(events, RulesUnavailable)) == 1
        assert (studies_dir / FILE_NAME).read_text() == "rules: {"


def test_the_folder_of_studies_holds_studies_beside_the_rules(make_study, space, search, studies_dir):
    """The file and its lock are no studies."""
    search(make_study(space=space), 16)
    assert (studies_dir / FILE_NAME).exists()
    assert list_studies(studies_dir) == ["s"]
