"""`investigate`: which settings make trials fail, as far as the trials tell, and which config would tell more. Pure.

A failing trial is traced like this. The culprit lies in what it has in common with the other trials that failed alike,
and in no config that works; so it is a smallest set of settings that holds one of the differences to each config that
works. While several sets are left, the next question is a hybrid of the failing config and the nearest one that works,
which holds half of them (delta debugging, Zeller and Hildebrandt, IEEE TSE 28 (2002) 183; all that is known already is
used, and nothing is asked twice). When one is left, it is planted into another config that works, to see whether what
surrounded it mattered. Everything follows from the recorded trials, so that a search that is broken off goes on.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from autotune.config import Config, Scalar
from autotune.measure.measurement import Failure, Reason
from autotune.schema import Record
from autotune.space.space import Knob, SearchSpace
from autotune.study.records import TrialRecord

MOST_QUESTIONS = 3
"""Trials spent on one culprit at the most."""
FREE_QUESTIONS, TRIALS_A_QUESTION = 3, 4
"""All culprits together may take so many trials, or one in so many of the study's if that is more."""
LARGEST_SET = 3
"""Sets of more settings are not looked for: too many of them fit what is known."""
LARGEST_CHANCE = 0.05
"""Without a hybrid, a setting is blamed if one that is innocent would look as bad by at most this chance."""
MOST_ALIKE = 20
"""With so many of the trials that failed alike, the most similar ones, a failure is compared."""
MOST_PLANTED = 20
"""Of the configs that work, so many are looked at to plant a culprit in: those least like the failing ones."""
NEAREST = 3
"""Hybrids are made with so many of the nearest configs that work."""
MOST_SUBSETS = 6
"""Up to so many differing settings every subset may be asked, beyond it only runs of them."""

_NUMBER = re.compile(r"[0-9.]+(?:e[-+]?[0-9]+)?|\b(?:inf|nan)\b")

Settings = frozenset[tuple[str, str]]
"""Knobs with their values as JSON, which keeps 1, 1.0 and true apart."""


class Question(Record):
    """A config that is asked in order to trace a failure."""

    failure: int
    """Number of the trial that is traced."""
    suspects: tuple[str, ...]
    """Knobs that may be to blame."""
    config: Config


@dataclass(frozen=True)
class FailureCause:
    """Settings that make trials fail, and what shows it."""

    pattern: dict[str, Scalar]
    failed: tuple[int, ...]
    """Trials that have the settings and failed alike, two at least; the one that was traced first."""
    worked: tuple[int, ...]
    """The trial that works and differs by the culprit alone; or all those without it, if `chance` speaks."""
    chance: float | None
    """By which an innocent setting would look like this; None where a hybrid shows it."""
    num_spent: int
    """Trials that were asked to trace it."""
    is_repeated: bool = True
    """No crash, or two configs at least crashed twice each: a crash by chance is ruled out."""

    @property
    def since(self) -> int:
        """Number of the trial that failed second: a trial that works later shows that the environment does, too."""
        return sorted(self.failed)[1]


@dataclass(frozen=True)
class Findings:
    """All that the trials tell, and the next config to ask; None where nothing can be gained, or not now."""

    culprits: list[FailureCause]
    question: Question | None


def investigate(
    space: SearchSpace,
    records: Sequence[TrialRecord],
    asked: Sequence[Question] = (),
    is_excluded: Callable[[Config], bool] = lambda _: False,
) -> Findings:
    """Trace every failure that blames its config. Configs that are excluded (by a rule) are not asked about."""
    return _Investigation(space, records, asked, is_excluded).findings()


def kind_of(failure: Failure) -> str:
    """The same for two failures that may have one cause: the reason, and how the error begins, without its numbers.

    An exception's text names generated code and tensors, which differ from config to config; its type does not.
    """
    if failure.reason is Reason.WRONG_RESULT:
        told = failure.error.rpartition(": ")[2]  # What is wrong, without where.
    elif failure.reason is Reason.TIMEOUT:
        told = failure.error
    else:
        told = re.split(r"[:;]", failure.error, maxsplit=1)[0]
    return f"{failure.reason}|{_NUMBER.sub('#', told[:100])}"


