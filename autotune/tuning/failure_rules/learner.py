"""`RuleLearner`: what a study learns from its failing trials, and from those of earlier studies, while it searches.

What is found is derived from the recorded trials each time (`culprit`); kept with the study are only the questions that
were asked and the rules that it wrote down, so that one which the user removed is not found again in the old trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.errors import AutotuneError
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.schema import Record
from autotune.study.records import TrialRecord
from autotune.study.slots import Slot
from autotune.study.study import Study
from autotune.tuning.events import IsolationStarted, Notify, RuleLearned, RulesRecalled, RulesUnavailable
from autotune.tuning.failure_rules.isolate import FailureCause, Question, investigate
from autotune.tuning.failure_rules.rules import (
    Rule,
    RuleEvidence,
    Scope,
    add_rule,
    forget_rules,
    id_of,
    read_rules,
    scope_of,
)


class _Written(Record):
    """A rule that this study has written down."""

    id: str
    pattern: dict[str, Scalar]


class _Forgotten(Record):
    """Failures of before the trial `until` by these settings teach nothing any more: the user removed the rule."""

    pattern: dict[str, Scalar]
    until: int


class _Kept(Record):
    """What is stored with the study."""

    questions: tuple[Question, ...] = ()
    written: tuple[_Written, ...] = ()
    forgotten: tuple[_Forgotten, ...] = ()

    def settled(self, on_file: Sequence[Rule], records: Sequence[TrialRecord]) -> _Kept:
        """With what was written and is on file no more, nor covered by a wider rule, as forgotten."""

        def is_there(one: _Written) -> bool:
            return any(Config(one.pattern).matches(each.pattern) for each in on_file)

        until = max((each.number + 1 for each in records), default=0)
        gone = tuple(_Forgotten(pattern=each.pattern, until=until) for each in self.written if not is_there(each))
        left = tuple(each for each in self.written if is_there(each))
        return self.model_copy(update={"written": left, "forgotten": (*self.forgotten, *gone)})

    def teaches(self, record: TrialRecord) -> bool:
        """The trial is evidence."""
        if not isinstance(record.outcome, Failure):
            return True
        return not any(record.number < each.until and record.config.matches(each.pattern) for each in self.forgotten)


class RulesInForce(NamedTuple):
    """The rules that a study goes by, and what is wrong with their file (None: nothing)."""

    rules: list[Rule]
    problem: str | None


def rules_in_force(study: Study) -> RulesInForce:
    """Those on file under the study's scope that nothing contradicts, and what its own trials have shown since."""
    state = _State.of(study)
    if state is None:
        return RulesInForce([], None)
    file, kept = _File.read(state), _kept(study)
    if file.problem is None:
        kept = kept.settled(file.rules, state.records)
    earlier = [each for each in file.rules if state.can_use(each)]
    own = [each.rule for each in state.own_rules(kept, earlier)[0]]
    rules = {each.id: each for each in (*own, *earlier)}.values()
    return RulesInForce(
        [each for each in rules if not any(e.subsumes(each) for e in rules if e is not each)], file.problem
    )


