"""`Agreement`, `Pact`: what the ranks of a distributed job decide together about what they apply.

A rank that goes its own way can hang the others, which wait for it in a collective, or mix other numbers into theirs in
silence. So no rank decides alone whether its model is tuned:

* For all that a job applies at once (a model, a training step, a pipeline) there is one agreement, and each rank
  leaves one answer to it (`board`), whatever it failed at. One "no" is everybody's, with one warning that names the
  rank and its reason.
* These are notes in the store at which the ranks met, and no collective. No communicator of the job's is touched, whose
  watchdog would end the job; and a rank that does not come is waited for only so long, and can be named.
* After that no rank leaves alone. What does not compile later runs as it is written, where it stands, so that every
  collective is made once and in order. The rank leaves a note, which all look for before their calls: in a job whose
  ranks wait for each other in every step, all leave before the same call.

Rule of this file: no rank waits for another one within a call of the job's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

from autotune.backends.capabilities import Ranks
from autotune.backends.protocol import Backend
from autotune.backends.registry import framework_of, framework_version, imported_frameworks, is_imported, load_backend
from autotune.errors import AutotuneError, InputError, quoted
from autotune.job.board import Answer, Board, Decision, pauses
from autotune.job.fallback import Fallback, MismatchError, raise_interruption
from autotune.job.stats import StatsRecorder, recorder_of
from autotune.tuned.tuned_config import TunedConfig
from autotune.version import __version__

DECISION_S = 50.0
"""Seconds for which a rank waits for the others' answers in `apply`, and for the others to come to `prepare`. The job's
own collectives end it after some minutes, if the others wait there."""
OF_THE_JOBS = 0.5
"""And at most this share of what a collective of the job may take."""
COMPILE_S = 1800.0
"""Seconds for which it does in `prepare`, where the others compile."""
LONGEST_TURN_S = 240.0
"""Most seconds for which a rank leaves the compiling to the first one on its host. If the model waits for other ranks
in its calls, the first one gets no further until its neighbours come, too."""
_ALWAYS, _SELDOM = 32, 64
"""Calls before each of which a rank looks for notes, and of the later ones one in so many."""


class Pact:
    """The agreement of some ranks about what was applied, or about a part of it, and what they tell each other then."""

    def __init__(self, ranks: Ranks, board: Board, whole: Pact | None = None, part: str = "") -> None:
        self.members = board.members
        self.decision: Decision | None = None
        self._ranks = ranks
        self._board = board
        self._whole = whole
        self._part = part
        self._has_posted = False
        self._num_turns = 0

    def part(self, name: str) -> Pact:
        """A pact about a part, which all ranks may leave alone."""
        return Pact(self._ranks, self._board, self, name)

    @property
    def name(self) -> str | None:
        """All ranks call it so; None while nothing was decided for a config."""
        if self._whole is not None:
            return None if self._whole.name is None else f"{self._whole.name}/{self._part}"
        decided = self.decision is not None and self.decision.why is None
        return f"{self._board.name}/{self.decision.number}" if decided and self.decision is not None else None

    @property
    def rank(self) -> int:
        """This process's."""
        return self._ranks.rank

    @property
    def level(self) -> int:
        """Level of the line in which this rank's log says what all have decided: one of them warns."""
        decision = self.decision if self._whole is None else self._whole.decision
        speaker = min(self.members) if decision is None else decision.speaker
        return logging.WARNING if speaker == self.rank else logging.INFO

    def at_most_s(self, patience_s: float) -> float:
        """Seconds to wait for ranks that may be in a collective of the job's meanwhile, and wait there for this one."""
        longest_s = self._ranks.timeout_s
        return patience_s if longest_s is None else min(patience_s, OF_THE_JOBS * longest_s)

    def agree(self, answer: Answer, patience_s: float, level: int = logging.WARNING) -> str | None:
        """Why all of them stay untuned, the same sentence for each; None: nothing keeps them. Waits for the others."""
        try:
            decision = self._board.decide(answer, patience_s, level)
        except Exception as error:  # The store went with the rank that held it: the job is about to end.
            raise_interruption(error)
            return f"the ranks could not agree: {quoted(error)}"
        self.decision = self.decision or decision
        return decision.why

    def meet(self, topic: str, problem: str | None, patience_s: float) -> str | None:
        """`agree` about what was applied, in `prepare`. That others compile for long is no news to anybody."""
        answer = Answer(problem, "prepare()", "prepare()", f"{topic} {self.name}")
        return self.agree(answer, patience_s, logging.WARNING if patience_s <= DECISION_S else logging.INFO)

    def tell(self, answer: Answer) -> None:
        """Leave the answer, and wait for nobody: this rank goes no further."""
        try:
            self._board.tell(answer)
        except Exception as error:
            raise_interruption(error)

    def post(self, why: str) -> None:
        """Let all of them leave the tuned model at their next look."""
        self.post_of_all(f"rank {self.rank}: {why}")

    def post_of_all(self, why: str) -> None:
        """`post` of a sentence that names its rank."""
        if self._has_posted or self.name is None:
            return
        self._has_posted = True
        try:
            self._ranks.settle(self._trouble, json.dumps(why))
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
        name = f"{self.name}/turn/{self._num_turns}/{first}"
        if first is None or first not in self.members:
            yield
        elif first == self.rank:
            try:
                yield
            finally:
                self._ranks.write(name, "")
        else:
            deadline, waits = time.monotonic() + min(patience_s, LONGEST_TURN_S), pauses()
            while not self._ranks.are_written([name]) and time.monotonic() < deadline:
                time.sleep(next(waits))
            yield

    @property
    def _trouble(self) -> str:
        return f"{self.name}/trouble"


