"""`Pact`: what the ranks of a distributed job decide together about one tuned model or training step.

A rank that goes its own way can hang the others, which wait for it in a collective, or mix other numbers into theirs in
silence. So no rank decides alone whether its model is tuned:

* Each rank leaves its answer: the digest of its file, its releases, and what keeps it from the config, if anything. The
  lowest rank reads all of them and settles what holds. One "no" is everybody's, with one warning that names the rank
  and its reason.
* These are notes in the store at which the ranks met, and no collective. No communicator of the job's is touched, whose
  watchdog would end the job; and a rank that never comes is waited for only so long, and can be named.
* Whoever settles first has settled for all: a rank that gives up waiting settles on "no", and one that comes later
  finds that. Two ranks never hold different verdicts, whoever is late.
* After that no rank leaves alone. What does not compile later runs as it is written, where it stands, so that every
  collective is made once and in order. The rank leaves a note, which all look for before their calls: in a job whose
  ranks wait for each other in every step, all leave before the same call.

Rule of this file: no rank waits for another one within a call of the job's.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from autotune.backends.capabilities import Ranks
from autotune.backends.protocol import Backend
from autotune.errors import InputError, quoted
from autotune.job.fallback import Fallback, raise_interruption
from autotune.job.stats import StatsRecorder, recorder_of

DECISION_S = 600.0
"""Seconds for which a rank waits for the others' answers in `apply`: they may still be loading a checkpoint."""
COMPILE_S = 1800.0
"""Seconds for which it does in `prepare`, where the others compile."""
LONGEST_TURN_S = 240.0
"""Most seconds for which a rank leaves the compiling to the first one on its host. If the model waits for other ranks
in its calls, the first one gets no further until its neighbours come, too."""
_GRACE_S = 10.0
"""For the lowest rank, once all answers are there."""
_PAUSES_S = 0.001, 0.1
"""The first and the longest pause between two looks at the store."""
_ALWAYS, _SELDOM = 32, 64
"""Calls before each of which a rank looks for notes, and of the later ones one in so many."""
_MAX_NAMED = 3
"""Ranks that a sentence names."""


@dataclass(frozen=True)
class Answer:
    """What one rank has to say about a config. The paths of the file may differ, and whether caches were found."""

    refusal: str | None
    """Why it cannot apply the config; None: it can."""
    kind: str = ""
    """What it was applied to."""
    path: str = ""
    digest: str = ""
    releases: str = ""


