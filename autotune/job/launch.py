"""`launch`: a job's process started as those of the study were, in front of the job's own command.

What a process has to be started with is of two kinds. The config may ask for it: a study has proven that, and `apply`
leaves the model untuned in a process that lacks it. Or all processes of the study had it, the untuned model's too:
then the speed-up is proven under it, and a process that lacks it is told so.

The command takes this process's place, so that signals, standard input and the exit status are the job's own. All that
a process is started with is inherited by those that it starts.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from autotune.apply.config_parts import ConfigParts
from autotune.command_line import command, options
from autotune.config import Config
from autotune.errors import AutotuneError, InputError, marked
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.process_start import PRELOAD, ProcessStart, library_file, may_be_set

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that it cannot start."""


def surroundings(tuned: TunedConfig) -> ProcessStart:
    """The variables that all processes of the study had, as far as a file may have them set."""
    asked_for = ConfigParts.of(tuned.config).start.variables
    known = {name: value for name, value in _had(tuned).items() if name not in asked_for and may_be_set(name, value)}
    return ProcessStart(known)


def _had(tuned: TunedConfig) -> dict[str, str]:
    """Variables of the study's processes that it recorded."""
    return {**tuned.environment.inherited, **tuned.environment.variables}


def lacks(path: str, tuned: TunedConfig) -> str | None:
    """What the config asks for that this process was not started with, and what that costs as far as it is known."""
    lacking = ConfigParts.of(tuned.config).start.lacking()
    if not lacking:
        return None
    num = ConfigParts.of(tuned.config).start.instances
    where = "in a process that was started" if num == 1 else f"as {num} processes side by side, each of them started"
    found = f"{path} was measured {where} with {'; '.join(lacking)}"
    best, without, speedup = tuned.evidence.best, tuned.evidence.without_start, tuned.evidence.speedup
    if speedup is not None:
        found += f", on which its speed-up of {speedup.median:.3g} rests"
    if without is not None and num == 1:
        ratio = without.latency_s.p50 / best.latency_s.p50
        found += f"; without that a call took {ratio:.2f} times as long in a trial of the study"
    return found


def lacks_around(path: str, tuned: TunedConfig) -> str | None:
    """What all processes of the study were started with and this one was not."""
    lacking = surroundings(tuned).lacking()
    if not lacking:
        return None
    return (
        f"{path} was measured in processes that were started with {'; '.join(lacking)}: what that costs was not "
        f"measured; {tip_of(path)}"
    )


def tip_of(path: str, config: Config | None = None) -> str:
    """What a user types in front of the command of a job, or of each of its instances under the config."""
    num = 1 if config is None else ConfigParts.of(config).start.instances
    if num == 1:
        return f"start the job with: {command('launch', path)} -- COMMAND"
    return (
        f"start the job {num} times, I from 0 to {num - 1}: {command('launch', path)}{options(instance='I')} -- COMMAND"
    )


def launch_lines(path: str, config: Config) -> list[str]:
    """Commands that start a job, one for each instance."""
    numbers = range(ConfigParts.of(config).start.instances)
    return [f"{command('launch', path)}{options(instance=number)} -- COMMAND" for number in numbers]


