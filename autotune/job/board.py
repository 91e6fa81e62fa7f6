"""`Board`: where the ranks of a job leave their answers and read what was decided, one matter after the other.

No rank waits longer than it is told to, and no two ranks ever read different decisions of one matter:

* Each rank numbers its answers. The decisions are one list for all: whoever writes the next of them first has settled
  it, and answers and decisions together say what is still open, to each reader the same.
* Answers find each other by the name of what they are about. Where all ranks wait and their names differ, or one does
  not know what it failed at, the answers that wait belong together: nobody else will come.
* Who gives up waiting decides against the config, and for those that come later: they find that and do not wait, and
  nobody waits for them a second time. An agreement in which all take part ends that.
* Only the lowest rank decides for a config, and only by answers that repeat what it has written since it came: those
  that a dead process left in the same store are as good as none. Anybody's answer against it counts.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from autotune.backends.capabilities import Ranks

SAID_AFTER_S = 15.0
"""Seconds after which a rank that waits says for whom."""
_GRACE = 1.1
"""Times as long as the lowest rank waits do the others: they do not all look for everybody's answer at once."""
_PAUSES_S = 0.001, 0.1
"""The first and the longest pause between two looks at the store."""
_MAX_NAMED = 3
"""Ranks that a sentence names."""

_log = logging.getLogger("autotune")


@dataclass(frozen=True)
class Answer:
    """What one rank has to say about what it applies. The paths of the file may differ, and whether caches were
    found."""

    refusal: str | None
    """Why it cannot apply the config; None: it can."""
    kind: str = ""
    """What it was applied to."""
    path: str = ""
    name: str = ""
    """By it the ranks' answers to one matter are found; "": this rank does not know what the file would have been."""
    digest: str = ""
    """Digest of all that is applied."""
    releases: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Parts that stay untuned while the others are tuned, and why."""


@dataclass(frozen=True)
class Decision:
    """What all ranks read about one matter."""

    number: int
    """Place in the list of decisions."""
    why: str | None
    """Why all of them stay untuned; None: nothing keeps them."""
    speaker: int
    """The rank whose log says so: the lowest one that waited."""


@dataclass(frozen=True)
class _Entry:
    """A decision as it stands in the store."""

    posts: dict[int, int]
    """Rank -> number of its answer, of those that it is about."""
    names: tuple[str, ...]
    """Names of what they are about, so far as anybody knows."""
    missing: tuple[int, ...]
    """Ranks that had not answered."""
    speaker: int
    why: str | None
    came_to: int = 0
    """Number of the earlier decision without the rank in `posts`, to which it has come now."""

    def concerns(self, name: str) -> bool:
        """An answer of this name is one to the same matter, if it comes later."""
        return not name or name in self.names


@dataclass(frozen=True)
class _Post:
    """An answer as it stands in the store."""

    number: int
    answer: Answer
    roll: str
    """What the lowest rank had written when this was left."""
    waits: bool = True
    """Its rank waits for the others'."""


