"""`Study`: a named, resumable run, stored by Optuna; and `Studies`, the place where it is one of several.

A study keeps records. What is tried next is chosen elsewhere (`autotune/study/sampler/`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune import own_folders
from autotune.command_line import command
from autotune.config import Config
from autotune.errors import InputError, StoreError, marked
from autotune.measure.measurement import Measurement, Outcome
from autotune.space.portfolio import Portfolio
from autotune.study import own_files
from autotune.study.budget import Budget
from autotune.study.earlier import STUDY
from autotune.study.early_stop import FEWEST_MODELS, WITHOUT_PORTFOLIO, ExpectedGain, StopRule
from autotune.study.manifest import Manifest
from autotune.study.marker import Home
from autotune.study.records import (
    OK,
    AnswerStep,
    BlockRow,
    Confirmation,
    DriftCheck,
    LongerUse,
    NoiseFloor,
    SecondBaseline,
    StopReason,
    TrialRecord,
    Tried,
)
from autotune.study.slots import UNREADABLE, list_slot, unreadable, value_slot
from autotune.study.stored_trials import LEASE, RESULT, TAKEN, UNFINISHED, Lease, StoredTrials, lease_of
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import kill_marked
from autotune.user_folders import is_remembered, is_trusted, remember
from autotune.workload.process_start import not_for_a_file

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class AskedTrial:
    """A trial to run: its number, its config, and Optuna's trial, which takes the outcome."""

    number: int
    config: Config
    handle: Trial


class Database(Protocol):
    """Where a study's records are kept. Its text names that place."""

    name: str
    """What `Studies.open` takes; a folder that was renamed has another name than its study."""
    locks_out_hosts: bool
    """Whether `exclusive` keeps out the processes of other machines as well."""

    @property
    def storage(self) -> RDBStorage:
        """Optuna's."""

    @property
    def home(self) -> Home | None:
        """Where the files of the trials are; None: beside the records."""

    @property
    def is_here(self) -> bool:
        """Whether the files of the trials are on this machine."""

    def run(self, operation: Callable[[], T]) -> T:
        """What the operation returns, which reads or writes the records. It is run once more where its connection broke
        in the middle: so what it does twice has to be done once. Whatever goes wrong comes out as a StoreError that
        names the place and says what to do."""

    def require_writable(self) -> None:
        """Raises StoreError where trials of the study cannot be run."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other processes from running trials. Raises StoreError if one does."""

    def require_exclusive(self) -> None:
        """Raises StoreError if another process could have come in since `exclusive` began."""

    def manifest_id(self) -> str:
        """The id of the study that has the name now."""

    def forget(self) -> None:
        """Remove the records, so far as clearing the study's folder does not."""