@dataclass(frozen=True)
class Launch:
    """How the process of a job is started."""

    variables: dict[str, str]
    """To be set, beside those that are there."""
    cores: frozenset[int] | None
    """None: those that this process has."""
    started_with: tuple[str, ...]
    """In words."""
    remarks: tuple[str, ...]
    """What of the file cannot be had here, or may not be set by one, a sentence for each."""

    @classmethod
    def of(cls, tuned: TunedConfig, given: Mapping[str, str], instance: int = 0) -> Launch:
        """As the file says, for a process that would have the `given` variables and is one of the file's instances.
        Raises InvalidConfigError for a file that asks for what none may, and InputError for an instance that it does
        not have."""
        own, around = _start_of(tuned), surroundings(tuned)
        if not 0 <= instance < own.instances:
            has = "one process" if own.instances == 1 else f"instances 0 to {own.instances - 1}"
            raise InputError(f"{marked('instance', instance)}: the file is for {has}")
        missing = own.unavailable()
        found = {knob: value for knob, value in own.libraries.items() if library_file(knob, value) is not None}
        cores = own.core_set(instance)
        start = ProcessStart({**around.variables, **own.variables}, found, None if cores is None else own.cores)
        which = [] if own.instances == 1 else [f"as instance {instance} of {own.instances}"]
        if missing:
            missing.append("the job starts without that, and apply() leaves its model untuned")
        by_config = {*own.variables, *([PRELOAD] if own.libraries else [])}
        unset = [
            f"the study's processes had {name}={value}, which no file may set: set it in front of this command"
            for name, value in _had(tuned).items()
            if not may_be_set(name, value) and name not in by_config and given.get(name) != value
        ]
        remarks = (*missing, *unset, *start.replaced(given))
        return cls(start.environment(given), cores, (*start.texts(), *which), remarks)

    @classmethod
    def all_of(cls, tuned: TunedConfig, given: Mapping[str, str]) -> list[Launch]:
        """One for each instance."""
        return [cls.of(tuned, given, number) for number in range(_start_of(tuned).instances)]

    def line(self, job: Sequence[str] = ("COMMAND",)) -> str:
        """What does this in a shell, a unit file or a container, without this package."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        words = ["env", *variables] if variables else []
        if self.cores is not None:
            words += ["taskset", "-c", ",".join(map(str, sorted(self.cores)))]
        return shlex.join([*words, *job])

    def execute(self, job: Sequence[str], given: Mapping[str, str]) -> NoReturn:
        """Be the job from now on. Raises CannotStartError where its command cannot be started."""
        before = os.sched_getaffinity(0) if self.cores is not None else None
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Python ignores these, which the job would inherit.
        handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
        own = {name: value for name, value in given.items() if name not in _set_by_python(given)}
        try:
            os.execvpe(job[0], list(job), {**own, **self.variables})
        except (OSError, ValueError) as error:  # ValueError: an empty name, or a null character in it.
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if before is not None:
                os.sched_setaffinity(0, before)
            raise CannotStartError(job[0], error) from None


def _set_by_python(given: Mapping[str, str]) -> frozenset[str]:
    """Variables that this process has from Python, which sets one where there is no locale (PEP 538)."""
    name = "LC_CTYPE"
    if name not in given or f"\0{name}=".encode() in b"\0" + Path("/proc/self/environ").read_bytes():
        return frozenset()
    return frozenset({name})


def _start_of(tuned: TunedConfig) -> ProcessStart:
    return ProcessStart() if tuned.is_untuned else ConfigParts.of(tuned.config).start


class CannotStartError(AutotuneError):
    """The command of a job cannot be started; the exit status is a shell's."""

    exit_code = NOT_EXECUTABLE

    def __init__(self, program: str, error: OSError | ValueError) -> None:
        super().__init__(f"cannot start {program or shlex.quote(program)}: {_why_not(program, error)}")
        is_missing = isinstance(error, FileNotFoundError) and not _is_there(program)
        self.exit_code = NOT_FOUND if is_missing or not program else NOT_EXECUTABLE


def _why_not(program: str, error: OSError | ValueError) -> str:
    if not program:
        return "the command is empty"
    if isinstance(error, ValueError):
        return str(error)
    if _is_there(program) and os.path.isdir(program):
        return "it is a folder"
    if isinstance(error, FileNotFoundError) and _is_there(program):
        return "the interpreter that its first line names, or its loader, is not there"
    return str(error.strerror)


def _is_there(program: str) -> bool:
    """Whether it is the path of something, and no name that is looked for."""
    return os.sep in program and os.path.exists(program)
