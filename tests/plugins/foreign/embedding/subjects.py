"""What a trial makes of it: outputs are compared by the angle between vectors."""

from dataclasses import replace

import numpy as np

from autotune.measure.parts import AuthorsWord
from autotune.trial.worker.subjects.calls import SubjectOfCalls
from embedding.kinds import Embedding


def angle(expected, got):
    """The largest, by its cosine."""
    units = [each["output"] / np.linalg.norm(each["output"], axis=-1, keepdims=True) for each in (expected, got)]
    return float(np.max(1 - np.sum(units[0] * units[1], axis=-1)))


class SubjectOfEmbedding(SubjectOfCalls):
    kind = Embedding

    def subject(self):
        self._built = replace(self._built, compare=AuthorsWord.of(angle))
        return super().subject()
