"""`Study`: a named, resumable run. The only module that uses Optuna's study API.

How outcomes are told to Optuna (docs/decisions/0003-study-storage.md): a failure that the config caused is told as a
completed trial with the worst values so far and the constraint `ok` violated, so that samplers learn to avoid it; a
failure of the harness is told as FAIL and its config may be tried again. Every trial carries the same constraints, each
told as the share by which its bound is missed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.config import Config, Scalar
from autotune.errors import InputError, StoreError
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.study import own_files, storage
from autotune.study.lease import Lease
from autotune.study.manifest import Manifest, read_manifest
from autotune.study.records import Confirmation, DriftCheck, NoiseFloor, StopReason, TrialRecord
from autotune.study.sampler.early_stop import ExpectedGain
from autotune.study.sampler.sampler import OK, TAKEN, EnumSampler
from autotune.trial.folder import TrialFolder, parse_outcome
from autotune.trial.runner.orphans import kill_marked

MAX_HARNESS_FAILURES = 2
"""A config whose trials failed this often through no fault of its own is not tried again."""

_RESULT, _LEASE, _QUEUE, _EARLY_STOP = "result", "lease", "queue", "early_stop"
_CONFIRMATION, _BUDGET, _NOISE_FLOOR, _SENTINELS = "confirmation", "budget", "noise_floor", "sentinels"
_STOP = "stop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

DEFAULT_STUDIES_DIR = Path("studies")


@dataclass(frozen=True)
class Asked:
    """A trial to run: its number, its config, and Optuna's handle to tell the outcome with."""

    number: int
    config: Config
    handle: Trial