class Study:
    """An open study. Writing needs `writing()`, which keeps other processes out and ends trials of dead ones."""

    budget = value_slot("budget", Budget)
    """What the study was last run with, so that `resume` needs nothing but the study's name."""
    queue = list_slot("queue", Config)
    """The configs that were enqueued, tried since or not."""
    portfolio = value_slot("portfolio", Portfolio)
    """The configs that it began with; None where nothing was known, or wanted."""
    noise_floor = value_slot("noise_floor", NoiseFloor)
    """None until the untuned model was compared with itself."""
    second_baseline = value_slot("second_baseline", SecondBaseline)
    """What costs nothing, beside the untuned model; None where nothing does."""
    drift_checks = list_slot("sentinels", DriftCheck)
    """Readings of the untuned model between the trials, in the order taken."""
    blocks = list_slot("blocks", BlockRow)
    """The blocks that were measured, in their order."""
    uses = list_slot("uses", LongerUse)
    """Finalists that were used longer than in their trials, and what that showed."""
    answers = list_slot("answers", AnswerStep)
    """How the answer came about: each config that was proven and stood until a better one was."""
    early_stop = value_slot("early_stop", ExpectedGain)
    """The forecast with which the search stopped before its budget was used; None if it did not."""
    stop_reason = value_slot("stop", StopReason)
    """Why the last search ended; None before, and while one is running."""
    confirmation = value_slot("confirmation", Confirmation)
    """The verdict with what it rests on; None as long as nothing was confirmed."""

    def __init__(self, studies: Studies, folder: Path, manifest: Manifest, database: Database) -> None:
        self.studies = studies
        """The place that the study is kept in."""
        self.folder = folder
        """Holds its evidence. For a study of another machine `HOST:FOLDER`, which is not to be found here."""
        self.manifest = manifest
        self.database = database
        self._optuna = self._read(self._load)
        self._stored = StoredTrials(manifest)
        self._is_exclusive = False
        self._known: list[FrozenTrial] | None = None
        """All trials, as long as nobody but this process writes and it wrote nothing since."""
        self._attributes: dict[str, Any] | None = None
        """What is stored with the study, as long as nobody but this process writes."""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def flags(self) -> str:
        """What a command needs to find the study."""
        return self.studies.flags

    @property
    def stop_rule(self) -> StopRule:
        """When its search ends by itself. What ends one early after a portfolio was measured on CPUs alone."""
        budget, portfolio = self.budget or Budget(), self.portfolio
        is_on_cpu = self.manifest.workload.device == "cpu"
        if portfolio is None or not is_on_cpu or (portfolio.num_models or 0) < FEWEST_MODELS:
            return WITHOUT_PORTFOLIO
        return StopRule.after(len(portfolio.configs), is_thorough=budget.thorough)

    @property
    def reference(self) -> Path:
        """Outputs of the untuned model, written by its first trial."""
        return self.folder / "reference.npz"

    def trial_folder(self, number: int) -> TrialFolder:
        return TrialFolder(self.folder / "trials" / f"{number:04d}")

    @contextmanager
    def writing(self) -> Iterator[list[int]]:
        """Exclusive use of the study; yields the numbers of the trials that a dead process had left running. Raises
        StoreError also for a study of an earlier schema."""
        self.manifest.require_this_schema()
        with self.exclusive():
            yield self._reap()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from running trials. Raises StoreError if one does, or if nothing can be written."""
        own_files.require_own(self.folder, to_write=True)
        self.require_writable()
        with self.database.exclusive():
            if self.database.manifest_id() != self.manifest.id:
                raise StoreError(f"{self.folder} was replaced by another process", tip="run the same command again")
            self._is_exclusive, self._known, self._attributes = True, None, None
            try:
                yield
            finally:
                self._is_exclusive, self._known, self._attributes = False, None, None

    def require_writable(self) -> None:
        """Raises StoreError if nothing can be written in the study's folder. Reading needs no such right."""
        self.database.require_writable()

    @property
    def refused(self) -> set[int]:
        """Trials whose configs were wrong in a longer use."""
        return {use.trial for use in self.uses if use.failure is not None}

    def records(self) -> list[TrialRecord]:
        """Every trial, by number. One whose config was wrong in a longer use has failed."""
        failures = {use.trial: use.failure for use in self.uses if use.failure is not None}
        found = [self._stored.record(trial) for trial in self._trials()]
        return [
            replace(one, outcome=failures[one.number], violations={}) if one.number in failures else one
            for one in found
        ]

    def ended(self) -> list[TrialRecord]:
        """Every trial that is not running, by number."""
        return [record for record in self.records() if record.state != "running"]

    def record(self, number: int) -> TrialRecord:
        """One trial. Raises InputError for an unknown number."""
        for record in self.records():
            if record.number == number:
                return record
        raise InputError(f"study {self.name!r} has no trial {number}", tip=f"`{self.command('show')}` lists them")

    def untuned_record(self) -> TrialRecord | None:
        """The trial of the untuned model: the measured one, else the last that failed, else None."""
        config = self.manifest.space.untuned()
        tried = [
            found for found in self.records() if found.config == config and found.outcome and not found.was_cut_off
        ]
        measured = [record for record in tried if isinstance(record.outcome, Measurement)]
        return measured[0] if measured else tried[-1] if tried else None

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of its processes. Raises StoreError for one that no file may set, unless this user is
        known to have made the study or to have given it again (`accept`), or trusts the folder."""
        refused = not_for_a_file(self.manifest.variables)
        if refused and not is_remembered(self._of_the_user) and not is_trusted(self.folder):
            raise StoreError(
                f"study {self.name!r} was made with {', '.join(f'{name}={value}' for name, value in refused.items())}, "
                "which no file may set, and this account is not known to have made it",
                tip=f"if that is what you want, give it again: {marked('env', refused)}",
            )
        return self.manifest.variables

    def accept(self, typed: Mapping[str, str]) -> None:
        """The user gives these variables, when the study is made or again. That is remembered."""
        refused = not_for_a_file(self.manifest.variables)
        if refused and refused.items() <= typed.items():
            remember(self._of_the_user)

    @property
    def _of_the_user(self) -> str:
        """The word by which a study is remembered, and all of its variables."""
        facts = [self.manifest.id, sorted(self.manifest.variables.items())]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def require_own_records(self) -> None:
        """Raises StoreError where there is a verdict, which rests on the untuned model, and no measurement of it."""
        untuned = self.untuned_record()
        if self.confirmation is None or (untuned and isinstance(untuned.outcome, Measurement)):
            return
        raise StoreError(
            f"study {self.name!r} has a verdict and no measurement of the untuned model that its manifest.json names",
            tip="the file was edited or is another study's: restore it, or start another with "
            f"{marked('study', 'NAME')}",
        )

    def num_recorded(self) -> int:
        """Number of trials that say something about their config; a budget counts these."""
        return sum(self._stored.counts(trial) for trial in self._trials())

    def has_evidence(self) -> bool:
        """Whether anything was measured, or is being measured now."""
        records = (self._stored.record(trial) for trial in self._trials())
        return any(isinstance(record.outcome, Measurement) or record.state == "running" for record in records)

    def tried(self) -> list[Tried]:
        """What there is to be learned from the trials, by number. Those that ended without a result are left out."""
        refused = self.refused
        found = [self._stored.tried(trial) for trial in self._trials() if trial.state in TAKEN]
        return [replace(one, violations={OK: 1.0}) if one.number in refused else one for one in found]

    def enqueue(self, configs: Iterable[Config]) -> list[Config]:
        """Try these configs next, in order, after those already queued. The queue is stored with the study.

        Returns those that were queued: not the configs of another space, nor those tried or queued before.
        """
        space, queue = self.manifest.space, self.queue
        known = {*queue, *(trial.config for trial in self.tried())}
        wanted = [config for config in dict.fromkeys(configs) if space.holds(config) and config not in known]
        if wanted:
            self.queue = [*queue, *wanted]
        return wanted

    def ask(self, config: Config, longest_s: float) -> AskedTrial:
        """Begin a trial of this config, which takes at most `longest_s`."""
        lease, walk = Lease.of_this_process(longest_s).model_dump(), self.manifest.space.walk

        def begin() -> AskedTrial:
            try:
                self._optuna.enqueue_trial(dict(config.root), user_attrs={LEASE: lease})
                handle = self._optuna.ask()
                return AskedTrial(handle.number, walk(handle.suggest_categorical), handle)
            except BaseException:  # An interrupt, say: nobody will run it.
                self._end_unfinished(lease)
                raise

        return self._write(begin)

    def tell(self, asked: AskedTrial, outcome: Outcome) -> None:
        """Store the outcome. Raises StoreError; the trial's folder then still holds the outcome."""
        blamed = isinstance(outcome, Measurement) or outcome.blames_config
        violations = self._stored.violations(outcome) if blamed else {}
        values = self._stored.values(outcome, self._trials()) if blamed else None

        def store() -> None:
            stored = asked.handle.constraints
            for name, violation in violations.items():
                if name not in stored:
                    asked.handle.set_constraint(name, violation)
            # After the constraints: a trial with a result can be completed even if this process dies here.
            asked.handle.set_user_attr(RESULT, {"outcome": outcome.model_dump(mode="json")})
            self._finish(asked.handle, values)

        with suppress(UpdateFinishedTrialError):  # All was stored, and the connection broke before that was known.
            self._write(store)

    def abandon(self, asked: AskedTrial) -> None:
        """End an interrupted trial; its config will be asked for again."""
        self.trial_folder(asked.number).drop_leftovers()
        self._write(lambda: self._finish(asked.handle))

    def command(self, verb: str) -> str:
        """The command line that does `verb` with this study, ready to paste."""
        return command(verb, self.name) + self.flags

    def read_attribute(self, name: str) -> Any:
        """Plain data that is stored with the study; None before the first time. `Slot` gives it a type."""
        return self.read_attributes().get(name)

    def read_attributes(self) -> dict[str, Any]:
        """All plain data that is stored with the study, by name."""
        if self._attributes is None or not self._is_exclusive:
            stored = self._read(lambda: self._optuna.user_attrs)
            self._attributes = STUDY.current(stored, self.manifest.schema_)
        return self._attributes

    def write_attribute(self, name: str, content: Any) -> None:
        """Store plain data with the study in place of what was there."""
        self.database.require_exclusive()
        self._attributes = None
        self.database.run(lambda: self._optuna.set_user_attr(name, content))

    def close(self) -> None:
        """Close the database. SQLite merges the WAL into the file when the last connection closes."""
        self.database.storage.remove_session()
        self.database.storage.engine.dispose()

    def _load(self) -> optuna.Study:
        """Optuna's study. Its sampler has nothing to choose."""
        name = self.manifest.name
        try:
            return optuna.load_study(study_name=name, storage=self.database.storage, sampler=RandomSampler())
        except KeyError:
            raise StoreError(
                f"{self.database} holds no study named {name!r}",
                tip="the folder was renamed or the file is another study's; choose another with "
                f"{marked('study', 'NAME')}",
            ) from None

    def _trials(self) -> list[FrozenTrial]:
        """Every trial. Optuna reads a finished one from the database once: it never changes."""
        if self._known is not None:
            return self._known
        trials = self._read(lambda: self._optuna.get_trials(deepcopy=False))
        if self._is_exclusive:
            self._known = trials
        return trials

    def _read(self, operation: Callable[[], T]) -> T:
        """What the operation returns, which reads the records. Raises StoreError also where Optuna cannot make sense of
        them."""
        try:
            return self.database.run(operation)
        except UNREADABLE as error:
            raise unreadable(str(self.database), error) from error

    def _write(self, operation: Callable[[], T]) -> T:
        """What the operation returns; the trials are read anew afterwards."""
        self.database.require_exclusive()
        try:
            return self.database.run(operation)
        finally:
            self._known = None

    def _finish(self, trial: Trial | int, values: list[float] | None = None) -> None:
        """End a trial, unless it has ended, without values as one that says nothing of its config."""
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        self._optuna.tell(trial, values, state=state, skip_if_finished=True)

    def _end_unfinished(self, lease: dict[str, Any] | None) -> None:
        """End the trials of this lease: nobody runs them. One that waits has to be taken out of the queue first."""
        for trial in self._optuna.get_trials(deepcopy=False, states=UNFINISHED):
            if trial.user_attrs.get(LEASE) == lease:
                self._finish(self._optuna.ask() if trial.state is TrialState.WAITING else trial.number)

    def _reap(self) -> list[int]:
        """Complete the trials of dead processes; returns the numbers of those without a result.

        Processes, caches and scratch files that such a trial left are removed.
        """
        lost, hosts_locked_out = [], self.database.locks_out_hosts
        for trial in self._trials():
            if trial.state is TrialState.WAITING:  # Its process died as it began it.
                self._write(partial(self._end_unfinished, trial.user_attrs.get(LEASE)))
                lost.append(trial.number)
            if trial.state is not TrialState.RUNNING:
                continue
            lease = lease_of(trial)
            if lease and not lease.is_dead(hosts_locked_out=hosts_locked_out):
                continue
            folder = self.trial_folder(trial.number)
            kill_marked(folder.path)
            folder.drop_leftovers()
            record = self._stored.record(trial)
            values = None
            if record.counts and record.outcome is not None:
                values = self._stored.values(record.outcome, self._trials())
            else:
                lost.append(trial.number)
            self._write(partial(self._finish, trial.number, values))
        return lost