class Pact:
    """The agreement of some ranks about one applied config."""

    def __init__(self, ranks: Ranks, members: Sequence[int]) -> None:
        """Every member has to make the same pacts in the same order: its first one is one with the others' first."""
        self.members = tuple(members)
        self.speaks = ranks.rank == min(members)
        """This rank says what all have decided."""
        self._ranks = ranks
        who = "-".join(map(str, members)) if len(members) < ranks.num_ranks else "all"
        self._name = f"{who}/{ranks.count(f'{who}/{ranks.rank}')}"
        self._has_posted = False
        self._num_turns = 0
        self._num_asked = Counter[str]()

    @property
    def rank(self) -> int:
        """This process's."""
        return self._ranks.rank

    @property
    def level(self) -> int:
        """Level of the line in which this rank's log says what all have decided: one of them warns."""
        return logging.WARNING if self.speaks else logging.INFO

    def agree(self, topic: str, answer: Answer, patience_s: float) -> str | None:
        """Why all of them stay untuned, the same sentence for each; None: nothing keeps them. Waits for the others."""
        self._num_asked[topic] += 1
        try:
            return self._agreed(f"{self._name}/{topic}/{self._num_asked[topic]}", answer, patience_s)
        except Exception as error:  # The store went with the rank that held it: the job is about to end.
            raise_interruption(error)
            return f"the ranks could not agree: {quoted(error)}"

    def tell(self, topic: str, answer: Answer) -> None:
        """Leave the answer, and wait for nobody: this rank goes no further."""
        self._num_asked[topic] += 1
        try:
            self._ranks.write(f"{self._name}/{topic}/{self._num_asked[topic]}/{self.rank}", json.dumps(asdict(answer)))
        except Exception as error:
            raise_interruption(error)

    def post(self, why: str) -> None:
        """Let all of them leave the tuned model at their next look."""
        if self._has_posted:
            return
        self._has_posted = True
        try:
            self._ranks.settle(self._trouble, json.dumps(f"rank {self.rank}: {why}"))
        except Exception as error:
            raise_interruption(error)

    def trouble(self) -> str | None:
        """Why all of them are to leave; None: nobody has posted anything. Quick, for a look at a store."""
        try:
            is_posted = self._ranks.are_written([self._trouble])
            return str(json.loads(self._ranks.read(self._trouble))) if is_posted else None
        except Exception as error:  # As in `agree`. The job's own collectives tell it.
            raise_interruption(error)
            return None

    @contextmanager
    def turn(self, patience_s: float) -> Iterator[None]:
        """Within: the first rank of this host compiles, and its neighbours wait for so long until it has."""
        self._num_turns += 1
        first = self._ranks.first_of_host
        name = f"{self._name}/turn/{self._num_turns}/{first}"
        if first is None or first not in self.members:
            yield
        elif first == self.rank:
            try:
                yield
            finally:
                self._ranks.write(name, "")
        else:
            deadline, pauses = time.monotonic() + min(patience_s, LONGEST_TURN_S), _pauses()
            while not self._ranks.are_written([name]) and time.monotonic() < deadline:
                time.sleep(next(pauses))
            yield

    @property
    def _trouble(self) -> str:
        return f"{self._name}/trouble"

    def _agreed(self, topic: str, answer: Answer, patience_s: float) -> str | None:
        names = {member: f"{topic}/{member}" for member in self.members}
        verdict = f"{topic}/verdict"
        self._ranks.write(names[self.rank], json.dumps(asdict(answer)))
        deadline, pauses = time.monotonic() + patience_s, _pauses()
        while not self._ranks.are_written([verdict]):
            if self.speaks and self._ranks.are_written(list(names.values())):
                answers = {member: Answer(**json.loads(self._ranks.read(name))) for member, name in names.items()}
                self._ranks.settle(verdict, json.dumps(objection(answers)))
            elif time.monotonic() > deadline:
                missing = [member for member, name in names.items() if not self._ranks.are_written([name])]
                if missing or time.monotonic() > deadline + _GRACE_S:
                    self._ranks.settle(verdict, json.dumps(_no_answer(missing or [min(self.members)], patience_s)))
            else:
                time.sleep(next(pauses))
        why: str | None = json.loads(self._ranks.read(verdict))
        return why


def pact_of(ranks: Ranks, members: Sequence[int] | None) -> Pact | None:
    """A new one; None where this rank is to decide alone. `members` None: all ranks of the job. Raises InputError."""
    chosen = tuple(range(ranks.num_ranks) if members is None else sorted(set(members)))
    if ranks.rank not in chosen or not set(chosen) <= set(range(ranks.num_ranks)):
        raise InputError(
            f"ranks={list(chosen)} was given on rank {ranks.rank} of {ranks.num_ranks}",
            tip="give the ranks that apply this config, the same ones on each of them",
        )
    return Pact(ranks, chosen) if len(chosen) > 1 else None