class Agreement:
    """What is decided about one thing that a job applies, of however many parts: by all ranks of a distributed job, or
    by a process alone. Within its block an exception is this rank's answer."""

    def __init__(
        self, pact: Pact | InputError | None, draft: Answer, told: Callable[[Exception], str], patience_s: float
    ) -> None:
        """`pact`: that of the ranks; None: this process decides alone; an exception: why nobody knows who decides.
        `draft`: the answer of a rank that nothing keeps from it. `told`: an exception as the other ranks read it."""
        self.pact = pact if isinstance(pact, Pact) else None
        self._problem = pact if isinstance(pact, InputError) else None
        self._draft = draft
        self._told = told
        self._patience_s = patience_s
        self._has_answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.pact is not None and not self._has_answered:
            told = self._told(error) if isinstance(error, Exception) else type(error).__name__
            self.pact.tell(replace(self._draft, refusal=told))

    def reached(self, refusal: Exception | None, left_out: Mapping[str, str] | None = None) -> Exception | None:
        """What keeps all ranks from it. `refusal`: what keeps this one. `left_out`: parts that stay untuned here, and
        why."""
        if self.pact is None:
            return self._problem or refusal
        told = None if refusal is None else self._told(refusal)
        self._has_answered = True
        why = self.pact.agree(
            replace(self._draft, refusal=told, left_out=left_out or {}), self.pact.at_most_s(self._patience_s)
        )
        return None if why is None else MismatchError(why)


class Content(Protocol):
    """What is in a file that is applied: a tuned config, or several."""

    @property
    def framework(self) -> str: ...

    def model_dump_json(self) -> str: ...


def stays_untuned(what: str, pact: Pact | None) -> str:
    """The consequence of what keeps all ranks from a config."""
    return f"{what} untuned" if pact is None else f"{what} untuned on all of the {len(pact.members)} ranks"


def level_of(pact: Pact | None) -> int:
    """As `Pact.level`; a process that decides alone warns."""
    return logging.WARNING if pact is None else pact.level


def draft_of(kind: str, path: str, content: Content | None, *more: TunedConfig | None) -> Answer:
    """The answer of a rank that nothing keeps from what is in a file; `more`: what is in the files that it names."""
    if content is None:
        return Answer(None, kind, path)
    texts = ["" if each is None else each.model_dump_json() for each in (content, *more)]
    own, whole = (hashlib.sha256(text.encode()).hexdigest() for text in (texts[0], "\n".join(texts)))
    with suppress(AutotuneError):  # A framework that is not there keeps it from the config, and is named.
        releases = f"{content.framework} {framework_version(content.framework)}, autotune {__version__}"
        return Answer(None, kind, path, f"{kind} {own}", whole, releases)
    return Answer(None, kind, path, f"{kind} {own}", whole)


def pact_for(framework: str | None, model: Any, members: Sequence[int] | None) -> Pact | InputError | None:
    """A new one for what is applied to a model; None where this process is to decide alone, an InputError for members
    that are no ranks. `framework`: the file's, if it can be read."""
    ranks = None
    with suppress(AutotuneError):  # What is wrong with a framework is said where the config is applied.
        named = framework if framework is not None and is_imported(framework) else framework_of(model)
        # A pipeline is of no framework, and neither are many models that a config is applied to by mistake.
        asked = imported_frameworks() if named is None else [named]
        ranks = next((found for name in asked if (found := load_backend(name).ranks()) is not None), None)
    if ranks is None:
        return None
    chosen = tuple(range(ranks.num_ranks) if members is None else sorted(set(members)))
    if ranks.rank not in chosen or not set(chosen) <= set(range(ranks.num_ranks)):
        return InputError(
            f"ranks={list(chosen)} was given on rank {ranks.rank} of {ranks.num_ranks}",
            tip="give the ranks that apply this config, the same ones on each of them",
        )
    if len(chosen) == 1:
        return None
    return Pact(ranks, ranks.kept.setdefault(chosen, Board(ranks, chosen)))


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
        if self.pact is None:
            problem = self._tried(held, args, kwargs)
            if problem is not None:
                self.fallback.give_up(problem)
            return
        # What a rank waits for that does not come is not what it waits for where the others compile.
        why = self.pact.meet("all are here", None, self.pact.at_most_s(DECISION_S))
        if why is None:
            why = self.pact.meet("prepared", self._tried(held, args, kwargs), COMPILE_S)
        if why is not None:
            self.pact.post_of_all(why)  # For those that did not come.
            self.fallback.leave(why)

    def _tried(self, held: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """What this rank alone has against the config now."""
        if self.fallback.is_over or self.backend.rehearse is None:
            return None
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
