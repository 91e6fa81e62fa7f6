"""`tune_generation`: what a config changes of a causal model's `generate`, with tiny models of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from autotune.backends.torch.generation import Generation, GenerationKnobs, tune_generation
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError

transformers = pytest.importorskip("transformers")

NEW = 6
SIZES = [(1, 5), (1, 9), (2, 7), (1, 12)]
"""Batch and length of each prompt."""
LONGEST = 20
CONFIGS: dict[str, dict[str, Any]] = {
    "static": {"cache": "static", "cache_length": 16},
    "most": {"cache": "static", "cache_length": "most", "prefill": "compile_dynamic"},
    "dynamic": {"cache": "dynamic"},
}


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=256, n_embd=64, n_layer=2, n_head=4, eos_token_id=None, pad_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def prompt(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, 128, (batch, length), generator=torch.Generator().manual_seed(100 * batch + length))


def tokens(model: Any, **further: Any) -> list[list[list[int]]]:
    """What a stream of prompts comes to, greedily."""
    wanted: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, **further}
    return [model.generate(prompt(*size), **wanted).tolist() for size in SIZES]


def compiling(**knobs: Any) -> Config:
    return Config({"execution": "compile", "backend": "aot_eager", **knobs})


class Tuned:
    """A model under one config, and what was said."""

    def __init__(self, model: Any, config: Config, **further: Any) -> None:
        self.model = model
        self.changes = UndoLog()
        self.said: list[str] = []
        self.generation = Generation(model, config, self.changes, say=self.said.append, **further)
        self.generation.put_into(self.changes)


@pytest.fixture(scope="module", params=CONFIGS)
def tuned(request: pytest.FixtureRequest) -> Iterator[Tuned]:
    """A llama under each config, with the stream's programs compiled."""
    torch._dynamo.reset()
    found = Tuned(llama(), compiling(**CONFIGS[request.param]), longest=LONGEST)
    tokens(found.model)
    yield found
    found.changes.undo()


def num_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


class TestAStream:
    def test_greedy_tokens_are_the_untuned_ones(self, tuned: Tuned) -> None:
        """They are compared after the stream was gone through once: caches are used again."""
        before = num_graphs()
        assert tokens(tuned.model) == tokens(llama())
        assert num_graphs() == before, "nothing compiles in the second pass"
        assert tuned.generation.num_calls["untuned"] == 0
        assert not tuned.said


class TestPuttingBack:
    def test_the_model_is_as_it_was(self) -> None:
        model = llama()
        before = dict(vars(model))
        changes = UndoLog()
        tune_generation(model, Config({"execution": "eager", "cache": "static"}), changes)
        assert vars(model) != before
        assert tokens(model) == tokens(llama())
        changes.undo()
        assert vars(model) == before
        assert tokens(model) == tokens(llama())

    def test_a_second_architecture(self) -> None:
        """Learned positions, and no grouped heads."""
        model = Tuned(gpt2(), Config({"execution": "eager", "cache": "static", "cache_length": 8})).model
        assert tokens(model) == tokens(gpt2())


class TestKnobs:
    @pytest.mark.parametrize(
        ("length", "longest", "needed", "expected"),
        [(None, None, 13, 13), ("exact", None, 13, 13), (64, None, 64, 64), (64, None, 65, 128), ("most", 20, 13, 20)],
    )
    def test_the_length_of_a_static_cache(self, length: Any, longest: int | None, needed: int, expected: int) -> None:
        knobs = GenerationKnobs.of(Config({"cache": "static", "cache_length": length}), longest)
        assert knobs.length_for(needed) == expected

    def test_longer_than_the_longest(self) -> None:
        assert GenerationKnobs.of(Config({"cache": "static", "cache_length": "most"}), 20).length_for(21) is None

    @pytest.mark.parametrize(
        "knobs",
        [{"cache_length": 64}, {"cache": "static", "cache_length": 0}, {"cache": "static", "cache_length": "most"}],
    )
    def test_what_means_nothing(self, knobs: Any) -> None:
        model = llama()
        before = dict(vars(model))
        with pytest.raises(InvalidConfigError, match="cache_length"):
            tune_generation(model, Config({"execution": "eager", **knobs}), UndoLog())
        assert vars(model) == before

    def test_what_does_not_generate(self) -> None:
        with pytest.raises(InvalidConfigError, match="no method generate"):
            tune_generation(torch.nn.Linear(2, 2), Config({"execution": "eager"}), UndoLog())
