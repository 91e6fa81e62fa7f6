"""A tuned config put to use on a job's pipeline: tuned components take the places of the modules they were made of.

The pipeline stays the job's object. Each component is a model under a config of its own, and has what a model has that
`apply` gave: it stays untuned where it is another model, where its inputs are others than those that the study saw, or
where its outputs do not pass the check, and the others stay tuned. What was promised is the pipeline's whole call, so
that no component is timed against a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.apply.compile_model import put_in_place
from autotune.backends.undo import UndoLog
from autotune.errors import InvalidConfigError
from autotune.job.apply import Application, LoadedFile, Policy
from autotune.job.fallback import MismatchError
from autotune.job.stats import HasStats, Stats, StatsRecorder, recorder_of, register
from autotune.measure.measurement import Component
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


class ComponentsApplication:
    """One pipeline under one policy."""

    def __init__(self, loaded: LoadedFile, pipeline: Any, policy: Policy) -> None:
        """`pipeline`: the object that has the components as attributes, or a dict of them."""
        assert loaded.answer is not None
        self._loaded = loaded
        self._tuned = loaded.answer
        self._pipeline = pipeline
        # The latency on record is that of the whole call.
        self._policy = replace(policy, margin=None)
        self._changes = UndoLog()
        self._releases: list[Callable[[], None]] = []
        self._recorder = ComponentsRecorder()

    def applied(self) -> tuple[Any, Callable[[], None]]:
        """The pipeline, and how to put its own components back."""
        try:
            if not self._tuned.is_untuned or self._policy.monitor:
                for part in [*self._parts()]:
                    self._put(*part)
        except MismatchError as refusal:
            self._release()
            if self._policy.on_mismatch == "raise":
                raise
            self._recorder.own.note("mismatch", f"{refusal}; the pipeline stays untuned")
        except BaseException:
            self._release()
            raise
        register(self._pipeline, self._recorder)
        return self._pipeline, self._release

    def _parts(self) -> Iterator[tuple[str, Any, TunedConfig]]:
        """Path, module and config of each component that the config is for. Raises MismatchError for a pipeline that
        lacks one."""
        known = {component.path: component for component in self._tuned.components}
        names = dict.fromkeys(path.partition(".")[0] for path in known)
        for path, config in configs_of(self._tuned.config, [*names]).items():
            if path in known:
                yield path, self._module(path), self._of_component(known[path], config)

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

    def _of_component(self, component: Component, config: Any) -> TunedConfig:
        """The file as it is for one component alone."""
        workload = self._tuned.workload.model_copy(update={"signature": component.signature, "inputs": None})
        return self._tuned.model_copy(update={"config": config, "workload": workload, "components": (), "limits": None})

    def _put(self, path: str, module: Any, tuned: TunedConfig) -> None:
        if _is_offloaded(module):
            recorder = StatsRecorder()
            recorder.note(
                "mismatch",
                f"{self._loaded.path}: {path} is moved to the device for each call (offload): it stays untuned",
            )
            self._keep(path, module, recorder)
            return
        loaded = LoadedFile(f"{self._loaded.path} ({path})", tuned, is_component=True)
        given, release = Application(loaded, module, self._policy).applied()
        self._releases.append(release)
        self._keep(path, given, recorder_of(given))
        if given is not module:
            put_in_place(self._pipeline, path, given, self._changes)

    def _keep(self, path: str, module: Any, recorder: HasStats | None) -> None:
        if recorder is not None:
            self._recorder.components[path] = recorder
            register(module, recorder)

    def _release(self) -> None:
        self._changes.undo()
        while self._releases:
            self._releases.pop()()


def _is_offloaded(module: Any) -> bool:
    """Hooks of accelerate move its weights around each call, which compiled code would be broken at."""
    return any(getattr(part, "_hf_hook", None) is not None for part in module.modules())
