"""Tuning the models of a fleet one after the other: what one model does ends no other, and what is done stays done."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune.answer.export import export
from autotune.answer.format import seconds
from autotune.answer.result import StudyResult
from autotune.api.running import terms_of
from autotune.cli.app import say
from autotune.cli.running import search
from autotune.errors import AutotuneError, InputError, StoreError, marked
from autotune.measure.statistics import Verdict
from autotune.planning.manifest import make_manifest
from autotune.plugins.fleet.row import FAILED, INTERRUPTED, NOT_BEGUN, UNCLEAR, Row, row_of_answer
from autotune.plugins.fleet.shared_time import SharedTime
from autotune.plugins.fleet.spec import Member
from autotune.study.manifest import Manifest
from autotune.study.study import Studies, Study
from autotune.trial.deadline import Deadline
from autotune.tuning.priors import PriorSource, read_prior


@dataclass(frozen=True)
class Night:
    """Where the studies are, and what is done with them."""

    studies: Studies
    output: Path | None
    """Folder for an exported file of each answer, which is also the prior of a study that is new here."""
    anew: bool
    """A study that cannot go on here gives its name, and its best configs, to a new one."""
    quiet: bool

    def tune(self, members: Sequence[Member]) -> Iterator[Row]:
        """A row for each model, as soon as it is tuned; after an interrupt a last one for the model under way."""
        for number, (member, own, num_sharing) in enumerate(_with_time(members)):
            say(f"model {member.study} ({number + 1} of {len(members)})")
            before_s = own.spent_s
            with own.taken():
                row = self._row_of(member, partial(self._tuned, member, own, num_sharing))
            yield replace(row, seconds=own.spent_s - before_s)
            if row.exit_status == INTERRUPTED:
                return

    def plan(self, members: Sequence[Member]) -> Iterator[Row]:
        """What `tune` would do with each model, in its order, and the time it would have if each took all of its own.
        Nothing is written."""
        for member, own, num_sharing in _with_time(members):
            yield self._row_of(member, partial(self._planned, member, own, num_sharing))

    def _planned(self, member: Member, shared: SharedTime, num_sharing: int) -> Row:
        terms = terms_of(member.question, time.monotonic(), self.studies)
        manifest = make_manifest(member.question, terms.limits)
        row = replace(row_of_answer(member.study, manifest, None), created=None)
        earlier = _study_if_any(manifest.name, self.studies)
        outcome = "begins"
        if earlier is not None:
            with closing(earlier):
                ended, is_done = _why_ended(earlier, manifest), _is_done(earlier)
            if ended is not None and not self.anew:
                raise StoreError(f"it cannot go on here: {ended}", tip=f"{marked('anew', True)} begins it anew")
            if ended is None and is_done:
                return replace(row, outcome="stays", why="it has an answer")
            outcome = "goes on" if ended is None else "begins anew"
        budget = shared.share_of(terms.budget, num_sharing) or terms.budget
        shared.spent_s += budget.wall_s or 0.0
        num_trials = "no limit" if budget.num_trials is None else f"{budget.num_trials} trials"
        return replace(row, outcome=outcome, why=num_trials if budget.wall_s is None else seconds(budget.wall_s))

    def _row_of(self, member: Member, do: Callable[[], Row]) -> Row:
        try:
            return do()
        except KeyboardInterrupt:
            return Row(member.study, "interrupted", INTERRUPTED, "the same command goes on from here")
        except AutotuneError as error:
            return self._failed(member, error)
        except Exception as error:  # A bug of ours: the other models are tuned all the same.
            say(traceback.format_exc())
            return Row(member.study, "failed", FAILED, f"{type(error).__name__}: {error}")

    def _failed(self, member: Member, error: AutotuneError) -> Row:
        say(f"{member.study} is left out: {error}" + (f" ({error.tip})" if error.tip else ""))
        return replace(Row.of_error(member.study, error), model=member.question.build or "")

    def _tuned(self, member: Member, shared: SharedTime, num_sharing: int) -> Row:
        terms = terms_of(member.question, time.monotonic(), self.studies)
        budget = shared.share_of(terms.budget, num_sharing)
        if budget is None:
            return Row(member.study, NOT_BEGUN, UNCLEAR, "the time was over; the same command goes on from here")
        terms = replace(terms, budget=budget, time=Deadline.after(budget.wall_s))
        manifest = make_manifest(member.question, terms.limits)
        study, sources = self._opened(manifest)
        with closing(study):
            if not _is_done(study):
                given = replace(terms, sources=[*terms.sources, *sources])
                search(study, given, quiet=self.quiet, on=member.question.on)
            answer = StudyResult(study)
            row = row_of_answer(member.study, study.manifest, answer.confirmation)
            exported = self._export(study, answer)
        return replace(row, why=exported, exit_status=0 if answer.best is not None else FAILED)

    def _opened(self, manifest: Manifest) -> tuple[Study, list[PriorSource]]:
        """The study of this name, and what is tried first in it where it is new here. Raises StoreError for one that
        cannot go on, unless it may begin anew."""
        name = manifest.name
        earlier = _study_if_any(name, self.studies)
        if earlier is None:
            file = None if self.output is None else self.output / f"{name}.yaml"
            sources = [] if file is None or not file.exists() else self._priors(str(file), manifest)
            return self.studies.open_or_create(manifest), sources
        with closing(earlier):
            why = _why_ended(earlier, manifest)
        if why is None or not self.anew:
            return self._open(manifest, may_begin_anew=why is not None), []
        sources = self._priors(name, manifest)
        say(f"{name} begins anew: {why}")
        self.studies.remove(name)
        return self.studies.open_or_create(manifest), sources

    def _priors(self, name: str, manifest: Manifest) -> list[PriorSource]:
        """What an earlier answer has to suggest; one that cannot be read suggests nothing."""
        with suppress(AutotuneError):
            source = read_prior(name, self.studies)
            return [source] if source.configs and source.framework == manifest.framework else []
        return []

    def _open(self, manifest: Manifest, *, may_begin_anew: bool) -> Study:
        try:
            return self.studies.open_or_create(manifest)
        except StoreError as error:
            tip = f"{error.tip}; {marked('anew', True)} begins it anew" if may_begin_anew else error.tip
            raise StoreError(str(error), tip=tip) from None

    def _export(self, study: Study, answer: StudyResult) -> str:
        """Write the file of an answer, and return a note of it; an empty text where there is none to write."""
        if self.output is None or answer.verdict is None or answer.best is None:
            return ""
        file = self.output / f"{study.name}.yaml"
        export(study, file)
        return f"written: {file}"


def _with_time(members: Sequence[Member]) -> Iterator[tuple[Member, SharedTime, int]]:
    """Each with the time that it takes part in, and among how many of those to come that is divided."""
    shared = SharedTime()
    for number, member in enumerate(members):
        num_sharing = sum(other.shares_time for other in members[number:])
        yield (member, shared, num_sharing) if member.shares_time else (member, SharedTime(), 1)


def _study_if_any(name: str, studies: Studies) -> Study | None:
    try:
        return studies.open(name)
    except InputError:
        return None


def _why_ended(study: Study, now: Manifest) -> str | None:
    """Why trials of now cannot be added to it, in words; None: they can, or nothing was measured in it."""
    if not study.database.is_here:
        return f"it was measured on another machine, in {study.folder}"
    if not study.has_evidence():
        return None
    if not study.manifest.is_of_this_schema:
        return f"it was {study.manifest.written}"
    return "; ".join(study.manifest.differences(now)) or None


def _is_done(study: Study) -> bool:
    """It ended with an answer that more time would not change: nothing is tuned twice."""
    confirmation = study.confirmation
    if confirmation is None or confirmation.cut_short or study.stop_reason is None:
        return False
    return confirmation.verdict is not Verdict.UNDECIDED
