"""What is timed: the batches in turn."""

from autotune.trial.worker.calls.one_shape import OneShape
from embedding.kinds import Embedding


class EmbeddingCalls(OneShape):
    kind = Embedding

    def one_pass(self, step, times=1):
        return [self._waited_for(step, batch, times) for batch in self._subject.authors_inputs]

    def launch(self, step):
        """Batches differ."""
