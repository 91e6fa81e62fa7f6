"""`SubjectOfStep`: a model that is trained, with its loss and optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.backends.capabilities import USUAL_LEARNING_RATE, Training, require
from autotune.errors import AutotuneError, marked
from autotune.trial.worker.subjects.calls import SubjectOfCalls
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.train import Train, own_loss
from autotune.workload.kinds.work import Work

if TYPE_CHECKING:
    from autotune.space.declared import Declaration


class SubjectOfStep(SubjectOfCalls):
    """See the module."""

    kind = Train

    def declared(self) -> Declaration:
        """Whether a step drops numbers: what of it is compiled is for its knobs to say."""
        from autotune.space.declared import Declaration

        self._set_mode(self._built.model)
        drops = bool(self._backend.active_dropout(self._built.model))
        return Declaration(met=("dropout",), lacks=("no dropout",)) if drops else Declaration()

    @property
    def _training(self) -> Training:
        return require(self._backend.training, marked("task", "train"))

    def _set_mode(self, model: Any) -> None:
        self._training.set_training(model)

    def _records_gradients(self, model: Any, inputs: Sequence[Arguments]) -> bool:
        """As its author says, or an input requires them: all that a step computes shows in its own gradients."""
        del model
        return self._is_declared_differentiable(inputs)

    def _work(self, model: Any, placed: list[Arguments]) -> tuple[Train, list[Arguments]]:
        """With the author's optimizer, or the usual one for weights that are there. Raises AutotuneError for one that
        is another's."""
        given = self._given_work
        if given.optimizer is None:
            return replace(given, optimizer=self._training.usual_optimizer(model)), placed
        problem = self._training.check_optimizer(given.optimizer)
        if problem is not None:
            raise AutotuneError(f"{self._workload.model} returned as the optimizer {problem}")
        return given, placed

    def _acting_in_training(self, model: Any) -> Sequence[str]:
        """None: all are meant to be in training mode."""
        del model
        return ()

    def _assumed(self, work: Work) -> Iterator[str]:
        given = self._given_work
        if given.loss is own_loss:
            yield "the loss is what the model returns as such, or first: its function gave none"
        if given.optimizer is None:
            assert isinstance(work, Train)
            yield (
                f"the optimizer is {type(work.optimizer).__name__} with a learning rate of {USUAL_LEARNING_RATE:g}: "
                "the model's function gave none"
            )

    @property
    def _given_work(self) -> Train:
        assert isinstance(self._built.work, Train)
        return self._built.work