class RuleLearner:
    """For one run of a study's loop: `apply` before each ask, `conclude` when there is no further one."""

    def __init__(self, study: Study, notify: Notify) -> None:
        self._study = study
        self._notify = notify
        self._file: _File | None = None
        """As it was when this run began, and what was written since."""
        self._earlier: list[Rule] = []
        self._own: list[Rule] = []
        self._num_finished = -1
        study.exclude(self._excludes)

    def apply(self) -> None:
        """Exclude what is known to fail, and put the config next that tells most about a failure, if one is due."""
        question = self.conclude()
        if question is not None:
            self._ask(question)

    def conclude(self) -> Question | None:
        """Exclude what is known to fail, write down what was found; the config to ask next, if any."""
        state = _State.of(self._study)
        if state is None or state.num_finished == self._num_finished:
            return None
        self._num_finished = state.num_finished
        file = self._file or self._recall(state)
        own, question = state.own_rules(_kept(self._study), self._earlier)
        self._use([each.rule for each in own])
        for each in own:
            # A trial that works shows that it is not the whole environment that fails.
            if each.culprit.since < state.last_measured:
                file = self._write(each.rule, file)
        self._file = file
        return question

    def without_questions(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """The trials without those that were asked to trace a failure and failed, as they were likely to."""
        asked = {each.config for each in _kept(self._study).questions}
        return [each for each in records if not (isinstance(each.outcome, Failure) and each.config in asked)]

    def _recall(self, state: _State) -> _File:
        """Read the file and take up what it says: new rules, rules that the user removed, rules that are refuted."""
        file, kept = _File.read(state), _kept(self._study)
        if file.problem is not None:
            self._notify(RulesUnavailable(file.problem))
            return file
        settled = kept.settled(file.rules, state.records)
        if settled != kept:
            _keep(self._study, settled)
        self._earlier = [each for each in file.rules if state.can_use(each)]
        refuted = [each for each in file.rules if each.evidence and state.contradicts(each)]
        if refuted:
            self._remove(refuted)
        written = {each.id for each in settled.written}
        others = [each for each in self._earlier if each.id not in written]
        if others or refuted:
            self._notify(RulesRecalled(others, refuted, self._num_excluded(others), self._study.num_configs()))
        return file

    def _use(self, own: list[Rule]) -> None:
        known = {each.id for each in (*self._earlier, *self._own)}
        self._own = own
        for rule in own:
            if rule.id not in known:
                self._notify(RuleLearned(rule, self._num_excluded([rule])))

    def _write(self, rule: Rule, file: _File) -> _File:
        if file.problem is not None or any(each.id == rule.id for each in file.rules):
            return file
        try:
            add_rule(self._study.folder.parent, rule)
        except AutotuneError as error:
            self._notify(RulesUnavailable(str(error)))
            return _File(file.rules, str(error))
        kept = _kept(self._study)
        written = (*kept.written, _Written(id=rule.id, pattern=rule.pattern))
        _keep(self._study, kept.model_copy(update={"written": written}))
        return _File([*file.rules, rule], None)

    def _remove(self, rules: Sequence[Rule]) -> None:
        try:
            forget_rules(self._study.folder.parent, {each.id for each in rules})
        except AutotuneError as error:
            self._notify(RulesUnavailable(str(error)))

    def _ask(self, question: Question) -> None:
        kept = _kept(self._study)
        seen = {each.config for each in self._study.records() if each.outcome is not None}
        if any(each.config not in seen and not self._excludes(each.config) for each in kept.questions):
            return  # One at a time: its answer may change what is worth asking.
        self._study.enqueue([question.config])
        _keep(self._study, kept.model_copy(update={"questions": (*kept.questions, question)}))
        self._notify(IsolationStarted(question))

    def _excludes(self, config: Config) -> bool:
        space = self._study.manifest.space
        return any(each.excludes(config, space) for each in (*self._earlier, *self._own))

    def _num_excluded(self, rules: Sequence[Rule]) -> int | None:
        space, num_configs = self._study.manifest.space, self._study.num_configs()
        if num_configs is None:
            return None
        configs = itertools.islice(space.configs(), num_configs)
        return sum(any(rule.excludes(config, space) for rule in rules) for config in configs)


class _Found(NamedTuple):
    """A rule that the study's own trials show, and the culprit behind it."""

    rule: Rule
    culprit: FailureCause


@dataclass(frozen=True)
class _State:
    """A study as it stands, its untuned model being measured."""

    study: Study
    records: list[TrialRecord]
    environment: Environment

    @classmethod
    def of(cls, study: Study) -> _State | None:
        """None before the untuned model was measured: it tells what the study runs on."""
        untuned = study.untuned_record()
        if untuned is None or not isinstance(untuned.outcome, Measurement):
            return None
        return cls(study, study.records(), untuned.outcome.environment)

    @property
    def num_finished(self) -> int:
        return sum(each.outcome is not None for each in self.records)

    @property
    def last_measured(self) -> int:
        """Number of the last trial that works."""
        return max(each.number for each in self.records if isinstance(each.outcome, Measurement))

    def scope(self, reason: Reason, *, of_one_study: bool = False) -> Scope:
        return scope_of(self.study.manifest, self.environment, reason, of_one_study=of_one_study)

    def concerns(self, rule: Rule) -> bool:
        """It is about what the study is about, or was found by this very study."""
        scopes = (self.scope(rule.reason), self.scope(rule.reason, of_one_study=True))
        return any(rule.scope.is_same(each) for each in scopes)

    def can_use(self, rule: Rule) -> bool:
        """It takes away no config that works, and none that every study needs."""
        space = self.study.manifest.space
        needed = any(rule.excludes(config, space) for config in (space.untuned(), space.default()))
        return not needed and not self.contradicts(rule)

    def contradicts(self, rule: Rule) -> bool:
        """A config that it excludes was measured."""
        measured = (each.config for each in self.records if isinstance(each.outcome, Measurement))
        return any(rule.excludes(config, self.study.manifest.space) for config in measured)

    def own_rules(self, kept: _Kept, earlier: Sequence[Rule]) -> tuple[list[_Found], Question | None]:
        """What the study's own trials show, and the question that would show more."""
        space = self.study.manifest.space

        def is_excluded(config: Config) -> bool:
            return any(each.excludes(config, space) for each in earlier)

        telling = [each for each in self.records if kept.teaches(each)]
        findings = investigate(space, telling, kept.questions, is_excluded)
        return [_Found(self._rule(each), each) for each in findings.culprits], findings.question

    def _rule(self, culprit: FailureCause) -> Rule:
        failure = next(each.outcome for each in self.records if each.number == culprit.failed[0])
        assert isinstance(failure, Failure)
        scope = self.scope(failure.reason, of_one_study=not culprit.is_repeated)
        knobs = tuple(knob.name for knob in self.study.manifest.space.knobs)
        return Rule(
            id=id_of(culprit.pattern, failure.reason, scope, knobs),
            pattern=culprit.pattern,
            reason=failure.reason,
            stage=failure.stage,
            error=failure.error.partition("\n")[0],
            scope=scope,
            knobs=knobs,
            evidence=RuleEvidence(
                study=self.study.name,
                failed=tuple(sorted(culprit.failed)),
                worked=culprit.worked,
                proof="hybrid" if culprit.chance is None else "counts",
                chance=culprit.chance and float(f"{culprit.chance:.2g}"),
                trials_spent=culprit.num_spent,
            ),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


class _File(NamedTuple):
    """The rules on file that are about what the study is about, and what is wrong with the file (None: nothing)."""

    rules: list[Rule]
    problem: str | None

    @classmethod
    def read(cls, state: _State) -> _File:
        try:
            on_file = read_rules(state.study.folder.parent)
        except AutotuneError as error:
            return cls([], str(error))
        return cls([each for each in on_file if state.concerns(each)], None)


_STORED = Slot("lessons", _Kept)


def _kept(study: Study) -> _Kept:
    return _STORED.read(study) or _Kept()


def _keep(study: Study, kept: _Kept) -> None:
    _STORED.write(study, kept)
