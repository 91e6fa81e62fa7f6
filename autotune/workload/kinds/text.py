"""`Text`: generated text. The author's function returns the model and its prompts (see `generation`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.workload.arguments import Arguments
from autotune.workload.generation import KEY, Prompts
from autotune.workload.kinds.work import Work
from autotune.workload.workload import Workload

_OF_CALLS = "it is for calls of a model"


@dataclass(frozen=True)
class Text(Work):
    """What is generated."""

    prompts: Prompts

    task = "generate"
    words = "generated text"
    named = ("generate",)
    lacking = ("text to generate", "generate it")
    has_plain_code = False
    needs = KEY
    keys = (KEY,)
    unsuitable = {
        "more_inputs": "the prompts are its inputs",
        "compare": "tokens are compared, and the logits that they are chosen by",
        "regions": "which of its two phases is compiled is a knob of its own",
        "variants": _OF_CALLS,
        "padding": "how prompts are padded is a knob of its own",
        "gradients": "none are recorded",
        "reset": "each text begins with an empty cache",
    }

    @classmethod
    def of(cls, parts: Mapping[str, Any], workload: Workload) -> Self:
        return cls(Prompts.of(parts[KEY], workload.model))

    @classmethod
    def inputs_of(
        cls, parts: Mapping[str, Any], own: Sequence[Arguments], calls: Sequence[Arguments]
    ) -> list[Arguments]:
        """One call without any: the prompts are made for the model in the trial."""
        del parts, own, calls
        return [Arguments()]