class _Minutes:
    """The answers and the decisions of some ranks, as one of them has read them so far."""

    def __init__(self, ranks: Ranks, members: Sequence[int]) -> None:
        self.members = tuple(members)
        self.name = "-".join(map(str, members)) if len(members) < ranks.num_ranks else "all"
        self._ranks = ranks
        self._num_decisions = 0
        self._last = dict.fromkeys(members, 0)
        """Number of each rank's answer to the latest matter on which all decided: nobody comes back to what was before.
        """
        self._taken: set[tuple[int, int]] = set()
        """Rank and number of each answer that a rank which waited no longer had before it."""
        self._owed: defaultdict[int, dict[int, _Entry]] = defaultdict(dict)
        """Decisions made without a rank, by their numbers, to which it has not come yet."""
        self._decisions: dict[int, Decision] = {}
        """Decisions on this rank's own answers, by their numbers."""

    def _catch_up(self) -> None:
        """Read what was decided since."""
        while self._ranks.are_written([key := self._key(f"decision/{self._num_decisions + 1}")]):
            content = json.loads(self._ranks.read(key))
            content["posts"] = {int(rank): number for rank, number in content["posts"].items()}
            self._num_decisions += 1
            self._take(_Entry(**content))

    def _take(self, entry: _Entry) -> None:
        if self._ranks.rank in entry.posts:
            decision = Decision(self._num_decisions, entry.why, entry.speaker)
            self._decisions[entry.posts[self._ranks.rank]] = decision
        if len(entry.posts) == len(self.members):
            self._last |= entry.posts
            self._owed.clear()
        self._taken |= set(entry.posts.items())
        for rank in entry.posts if entry.came_to else ():
            self._owed[rank].pop(entry.came_to, None)
        for rank in entry.missing:
            self._owed[rank][self._num_decisions] = entry

    def _append(self, entry: _Entry) -> None:
        """Decide, unless another rank was first."""
        self._ranks.settle(self._key(f"decision/{self._num_decisions + 1}"), json.dumps(asdict(entry)))

    def _posts_of(self, rank: int) -> Iterator[_Post]:
        """Answers of a rank on which nothing was decided."""
        number = self._last[rank] + 1
        while self._ranks.are_written([key := self._key(f"answer/{rank}/{number}")]):
            content = json.loads(self._ranks.read(key))
            if self._is_open(rank, number):
                yield _Post(number, Answer(**content["answer"]), content["roll"], content["waits"])
            number += 1

    def _is_open(self, rank: int, number: int) -> bool:
        return number > self._last[rank] and (rank, number) not in self._taken

    def _next_number(self) -> int:
        number = self._last[self._ranks.rank] + 1
        while self._ranks.are_written([self._key(f"answer/{self._ranks.rank}/{number}")]):
            number += 1
        return number

    def _leave(self, post: _Post) -> None:
        content = {"answer": asdict(post.answer), "roll": post.roll, "waits": post.waits}
        self._ranks.write(self._key(f"answer/{self._ranks.rank}/{post.number}"), json.dumps(content))

    def _key(self, name: str) -> str:
        return f"{self.name}/{name}"


