"""What the author's function returns: the model, and under `embed` the batches that it is called with."""

from dataclasses import dataclass

from autotune.workload.arguments import Arguments
from autotune.workload.kinds.infer import Infer


@dataclass(frozen=True)
class Embedding(Infer):
    entry = "embedding"
    words = "embeddings"
    needs = "embed"
    keys = ("embed",)
    unsuitable = {"compare": "vectors are compared by their directions", "more_inputs": "it has several batches"}

    @classmethod
    def is_asked_by(cls, task, *, many_shapes):
        return False

    @classmethod
    def is_shown_by(cls, parts):
        return "embed" in parts

    @classmethod
    def inputs_of(cls, parts, own, calls):
        return [Arguments.of(batch) for batch in parts["embed"]]
