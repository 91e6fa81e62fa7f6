"""Devices that a framework finds, and declarations of a model, read in a child process.

A framework that looks for devices may print warnings, initialise a driver or crash, and a model's function runs the
user's code; the tool itself imports neither. The child runs under a supervisor and within the limits of a trial, so
nothing that it starts outlives it or is waited for. Run as a program, this file answers the question in a folder.

It is a Python of its own. On a device a declaration is a fork of the process that the study's trials come from, where
these may be forks, and that process goes on with the study: the framework is imported once, not twice.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.backends.contracts.runtime import DeviceReport
from autotune.backends.registry import entry_of, framework_version, load_backend
from autotune.bench.exit_status import STOPPED
from autotune.bench.local import LocalBench
from autotune.bench.messages import PROBE, QUESTION_FILE
from autotune.command_line import command
from autotune.config import Scalar
from autotune.errors import AutotuneError, InputError, SetupError, marked
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Outcome, Stage
from autotune.own_folders import TemporaryFolder
from autotune.space.declared import Declaration
from autotune.trial.deadline import SHORTEST_S, LimitsNow
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.trial.worker.main import leave, traced
from autotune.trial.worker.stages import StageReporter
from autotune.trial.worker.subjects import declared_by
from autotune.workload.workload import Device, Workload

_ANSWER = "answer.json"
_PACKAGE = Declaration.__module__.partition(".")[0]


_TOO_LONG = "stopped after the"
"""How the sentence begins of a child that was stopped."""


class NoAnswerError(Exception):
    """The child ended without an answer, or was stopped. Says how, in a part of a sentence."""

    def __init__(self, how: str, log: Path) -> None:
        super().__init__(how)
        self.log = log
        """The child's stderr."""
        self.is_of_time = how.startswith(_TOO_LONG)


def find_devices(framework: str, limits: LimitsNow = Limits) -> DeviceReport:
    """The devices that `framework` finds. Raises MissingFrameworkError, or SetupError if it cannot be imported."""
    framework_version(framework)
    try:
        content = _ask(framework, {}, limits, "devices", framework)
    except NoAnswerError as error:
        raise SetupError(
            f"{framework} is installed but does not work: {error}", tip=f"try: python -c 'import {framework}'"
        ) from None
    return DeviceReport(**{**content, "notes": tuple(content["notes"])})


def read_declaration(workload: Workload, variables: Mapping[str, str], limits: LimitsNow = Limits) -> Declaration:
    """Build the model in a child and read its author's declarations. `variables` are set in the child's environment.

    Raises InputError where the function or its arguments are wrong, what it returns is no model with inputs, or a
    region does not fit the model, and SetupError where it fails or takes longer than a trial may take to build it.
    """
    try:
        content = _ask(workload.framework, variables, limits, "declaration", workload.model_dump_json(), of=workload)
    except NoAnswerError as error:
        longer = f"let it take longer (`limits` in a file of {marked('budget')})"
        raise SetupError(
            f"{workload.model} could not be built: {error}",
            tip=f"{longer if error.is_of_time else 'mend that'}, and run the same command again; full log: {error.log}",
        ) from None
    return Declaration.model_validate(content)


def require_options(
    framework: str, values: Mapping[str, Sequence[Scalar]], variables: Mapping[str, str], limits: LimitsNow = Limits
) -> None:
    """Check knobs that are options of the compiler, and all their values, against the installed release. Raises
    InputError for the first that no config may set so, and SetupError where that cannot be told."""
    try:
        _ask(framework, variables, limits, "options", json.dumps([framework, values]))
    except NoAnswerError as error:
        raise SetupError(
            f"{framework} did not say which options it has: {error}", tip=f"try: {command('doctor')}"
        ) from None


_OVER = {"devices": "the devices were found", "declaration": "the model was built", "options": "its options were read"}
"""What a child is asked -> before what the run's time was over."""


def is_forked(framework: str, device: Device) -> bool:
    """What a model for this device declares is read in a fork of what the trials of its study come from."""
    return device != "cpu" and device in entry_of(framework).forks_on


def _ask(
    framework: str, variables: Mapping[str, str], limits: LimitsNow, *question: str, of: Workload | None = None
) -> Any:
    """The child's answer. Raises InputError for what it finds wrong, and where the run's time was over; NoAnswerError,
    whose log stays."""
    with _own_folder() as folder:
        write_whole(folder.path / QUESTION_FILE, json.dumps(question))
        if of is not None and is_forked(framework, of.device):
            how_it_ended = _run_fork(of, variables, limits, folder)
        else:
            how_it_ended = _run_child(framework, variables, limits(), folder)
        answer = _answer_in(folder)
        if "problem" in answer:
            what, tip = answer["problem"]
            raise InputError(what, tip=tip)
        if "said" not in answer:
            if limits().total <= SHORTEST_S:
                raise InputError(
                    f"the time of the run was over before {_OVER[question[0]]}",
                    tip=f"give more with {marked('budget')}, e.g. {marked('budget', '10m')}",
                )
            raise NoAnswerError(answer.get("failed", how_it_ended), folder.stderr)
        return answer["said"]


@contextmanager
def _own_folder() -> Iterator[TrialFolder]:
    """A temporary folder, which stays where there was no answer."""
    folder = TemporaryFolder("probe")
    stays = False
    try:
        yield TrialFolder(folder.path)
    except NoAnswerError:
        stays = True
        raise
    finally:
        if stays:
            folder.keep()
        else:
            folder.remove()