class Study:
    """An open study. Writing needs `writing()`, which keeps other tuners out and reaps what died."""

    def __init__(self, folder: Path, manifest: Manifest, opened: optuna.storages.RDBStorage) -> None:
        self.folder = folder
        self.manifest = manifest
        self._database = folder / "study.db"
        self._storage = opened
        with storage.storage_errors(self._database):
            try:
                # `load_study` insists on a sampler of its own; the real one is set when this process writes.
                self._optuna = optuna.load_study(study_name=manifest.name, storage=opened)
            except KeyError:
                raise StoreError(
                    f"{self._database} holds no study named {manifest.name!r}",
                    tip="the folder was renamed or the file is another study's; choose another with --study NAME",
                ) from None
        self._finished: dict[int, TrialRecord] = {}
        self._sampler = EnumSampler(
            manifest.space, manifest.workload.seed, excluded=self._is_excluded, distrusted=self._was_disturbed
        )
        self._optuna.sampler = self._sampler
        self._exclusions: list[Callable[[Config], bool]] = []
        self._given_up: frozenset[Config] = frozenset()

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def reference(self) -> Path:
        """Outputs of the untuned model, written by its first trial."""
        return self.folder / "reference.npz"

    def trial_folder(self, number: int) -> TrialFolder:
        return TrialFolder(self.folder / "trials" / f"{number:04d}")

    @contextmanager
    def writing(self) -> Iterator[list[int]]:
        """Exclusive use of the study; yields the numbers of the trials that a dead run had left running."""
        with self.alone():
            yield self._reap()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process runs trials of this study. Raises StoreError if one does, or if nothing can be written."""
        self.require_writable()
        with storage.exclusive(self.folder / own_files.LOCK):
            own_files.require_own_folders(self.folder)
            if read_manifest(self.folder / "manifest.json").id != self.manifest.id:
                raise StoreError(f"{self.folder} was begun anew by another process", tip="run the same command again")
            yield

    def require_writable(self) -> None:
        """Raises StoreError where nothing can be written in the study's folder, which reading does not need."""
        storage.require_writable(self._database)

    def records(self) -> list[TrialRecord]:
        """Every trial, by number."""
        return [self._record_of(trial) for trial in self._trials()]

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

    def num_recorded(self) -> int:
        """Trials that say something about their config: what a budget counts."""
        return sum(self._counts(trial) for trial in self._trials())

    def has_evidence(self) -> bool:
        """Something was measured, or is being measured right now."""
        records = (self._record_of(trial) for trial in self._trials())
        return any(each and (isinstance(each.outcome, Measurement) or each.state == "running") for each in records)

    def num_configs(self) -> int | None:
        """Size of the space, None if it is too large to be counted out."""
        return self._sampler.num_configs

    def enqueue(self, configs: Iterable[Config]) -> list[Config]:
        """Try these next, in order, after those that wait already; a resumed study knows them still.

        Returns those that will be tried: others are no configs of this space, or were tried or queued before.
        """
        space, queue = self.manifest.space, self.queue
        known = {*queue, *(Config(trial.params) for trial in self._trials() if trial.state in TAKEN)}
        wanted = [each for each in dict.fromkeys(configs) if space.holds(each) and each not in known]
        if wanted:
            self._keep(_QUEUE, [each.root for each in (*queue, *wanted)])
        return wanted

    @property
    def queue(self) -> list[Config]:
        """What was enqueued, tried since or not."""
        return [Config(each) for each in self._kept(_QUEUE) or []]

    def exclude(self, predicate: Callable[[Config], bool]) -> None:
        """Never try configs for which this holds, queued ones included. The untuned model is always tried."""
        self._exclusions.append(predicate)

    def ask(self, longest_s: float) -> Asked | None:
        """The next config that was not tried yet; None when there is none left. Never a config twice."""
        with storage.storage_errors(self._database):
            config = self._sampler.choose(self._survey())
            return None if config is None else self._ask_once(config, longest_s)

    def ask_for(self, config: Config, longest_s: float) -> Asked | None:
        """A trial of this very config, which no trial has; None if it is excluded."""
        with storage.storage_errors(self._database):
            return None if self._is_excluded(config) else self._ask_once(config, longest_s)

    def outlook(self) -> ExpectedGain | None:
        """What the next trial promises; None where there is no forecast (see `EnumSampler.outlook`)."""
        with storage.storage_errors(self._database):
            return self._sampler.outlook(self._survey())

    def tell(self, asked: Asked, outcome: Outcome) -> None:
        """Record the outcome. Raises StoreError; the trial's folder holds the outcome all the same."""
        blamed = isinstance(outcome, Measurement) or outcome.blames_config
        violations = self._violations(outcome)
        with storage.storage_errors(self._database):
            if blamed:
                for name, violation in violations.items():
                    asked.handle.set_constraint(name, violation)
            # Last but one: where the result stands, the constraints do, and a dead run's trial can still be told.
            asked.handle.set_user_attr(_RESULT, {"outcome": outcome.model_dump(mode="json")})
            if blamed:
                self._optuna.tell(asked.handle, self._values(outcome))
            else:
                self._optuna.tell(asked.handle, state=TrialState.FAIL)

    def give_back(self, asked: Asked) -> None:
        """The trial was interrupted: leave no running trial behind; its config will be asked again."""
        self.trial_folder(asked.number).drop_leftovers()
        with storage.storage_errors(self._database):
            self._optuna.tell(asked.handle, state=TrialState.FAIL)

    def command(self, verb: str) -> str:
        """The command line that does `verb` with this study, ready to be pasted."""
        return f"python cli.py {verb} {self.name}{studies_dir_flag(self.folder.parent)}"

    @property
    def confirmation(self) -> Confirmation | None:
        stored = self._kept(_CONFIRMATION)
        return None if stored is None else Confirmation.model_validate(stored)

    def confirm(self, confirmation: Confirmation) -> None:
        self._keep(_CONFIRMATION, confirmation.model_dump(mode="json"))

    @property
    def noise_floor(self) -> NoiseFloor | None:
        """None until the untuned model was compared with itself."""
        stored = self._kept(_NOISE_FLOOR)
        return None if stored is None else NoiseFloor.model_validate(stored)

    def remember_noise_floor(self, noise_floor: NoiseFloor) -> None:
        self._keep(_NOISE_FLOOR, noise_floor.model_dump(mode="json"))

    @property
    def sentinels(self) -> list[DriftCheck]:
        """Readings of the untuned model between the trials, in the order taken."""
        return [DriftCheck.model_validate(each) for each in self._kept(_SENTINELS) or []]

    def add_sentinel(self, sentinel: DriftCheck) -> None:
        self._keep(_SENTINELS, [each.model_dump(mode="json") for each in (*self.sentinels, sentinel)])

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the last search ended; None before, and while one is under way."""
        stored = self._kept(_STOP)
        return None if stored is None else StopReason(stored)

    def remember_stop(self, reason: StopReason | None) -> None:
        self._keep(_STOP, reason)

    @property
    def early_stop(self) -> ExpectedGain | None:
        """What the search looked like when it stopped before its budget was used; None if it did not."""
        stored = self._kept(_EARLY_STOP)
        return None if stored is None else ExpectedGain.model_validate(stored)

    def remember_early_stop(self, outlook: ExpectedGain | None) -> None:
        self._keep(_EARLY_STOP, None if outlook is None else outlook.model_dump(mode="json"))

    @property
    def budget(self) -> dict[str, Any] | None:
        """The budget that the study was last run with, as plain data."""
        budget: dict[str, Any] | None = self._kept(_BUDGET)
        return budget

    def remember_budget(self, budget: dict[str, Any]) -> None:
        """So that `resume` needs nothing but the study's name."""
        self._keep(_BUDGET, budget)

    def recall(self, part: str) -> Any:
        """Plain data that a part of the loop remembered under its name; None before the first time."""
        return self._kept(part)

    def remember(self, part: str, content: Any) -> None:
        """Keep plain data of a part of the loop with the study, in place of what it remembered before."""
        self._keep(part, content)

    def _kept(self, name: str) -> Any:
        with storage.storage_errors(self._database):
            return self._optuna.user_attrs.get(name)

    def _keep(self, name: str, content: Any) -> None:
        with storage.storage_errors(self._database):
            self._optuna.set_user_attr(name, content)

    def close(self) -> None:
        """Give the database file back. SQLite folds the WAL into it when the last connection closes."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _counts(self, trial: FrozenTrial) -> bool:
        """See `TrialRecord.counts`. How a trial was told says it without its outcome, which is long."""
        if trial.state.is_finished():
            return trial.state is TrialState.COMPLETE and _RESULT in trial.user_attrs
        return self._record_of(trial).counts

    def _record_of(self, trial: FrozenTrial) -> TrialRecord:
        """A finished trial never changes, and its samples are long: each is parsed once."""
        if trial.number not in self._finished:
            record = _record(trial, self.manifest.constraints)
            if not trial.state.is_finished():
                return record
            self._finished[trial.number] = record
        return self._finished[trial.number]

    def _trials(self) -> list[FrozenTrial]:
        with storage.storage_errors(self._database):
            return self._optuna.get_trials(deepcopy=False)

    def _reap(self) -> list[int]:
        """Settle the trials of runs that are no longer alive; the numbers of those that left no result.

        What such a run left behind is cleared: processes whose supervisor was killed too, caches, scratch.
        """
        lost = []
        for trial in self._trials():
            lease = trial.user_attrs.get(_LEASE)
            if trial.state is not TrialState.RUNNING or (lease and not Lease.model_validate(lease).is_dead()):
                continue
            folder = self.trial_folder(trial.number)
            kill_marked(folder.path)
            folder.drop_leftovers()
            record = self._record_of(trial)
            with storage.storage_errors(self._database):
                if record.counts and record.outcome is not None:
                    self._optuna.tell(trial.number, self._values(record.outcome))
                else:
                    self._optuna.tell(trial.number, state=TrialState.FAIL)
                    lost.append(trial.number)
        return lost

    def _survey(self) -> list[FrozenTrial]:
        """All trials, after the sampler was told what is planned and what is out of the question."""
        trials = self._trials()
        space = self.manifest.space
        self._sampler.planned = [*space.anchors(), *self.queue]
        fruitless = Counter(Config(each.params) for each in trials if _failed_through_harness(each))
        self._given_up = frozenset(each for each, number in fruitless.items() if number >= MAX_HARNESS_FAILURES)
        return trials

    def _is_excluded(self, config: Config) -> bool:
        if self._given_up and config in self._given_up:
            return True
        return config != self.manifest.space.untuned() and any(excludes(config) for excludes in self._exclusions)

    def _was_disturbed(self, trial: FrozenTrial) -> bool:
        """Its timing was, and a time is what is made less."""
        is_timed = any(each.is_timed for each in self.manifest.objectives)
        return is_timed and self._record_of(trial).disturbed is not None

    def _ask_once(self, config: Config, longest_s: float) -> Asked:
        self._sampler.next = config
        handle = self._optuna.ask()
        handle.set_user_attr(_LEASE, Lease.of_this_process(longest_s).model_dump())

        def suggest(name: str, values: tuple[Scalar, ...]) -> Scalar:
            return handle.suggest_categorical(name, values)

        return Asked(number=handle.number, config=self.manifest.space.walk(suggest), handle=handle)

    def _values(self, outcome: Outcome) -> list[float]:
        """One for each objective; what the framework cannot tell is as bad as a failure."""
        if not isinstance(outcome, Measurement):
            return self._penalties()
        values = self.manifest.values(outcome)
        if all(map(math.isfinite, values)):
            return list(values)
        return [v if math.isfinite(v) else worst for v, worst in zip(values, self._penalties(), strict=True)]

    def _penalties(self) -> list[float]:
        """The worst values so far: finite and of the right size, so that no model of the values is bent by them."""
        told = [trial.values for trial in self._trials() if trial.state is TrialState.COMPLETE]
        return [max(column) for column in zip(*told, strict=True)] or [1.0] * len(self.manifest.objectives)

    def _violations(self, outcome: Outcome) -> dict[str, float]:
        """Constraint -> share by which it is missed (0 or less: kept); for a failure only `ok` is known."""
        measured = outcome if isinstance(outcome, Measurement) else None
        told = {OK: 1.0 if measured is None else -1.0}
        for each in self.manifest.constraints:
            told[each.text] = 0.0 if measured is None else each.violation(measured)
        return told


def create_study(studies_dir: Path, manifest: Manifest) -> Study:
    """A new study folder with manifest and database. Raises StoreError where the folder cannot be written."""
    check_name(manifest.name)
    folder = studies_dir / manifest.name
    try:
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create {folder}: {error.strerror}", tip="choose another place with --studies-dir"
        ) from None
    if (folder / "study.db").exists():
        raise StoreError(
            f"{folder} holds a study.db without a manifest.json: it is no study of ours, or half of one",
            tip="choose another with --study NAME, or move that folder away",
        )
    opened = storage.open_storage(folder / "study.db", create=True)
    with storage.storage_errors(folder / "study.db"):
        directions = [StudyDirection.MINIMIZE] * len(manifest.objectives)
        try:
            optuna.create_study(storage=opened, study_name=manifest.name, directions=directions)
        except optuna.exceptions.DuplicatedStudyError:
            raise StoreError(f"{folder} is being made by another process", tip="run the same command again") from None
    # The manifest comes last: a folder without one is not yet a study.
    try:
        manifest.write(folder / "manifest.json")
    except OSError as error:
        raise StoreError(f"cannot write in {folder}: {error.strerror}") from None
    return Study(folder, manifest, opened)


def open_study(studies_dir: Path, name: str) -> Study:
    """An existing study. Raises InputError for an unknown name, StoreError for a broken one."""
    check_name(name)
    folder = studies_dir / name
    if not (folder / "manifest.json").exists():
        known = list_studies(studies_dir)
        raise InputError(
            f"no study {name!r} in {studies_dir}/",
            tip=f"there are: {', '.join(known)}" if known else "there is none yet; start with `tune`",
        )
    manifest = read_manifest(folder / "manifest.json")
    return Study(folder, manifest, storage.open_storage(folder / "study.db", create=False))


def open_or_create(studies_dir: Path, manifest: Manifest) -> Study:
    """The study of this name if it asks the same question, else a new one. Raises StoreError if it differs.

    A study in which nothing was ever measured (a model file with a mistake, say) holds no evidence and begins anew.
    """
    check_name(manifest.name)
    if not (studies_dir / manifest.name / "manifest.json").exists():
        return create_study(studies_dir, manifest)
    study = open_study(studies_dir, manifest.name)
    if not study.has_evidence():
        study.close()
        return _begin_anew(study, manifest)
    try:
        study.manifest.require_same(manifest)
    except StoreError:
        study.close()
        raise
    return study


def studies_dir_flag(studies_dir: Path) -> str:
    """What to add to a command so that it finds a study in `studies_dir`; nothing where that is the default."""
    return "" if studies_dir == DEFAULT_STUDIES_DIR else f" --studies-dir {shlex.quote(str(studies_dir))}"


def list_studies(studies_dir: Path) -> list[str]:
    """Names of the studies in a folder, in order."""
    return sorted(path.parent.name for path in studies_dir.glob("*/manifest.json"))


def _begin_anew(study: Study, manifest: Manifest) -> Study:
    """Replace a study without evidence, unless someone is at work in it. What lies beside it in its folder stays."""
    with storage.exclusive(study.folder / own_files.LOCK):
        if study.has_evidence():
            return open_or_create(study.folder.parent, manifest)
        try:
            own_files.clear_study(study.folder)
        except OSError as error:
            raise StoreError(
                f"cannot clear {error.filename}, of an earlier attempt: {error.strerror}",
                tip="choose another with --study NAME, or move that folder away",
            ) from None
        return create_study(study.folder.parent, manifest)


def check_name(name: str) -> None:
    """Raises InputError for what is no name of a study."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--study {name!r}: not usable as a folder's name", tip="use at most 100 letters, digits, '.', '_' and '-'"
        )