class Board(_Minutes):
    """Answers and decisions of some ranks of a job, in one of them."""

    def __init__(self, ranks: Ranks, members: Sequence[int]) -> None:
        super().__init__(ranks, members)
        self._roll = uuid.uuid4().hex
        self._lock = threading.Lock()

    @property
    def speaks(self) -> bool:
        """This rank decides for a config."""
        return self._ranks.rank == min(self.members)

    def tell(self, answer: Answer) -> None:
        """Leave an answer, and wait for nobody: this rank goes no further."""
        with self._lock:
            self._catch_up()
            post = _Post(self._next_number(), answer, "", waits=False)
            self._leave(post)
            if self._late_for(post) is not None:
                self._decided(post, 0.0)

    def decide(self, answer: Answer, patience_s: float, level: int = logging.WARNING) -> Decision:
        """Leave an answer, and wait so long for the others'. Each rank reads the same decision. `level`: that of the
        line that says for whom this rank waits."""
        with self._lock:
            self._catch_up()
            if self.speaks:
                self._ranks.write(self._key("roll"), self._roll)
            post = _Post(self._next_number(), answer, self._heard())
            self._leave(post)
            try:
                return self._decided(post, patience_s, level)
            except BaseException as error:  # The others are not to take it for one that goes on with them.
                self._leave(replace(post, answer=replace(answer, refusal=type(error).__name__), waits=False))
                raise

    def _decided(self, post: _Post, patience_s: float, level: int = logging.WARNING) -> Decision:
        begun, waits, has_said, found = time.monotonic(), pauses(), False, {self._ranks.rank: post}
        owing = self._owing(post.answer.name)
        while post.number not in self._decisions:
            waited_s = time.monotonic() - begun
            if (late := self._late_for(post)) is not None:
                self._append(late)
            elif owing:
                self._append(self._not_again(post, owing))
            elif self._may_decide(post) and self._has_found_all(post, found):
                self._append(self._agreed(post, found))
            elif waited_s > patience_s * (1 if self.speaks else _GRACE):
                self._append(self._given_up(post, patience_s))
            else:
                post = self._renewed(post)
                if waited_s > SAID_AFTER_S and not has_said:
                    has_said = True
                    self._say_who_is_waited_for(post, patience_s, level)
                time.sleep(next(waits))
            self._catch_up()
            found = {rank: each for rank, each in found.items() if self._is_open(rank, each.number)}
        return self._decisions[post.number]

    def _late_for(self, post: _Post) -> _Entry | None:
        """That this rank has come to what was decided without it; None: nothing was."""
        owed = self._owed[self._ranks.rank].items()
        return next(
            (_arrival(self._ranks.rank, post, *each) for each in owed if each[1].concerns(post.answer.name)), None
        )

    def _fitting(self, rank: int, name: str) -> _Post | None:
        """The answer of another rank to the matter of this name; None: it has left none. A rank waits with its last
        one alone: what it left before is nothing, unless it went on with a refusal."""
        posts = [*self._posts_of(rank)]
        posts = [post for post in posts if post.answer.refusal is not None or post is posts[-1]]
        return next((post for post in posts if post.answer.name == name), posts[0] if posts else None)

    def _may_decide(self, own: _Post) -> bool:
        """The lowest rank does; where it went on with a refusal, anybody else."""
        first = None if self.speaks else self._fitting(min(self.members), own.answer.name)
        return self.speaks or (first is not None and not first.waits)

    def _agreed(self, own: _Post, found: dict[int, _Post]) -> _Entry:
        """The decision on the answers of all. Where they are to different matters, whoever has not come to an earlier
        one is answered that, and what this rank went on from comes before what it waits for."""
        num_named = Counter(post.answer.name for post in found.values())
        if len(num_named) > 1:
            for rank, post in found.items():
                if self._owed[rank] and num_named[post.answer.name] == 1:
                    return _arrival(rank, post, *next(iter(self._owed[rank].items())))
            before = next(self._posts_of(self._ranks.rank))
            if before.number != own.number:
                fitting = {rank: self._fitting(rank, before.answer.name) or post for rank, post in found.items()}
                found = fitting | {self._ranks.rank: before}
        return _entry_of(found, (), objection({rank: post.answer for rank, post in found.items()}))

    def _has_found_all(self, own: _Post, found: dict[int, _Post]) -> bool:
        for rank in self.members:
            post = found.get(rank) or self._fitting(rank, own.answer.name)
            if post is None or not self._is_of_the_living(post):
                return False
            found[rank] = post
        return True

    def _given_up(self, own: _Post, patience_s: float) -> _Entry:
        """The decision of a rank that waits no longer."""
        found = {self._ranks.rank: own}
        for rank in self.members:
            post = self._fitting(rank, own.answer.name)
            if rank != self._ranks.rank and post is not None and self._is_of_the_living(post):
                found[rank] = post
        missing = [rank for rank in self.members if rank not in found] or [min(self.members)]
        refusals = [f"rank {rank}: {post.answer.refusal}" for rank, post in found.items() if post.answer.refusal]
        told = [*refusals[:_MAX_NAMED], f"{_named(missing)}: no answer within {patience_s:g} s"]
        return _entry_of(found, missing, "; ".join(told))

    def _not_again(self, own: _Post, owing: Sequence[int]) -> _Entry:
        """The decision of a rank that does not wait for others once more. Whoever comes to it later finds it."""
        others = [rank for rank in self.members if rank != self._ranks.rank]
        why = f"{_named(owing)}: no answer so far to what was applied before"
        return _entry_of({self._ranks.rank: own}, others, why)

    def _is_of_the_living(self, post: _Post) -> bool:
        """So far as the lowest rank can tell."""
        return post.answer.refusal is not None or not self.speaks or post.roll == self._roll

    def _owing(self, name: str) -> list[int]:
        """Ranks that nobody waits for again: they have not come to the same matter so far."""
        others = [rank for rank in self.members if rank != self._ranks.rank and self._owed[rank]]
        return [rank for rank in others if any(entry.concerns(name) for entry in self._owed[rank].values())]

    def _say_who_is_waited_for(self, post: _Post, patience_s: float, level: int) -> None:
        """One rank does: the lowest one that waits."""
        rank = self._ranks.rank
        has_answered = partial(self._fitting, name=post.answer.name)
        if any(has_answered(other) for other in self.members if other < rank):
            return
        missing = [other for other in self.members if other != rank and not has_answered(other)]
        if missing:
            what = post.answer.path or post.answer.kind
            _log.log(level, "autotune: %s: waits for %s, at most %g s in all", what, _named(missing), patience_s)

    def _renewed(self, post: _Post) -> _Post:
        """The lowest rank may have come after this one had answered."""
        heard = self._heard()
        if heard == post.roll:
            return post
        post = replace(post, roll=heard)
        self._leave(post)
        return post

    def _heard(self) -> str:
        key = self._key("roll")
        return self._ranks.read(key) if self._ranks.are_written([key]) else ""


