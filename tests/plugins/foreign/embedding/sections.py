"""What is said of a study."""

from autotune.answer.content import Section
from autotune.answer.format import amount


class EmbeddingSection(Section):
    place = 13

    def facts(self):
        yield "embeddings", f"{amount(self.answer.untuned.measurement.throughput, '')} vectors a second, untuned"