@dataclass(frozen=True)
class _Trial:
    number: int
    config: Config
    settings: Settings
    kind: str | None
    """Of its failure; None: it works."""
    num_crashes: int
    """Of its processes, so many ended in a crash; the trials of older releases had one process each."""
    crashed: bool
    """It failed, and that is how."""


@dataclass(frozen=True)
class _Trace:
    """One failure with those that failed alike, what they have in common, and the sets that may be to blame."""

    members: tuple[_Trial, ...]
    common: Settings
    hypotheses: list[Settings]

    @property
    def failure(self) -> _Trial:
        return self.members[0]

    @property
    def suspects(self) -> Settings:
        return frozenset().union(*self.hypotheses)

    @property
    def num_sets(self) -> int:
        """Sets of settings of the failing trial that are as small as the suspected ones: any could have been blamed."""
        size = min(len(self.hypotheses[0]), LARGEST_SET)
        return sum(math.comb(len(self.failure.settings), each) for each in range(1, size + 1))

    @property
    def all_settings(self) -> Settings:
        return frozenset().union(*(each.settings for each in self.members))


@dataclass(frozen=True)
class _Proof:
    """See `FailureCause`."""

    worked: tuple[int, ...]
    chance: float | None


class _Investigation:
    def __init__(
        self,
        space: SearchSpace,
        records: Sequence[TrialRecord],
        asked: Sequence[Question],
        is_excluded: Callable[[Config], bool],
    ) -> None:
        self._structure = _Structure(space)
        self._asked = asked
        self._is_excluded = is_excluded
        self._seen = {each.config for each in records if each.outcome is not None}
        self._num_counted = sum(each.counts for each in records)
        trials = [trial for each in records if (trial := _trial(each)) is not None]
        self._worked = [each for each in trials if each.kind is None]
        self._failed = [each for each in trials if each.kind is not None]
        needed = (space.untuned(), space.default())
        self._bases = [each for each in self._worked if each.config != needed[0]]
        # No rule may take the untuned or the default config away, even if it fails.
        self._innocent = {each.settings for each in self._worked} | {_settings(each) for each in needed}

    def findings(self) -> Findings:
        culprits: list[FailureCause] = []
        question: Question | None = None
        for failure in self._failed:
            if any(failure.config.matches(each.pattern) for each in culprits):
                continue
            trace = self._trace(failure)
            if trace is None:
                continue
            proof = self._proof(trace, culprits)
            if proof is not None:
                culprits.append(self._culprit(trace, proof))
            question = question or self._next_question(trace, proof, culprits)
        return Findings(culprits, question)

    def _trace(self, failure: _Trial) -> _Trace | None:
        """None where no set of settings can be to blame: a config that works, or must be kept, has them all."""
        if not self._may_be_guilty(failure.settings):
            return None
        members, common = [failure], failure.settings
        alike = [each for each in self._failed if each.kind == failure.kind and each is not failure]
        alike.sort(key=lambda each: (-len(each.settings & failure.settings), each.number))
        for each in alike[:MOST_ALIKE]:
            if self._may_be_guilty(common & each.settings):
                members.append(each)
                common &= each.settings
        return _Trace(tuple(members), common, self._smallest_sets(common))

    def _may_be_guilty(self, settings: Settings) -> bool:
        return not any(settings <= innocent for innocent in self._innocent)

    def _smallest_sets(self, common: Settings) -> list[Settings]:
        """The smallest sets that hold a difference to every innocent config; all of `common` if they would be large."""
        ordered = self._structure.in_order(common)
        differences = _minimal({_mask(setting not in each for setting in ordered) for each in self._innocent})
        for size in range(1, LARGEST_SET + 1):
            found = [
                frozenset(ordered[place] for place in places)
                for places in itertools.combinations(range(len(ordered)), size)
                if all(mask & sum(1 << place for place in places) for mask in differences)
            ]
            if found:
                # Sets that always come together are one: the first is named after the earlier knob.
                return list({self._structure.closure(each): each for each in reversed(found)}.values())[::-1]
        return [common]

    def _proof(self, trace: _Trace, culprits: Sequence[FailureCause]) -> _Proof | None:
        """What shows that the suspects are to blame; None as long as the trials could be so by chance."""
        if len(trace.members) < 2 or self._coincidence(trace, culprits) > LARGEST_CHANCE:
            return None
        partner = self._partner(trace)
        if partner is not None:
            return _Proof((partner.number,), None)
        chance = self._chance(trace)
        if chance is None or chance > LARGEST_CHANCE:
            return None
        return _Proof(tuple(each.number for each in self._bases), chance)

    def _culprit(self, trace: _Trace, proof: _Proof) -> FailureCause:
        """With all settings whose part in it is open, so that it is never too general."""
        blamed = self._structure.without_implied(trace.suspects | self._open(trace), keep=trace.hypotheses[0])
        return FailureCause(
            pattern=self._structure.as_pattern(blamed),
            failed=tuple(each.number for each in trace.members),
            worked=proof.worked,
            chance=proof.chance,
            num_spent=self._num_spent(trace),
            is_repeated=sum(each.num_crashes > 1 or not each.crashed for each in trace.members) > 1,
        )

    def _coincidence(self, trace: _Trace, culprits: Sequence[FailureCause]) -> float:
        """Chance that all but the first would have failed without any culprit, and yet have a set in common.

        By how many others failed alike, and of crashes by how many processes crashed although their config works; for
        each of the sets that could have been blamed.
        """
        others = [each for each in self._failed if each.kind == trace.failure.kind and each not in trace.members]
        unexplained = sum(not any(each.config.matches(c.pattern) for c in culprits) for each in others)
        rate: float = unexplained / (unexplained + len(self._bases)) if unexplained else 0.0
        chances = (max(rate, self._chance_of_crash(each)) for each in trace.members[1:])
        return math.prod(chances) * trace.num_sets

    def _chance_of_crash(self, trial: _Trial) -> float:
        """By which a config that works crashes as often as this one did; 0 for another failure."""
        return self._crash_rate**trial.num_crashes if trial.crashed else 0.0

    @cached_property
    def _crash_rate(self) -> float:
        """Share of processes that crash whatever their config, by Laplace's rule of succession."""
        num_crashes = sum(each.num_crashes for each in self._worked)
        return (num_crashes + 1) / (num_crashes + len(self._worked) + 2)

    def _open(self, trace: _Trace) -> Settings:
        """What all failing trials have besides the suspects, so that it is not known whether it takes part."""
        return trace.common - self._structure.closure(trace.suspects)

    def _partner(self, trace: _Trace) -> _Trial | None:
        """A config that works and differs from a failing one by the suspects alone."""
        brought = self._structure.closure(trace.suspects)
        dependents = self._structure.dependents(name for name, _ in trace.suspects)

        def alone(failing: _Trial, base: _Trial) -> bool:
            rest = failing.settings - base.settings - brought
            return all(name in dependents and name not in base.config.root for name, _ in rest)

        return next((base for each in trace.members for base in self._bases if alone(each, base)), None)

    def _chance(self, trace: _Trace) -> float | None:
        """By which one of so many innocent settings occurs in each trial that failed and in none that works.

        For settings drawn at random: share^(failed - 1) * (1 - share)^worked, times the sets there are.
        """
        if len(trace.hypotheses) != 1:
            return None
        guilty = trace.hypotheses[0]
        share = math.prod(1 / self._structure.num_values(name) for name, _ in guilty)
        told = sum(all(name in each.config.root for name, _ in guilty) for each in self._bases)
        once: float = share ** (len(trace.members) - 1) * (1 - share) ** told
        return min(once * trace.num_sets, 1.0)

    def _next_question(self, trace: _Trace, proof: _Proof | None, culprits: Sequence[FailureCause]) -> Question | None:
        if not self._may_ask(trace):
            return None

        def allowed(config: Config) -> bool:
            barred = any(config.matches(each.pattern) for each in culprits) or self._is_excluded(config)
            return config not in self._seen and not barred and self._structure.space.forbidden(config) is None

        config = self._dividing(trace, allowed) or self._planted(trace, proof is not None, allowed)
        if config is None:
            return None
        suspects = tuple(name for name, _ in self._structure.in_order(trace.suspects))
        return Question(failure=trace.failure.number, suspects=suspects, config=config)

    def _may_ask(self, trace: _Trace) -> bool:
        answered = [each for each in self._asked if each.config in self._seen]
        in_all = max(FREE_QUESTIONS, self._num_counted // TRIALS_A_QUESTION)
        return bool(self._bases) and self._num_spent(trace) < MOST_QUESTIONS and len(answered) < in_all

    def _num_spent(self, trace: _Trace) -> int:
        numbers = {each.number for each in trace.members}
        return sum(each.failure in numbers and each.config in self._seen for each in self._asked)

    def _dividing(self, trace: _Trace, allowed: Callable[[Config], bool]) -> Config | None:
        """The config that tells most of the sets that are left apart, with the fewest settings of its own."""
        num_sets = len(trace.hypotheses)
        known = trace.all_settings
        best: tuple[tuple[int, int], Config] | None = None
        for base, config in self._hybrids(trace):
            settings = _settings(config)
            num_in = sum(each <= settings for each in trace.hypotheses)
            rank = (-min(num_in, num_sets - num_in), len(settings - known - base.settings))
            if rank[0] < 0 and (best is None or rank < best[0]) and allowed(config):
                best = rank, config
        return None if best is None else best[1]

    def _hybrids(self, trace: _Trace) -> Iterator[tuple[_Trial, Config]]:
        """Each with what it was made from: a config that works with some of the failing settings, or the other way."""
        for base in self._nearest(trace.failure):
            differing = self._structure.in_order(trace.common - base.settings)
            for chosen in _subsets(differing):
                yield base, self._structure.planted(base.config, frozenset(chosen))
        for setting in self._structure.in_order(trace.suspects):
            for other in self._structure.alternatives(setting):
                yield trace.failure, self._structure.planted(trace.failure.config, frozenset([other]))

    def _nearest(self, failure: _Trial) -> list[_Trial]:
        return sorted(self._bases, key=lambda each: (len(failure.settings - each.settings), each.number))[:NEAREST]

    def _planted(self, trace: _Trace, is_proven: bool, allowed: Callable[[Config], bool]) -> Config | None:
        """The suspects in a config that works and is as unlike the failing ones as can be."""
        planted, unresolved = self._structure.closure(trace.suspects), self._open(trace)
        if is_proven and not unresolved:
            return None
        unlike = sorted(self._bases, key=lambda each: (-len(unresolved - each.settings), each.number))
        best: tuple[int, Config] | None = None
        for base in unlike[:MOST_PLANTED]:
            config = self._structure.planted(base.config, planted)
            num_resolved = len(unresolved - _settings(config))
            if not trace.suspects <= _settings(config) or (is_proven and num_resolved == 0):
                continue
            if (best is None or num_resolved > best[0]) and allowed(config):
                best = num_resolved, config
        return None if best is None else best[1]


class _Structure:
    """What the space's conditions say about settings: which come together, and which configs are whole."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._knobs = {knob.name: knob for knob in space.knobs}
        self._place = {name: place for place, name in enumerate(self._knobs)}

    def in_order(self, settings: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """By the order of the knobs in the space."""
        return sorted(settings, key=lambda each: (self._place[each[0]], each[1]))

    def closure(self, settings: Settings) -> Settings:
        """With all settings that come with these: what switches their knobs on, and knobs without a choice."""
        brought = dict(settings)
        for knob in reversed(self.space.knobs):
            if knob.name in brought:
                for name in knob.when:
                    possible = self._possible(knob, name)
                    if len(possible) == 1:
                        brought.setdefault(name, _text(possible[0]))
        for knob in self.space.knobs:
            if len(knob.values) == 1 and _config(brought.items()).matches(knob.when):
                brought.setdefault(knob.name, _text(knob.values[0]))
        return frozenset(brought.items())

    def dependents(self, names: Iterable[str]) -> set[str]:
        """Knobs that are active or not by the values of these, or of others of them."""
        found = set(names)
        for knob in self.space.knobs:
            if found & knob.when.keys():
                found.add(knob.name)
        return found

    def without_implied(self, settings: Settings, keep: Settings) -> Settings:
        """Fewer settings that say the same; those of `keep` are left."""
        left = settings
        for setting in self.in_order(settings - keep):
            if setting in self.closure(left - {setting}):
                left -= {setting}
        return left

    def planted(self, base: Config, settings: Settings) -> Config:
        """`base` with these settings, made whole: knobs that this switches on have their defaults."""
        wanted = {name: json.loads(value) for name, value in settings}

        def choose(name: str, values: tuple[Scalar, ...]) -> Scalar:
            for source in (wanted, base.root):
                if name in source and any(_same(source[name], value) for value in values):
                    return source[name]
            return self._knobs[name].default

        return self.space.walk(choose)

    def alternatives(self, setting: tuple[str, str]) -> list[tuple[str, str]]:
        """The same knob at its default, then at its other values."""
        name, value = setting
        knob = self._knobs[name]
        values = [_text(each) for each in (knob.default, *knob.values)]
        return [(name, each) for each in dict.fromkeys(values) if each != value]

    def num_values(self, name: str) -> int:
        return len(self._knobs[name].values)

    def as_pattern(self, settings: Settings) -> dict[str, Scalar]:
        return {name: json.loads(value) for name, value in self.in_order(settings)}

    def _possible(self, knob: Knob, name: str) -> list[Scalar]:
        """Values of the earlier knob `name` under which `knob` is active."""
        wanted = knob.when[name]
        offered = self._knobs[name].values if name in self._knobs else ()
        return [value for value in offered if Config({name: value}).matches({name: wanted})]


def _trial(record: TrialRecord) -> _Trial | None:
    outcome = record.outcome
    if outcome is None or (isinstance(outcome, Failure) and not outcome.blames_config):
        return None
    failure = outcome if isinstance(outcome, Failure) else None
    crashed = failure is not None and failure.reason is Reason.CRASH
    return _Trial(
        number=record.number,
        config=record.config,
        settings=_settings(record.config),
        kind=None if failure is None else kind_of(failure),
        num_crashes=(outcome.first_crash is not None) + crashed,
        crashed=crashed,
    )


def _settings(config: Config) -> Settings:
    return frozenset((name, _text(value)) for name, value in config.root.items())


@lru_cache(typed=True)
def _text(value: Scalar) -> str:
    return json.dumps(value)


def _config(settings: Iterable[tuple[str, str]]) -> Config:
    return Config({name: json.loads(value) for name, value in settings})


def _same(one: Scalar, other: Scalar) -> bool:
    return one == other and type(one) is type(other)


def _mask(bits: Iterable[bool]) -> int:
    return sum(1 << place for place, bit in enumerate(bits) if bit)


def _minimal(masks: set[int]) -> list[int]:
    """Those that hold no other: who hits them hits all."""
    kept: list[int] = []
    for mask in sorted(masks, key=lambda each: each.bit_count()):
        if not any(mask & each == each for each in kept):
            kept.append(mask)
    return kept


def _subsets(settings: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    """Of a few settings all subsets, the small ones first; of many single ones, quarters, halves, and all but those."""
    if len(settings) <= MOST_SUBSETS:
        for size in range(1, len(settings) + 1):
            yield from itertools.combinations(settings, size)
        return
    num_pieces = len(settings)
    while num_pieces >= 2:
        length = math.ceil(len(settings) / num_pieces)
        for start in range(0, len(settings), length):
            piece = settings[start : start + length]
            yield piece
            yield [each for each in settings if each not in piece]
        num_pieces //= 2