class Studies(ABC):
    """Named studies: the trials of each in a folder of one machine, the records there or elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = own_folders.named(folder)
        """Holds the folders of the studies whose trials run on this machine, each under its name."""

    @abstractmethod
    def __str__(self) -> str:
        """The place, as people are told of it."""

    @property
    @abstractmethod
    def flags(self) -> str:
        """What a command needs to find the studies."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the studies, broken ones too, in order."""

    @abstractmethod
    def manifests(self) -> Iterator[Manifest]:
        """Manifests of the studies, in the order of the names; broken ones are left out."""

    @abstractmethod
    def require(self, name: str) -> None:
        """Raises InputError for an unknown name. The study may be broken."""

    @abstractmethod
    def open(self, name: str) -> Study:
        """An existing study. Raises InputError for an unknown name, StoreError for a broken one."""

    @abstractmethod
    def remove(self, name: str) -> list[Path]:
        """Remove a study. Returns what stays in its folder, because the tool did not make it.

        Raises InputError for an unknown name, StoreError where it is in use or cannot be removed.
        """

    @abstractmethod
    def _exists(self, name: str) -> bool:
        """Whether there is a study of that name, and not what is left of one."""

    @abstractmethod
    def _create(self, folder: Path, manifest: Manifest) -> Study:
        """A new study whose trials go into `folder`, which exists."""

    @abstractmethod
    def _make(self, folder: Path, manifest: Manifest) -> Study:
        """A new study in the place of one that this process keeps others out of."""

    def own_folder(self, name: str, *, is_read: bool = True) -> Path:
        """The folder of a study's files on this machine, there or not. Raises InputError for a text that is no name,
        and StoreError where it, or what `is_read` of it, is behind a symbolic link."""
        check_name(name)
        if is_read:
            own_files.require_own(self.folder / name)
        else:
            own_folders.require_no_link(self.folder / name)
        return self.folder / name

    def create(self, manifest: Manifest) -> Study:
        """A new study. Raises StoreError where its folder cannot be written, or where another process makes it."""
        folder = self.own_folder(manifest.name)
        _make_folder(folder)
        study = self._create(folder, manifest)
        study.accept(manifest.variables)
        return study

    def open_or_create(self, manifest: Manifest) -> Study:
        """The study of this name, created if there is none. Raises StoreError if it was created with other settings.

        A study in which nothing was ever measured, for example because the model file had a mistake, is replaced.
        """
        self.own_folder(manifest.name)
        if not self._exists(manifest.name):
            return self.create(manifest)
        study = self.open(manifest.name)
        try:
            study.require_writable()
            if not study.has_evidence():
                study.close()
                return self._recreate(study, manifest)
            study.manifest.require_this_schema()
            study.manifest.require_same(manifest)
            study.accept(manifest.variables)
        except StoreError:
            study.close()
            raise
        return study

    def absolute(self) -> Self:
        """These studies, whatever the current folder is from now on."""
        absolute = copy.copy(self)
        absolute.folder = own_folders.absolute(self.folder)
        return absolute

    def _recreate(self, study: Study, manifest: Manifest) -> Study:
        """Replace a study without evidence, unless it is in use. Other files in its folder are kept."""
        with study.database.exclusive():
            if study.has_evidence():
                return self.open_or_create(manifest)
            try:
                study.database.forget()
                own_files.clear_study(study.folder)
            except OSError as error:
                raise StoreError(
                    f"cannot clear {error.filename}, of an earlier attempt: {error.strerror}",
                    tip=f"choose another with {marked('study', 'NAME')}, or move that folder away",
                ) from None
            _make_folder(study.folder)
            made = self._make(study.folder, manifest)
            made.accept(manifest.variables)
            return made


def check_name(name: str) -> None:
    """Raises InputError for a text that cannot be the name of a study."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{marked('study')} {name!r}: not usable as a folder's name",
            tip="use at most 100 letters, digits, '.', '_' and '-'" + (", without its folder" if "/" in name else ""),
        )


def _make_folder(folder: Path) -> None:
    try:
        own_folders.make(folder / "trials")
    except OSError as error:
        raise StoreError(
            f"cannot create {folder}: {error.strerror}", tip=f"choose another folder with {marked('studies_dir')}"
        ) from None
