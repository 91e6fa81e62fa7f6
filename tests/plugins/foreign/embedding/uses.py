"""What a job does: calls are checked as in the trials, whoever makes them."""

from autotune.job.output_check import OutputCheck
from autotune.job.uses.calls import UseOfCalls
from autotune.job.uses.use import tolerance_of
from autotune.measure.parts import AuthorsWord
from embedding.kinds import Embedding
from embedding.subjects import angle


class UseOfEmbedding(UseOfCalls):
    kind = Embedding

    def _check(self, backend):
        tolerance = tolerance_of(self._applying.tuned, backend, self.model)
        return OutputCheck(backend, self.model, tolerance, AuthorsWord.of(angle))

    def _note_comparison(self):
        """Nothing is missing."""
