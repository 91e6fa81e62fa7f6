"""`Use`: what a job does with a model under a config. What all kinds of it share.

`Application` decides whether the config is applied here, with the other ranks where there are any. Its use knows what
is called, such as the model's calls (`calls`), a training step (`step`) or generated text (`text`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil

from autotune.apply.config_parts import ConfigParts
from autotune.apply.warm_start import WarmStart, key_here, warm_start
from autotune.backends.contracts.compiler import EffectsOf
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError, marked
from autotune.job.admission import MANY_LEARNED, Admission, Numbered
from autotune.job.fallback import Fallback, MismatchError, Together
from autotune.job.guard import GuardTerms
from autotune.job.latency_check import Promise
from autotune.job.later_calls import share_of
from autotune.job.mismatch import inputs_differ, retune_command
from autotune.job.output_check import OutputCheck
from autotune.job.policy import MARGIN, LoadedFile, Policy
from autotune.job.ranks import JointCalls, Pact, Rehearsal
from autotune.job.stats import CallTimes, StatsRecorder, weakly
from autotune.job.whole_numbers import SHORT, WholeNumbers
from autotune.measure.accuracy import default_tolerance
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Axis, structure_sha256
from autotune.measure.parts import AuthorsWord
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.work import Work

Held = tuple[Any, Callable[[], None]]
"""What the job holds from now on, and how to undo it all."""


@dataclass
class Applying:
    """A file that is being applied, by which policy, and what is known and changed by it so far."""

    loaded: LoadedFile
    policy: Policy
    recorder: StatsRecorder = field(default_factory=StatsRecorder)
    changes: UndoLog = field(default_factory=UndoLog)
    pact: Pact | None = None
    """With the other ranks of a distributed job; None: this process decides alone."""

    @property
    def tuned(self) -> TunedConfig:
        """What is in the file, which can be used."""
        assert self.loaded.answer is not None
        return self.loaded.answer

    @property
    def hint(self) -> str:
        """How to tune here; nothing where the job does not want to know."""
        return f"to tune here: {retune_command(self.tuned)}" if self.policy.on_mismatch != "untuned" else ""

    def watch(self, backend: Backend) -> None:
        """Count memory, and calls if the job wants that."""
        self.recorder.memory_bytes = lambda: backend.peak_memory_bytes() or psutil.Process().memory_info().rss
        if self.policy.monitor:
            is_synchronous = backend.device_name().lower() == "cpu"
            self.recorder.calls = CallTimes(None if is_synchronous else backend.synchronise)

    def monitored(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted and timed if the job wants that."""
        return call if self.recorder.calls is None else self.recorder.calls.around(call)

    def fallback_to(self, untuned: Callable[..., Any], *, repeats: bool) -> Fallback:
        """The way back to the untuned model. `repeats`: a call that failed may be made once more."""
        pact, raises = self.pact, self.policy.on_mismatch == "raise"
        if pact is None:
            return Fallback(untuned, self.changes, self.recorder, raises=raises, repeats=repeats)
        together = Together(pact.post, f"all of the {len(pact.members)} ranks are ", pact.level)
        return Fallback(untuned, self.changes, self.recorder, raises=raises, repeats=False, together=together)


