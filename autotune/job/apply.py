"""`Application`: a tuned config put to use on a job's model, by the job's policy. See `load`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import psutil

from autotune.apply.compile_model import compile_under, given_functions, versions_under
from autotune.apply.config_parts import ConfigParts
from autotune.apply.warm_start import WarmStart, key_here, warm_start
from autotune.backends.capabilities import Training, Updates, require
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of, framework_of, framework_that, load_backend
from autotune.backends.undo import UndoLog
from autotune.command_line import asked
from autotune.config import Config
from autotune.doors import USES
from autotune.errors import AutotuneError, InputError, quoted
from autotune.job.board import Answer
from autotune.job.fallback import Fallback, MismatchError, Together, put_back
from autotune.job.generation import GuardedGeneration, stats_of
from autotune.job.guard import CallsOfAStep, Guard, GuardTerms, RecordedCalls
from autotune.job.later_calls import share_of
from autotune.job.launch import lacks, lacks_around, tip_of
from autotune.job.mismatch import admission_of, differences, hint_of_misfits, retune_command
from autotune.job.output_check import OutputCheck
from autotune.job.ranks import (
    DECISION_S,
    Agreement,
    Content,
    JointCalls,
    Pact,
    Rehearsal,
    draft_of,
    level_of,
    pact_for,
    stays_untuned,
)
from autotune.job.stats import CallTimes, StatsRecorder, expect_calls, register, weakly
from autotune.measure.accuracy import default_tolerance
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import structure_sha256
from autotune.measure.parts import AuthorsWord, Compare
from autotune.tuned.tuned_config import AdaptivePolicy, TunedConfig, TunedTexts
from autotune.workload.build import Apply, TrainingRecipe, Variants

OnMismatch = Literal["retune-hint", "untuned", "apply", "raise"]
MARGIN = 1.5
"""Times the recorded latency that the first calls may take before the untuned model is tried."""


@dataclass(frozen=True)
class Policy:
    """How a job wants its tuned model. See `Loaded.apply`."""

    on_mismatch: OnMismatch = "retune-hint"
    check: bool | float | Compare = False
    margin: float | None = MARGIN
    monitor: bool = False
    variants: Variants = field(default_factory=dict)
    adaptive: AdaptivePolicy | bool | None = None
    """None: as the file says; False: not even then; True: with the file's bounds, or the usual ones."""
    process_settings: bool = False
    """What a config sets for the whole process may be set."""
    compiler_options: bool = False
    """Options of the compiler for which no bundled search space has a knob may be set."""
    ranks: Sequence[int] | None = None
    """Ranks of a distributed job that decide together; None: all of them."""

    def __post_init__(self) -> None:
        if self.on_mismatch not in get_args(OnMismatch):
            raise InputError(
                f"on_mismatch={self.on_mismatch!r}: unknown", tip=f"choose one of: {', '.join(get_args(OnMismatch))}"
            )
        share_of(self.check)
        _word_of(self.check)
        if not isinstance(self.adaptive, (AdaptivePolicy, bool, type(None))):
            raise InputError(
                f"adaptive={self.adaptive!r}: is neither a truth value nor an AdaptivePolicy",
                tip="give it as autotune.AdaptivePolicy(max_versions=8)",
            )


@dataclass(frozen=True)
class LoadedFile:
    """What is in a file. `answer` is None where the file cannot be used; `problem` then says why."""

    path: str
    answer: TunedConfig | None
    problem: InputError | None = None
    is_component: bool = False
    """`answer` is for one component of a pipeline."""


