"""`Study`: a named, resumable run, stored by Optuna.

What Optuna stores of an outcome (docs/decisions/0003-study-storage.md): a failure that the config caused is a completed
trial with the worst values so far and the constraint `ok` violated, so that samplers learn to avoid it; a failure of
the harness is a trial in state FAIL, and its config may be tried again. Every trial carries the same constraints, each
as the share by which its bound is missed.
"""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.command_line import asked, command
from autotune.config import Config, Scalar
from autotune.errors import AutotuneError, InputError, StoreError
from autotune.measure.measurement import Measurement, Outcome
from autotune.study import own_files
from autotune.study.budget import Budget
from autotune.study.exclusions import Exclusions
from autotune.study.lease import Lease
from autotune.study.manifest import Manifest
from autotune.study.marker import Home
from autotune.study.records import Confirmation, DriftCheck, NoiseFloor, StopReason, TrialRecord
from autotune.study.sampler.early_stop import ExpectedGain
from autotune.study.sampler.optuna_sampler import OptunaSampler
from autotune.study.sampler.sampler import OK, TAKEN, EnumSampler, Excluded
from autotune.study.slots import ListSlot, Slot
from autotune.study.stored_trials import LEASE, RESULT, StoredTrials, failed_through_harness
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import kill_marked

MAX_HARNESS_FAILURES = 2
"""A config is not tried again after this many failures that it did not cause."""
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

    def errors(self) -> AbstractContextManager[None]:
        """Whatever goes wrong inside comes out as a StoreError that names the place and says what to do."""

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

    budget = Slot("budget", Budget)
    """What the study was last run with, so that `resume` needs nothing but the study's name."""
    queue = ListSlot("queue", Config)
    """The configs that were enqueued, tried since or not."""
    noise_floor = Slot("noise_floor", NoiseFloor)
    """None until the untuned model was compared with itself."""
    drift_checks = ListSlot("sentinels", DriftCheck)
    """Readings of the untuned model between the trials, in the order taken."""
    early_stop = Slot("early_stop", ExpectedGain)
    """The forecast with which the search stopped before its budget was used; None if it did not."""
    stop_reason = Slot("stop", StopReason)
    """Why the last search ended; None before, and while one is running."""
    confirmation = Slot("confirmation", Confirmation)
    """The verdict with what it rests on; None as long as nothing was confirmed."""

    def __init__(self, studies: Studies, folder: Path, manifest: Manifest, database: Database) -> None:
        self.studies = studies
        """Those that it is one of."""
        self.folder = folder
        """Of its evidence. Of a study of another machine `HOST:FOLDER`, which is not to be found here."""
        self.manifest = manifest
        self.database = database
        with self.database.errors():
            try:
                # `load_study` insists on a sampler of its own; the real one is set when this process writes.
                self._optuna = optuna.load_study(study_name=manifest.name, storage=database.storage)
            except KeyError:
                raise StoreError(
                    f"{self.database} holds no study named {manifest.name!r}",
                    tip="the folder was renamed or the file is another study's; choose another with "
                    f"{asked('study', 'NAME')}",
                ) from None
        self._stored = StoredTrials(manifest)
        self._is_exclusive = False
        self._known: list[FrozenTrial] | None = None
        """All trials, as long as nobody but this process writes and it wrote nothing since."""
        self._attributes: dict[str, Any] | None = None
        """What is stored with the study, as long as nobody but this process writes."""
        self._excluded = Exclusions(manifest.space.untuned())
        self._sampler = EnumSampler(manifest.space, manifest.workload.seed, self._excluded, self._stored)
        self._optuna.sampler = self._sampler

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def flags(self) -> str:
        """What a command needs to find the study."""
        return self.studies.flags

    @property
    def reference(self) -> Path:
        """Outputs of the untuned model, written by its first trial."""
        return self.folder / "reference.npz"

    def trial_folder(self, number: int) -> TrialFolder:
        return trial_folder(self.folder, number)

    @contextmanager
    def writing(self) -> Iterator[list[int]]:
        """Exclusive use of the study; yields the numbers of the trials that a dead process had left running."""
        with self.exclusive():
            yield self._reap()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from running trials. Raises StoreError if one does, or if nothing can be written."""
        self.require_writable()
        with self.database.exclusive():
            own_files.require_own_folders(self.folder)
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

    def records(self) -> list[TrialRecord]:
        """Every trial, by number."""
        return [self._stored.record(trial) for trial in self._trials()]

    def record(self, number: int) -> TrialRecord:
        """One trial. Raises InputError for an unknown number."""
        for each in self.records():
            if each.number == number:
                return each
        raise InputError(f"study {self.name!r} has no trial {number}", tip=f"`{self.command('show')}` lists them")

    def untuned_record(self) -> TrialRecord | None:
        """The trial of the untuned model: the measured one, else the last that failed, else None."""
        config = self.manifest.space.untuned()
        tried = [each for each in self.records() if each.config == config and each.outcome and not each.was_cut_off]
        measured = [each for each in tried if isinstance(each.outcome, Measurement)]
        return measured[0] if measured else tried[-1] if tried else None

    def require_own_records(self) -> None:
        """Raises StoreError where there is a verdict, which rests on the untuned model, and no measurement of it."""
        untuned = self.untuned_record()
        if self.confirmation is None or (untuned and isinstance(untuned.outcome, Measurement)):
            return
        raise StoreError(
            f"study {self.name!r} has a verdict and no measurement of the untuned model that its manifest.json names",
            tip="the file was edited or is another study's: restore it, or start another with "
            f"{asked('study', 'NAME')}",
        )

    def num_recorded(self) -> int:
        """Number of trials that say something about their config; a budget counts these."""
        return sum(self._stored.counts(trial) for trial in self._trials())

    def has_evidence(self) -> bool:
        """Whether anything was measured, or is being measured now."""
        records = (self._stored.record(trial) for trial in self._trials())
        return any(each and (isinstance(each.outcome, Measurement) or each.state == "running") for each in records)

    def num_configs(self) -> int | None:
        """Size of the space; None if it is too large to be counted."""
        return self._sampler.num_configs

    def enqueue(self, configs: Iterable[Config]) -> list[Config]:
        """Try these configs next, in order, after those already queued. The queue is stored with the study.

        Returns those that were queued: not the configs of another space, nor those tried or queued before.
        """
        space, queue = self.manifest.space, self.queue
        known = {*queue, *(Config(trial.params) for trial in self._trials() if trial.state in TAKEN)}
        wanted = [each for each in dict.fromkeys(configs) if space.holds(each) and each not in known]
        if wanted:
            Study.queue.add(self, *wanted)
        return wanted

    def exclude(self, *predicates: Excluded) -> None:
        """From now on, try no config for which one of these holds, even a queued one; what an earlier call excluded is
        tried again. The untuned model is always tried. A predicate always says the same of a config.
        """
        self._excluded = replace(self._excluded, predicates=predicates)

    def ask(self, longest_s: float) -> AskedTrial | None:
        """A trial of a config that was not tried before; None if there is none left."""
        with self.database.errors():
            trials = self._survey()
        config = self._choose(trials)
        return None if config is None else self._ask_once(config, longest_s)

    def ask_for(self, config: Config, longest_s: float) -> AskedTrial | None:
        """A trial of this config, which no trial has yet; None if it is excluded."""
        return None if self._excluded(config) else self._ask_once(config, longest_s)

    def forecast(self) -> ExpectedGain | None:
        """The gain expected of the next trial; None if there is no forecast (see `EnumSampler.forecast`)."""
        with self.database.errors():
            return self._sampler.forecast(self._survey())

    def tell(self, asked: AskedTrial, outcome: Outcome) -> None:
        """Store the outcome. Raises StoreError; the trial's folder then still holds the outcome."""
        blamed = isinstance(outcome, Measurement) or outcome.blames_config
        violations = self._violations(outcome)
        with self._changing():
            if blamed:
                for name, violation in violations.items():
                    asked.handle.set_constraint(name, violation)
            # After the constraints: a trial with a result can be completed even if this process dies here.
            asked.handle.set_user_attr(RESULT, {"outcome": outcome.model_dump(mode="json")})
            if blamed:
                self._optuna.tell(asked.handle, self._values(outcome))
            else:
                self._optuna.tell(asked.handle, state=TrialState.FAIL)

    def abandon(self, asked: AskedTrial) -> None:
        """End an interrupted trial; its config will be asked for again."""
        self.trial_folder(asked.number).drop_leftovers()
        with self._changing():
            self._optuna.tell(asked.handle, state=TrialState.FAIL)

    def command(self, verb: str) -> str:
        """The command line that does `verb` with this study, ready to paste."""
        return command(verb, self.name) + self.flags

    def read_attribute(self, name: str) -> Any:
        """Plain data that is stored with the study; None before the first time. `Slot` gives it a type."""
        return self.read_attributes().get(name)

    def read_attributes(self) -> dict[str, Any]:
        """All plain data that is stored with the study, by name."""
        if self._attributes is None or not self._is_exclusive:
            with self.database.errors():
                self._attributes = self._optuna.user_attrs
        return self._attributes

    def write_attribute(self, name: str, content: Any) -> None:
        """Store plain data with the study in place of what was there."""
        self.database.require_exclusive()
        self._attributes = None
        with self.database.errors():
            self._optuna.set_user_attr(name, content)

    def close(self) -> None:
        """Close the database. SQLite merges the WAL into the file when the last connection closes."""
        self.database.storage.remove_session()
        self.database.storage.engine.dispose()

    def _trials(self) -> list[FrozenTrial]:
        """Every trial. Optuna reads a finished one from the database once: it never changes."""
        if self._known is not None:
            return self._known
        with self.database.errors():
            trials = self._optuna.get_trials(deepcopy=False)
        if self._is_exclusive:
            self._known = trials
        return trials

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is written inside is read anew afterwards."""
        self.database.require_exclusive()
        try:
            with self.database.errors():
                yield
        finally:
            self._known = None

    def _reap(self) -> list[int]:
        """Complete the trials of dead processes; returns the numbers of those without a result.

        Processes, caches and scratch files that such a trial left are removed.
        """
        lost = []
        for trial in self._trials():
            lease = trial.user_attrs.get(LEASE)
            if trial.state is not TrialState.RUNNING or (lease and not self._is_dead(lease)):
                continue
            folder = self.trial_folder(trial.number)
            kill_marked(folder.path)
            folder.drop_leftovers()
            record = self._stored.record(trial)
            with self._changing():
                if record.counts and record.outcome is not None:
                    self._optuna.tell(trial.number, self._values(record.outcome))
                else:
                    self._optuna.tell(trial.number, state=TrialState.FAIL)
                    lost.append(trial.number)
        return lost

    def _is_dead(self, lease: dict[str, Any]) -> bool:
        return Lease.model_validate(lease).is_dead(hosts_locked_out=self.database.locks_out_hosts)

    def _survey(self) -> list[FrozenTrial]:
        """All trials, after an update of the sampler: which configs are planned, and which are excluded."""
        trials = self._trials()
        space = self.manifest.space
        self._sampler.planned = [*space.anchors(), *self.queue]
        fruitless = Counter(Config(each.params) for each in trials if failed_through_harness(each))
        given_up = frozenset(each for each, number in fruitless.items() if number >= MAX_HARNESS_FAILURES)
        self._excluded = self._sampler.excluded = replace(self._excluded, given_up=given_up)
        return trials

    def _choose(self, trials: list[FrozenTrial]) -> Config | None:
        if self._given_sampler is not None:
            config = self._sampler.next_planned(trials) or self._given_sampler.choose(trials, self._excluded)
            if config is not None:
                return config
        return self._sampler.choose(trials)

    @cached_property
    def _given_sampler(self) -> OptunaSampler | None:
        """Made for the first choice: a study whose sampler is not installed here can still be read."""
        manifest = self.manifest
        if manifest.sampler is None:
            return None
        return OptunaSampler(manifest.sampler, manifest.space, len(manifest.objectives), manifest.workload.seed)

    def _ask_once(self, config: Config, longest_s: float) -> AskedTrial:
        self._sampler.next = config
        with self._changing():
            handle = self._optuna.ask()

            def suggest(name: str, values: tuple[Scalar, ...]) -> Scalar:
                return handle.suggest_categorical(name, values)

            try:
                handle.set_user_attr(LEASE, Lease.of_this_process(longest_s).model_dump())
                return AskedTrial(number=handle.number, config=self.manifest.space.walk(suggest), handle=handle)
            except BaseException:  # An interrupt, say: nobody will run it.
                self._optuna.tell(handle, state=TrialState.FAIL)
                raise

    def _values(self, outcome: Outcome) -> list[float]:
        """One value for each objective; a value that the framework cannot measure counts like a failure."""
        if not isinstance(outcome, Measurement):
            return self._penalties()
        values = self.manifest.values(outcome)
        if all(map(math.isfinite, values)):
            return list(values)
        return [v if math.isfinite(v) else worst for v, worst in zip(values, self._penalties(), strict=True)]

    def _penalties(self) -> list[float]:
        """The worst values so far: finite and of the usual size, so that they do not distort a model of the values."""
        rows = [trial.values for trial in self._trials() if trial.state is TrialState.COMPLETE]
        return [max(column) for column in zip(*rows, strict=True)] or [1.0] * len(self.manifest.objectives)

    def _violations(self, outcome: Outcome) -> dict[str, float]:
        """Constraint -> share by which it is missed (0 or less: kept). For a failure only `ok` is known."""
        measured = outcome if isinstance(outcome, Measurement) else None
        violations = {OK: 1.0 if measured is None else -1.0}
        for constraint in self.manifest.constraints:
            violations[constraint.text] = 0.0 if measured is None else constraint.violation(measured)
        return violations


class Studies(ABC):
    """Named studies: the trials of each in a folder of one machine, the records there or elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
    def remove(self, name: str, *, only_unmeasured: bool = False) -> list[Path] | None:
        """Remove a study. Returns what stays in its folder, because the tool did not make it; None where the study was
        kept, because it has a measurement by now and `only_unmeasured` ones are to go.

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
        """The same in the place of a study that this process keeps others out of."""

    def create(self, manifest: Manifest) -> Study:
        """A new study. Raises StoreError where its folder cannot be written, or where another process makes it."""
        check_name(manifest.name)
        folder = self.folder / manifest.name
        _make_folder(folder)
        return self._create(folder, manifest)

    def open_or_create(self, manifest: Manifest) -> Study:
        """The study of this name, created if there is none. Raises StoreError if it was created with other settings.

        A study in which nothing was ever measured, for example because the model file had a mistake, is replaced.
        """
        check_name(manifest.name)
        if not self._exists(manifest.name):
            return self.create(manifest)
        study = self.open(manifest.name)
        try:
            study.require_writable()
            if not study.has_evidence():
                study.close()
                return self._recreate(study, manifest)
            study.manifest.require_same(manifest)
        except StoreError:
            study.close()
            raise
        return study

    def without_measurement(self) -> list[str]:
        """Names of this machine's studies in which nothing was measured and nothing is running, in order. A broken one
        may hold measurements."""
        found = []
        for name in self.names():
            with suppress(AutotuneError):
                study = self.open(name)
                if study.database.is_here and not study.has_evidence():
                    found.append(name)
                study.close()
        return found

    def absolute(self) -> Self:
        """These studies, whatever the current folder is from now on."""
        absolute = copy.copy(self)
        absolute.folder = self.folder.resolve()
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
                    tip=f"choose another with {asked('study', 'NAME')}, or move that folder away",
                ) from None
            _make_folder(study.folder)
            return self._make(study.folder, manifest)


def check_name(name: str) -> None:
    """Raises InputError for a text that cannot be the name of a study."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{asked('study', name)}: not usable as a folder's name",
            tip="use at most 100 letters, digits, '.', '_' and '-'",
        )


def _make_folder(folder: Path) -> None:
    try:
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create {folder}: {error.strerror}", tip=f"choose another folder with {asked('studies_dir')}"
        ) from None


def trial_folder(study: Path, number: int) -> TrialFolder:
    """The folder of a trial in that of its study."""
    return TrialFolder(study / "trials" / f"{number:04d}")