def objection(answers: Mapping[int, Answer]) -> str | None:
    """What keeps the ranks from a config, in a sentence that names ranks and their reasons; None: nothing does."""
    refusing = {rank: answer.refusal for rank, answer in answers.items() if answer.refusal is not None}
    if len(refusing) == len(answers) and len(set(refusing.values())) == 1:
        return next(iter(refusing.values()))  # Nobody differs from anybody.
    if refusing:
        named = [f"rank {rank}: {why}" for rank, why in list(refusing.items())[:_MAX_NAMED]]
        more = f"; and {len(refusing) - _MAX_NAMED} more ranks" if len(refusing) > _MAX_NAMED else ""
        return "; ".join(named) + more
    for what, has, told in _COMPARED:
        (usual, _), *others = Counter(map(has, answers.values())).most_common()
        if others:
            other, one = (
                next(rank for rank, answer in answers.items() if has(answer) == value)
                for value in (others[0][0], usual)
            )
            return f"rank {other} has {what} than rank {one}: {told(answers[other])}, there {told(answers[one])}"
    return None


_COMPARED: tuple[tuple[str, Callable[[Answer], str], Callable[[Answer], str]], ...] = (
    ("other releases", lambda answer: answer.releases, lambda answer: answer.releases),
    ("another file", lambda answer: answer.digest, lambda answer: f"{answer.path} (sha256 {answer.digest[:12]})"),
    ("another use for the file", lambda answer: answer.kind, lambda answer: answer.kind),
)
"""What has to be equal on all ranks: how a sentence calls it, the value, and how a sentence shows it."""


def _no_answer(missing: Sequence[int], patience_s: float) -> str:
    named = ", ".join(map(str, missing[:_MAX_NAMED])) + (", ..." if len(missing) > _MAX_NAMED else "")
    return f"rank {named}: no answer within {patience_s:g} s"


def _pauses() -> Iterator[float]:
    pause_s, longest_s = _PAUSES_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


class JointCalls:
    """A callable: what a rank's calls of a tuned model come to first. It looks for the others' notes."""

    def __init__(self, call: Callable[..., Any], pact: Pact, fallback: Fallback) -> None:
        self._call = call
        self._pact = pact
        self._fallback = fallback
        self._num_calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._num_calls += 1
        if (self._num_calls <= _ALWAYS or self._num_calls % _SELDOM == 0) and not self._fallback.is_over:
            why = self._pact.trouble()
            if why is not None:
                self._fallback.leave(why)
        return self._call(*args, **kwargs)


# `prepare`: the first forward and backward pass, before a job's first step.
#
# A first call compiles for minutes. In the middle of a step the other ranks would wait for it in a collective, and a
# watchdog that takes that for a hang would end the job. So it is made where nobody waits in a collective, all agree on
# how it went, and go on together.


@dataclass(frozen=True)
class Rehearsal:
    """What `prepare` does with one applied config."""

    backend: Backend
    model: Any
    fallback: Fallback
    pact: Pact | None
    compile_s: float
    """How long the first call is expected to take: as long as in the study."""

    def __call__(self, held: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        problem = None if self.fallback.is_over or self.backend.rehearse is None else self._tried(held, args, kwargs)
        if self.pact is None:
            if problem is not None:
                self.fallback.give_up(problem)
            return
        why = self.pact.agree("prepared", Answer(problem), COMPILE_S)
        if why is not None:
            self.fallback.leave(why)

    def _tried(self, held: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """What this rank alone has against the config now."""
        assert self.backend.rehearse is not None
        turn = nullcontext() if self.pact is None else self.pact.turn(2 * self.compile_s)
        try:
            self.backend.rehearse(self.model, held, args, kwargs, turn)
        except Exception as error:
            raise_interruption(error)
            return f"prepare() failed: {quoted(error)}"
        return self.fallback.trouble


def prepare(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """See `autotune.prepare`."""
    inner, recorder = model, recorder_of(model)
    while recorder is None and hasattr(inner, "module"):  # As the wrappers of distributed training call it.
        inner = inner.module
        recorder = recorder_of(inner)
    if not isinstance(recorder, StatsRecorder):
        raise InputError(
            f"prepare() was given a {type(model).__name__}, which neither apply() nor training_step() gave",
            tip="give it what they gave, or what wraps it",
        )
    rehearsal = recorder.rehearsal()
    if rehearsal is not None:
        rehearsal(model, args, kwargs)
