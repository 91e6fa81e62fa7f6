"""A tuned config put to use on a job's pipeline: tuned components take the places of the modules they were made of.

The pipeline stays the job's object. Each component is a model under a config of its own, and has what a model has that
`apply` gave: it stays untuned where it is another model, where its inputs are others than those that the study saw, or
where its outputs do not pass the check, and the others stay tuned. What was promised is the pipeline's whole call, so
that no component is timed against a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.apply.compile_model import put_in_place
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.errors import InvalidConfigError
from autotune.job.apply import Application, agreement_on
from autotune.job.fallback import MismatchError
from autotune.job.policy import LoadedFile, Policy
from autotune.job.ranks import Pact, draft_of, level_of, stays_untuned
from autotune.job.stats import HasStats, Stats, StatsRecorder, recorder_of, register
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.components import configs_of, held_at


@dataclass
class ComponentsRecorder:
    """One for each pipeline that `apply` was given. The job calls its own object, so that calls are not counted."""

    own: StatsRecorder = field(default_factory=StatsRecorder)
    """What is said of the pipeline as a whole."""
    components: dict[str, HasStats] = field(default_factory=dict)

    def stats(self) -> Stats:
        """The state that all components are in; else `settling` while one is, or `tuned`."""
        own, found = self.own.stats(), {path: recorder.stats() for path, recorder in self.components.items()}
        states = {stats.state for stats in found.values()} or {own.state}
        events = [replace(event, message=f"{path}: {event.message}") for path in found for event in found[path].events]
        compiled = next((stats for stats in found.values() if stats.num_compiles is not None), own)
        return replace(
            compiled,
            state=states.pop() if len(states) == 1 else "settling" if "settling" in states else "tuned",
            num_calls=None,
            latency_s=None,
            num_fallbacks=sum(stats.num_fallbacks for stats in found.values()),
            events=tuple(sorted([*own.events, *events], key=lambda event: event.at_s)),
            components=found,
        )


@dataclass(frozen=True)
class _Begun:
    """A component to which the config was applied, so far as this process can say."""

    path: str
    module: Any
    application: Application
    refusal: Exception | None


def parts_of(path: str, tuned: TunedConfig) -> dict[str, LoadedFile]:
    """What the file of a pipeline, at this path, is for each component that its config is for, by the component's
    path: a file for that alone."""
    known = {component.path: component for component in tuned.components}
    names = dict.fromkeys(place.partition(".")[0] for place in known)
    found: dict[str, LoadedFile] = {}
    for place, config in configs_of(tuned.config, [*names]).items():
        if place in known:
            workload = tuned.workload.model_copy(update={"signature": known[place].signature, "inputs": None})
            alone = {"config": config, "workload": workload, "components": (), "limits": None}
            found[place] = LoadedFile(f"{path} ({place})", tuned.model_copy(update=alone), is_component=True)
    return found


def application_of(loaded: LoadedFile, model: Any, policy: Policy) -> Application:
    """What applies the file of one model to it, or that of a component to a module."""
    if not loaded.is_component or loaded.answer is None:
        return Application(loaded, model, policy)
    # The latency on record is that of the pipeline's whole call.
    policy = replace(policy, margin=None)
    if load_backend(loaded.answer.framework).moves_at_calls(model):  # Its owner wanted that: it is no mistake.
        moved = MismatchError(f"{loaded.path} is moved to the device for each call (offload)")
        loaded, policy = LoadedFile(loaded.path, None, moved), replace(policy, on_mismatch="untuned")
    return Application(loaded, model, policy)


class ComponentsApplication:
    """One pipeline under one policy."""

    def __init__(self, loaded: LoadedFile, pipeline: Any, policy: Policy) -> None:
        """`pipeline`: the object that has the components as attributes, or a dict of them."""
        assert loaded.answer is not None
        self._loaded = loaded
        self._tuned = loaded.answer
        self._pipeline = pipeline
        self._policy = policy
        self._changes = UndoLog()
        self._pact: Pact | None = None
        self._begun: list[_Begun] = []
        self._releases: list[Callable[[], None]] = []
        self._recorder = ComponentsRecorder()

    def applied(self) -> tuple[Any, Callable[[], None]]:
        """The pipeline, and how to put its own components back."""
        draft = draft_of("a pipeline", self._loaded.path, self._tuned)
        with agreement_on(draft, self._tuned, self._pipeline, self._policy) as agreement:
            refusal = self.begin(agreement.pact)
            if refusal is None or self._policy.on_mismatch != "raise":
                refusal = agreement.reached(refusal, self.left_out)
            return self.end(refusal)

    def begin(self, pact: Pact | None) -> Exception | None:
        """Apply the config to each component, and return what keeps the pipeline from it. `end` has to follow."""
        self._pact = pact
        try:
            if not self._tuned.is_untuned or self._policy.monitor:
                for path, part in parts_of(self._loaded.path, self._tuned).items():
                    self._begin_part(path, part)
        except BaseException as error:
            self.withdraw()
            if not isinstance(error, Exception):
                raise
            return error
        return None

    @property
    def left_out(self) -> dict[str, str]:
        """Components that stay untuned, and why."""
        return {part.path: self._policy.told_of(part.refusal) for part in self._begun if part.refusal is not None}

    def end(self, refusal: Exception | None) -> tuple[Any, Callable[[], None]]:
        """The pipeline, and how to undo it, once it is known what keeps all ranks from the config."""
        if refusal is not None:
            self.withdraw()
            if self._policy.on_mismatch == "raise":
                raise refusal
            stays = stays_untuned("the pipeline stays", self._pact)
            self._recorder.own.note("mismatch", self._policy.told_of(refusal, stays), level_of(self._pact))
        try:
            while self._begun:
                self._end_part(self._begun.pop(0))
        except BaseException:
            self._release()
            raise
        register(self._pipeline, self._recorder)
        return self._pipeline, self._release

    def withdraw(self) -> None:
        """Undo what was begun."""
        while self._begun:
            self._begun.pop().application.withdraw()

    def _module(self, path: str) -> Any:
        try:
            return held_at(self._pipeline, path)
        except InvalidConfigError as error:
            paths = ", ".join(component.path for component in self._tuned.components)
            kind = type(self._pipeline).__name__
            raise MismatchError(
                f"{self._loaded.path} was tuned for a pipeline that calls {paths}, and {path} is not in this {kind}",
                tip="give apply the whole pipeline, or a dict of its components",
            ) from error

    def _begin_part(self, path: str, part: LoadedFile) -> None:
        module = self._module(path)
        application = application_of(part, module, self._policy)
        refusal = application.begin(None if self._pact is None else self._pact.part(path))
        self._begun.append(_Begun(path, module, application, refusal))
        if refusal is not None and application.raises:
            raise refusal

    def _end_part(self, part: _Begun) -> None:
        given, release = part.application.end(part.refusal)
        self._releases.append(release)
        self._keep(part.path, given, recorder_of(given))
        if given is not part.module:
            put_in_place(self._pipeline, part.path, given, self._changes)

    def _keep(self, path: str, module: Any, recorder: HasStats | None) -> None:
        if recorder is not None:
            self._recorder.components[path] = recorder
            register(module, recorder)

    def _release(self) -> None:
        self.withdraw()
        self._changes.undo()
        while self._releases:
            self._releases.pop()()
