"""`tune_generation`: what a config changes of a causal model's `generate`, with tiny models of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from autotune.backends.torch.generation import GenerationKnobs, TorchGeneration, TrialsGuard, tune_generation
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, UnsuitableCallError
from tests.generating import LONGEST, NEW, continued, gpt2, llama, prompt, stream, t5

pytest.importorskip("transformers")

CONFIGS: dict[str, dict[str, Any]] = {
    "static": {"cache": "static", "cache_length": 16},
    "most": {"cache": "static", "cache_length": "most", "prefill": "compile_dynamic"},
    "dynamic": {"cache": "dynamic"},
}


def compiling(**knobs: Any) -> Config:
    return Config({"execution": "compile", "backend": "aot_eager", **knobs})


class Said(TrialsGuard):
    """A trial's guard that keeps what it says."""

    said: list[str]

    def refused(self, error: UnsuitableCallError, args: Any, kwargs: Any) -> Any:
        self.said.append(str(error))
        return super().refused(error, args, kwargs)


class Tuned:
    """A model under one config, and what was said."""

    def __init__(self, model: Any, config: Config, **further: Any) -> None:
        self.model = model
        self.changes = UndoLog()
        guard = Said(model._call_impl)
        guard.said = self.said = []
        self.generation = TorchGeneration(model, config, self.changes, guard=guard, **further)
        self.generation.put_into(self.changes)


@pytest.fixture(scope="module", params=CONFIGS)
def tuned(request: pytest.FixtureRequest) -> Iterator[Tuned]:
    """A llama under each config, with the stream's programs compiled."""
    torch._dynamo.reset()
    found = Tuned(llama(), compiling(**CONFIGS[request.param]), longest=LONGEST)
    stream(found.model)
    yield found
    found.changes.undo()


def num_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


class TestAStream:
    @pytest.mark.fast_cases("static")
    def test_greedy_tokens_are_the_untuned_ones(self, tuned: Tuned) -> None:
        """They are compared after the stream was gone through once: caches are used again."""
        before = num_graphs()
        assert stream(tuned.model) == stream(llama())
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
        assert stream(model) == stream(llama())
        changes.undo()
        assert vars(model) == before
        assert stream(model) == stream(llama())

    @pytest.mark.slow
    def test_a_model_with_an_encoder(self) -> None:
        """Its decoder begins with one token, and has what the encoder gave in a second cache."""
        torch._dynamo.reset()
        tuned, plain = Tuned(t5(), compiling(cache="static", cache_length=16)), t5()
        texts = [(prompt(1, 5), 1), (prompt(1, 5), 2), (prompt(2, 5), 1)]
        expected = [continued(plain, ids, num_beams=beams) for ids, beams in texts]
        for _ in range(2):
            before = num_graphs()
            assert [continued(tuned.model, ids, num_beams=beams) for ids, beams in texts] == expected
        assert num_graphs() == before
        assert (tuned.generation.num_calls["untuned"], tuned.said) == (0, [])
        kept = tuned.model.generate(prompt(1, 5), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
        assert type(kept.past_key_values).__name__ == "EncoderDecoderCache"
        assert type(kept.past_key_values.self_attention_cache).__name__ == "StaticCache"
        tuned.changes.undo()

    def test_a_prefill_of_one_token(self) -> None:
        with pytest.raises(InvalidConfigError, match="prefill"):
            tune_generation(t5(), compiling(prefill="compile"), UndoLog())

    def test_a_second_architecture(self) -> None:
        """Learned positions, and no grouped heads."""
        model = Tuned(gpt2(), Config({"execution": "eager", "cache": "static", "cache_length": 8})).model
        assert stream(model) == stream(gpt2())


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


class TestAutocast:
    @pytest.mark.parametrize("cache", ["static", "dynamic"])
    def test_both_phases_are_in_the_configs_type(self, cache: str) -> None:
        """Keys and values come in several types, and a static cache keeps them in one."""
        tuned = Tuned(llama(), Config({"execution": "eager", "precision": "bf16_autocast", "cache": cache}))
        found, expected = (
            model.generate(
                prompt(2, 7), max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True
            )
            for model in (tuned.model, llama())
        )
        assert not torch.equal(found.logits[0], expected.logits[0])
        assert torch.allclose(found.logits[0], expected.logits[0], atol=0.05)
        assert tuned.generation.num_calls == {"prefill": 1, "decode": NEW - 1, "untuned": 0}
        if cache == "static":
            assert found.past_key_values.layers[0].keys.dtype is torch.bfloat16


class TestFrozenWeights:
    @pytest.mark.slow
    def test_caches_are_no_constants_of_frozen_code(self) -> None:
        """Hugging Face marks the tensors of a static cache in a way that would make them some."""
        torch._dynamo.reset()
        config = Config({"execution": "compile", "backend": "inductor", "freezing": True, "cache": "static"})
        tuned, plain = Tuned(llama(), config), llama()
        how: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
        before = num_graphs()
        for _ in range(2):  # With the tokens comes the cache, so that the second call has another one.
            found = tuned.model.generate(prompt(1, 9), **how)
            assert found.sequences.tolist() == continued(plain, prompt(1, 9))
        assert num_graphs() == before + 1
        assert tuned.generation.num_calls == {"prefill": 2, "decode": 2 * (NEW - 1), "untuned": 0}
        with torch.no_grad():
            tuned.model.lm_head.weight.neg_()
            plain.lm_head.weight.neg_()
        assert continued(tuned.model, prompt(1, 9)) == continued(plain, prompt(1, 9))
        assert ["weights changed" in why for why in tuned.said[:1]] == [True]
        tuned.changes.undo()
