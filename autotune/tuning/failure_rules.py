"""Failure rules: what three equal failures of a study have in common, and no config that works, is not tried again.

The rules follow from the recorded trials and hold in their own study. What more would save was measured:
docs/decisions/0019-random-crashes.md.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.config import Config, Scalar
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.space.space import SearchSpace
from autotune.study.records import TrialRecord
from autotune.study.sampler.sampler import Sampler
from autotune.study.study import Study

_CHANGING = re.compile(r"; at \[.*|0x[0-9a-fA-F]+|(?:/[\w.+-]+)+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""Places in outputs, addresses, paths and numbers: what differs between two reports of one error."""

FAILURES_NEEDED = 3
"""So many trials must have failed alike with a setting before it is blamed."""
LARGEST_SET = 2
"""Settings that are suspected together, at most: any larger set is shared by many trials by chance."""

Settings = frozenset[tuple[str, str]]
"""Knobs with their values as JSON, which keeps 1, 1.0 and true apart."""


@dataclass(frozen=True)
class FailureRule:
    """Settings that made each trial that had them fail, and the trials that show it."""

    pattern: dict[str, Scalar]
    failed: tuple[int, ...]
    """Numbers of the trials that have the settings and failed alike, in their order."""
    reason: Reason
    stage: Stage
    error: str
    """First line of the first one's own error."""

    @property
    def id(self) -> str:
        """Short hash of the finding, equal in all studies that make it."""
        content = json.dumps([self.pattern, self.reason], sort_keys=True)
        return "r" + hashlib.sha256(content.encode()).hexdigest()[:7]

    def excludes(self, config: Config) -> bool:
        """Whether a config has all of the settings."""
        return config.matches(self.pattern)


class FailureRules:
    """The rules of one run of a study: `update` before each ask keeps the sampler from what is known to fail."""

    def __init__(self, study: Study, sampler: Sampler, on_new: Callable[[FailureRule, int | None], None]) -> None:
        """`on_new` hears of each new rule, and how many configs it excludes (None: uncountably many)."""
        self._study = study
        self._sampler = sampler
        self._on_new = on_new
        self._rules: list[FailureRule] = []

    def update(self) -> None:
        """Find the rules anew from all trials so far, and report those that are new."""
        known = {rule.id for rule in self._rules}
        self._rules = find_failure_rules(self._study.manifest.space, self._study.records())
        self._sampler.exclude(*(rule.excludes for rule in self._rules))
        for rule in self._rules:
            if rule.id not in known:
                self._on_new(rule, self._num_excluded(rule))

    def _num_excluded(self, rule: FailureRule) -> int | None:
        configs = self._study.manifest.space.listed
        return None if configs is None else sum(map(rule.excludes, configs))


def find_failure_rules(space: SearchSpace, records: Sequence[TrialRecord]) -> list[FailureRule]:
    """What three equal failures have in common. No rule takes away a config that works, the untuned model or the
    default compile."""
    innocent = [_settings(space.untuned()), _settings(space.default())]
    innocent += [_settings(record.config) for record in records if isinstance(record.outcome, Measurement)]
    alike: dict[str, list[tuple[TrialRecord, Failure]]] = defaultdict(list)
    for record in records:
        if isinstance(record.outcome, Failure) and record.outcome.shows_fault:
            alike[_kind_of(record.outcome)].append((record, record.outcome))
    return [rule for failures in alike.values() for rule in _rules_of(failures, innocent, space)]


def _rules_of(
    failures: list[tuple[TrialRecord, Failure]], innocent: Sequence[Settings], space: SearchSpace
) -> list[FailureRule]:
    """Rules for failures that are alike: one for the setting that most of them have, then one for the rest.

    A rule names all that its trials have in common: what of it does no harm is not known before a trial without it
    fails as well, and a rule that names too little would exclude configs that work.
    """
    rules: list[FailureRule] = []
    while (suspect := _suspect([_settings(record.config) for record, _ in failures], innocent)) is not None:
        having = [failure for failure in failures if suspect <= _settings(failure[0].config)]
        failures = [failure for failure in failures if failure not in having]
        first = having[0][1]
        rules.append(
            FailureRule(
                pattern=_pattern(frozenset.intersection(*(_settings(record.config) for record, _ in having)), space),
                failed=tuple(record.number for record, _ in having),
                reason=first.reason,
                stage=first.stage,
                error=first.error.partition("\n")[0],
            )
        )
    return rules


def _suspect(failed: Sequence[Settings], innocent: Sequence[Settings]) -> Settings | None:
    """The smallest set that enough of these configs have and no innocent one; of several the one that most have."""
    for size in range(1, LARGEST_SET + 1):
        counts = Counter(frozenset(part) for config in failed for part in itertools.combinations(sorted(config), size))
        for suspect, num in counts.most_common():
            if num >= FAILURES_NEEDED and not any(suspect <= settings for settings in innocent):
                return suspect
    return None


def _pattern(common: Settings, space: SearchSpace) -> dict[str, Scalar]:
    """In the order of the space, without the settings that others of them need in order to be there."""
    pattern = {name: json.loads(value) for name, value in common}
    knobs = [knob for knob in space.knobs if knob.name in pattern]
    needed = {name for knob in knobs for name, value in knob.when.items() if not isinstance(value, (list, tuple))}
    return {knob.name: pattern[knob.name] for knob in knobs if knob.name not in needed}


def _kind_of(failure: Failure) -> str:
    """Reason, stage, and how the error begins: what follows an exception's type names code that differs by config."""
    return re.split(r"[:;]", signature_of(failure), maxsplit=1)[0]


def _settings(config: Config) -> Settings:
    return frozenset((name, json.dumps(value)) for name, value in config.root.items())


def signature_of(failure: Failure) -> str:
    """Equal for two failures with the same reason, stage, and error text apart from numbers and paths."""
    return f"{failure.reason}|{failure.stage}|{_CHANGING.sub('#', failure.error)}"