class Use(ABC):
    """One use of one model by a job."""

    kind: ClassVar[type[Work]]
    """What a file was tuned for whose config it applies."""
    what = "a model"
    """What is applied, in words."""
    is_measured = True
    """The calls are those that the study measured: a training step's inputs, latency and code are not those of the
    model's call in it."""
    is_of_one_latency = True
    """Calls take as long as each other."""
    takes_shapes = False
    """A study may have several shapes."""

    def __init__(self, applying: Applying, given: Any) -> None:
        self._applying = applying
        self.given = given
        self.model = given
        """What `given` is for the framework."""
        self._backend: Backend | None = None

    def take(self, backend: Backend) -> None:
        """Find the model in what was given. Raises MismatchError for one that the config cannot be applied to."""
        tuned, recorder = self._applying.tuned, self._applying.recorder
        self._backend = backend
        self.given = backend.proxies.original(self.given)
        self._find_model(backend)
        if backend.already_compiled is not None:
            recorder.note("mismatch", backend.already_compiled)
        problem = backend.check_model(self.model)
        if problem is not None:
            raise MismatchError(f"this config was tuned for {tuned.framework}; it was to be applied to {problem}")
        backend.adopt(self.model)

    @abstractmethod
    def tuned(self, backend: Backend, *, fits: bool) -> Held:
        """The model under the config. `fits`: everything here is as it was when the config was measured."""

    @abstractmethod
    def untouched(self) -> Held:
        """The model as it was given."""

    def _find_model(self, backend: Backend) -> None:
        self.model = backend.as_model(self.given)

    def _warm_start(self, backend: Backend) -> WarmStart | None:
        """The artifact, ready for the first call; None, with one line, where it cannot be used."""
        tuned, loaded = self._applying.tuned, self._applying.loaded
        if tuned.artifact is None or not self.is_measured:
            return None
        here = key_here(tuned.framework, backend, tuned.config, structure_sha256(backend.parameters(self.model)))
        try:
            return warm_start(backend, tuned.artifact, Path(loaded.path).parent, here)
        except (InputError, OSError) as problem:
            self._applying.recorder.note("artifact", f"{problem}; the first call compiles")
            return None

    def _joined(self, backend: Backend, call: Callable[..., Any], fallback: Fallback) -> Callable[..., Any]:
        """The call as the job makes it, with what is told of it."""
        recorder, pact, tuned = self._applying.recorder, self._applying.pact, self._applying.tuned
        fallback.rehearsal = Rehearsal(backend, self.model, fallback, pact, tuned.evidence.best.compile_cold_s)
        recorder.rehearsal = weakly(lambda held: None if held is None else held.rehearsal, fallback)
        self._diagnose(backend)
        return self._applying.monitored(call if pact is None else JointCalls(call, pact, fallback))

    def _diagnose(self, backend: Backend) -> None:
        settings = ConfigParts.of(self._applying.tuned.config).settings
        self._applying.recorder.diagnose = weakly(partial(_diagnosis, backend, settings), self.model)

    def _terms(self, backend: Backend, *, fits: bool, unchecked_caches: bool) -> GuardTerms:
        applying, policy, tuned = self._applying, self._applying.policy, self._applying.tuned
        is_alone = applying.pact is None and policy.ranks is None
        # Ranks whose clocks differ would not decide alike.
        is_comparable = fits and self.is_measured and self.is_of_one_latency
        is_comparable = is_comparable and policy.margin is not None and applying.pact is None
        self._note_comparison()
        settings = ConfigParts.of(tuned.config).settings
        num_compiled = None if backend.shapes is None else partial(backend.shapes.compilations, self.model, settings)
        return GuardTerms(
            admission=self._admission(backend),
            hint_of_misfits=self._hint_of_misfits(),
            check=self._check(backend) if policy.check or unchecked_caches else None,
            num_compiled=num_compiled if policy.check else None,
            num_of_shapes=None if tuned.shapes is None else num_compiled,
            promise=self._promise() if is_comparable else None,
            check_share=share_of(policy.check) if is_alone else 0.0,
            outsider=partial(_late, backend) if is_alone else _never,
            effects=self._effects(backend, settings),
        )

    def _promise(self) -> Promise:
        best, cheap = self._applying.tuned.evidence.best, entry_of(self._applying.tuned.framework).cheap
        return Promise(
            latency_s=best.latency_s.p50,
            margin=self._applying.policy.margin or MARGIN,
            page_faults=best.page_faults,
            keeping_memory=None if cheap is None else cheap.by_hand,
            hint=self._applying.hint,
        )

    def _admission(self, backend: Backend) -> Admission:
        """Which calls are for the config in the file. A component's single numbers are its pipeline's own, such as the
        time of a step."""
        loaded, recorder = self._applying.loaded, self._applying.recorder
        differ = self._difference(backend)

        def misfit(arguments: Arguments) -> str | None:
            found = differ(arguments)
            return None if found is None else f"{loaded.path} was tuned for {found}"

        def tell(numbers: WholeNumbers) -> None:
            what = f"{numbers.num_learned} calls had whole numbers in {numbers.name} that no call before had"
            if apart := numbers.told_apart:
                what += f" ({apart} counts for itself; an axis of more than {SHORT} is not told apart)"
            tip = "; a file of this release of autotune says which of them the model takes" if self.is_measured else ""
            level = logging.WARNING if numbers.num_learned >= MANY_LEARNED else logging.INFO
            recorder.note("mismatch", f"{what}, and were made untuned, as such calls are{tip}", level)

        numbered = None
        if backend.device_name().lower() == "cpu":
            function, num_own = self._function(backend)
            limits = (self._applying.tuned.limits or ()) if self.is_measured else ()
            takes_single = loaded.is_component
            numbered = Numbered(
                backend, function, limits, self._open_axes(backend), num_own=num_own, takes_single=takes_single
            )
        takes_misfits = self._applying.policy.on_mismatch == "apply"
        return Admission(misfit, numbered, takes_misfits=takes_misfits, keeps_misfits=self.is_measured, tell=tell)

    def _difference(self, backend: Backend) -> Callable[[Arguments], str | None]:
        """What says how a call differs from those that were measured; None for one that does not."""
        then = self._applying.tuned.workload.signature.inputs
        return lambda arguments: inputs_differ(then, backend, arguments.leaves())

    def _open_axes(self, backend: Backend) -> Callable[[Arguments], Sequence[Axis]]:
        """What finds the axes of a call's inputs that may have several sizes."""
        del backend
        return lambda _: ()

    def _function(self, backend: Backend) -> tuple[Callable[..., Any], int]:
        """What takes the inputs of a call, and how many of its parameters come before these."""
        return backend.called(self.model), 0

    def _effects(self, backend: Backend, settings: Config) -> EffectsOf | None:
        """What compiled calls of the model leave out, where it can be told."""
        return backend.effects(self.model, settings)

    def _hint_of_misfits(self) -> str:
        """What to do about calls of other shapes, after a semicolon; nothing where the job does not want to know."""
        shapes = f", with {marked('shapes', 'NAME=SIZES')} for several shapes" if self.takes_shapes else ""
        return f"{self._applying.hint}{shapes}" if self._applying.hint else ""

    def _check(self, backend: Backend) -> OutputCheck:
        tuned, word = self._applying.tuned, self._applying.policy.word
        if word is None and isinstance(recorded := tuned.workload.signature.compare, dict):
            word = AuthorsWord.of(recorded)
        return OutputCheck(backend, self.model, tolerance_of(tuned, backend, self.model), word)

    def _note_comparison(self) -> None:
        policy, recorder = self._applying.policy, self._applying.recorder
        is_by_file = bool(policy.check) and policy.word is None
        if is_by_file and self._applying.tuned.workload.signature.compare == "function":
            what = "the study compared outputs by a function of the model's author, which a file does not hold"
            recorder.note("mismatch", f"{self._applying.loaded.path}: {what}; give it as apply(model, check=FUNCTION)")


def releasing(holding: UndoLog, fallback: Fallback) -> Callable[[], None]:
    """How to undo a stand-in for a model that the job holds, and what is under it."""

    def release() -> None:
        holding.undo()
        fallback.release()

    return release


def tolerance_of(tuned: TunedConfig, backend: Backend, model: Any) -> float:
    """As in the trials: what the user allowed, else by the types of parameters and inputs."""
    if tuned.workload.tolerance is not None:
        return tuned.workload.tolerance
    specs = [*(spec for _, spec in backend.parameters(model)), *tuned.workload.signature.inputs]
    return default_tolerance(spec.dtype for spec in specs)


def _never() -> None:
    return None


def _late(backend: Backend) -> str | None:
    """Ranks that have met only now have agreed on nothing."""
    if backend.ranks() is None:
        return None
    return (
        "this process became one of several ranks after the config was applied, so that they could not agree on it: "
        "apply it once they have met (after init_process_group), or with ranks=[RANK] on each of them alone"
    )


def _diagnosis(backend: Backend, config: Config, model: Any | None) -> Diagnosis | None:
    return None if model is None else backend.diagnose(model, config)