def _run_child(framework: str, variables: Mapping[str, str], limits: Limits, folder: TrialFolder) -> str:
    """Let this file answer the question in the folder. Returns how it ended, for one that leaves no answer."""
    _make_temporary(folder, variables)
    own = {"TMPDIR": str(folder.temporary), **variables}
    with LocalBench(own, preload=False, log=folder.path / "supervisor.log") as bench:
        return _how(_error_of(bench.run_program(framework, folder, PROBE, limits)), limits)


def _run_fork(workload: Workload, variables: Mapping[str, str], limits: LimitsNow, folder: TrialFolder) -> str:
    """As `_run_child`, in what the study's trials will come from, which stays for them where there is an answer: a
    process that builds the model and holds it. Where that ends without an answer, a fork of the supervisor is asked, or
    a new Python where nothing was imported."""
    with LocalBench(dict(variables), preload=True, log=folder.path / "supervisor.log") as bench:
        asked = limits()
        _make_temporary(folder, variables)
        how_it_ended = bench.build_ahead(workload, folder, asked) or "the process that was to answer has ended"
        if not _answer_in(folder) and not how_it_ended.startswith(STOPPED):
            asked = limits()
            _make_temporary(folder, variables)
            ended = bench.run_program(workload.framework, folder, PROBE, asked, forked_for=workload.device)
            how_it_ended = _error_of(ended)
        if (said := _answer_in(folder).get("said")) is not None:
            bench.leave(holds=said["built_once"])
    return _how(how_it_ended, asked)


def _answer_in(folder: TrialFolder) -> dict[str, Any]:
    """Empty: there is none."""
    answer: dict[str, Any] = {}
    with suppress(OSError):
        answer = json.loads((folder.path / _ANSWER).read_text(encoding="utf-8"))
    return answer


def _make_temporary(folder: TrialFolder, variables: Mapping[str, str]) -> None:
    """The child's folder for temporary files, unless the user names another one."""
    if "TMPDIR" not in variables:
        folder.temporary.mkdir(mode=0o700, exist_ok=True)


def _error_of(ended: Outcome) -> str:
    assert isinstance(ended, Failure), "it is no trial"
    return ended.error


def _how(error: str, limits: Limits) -> str:
    """What is told of a child that has left no answer."""
    if error.startswith(STOPPED):
        return f"{_TOO_LONG} {min(limits.build, limits.total):.3g} s that it may take"
    return error


def main(folder: TrialFolder) -> None:
    """Answer the question in the folder, by what was `said`, a `problem` (a sentence and a tip), or how it `failed`."""
    progress = StageReporter(folder)
    what, argument = json.loads((folder.path / QUESTION_FILE).read_text(encoding="utf-8"))
    if folder.temporary.exists():
        os.environ["TMPDIR"], tempfile.tempdir = str(folder.temporary), None
    folder.scratch.mkdir(exist_ok=True)
    os.chdir(folder.scratch)  # Frameworks and models write into the current folder.
    progress.enter(Stage.BUILD)
    try:
        answer = {"said": _ANSWERS[what](argument)}
    except AutotuneError as error:
        answer = {"problem": error.unworded}
    except BaseException as error:
        traceback.print_exc()
        answer = {"failed": traced(error)}
    write_whole(folder.path / _ANSWER, json.dumps(answer))


def _check_options(argument: str) -> None:
    framework, values = json.loads(argument)
    backend = load_backend(framework)
    for knob, offered in values.items():
        for value in offered:
            backend.check_option(knob, value)


def _declared(argument: str) -> dict[str, Any]:
    """A `Declaration` as plain data."""
    workload = Workload.model_validate_json(argument)
    backend = load_backend(workload.framework)
    backend.prepare(workload.device, workload.seed)
    with _Imports() as imports:
        declared = declared_by(workload, backend)
    imported = imports.of_packages(but_of=workload.framework)
    return declared.model_copy(update={"imported": imported}).model_dump(mode="json")


class _Imports(importlib.abc.MetaPathFinder):
    """Notes the modules of installed packages that are imported within, but for those that such a module imports
    itself: an import of these, in this order, is an import of all.

    Once the environment has changed nothing more is noted: what is imported then may be another thing for that.
    """

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._under_way: list[str] = []
        self._found: list[str] = []

    def __enter__(self) -> _Imports:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, *_: object) -> None:
        """Note it, and leave finding it to others."""
        self._under_way = [other for other in self._under_way if _is_under_way(other)]
        by_a_package = any(map(_is_installed, self._under_way))
        if not by_a_package and dict(os.environ) == self._environment:
            self._found.append(name)
        self._under_way.append(name)

    def of_packages(self, *, but_of: str) -> tuple[str, ...]:
        """What was noted and is there now, without the framework's own modules, which are imported ahead anyway."""
        own = (entry_of(but_of).preload or "").partition(".")[0]
        found = dict.fromkeys(self._found)
        return tuple(name for name in found if _is_installed(name) and name.partition(".")[0] != own)


def _is_under_way(name: str) -> bool:
    """It is being imported."""
    return bool(getattr(_spec_of(name), "_initializing", False))


def _is_installed(name: str) -> bool:
    """It is there, and of an installed package that is not this one."""
    origin = getattr(_spec_of(name), "origin", None)
    is_own = name.partition(".")[0] == _PACKAGE
    return not is_own and origin is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(origin).parts)


def _spec_of(name: str) -> object:
    module: ModuleType | None = sys.modules.get(name)
    return getattr(module, "__spec__", None)


_ANSWERS: dict[str, Callable[[str], Any]] = {
    "devices": lambda framework: asdict(load_backend(framework).find()),
    "options": _check_options,
    "declaration": _declared,
}
"""Question -> what answers it; an AutotuneError is what is wrong with what was given."""


if __name__ == "__main__":
    main(TrialFolder(Path(sys.argv[1])))
    # Skip the interpreter's shutdown: a framework that has built a model may hang in it.
    leave(0)