def _arrival(rank: int, post: _Post, number: int, entry: _Entry) -> _Entry:
    """The decision on an answer that came after the one of this number was made without it."""
    return _Entry({rank: post.number}, (), (), entry.speaker, entry.why, number)


def _entry_of(found: Mapping[int, _Post], missing: Sequence[int], why: str | None) -> _Entry:
    names = {post.answer.name for post in found.values()} - {""}
    posts = {rank: post.number for rank, post in found.items()}
    speaker = min([rank for rank, post in found.items() if post.waits], default=min(found))
    return _Entry(posts, tuple(sorted(names)), tuple(missing), speaker, why)


def objection(answers: Mapping[int, Answer]) -> str | None:
    """What keeps the ranks from a config, in a sentence that names ranks and their reasons; None: nothing does."""
    refusing = {rank: answer.refusal for rank, answer in answers.items() if answer.refusal is not None}
    if len(refusing) == len(answers) and len(set(refusing.values())) == 1:
        return next(iter(refusing.values()))  # Nobody differs from anybody.
    if refusing:
        named = [f"rank {rank}: {why}" for rank, why in list(refusing.items())[:_MAX_NAMED]]
        more = f"; and {len(refusing) - _MAX_NAMED} more ranks" if len(refusing) > _MAX_NAMED else ""
        return "; ".join(named) + more
    return _objection_of_parts(answers) or _difference(answers)


def _difference(answers: Mapping[int, Answer]) -> str | None:
    for what, has, told in _COMPARED:
        (usual, _), *others = Counter(map(has, answers.values())).most_common()
        if others:
            other, one = (
                next(rank for rank, answer in answers.items() if has(answer) == value)
                for value in (others[0][0], usual)
            )
            return f"rank {other} has {what} than rank {one}: {told(answers[other])}, there {told(answers[one])}"
    return None


def _objection_of_parts(answers: Mapping[int, Answer]) -> str | None:
    """A part that some ranks have untuned, and others tuned."""
    for rank, answer in answers.items():
        for part, why in answer.left_out.items():
            if any(part not in other.left_out for other in answers.values()):
                return f"rank {rank}: {part}: {why}"
    return None


_COMPARED: tuple[tuple[str, Callable[[Answer], str], Callable[[Answer], str]], ...] = (
    ("other releases", lambda answer: answer.releases, lambda answer: answer.releases),
    ("another file", lambda answer: answer.digest, lambda answer: f"{answer.path} (sha256 {answer.digest[:12]})"),
    ("another use for the file", lambda answer: answer.kind, lambda answer: answer.kind),
)
"""What has to be equal on all ranks: how a sentence calls it, the value, and how a sentence shows it."""


def _named(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks[:_MAX_NAMED]))}{', ...' if len(ranks) > _MAX_NAMED else ''}"


def pauses() -> Iterator[float]:
    """Seconds between two looks at the store: longer ones, the longer it takes."""
    pause_s, longest_s = _PAUSES_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)