class Application:
    """One model, or one training step, under one policy."""

    def __init__(
        self,
        loaded: LoadedFile,
        model: Any,
        policy: Policy,
        recipe: TrainingRecipe | None = None,
        updates: Updates | None = None,
    ) -> None:
        """`recipe`: what is applied is a training step of the model, which updates its weights as `updates` say; None:
        the model's calls."""
        self._loaded = loaded
        self._given = self._model = model
        self._policy = policy
        self._recipe = recipe
        self._method: str | None = None
        """The method of the model that is tuned in place of its calls."""
        self._updates = updates
        self._recorder = StatsRecorder()
        self._changes = UndoLog()
        self._backend: Backend | None = None
        self._pact: Pact | None = None
        """With the other ranks of a distributed job; None: this process decides alone."""
        self._held: tuple[Any, Callable[[], None]] | None = None
        """What the job is to hold, once all ranks agree, and how to undo it."""

    left_out: Mapping[str, str] = MappingProxyType({})
    """It has no parts."""

    def applied(self) -> tuple[Any, Callable[[], None]]:
        """What the job holds from now on, and how to undo it all."""
        draft = draft_of(
            "a model" if self._recipe is None else "a training step", self._loaded.path, self._loaded.answer
        )
        with agreement_on(draft, self._loaded.answer, self._model, self._policy) as agreement:
            refusal = self.begin(agreement.pact)
            if refusal is None or self._policy.on_mismatch != "raise":
                refusal = agreement.reached(refusal)
            return self.end(refusal)

    def begin(self, pact: Pact | None) -> Exception | None:
        """Apply the config, and return what keeps this process from it. `end` has to follow."""
        self._pact = pact
        try:
            self._held = self._tuned_or_untouched()
        except BaseException as error:
            put_back(self._changes.undo, self._recorder)
            if not isinstance(error, Exception):
                raise
            return error
        return None

    def end(self, refusal: Exception | None) -> tuple[Any, Callable[[], None]]:
        """What the job holds, and how to undo it, once it is known what keeps all ranks from the config."""
        if refusal is not None:
            self.withdraw()
            if self._policy.on_mismatch == "raise":
                raise refusal
            self._note_refusal(refusal)
            self._held = self._untouched()
            refusal = None  # Its traceback leads here, and would keep the model.
        assert self._held is not None
        given, release = self._held
        for held in (self._given, self._model, given):
            register(held, self._recorder)
        return given, release

    def withdraw(self) -> None:
        """Undo what was begun, if anything was: the job has what it gave."""
        if self._held is not None:
            self._held[1]()
            self._held = None
            self._recorder.note_first_call()
            self._recorder.diagnose = None
            self._recorder.rehearsal = lambda: None

    def _tuned_or_untouched(self) -> tuple[Any, Callable[[], None]]:
        if self._loaded.problem is not None:
            raise self._loaded.problem
        tuned = self._loaded.answer
        assert tuned is not None
        if tuned.is_untuned and self._limits(tuned) is not None:
            why = f"the verdict is {tuned.verdict.value}: nothing is compiled, adaptive or not"
            self._recorder.note("version", f"{self._loaded.path}: {why}")
        if tuned.is_untuned and not self._policy.monitor:
            return self._untouched()
        backend = self._backend = load_backend(tuned.framework)
        self._given = backend.proxies.original(self._given)
        self._model = backend.as_model(self._given)
        if tuned.workload.signature.method is not None and backend.is_model(self._given):
            self._take_method(tuned.workload.signature.method, backend)
        if backend.already_compiled is not None:
            self._recorder.note("mismatch", backend.already_compiled)
        problem = backend.check_model(self._model)
        if problem is not None:
            raise MismatchError(f"this config was tuned for {tuned.framework}; it was to be applied to {problem}")
        problem = self._problem_of_recipe(backend)
        if problem is not None:
            raise MismatchError(f"the optimizer of the training step is {problem}")
        backend.adopt(self._model)
        self._watch(backend)
        return self._untouched() if tuned.is_untuned else self._compiled(tuned, backend)

    def _take_method(self, method: str, backend: Backend) -> None:
        """It is what was tuned, and the model is what it is put back into."""
        if not callable(getattr(self._model, method, None)):
            raise MismatchError(
                f"this config was tuned for the method {method}, which a {type(self._model).__name__} lacks"
            )
        self._given, self._method = self._model, method
        self._model = backend.as_model(getattr(self._given, method))

    def _problem_of_recipe(self, backend: Backend) -> str | None:
        if self._recipe is None:
            return None
        return require(backend.training, "a training step").check_optimizer(self._recipe.optimizer)

    def _compiled(self, tuned: TunedConfig, backend: Backend) -> tuple[Any, Callable[[], None]]:
        if self._recipe is not None and tuned.workload.task != "train":
            what = "inference" if tuned.texts is None else "generation of text"
            raise MismatchError(f"{self._loaded.path} was tuned for {what}", tip=f"tune with {asked('task', 'train')}")
        self._require_allowed(tuned, backend)
        is_started = self._require_started(tuned)
        differing = differences(tuned, backend, self._model)
        if differing:
            self._require_accepted(tuned, differing)
        if tuned.texts is not None:
            return self._generating(tuned, tuned.texts, backend)
        start = self._warm_start(tuned, backend)
        fits, unchecked = is_started and not differing, start is not None and start.unchecked
        terms = self._terms(tuned, backend, fits=fits, unchecked_caches=unchecked)
        untuned = self._untuned_call(backend, tuned.framework)
        fallback = self._fallback_to(untuned)
        functions = given_functions(tuned.config, tuned.variants, self._policy.variants)
        training = require(backend.training, "task train") if tuned.workload.task == "train" else None
        of_the_step = ConfigParts.of(tuned.config).settings
        if training is not None and self._recipe is None:
            tuned = tuned.model_copy(update={"config": training.of_calls(tuned.config)})
        adaptive = self._adaptive_model(tuned, backend, functions, fallback, terms)
        if adaptive is not None:
            step = self._model
            calls: Callable[..., Any] = self._without_gradients(backend, tuned, adaptive, fallback)
        else:
            backend.input_gradients = tuned.workload.signature.records_gradients
            with backend.watching_recompiles():
                step = self._step(backend, tuned.config, functions, self._changes)
            call = step if self._recipe else backend.proxies.direct(step)
            calls = Guard(backend, call, fallback, terms, self._recorder, warm_start=start)
            if not self._has_right_gradients(training, tuned, step):
                calls = self._without_gradients(backend, tuned, calls, fallback)
        if training is not None and self._recipe is None:
            calls = CallsOfAStep(training.unlike_the_step(self._model, of_the_step), calls, fallback)
        return self._stand_in(backend, tuned, step, calls, fallback)

    def _generating(self, tuned: TunedConfig, texts: TunedTexts, backend: Backend) -> tuple[Any, Callable[[], None]]:
        """What the job holds of a model that was tuned to generate text."""
        generates = require(backend.generates, "generation of text")
        if self._pact is not None:
            raise MismatchError(
                f"{self._loaded.path} was tuned to generate text in one process, here are several ranks"
            )
        fallback = self._fallback_to(self._untuned_call(backend, tuned.framework))
        guard = GuardedGeneration(
            backend, self._model, fallback, self._recorder, _tolerance(tuned, backend, self._model)
        )
        settings = ConfigParts.of(tuned.config).settings
        generating = generates(self._model, settings, self._changes, longest=texts.longest, guard=guard)
        fallback.leave_tuned = generating.leave
        self._recorder.generation = weakly(stats_of, generating)
        self._recorder.diagnose = weakly(partial(_diagnosis, backend, settings), self._model)
        self._recorder.note_first_call = expect_calls(self._loaded.path)
        holding = UndoLog()
        given = generating.stand_in(self._monitored(generating.call), holding)

        def release() -> None:
            holding.undo()
            fallback.release()

        return given, release

    def _fallback_to(self, untuned: Callable[..., Any]) -> Fallback:
        pact, raises = self._pact, self._policy.on_mismatch == "raise"
        if pact is None:
            repeats = self._recipe is None
            return Fallback(untuned, self._changes, self._recorder, raises=raises, repeats=repeats)
        together = Together(pact.post, f"all of the {len(pact.members)} ranks are ", pact.level)
        return Fallback(untuned, self._changes, self._recorder, raises=raises, repeats=False, together=together)

    def _without_gradients(
        self, backend: Backend, tuned: TunedConfig, call: Callable[..., Any], fallback: Fallback
    ) -> RecordedCalls:
        is_of_a_step = tuned.workload.task == "train"
        return RecordedCalls(backend, self._model, call, fallback, self._recorder, of_a_step=is_of_a_step)

    def _has_right_gradients(self, training: Training | None, tuned: TunedConfig, step: Any) -> bool:
        """Those of the untuned model, or those that trials compared; or gradients were recorded in each call of a
        trial, since the model differentiates within itself."""
        if self._recipe is not None or step is self._model or tuned.workload.signature.records_gradients:
            return True
        parts = ConfigParts.of(tuned.config)
        if training is None or parts.variants or tuned.shapes is not None:
            return False
        return training.calls_as_compiled(parts.settings)

    def _require_allowed(self, tuned: TunedConfig, backend: Backend) -> None:
        """Raises MismatchError for what only the job, and no file, can decide."""
        parts = ConfigParts.of(tuned.config)
        knobs = backend.process_settings(parts.settings)
        if knobs and not self._policy.process_settings:
            raise MismatchError(
                f"{self._loaded.path} sets {', '.join(knobs)} for the whole process, other models in it included",
                tip=f"allow it with apply(model, process_settings=True), or tune without {asked('process_settings')}",
            )
        if parts.options and not self._policy.compiler_options:
            raise MismatchError(
                f"{self._loaded.path} sets {', '.join(parts.options)}, for which no bundled search space has a knob",
                tip="allow it with apply(model, compiler_options=True), if you know who made the file",
            )

    def _require_started(self, tuned: TunedConfig) -> bool:
        """Whether this process was started as the config asks: no file can change that now. Raises MismatchError where
        it was not, unless the job takes that."""
        around, lacking = lacks_around(self._loaded.path, tuned), lacks(self._loaded.path, tuned)
        if lacking is not None and self._policy.on_mismatch != "apply":
            raise MismatchError(lacking, tip=tip_of(self._loaded.path, tuned.config))
        if lacking is not None:
            self._recorder.note("mismatch", f"{lacking}: applied anyway, the speed-up is not proven here")
        if around is not None:
            self._recorder.note("mismatch", around)
        return lacking is None

    def _stand_in(
        self, backend: Backend, tuned: TunedConfig, step: Any, call: Callable[..., Any], fallback: Fallback
    ) -> tuple[Any, Callable[[], None]]:
        """What the job holds for a `call` that stands in front of the model."""
        compile_s = tuned.evidence.best.compile_cold_s
        fallback.rehearsal = Rehearsal(backend, self._model, fallback, self._pact, compile_s)
        self._recorder.rehearsal = weakly(lambda held: None if held is None else held.rehearsal, fallback)
        call = call if self._pact is None else JointCalls(call, self._pact, fallback)
        self._recorder.diagnose = weakly(
            partial(_diagnosis, backend, ConfigParts.of(tuned.config).settings), self._model
        )
        if self._recipe is None:
            self._recorder.note_first_call = expect_calls(self._loaded.path)
        holding = UndoLog()
        monitored = self._monitored(call)
        given = monitored if self._recipe else self._proxy(backend, step, monitored, holding)

        def release() -> None:
            holding.undo()
            fallback.release()

        return given, release

    def _proxy(self, backend: Backend, step: Any, call: Callable[..., Any], holding: UndoLog) -> Any:
        """It stands for what the job gave, whose names its checkpoints have, or for a function's model."""
        held = self._given if backend.check_model(self._given) is None else self._model
        return backend.proxies.proxy(held, step, call, holding, self._method)

    def _adaptive_model(
        self, tuned: TunedConfig, backend: Backend, variants: list[Apply], fallback: Fallback, terms: GuardTerms
    ) -> Callable[..., Any] | None:
        """What decides for each shape on its own; None where nobody wants that, or the config does not allow it."""
        limits = self._limits(tuned)
        if limits is None or self._recipe is not None:
            return None
        if self._pact is not None:
            why = "ranks that each decide by their own clocks would not decide alike"
            self._recorder.note("version", f"{self._loaded.path}: {why}: not adaptive", self._pact.level)
            return None
        try:
            adapt = USES.require("adaptive_model")
        except InputError as problem:
            self._recorder.note("version", f"{self._loaded.path}: {problem}: applied to all calls, not adaptive")
            return None
        versions = versions_under(backend, self._model, tuned.config, variants, self._changes)
        if versions is None:
            put_back(self._changes.undo, self._recorder)
            why = "what this config compiles cannot be kept apart by shape"
            self._recorder.note("version", f"{self._loaded.path}: {why}: applied to all calls, not adaptive")
            return None
        check = terms.check if self._policy.check else None
        adaptive: Callable[..., Any] = adapt(
            limits, tuned, versions, backend, recorder=self._recorder, fallback=fallback, terms=terms, check=check
        )
        return adaptive

    def _limits(self, tuned: TunedConfig) -> AdaptivePolicy | None:
        asked = self._policy.adaptive
        if asked is False or (asked is None and tuned.adaptive is None):
            return None
        return asked if isinstance(asked, AdaptivePolicy) else tuned.adaptive or AdaptivePolicy()

    def _step(self, backend: Backend, config: Config, variants: list[Apply], changes: UndoLog) -> Any:
        if self._recipe is None:
            shapes = None if self._loaded.answer is None else self._loaded.answer.shapes
            return compile_under(backend, self._model, config, variants, changes, shapes=shapes)
        training = require(backend.training, "a training step")
        settings = ConfigParts.of(config).settings
        loss, optimizer = self._recipe.loss, self._recipe.optimizer
        return training.training_step(self._model, loss, optimizer, settings, changes, updates=self._updates)

    def _untuned_call(self, backend: Backend, framework: str) -> Callable[..., Any]:
        if self._recipe is None:
            return backend.proxies.direct(self._model)
        step: Callable[..., Any] = self._step(backend, Config(entry_of(framework).untuned), [], UndoLog())
        return step

    def _require_accepted(self, tuned: TunedConfig, differing: list[str]) -> None:
        """Policy: an exception ends the application, a return goes on with it."""
        found = f"{self._loaded.path} was tuned for {'; '.join(differing)}"
        if self._policy.on_mismatch != "apply":
            raise MismatchError(found, tip=_hint(tuned))
        self._recorder.note("mismatch", f"{found}: applied anyway, the speed-up is not proven here")

    def _warm_start(self, tuned: TunedConfig, backend: Backend) -> WarmStart | None:
        """The artifact, ready for the first call; None, with one line, where it cannot be used."""
        if tuned.artifact is None or not self._is_measured(tuned):
            return None
        if self._recipe is not None and tuned.artifact.check_first_call:
            return None  # A step made twice, to compare, would train twice; none is exported either.
        here = key_here(tuned.framework, backend, tuned.config, structure_sha256(backend.parameters(self._model)))
        try:
            return warm_start(backend, tuned.artifact, Path(self._loaded.path).parent, here)
        except (InputError, OSError) as problem:
            self._recorder.note("artifact", f"{problem}; the first call compiles")
            return None

    def _is_measured(self, tuned: TunedConfig) -> bool:
        """A training step's inputs, latency and code are not those of the model's call in it."""
        return (self._recipe is not None) == (tuned.workload.task == "train")

    def _terms(self, tuned: TunedConfig, backend: Backend, *, fits: bool, unchecked_caches: bool) -> GuardTerms:
        is_measured = self._is_measured(tuned)
        # Under traffic the recorded latency is that of a mixture of shapes, and the first calls are another one.
        # And ranks whose clocks differ would not decide alike.
        is_comparable = fits and is_measured and self._policy.margin is not None and tuned.shapes is None
        is_comparable = is_comparable and self._pact is None
        is_by_file = bool(self._policy.check) and _word_of(self._policy.check) is None
        if is_by_file and tuned.workload.signature.compare == "function":
            what = "the study compared outputs by a function of the model's author, which a file does not hold"
            self._recorder.note("mismatch", f"{self._loaded.path}: {what}; give it as apply(model, check=FUNCTION)")
        check = OutputCheck(
            backend, self._model, _tolerance(tuned, backend, self._model), _authors(tuned, self._policy)
        )
        cheap = entry_of(tuned.framework).cheap
        settings, counts = ConfigParts.of(tuned.config).settings, backend.shapes if self._policy.check else None
        return GuardTerms(
            admission=admission_of(
                tuned,
                backend,
                self._model,
                None if self._recipe is None else self._recipe.loss,
                self._recorder,
                path=self._loaded.path,
                takes_misfits=self._policy.on_mismatch == "apply",
                is_component=self._loaded.is_component,
            ),
            hint=_hint(tuned) if self._policy.on_mismatch != "untuned" else "",
            hint_of_misfits=hint_of_misfits(tuned) if self._policy.on_mismatch != "untuned" else "",
            check=check if self._policy.check or unchecked_caches else None,
            num_compiled=None if counts is None else partial(counts.compilations, self._model, settings),
            latency_s=tuned.evidence.best.latency_s.p50 if is_comparable else None,
            page_faults=tuned.evidence.best.page_faults,
            keeping_memory=None if cheap is None else cheap.by_hand,
            margin=self._policy.margin or MARGIN,
            check_share=0.0 if self._pact or self._policy.ranks is not None else share_of(self._policy.check),
            outsider=_never if self._pact or self._policy.ranks is not None else partial(_late, backend),
            effects=None if self._recipe else backend.effects(self._model, settings),
        )

    def _note_refusal(self, error: Exception) -> None:
        """One line: what is wrong, that the model stays as it is, what to do."""
        kind: Literal["mismatch", "fallback"] = "mismatch" if isinstance(error, AutotuneError) else "fallback"
        told = told_of(self._policy, error, stays_untuned("the model stays", self._pact))
        self._recorder.note(kind, told, level_of(self._pact))

    def _untouched(self) -> tuple[Any, Callable[[], None]]:
        self._recorder.state = "untuned"
        if self._recipe is not None:
            return self._untouched_step(), lambda: None
        if not self._policy.monitor or self._backend is None:
            return self._given, lambda: None
        holding = UndoLog()
        call = self._monitored(self._backend.proxies.direct(self._model))
        return self._proxy(self._backend, self._model, call, holding), holding.undo

    def _untouched_step(self) -> Callable[..., Any]:
        framework = self._framework_of_step()
        if framework is None:
            raise InputError(f"training_step() was given a {type(self._model).__name__}, which no framework can train")
        backend = load_backend(framework)
        if self._backend is None:
            model = self._model if backend.is_model(self._model) else backend.as_model(self._model)
            if backend.is_model(model):
                backend.adopt(model)
            self._watch(backend)
        return self._monitored(self._untuned_call(backend, framework))

    def _framework_of_step(self) -> str | None:
        """That of the model; of one that no config can be applied to, or of a function, as far as can be told."""
        if not callable(self._model):
            return None
        return framework_of(self._model) or framework_that(
            lambda backend: backend.is_model(self._model),
            lambda backend: backend.training is not None and self._problem_of_recipe(backend) is None,
            lambda backend: backend.training is not None,
        )

    def _watch(self, backend: Backend) -> None:
        self._recorder.memory_bytes = lambda: backend.peak_memory_bytes() or psutil.Process().memory_info().rss
        if self._policy.monitor:
            is_synchronous = backend.device_name().lower() == "cpu"
            self._recorder.calls = CallTimes(None if is_synchronous else backend.synchronise)

    def _monitored(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self._recorder.calls is None else self._recorder.calls.around(call)


def agreement_on(draft: Answer, content: Content | None, model: Any, policy: Policy) -> Agreement:
    """What is to be decided about the content of a file that is applied to a model."""
    pact = pact_for(None if content is None else content.framework, model, policy.ranks)
    return Agreement(pact, draft, partial(told_of, policy), DECISION_S)


def told_of(policy: Policy, error: Exception, *consequences: str) -> str:
    """What keeps a model from its config, in one line that says what to do where the job wants that."""
    what = str(error) if isinstance(error, AutotuneError) else quoted(error)
    tip = getattr(error, "tip", None) if policy.on_mismatch != "untuned" else None
    return "; ".join(filter(None, [what, *consequences, tip]))


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


def _hint(tuned: TunedConfig) -> str:
    return f"to tune here: {retune_command(tuned)}"


def _authors(tuned: TunedConfig, policy: Policy) -> AuthorsWord | None:
    """How the model's author has its outputs compared: as the job says, else as the file does."""
    if (word := _word_of(policy.check)) is not None:
        return word
    recorded = tuned.workload.signature.compare
    return AuthorsWord.of(recorded) if isinstance(recorded, dict) else None


def _word_of(check: bool | float | Compare) -> AuthorsWord | None:
    """How the job has outputs compared. Raises InputError."""
    return None if isinstance(check, (bool, float)) else AuthorsWord.of(check)


def _tolerance(tuned: TunedConfig, backend: Backend, model: Any) -> float:
    """As in the trials: what the user allowed, else by the types of parameters and inputs."""
    if tuned.workload.tolerance is not None:
        return tuned.workload.tolerance
    specs = [*(spec for _, spec in backend.parameters(model)), *tuned.workload.signature.inputs]
    return default_tolerance(spec.dtype for spec in specs)
