"""`SubjectOfText`: a model that generates text, with its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.backends.capabilities import Generation, require
from autotune.errors import InputError, marked
from autotune.trial.worker.subject import Subject, SubjectOf, digests, input_specs, signature_of
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.text import Text
from autotune.workload.regions import repeated_blocks

if TYPE_CHECKING:
    from autotune.space.declared import Declaration


class SubjectOfText(SubjectOf):
    """See the module."""

    kind = Text

    def subject(self) -> Subject:
        """Raises InputError for a model that generates nothing."""
        work, backend, workload = self._built.work, self._backend, self._workload
        assert isinstance(work, Text)
        model = backend.place(self._built.model)
        generation = self._generation()
        given = [
            Arguments((backend.place(generation.prompt(model, prompt, work.prompts.batch, workload.seed)),))
            for prompt in work.prompts.prompts
        ]
        parameters = list(backend.parameters(model))
        specs = input_specs(backend, given[0], workload.model)
        signature = signature_of(model, parameters, specs, backend=backend)
        return Subject(
            model=model,
            inputs=[*given, given[0]],
            signature=signature.model_copy(update={"items_per_call": work.prompts.num_tokens}),
            dtypes=frozenset(spec.dtype for _, spec in parameters),
            example_sha256=digests(backend, given[0]),
            variants={},
            work=work,
        )

    def declared(self) -> Declaration:
        from autotune.space.declared import Declaration

        regions, model = self._backend.regions, self._built.model
        met = (*self._generation().offers(model), *self._met())
        return Declaration(
            repeated=None if regions is None else repeated_blocks(regions.modules(model), self._backend.parameters),
            met=met,
        )

    def _generation(self) -> Generation:
        """What the framework does with a model that generates. Raises InputError for another."""
        generation = require(self._backend.generation, marked("task", "generate"))
        problem = generation.check_generating(self._built.model)
        if problem is not None:
            raise InputError(f"{self._workload.model} returned as the model {problem}")
        return generation