def _failed_through_harness(trial: FrozenTrial) -> bool:
    """It was told, and as a failure that says nothing about its config; the end of a run's time is nobody's fault."""
    return trial.state is TrialState.FAIL and _RESULT in trial.user_attrs and not _was_cut_off(trial)


def _was_cut_off(trial: FrozenTrial) -> bool:
    outcome = _parse(trial.user_attrs[_RESULT], trial.number)
    return isinstance(outcome, Failure) and outcome.reason is Reason.OUT_OF_TIME


def _record(trial: FrozenTrial, constraints: Sequence[Constraint]) -> TrialRecord:
    result = trial.user_attrs.get(_RESULT)
    outcome = None if result is None else _parse(result, trial.number)
    misses = [each.miss(outcome) for each in constraints] if isinstance(outcome, Measurement) else []
    return TrialRecord(
        number=trial.number,
        config=Config(trial.params),
        outcome=outcome,
        violations={miss.constraint.text: miss for miss in misses if miss is not None},
        started=trial.datetime_start,
        ended=trial.datetime_complete,
        running=trial.state is TrialState.RUNNING,
    )


def _parse(result: dict[str, Any], number: int) -> Outcome:
    try:
        return parse_outcome(result["outcome"])
    except (ValueError, KeyError) as error:
        raise StoreError(
            f"trial {number} was recorded in a form that this version does not read: {str(error).splitlines()[0]}",
            tip="read the study with the version of autotune that its manifest.json names, or start another",
        ) from None
