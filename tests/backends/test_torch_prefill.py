"""A prefill that is padded or cut into chunks: what the model is called with, and what it leaves in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autotune.backends.torch.generation import tune_generation
from autotune.backends.torch.prefill import Rounding
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, UnsuitableCallError
from tests.backends.test_torch_generation import Tuned, compiling, num_graphs
from tests.generating import NEW, continued, gpt2, llama, prompt, t5

transformers = pytest.importorskip("transformers")

EDGES = (63, 64, 65, 127, 128, 129)
PADDED, CHUNKED = Rounding(4, in_chunks=False), Rounding(4, in_chunks=True)


def kept(model: Any, ids: torch.Tensor, **further: Any) -> Any:
    """What `generate` returns with its cache and logits."""
    how = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    return model.generate(ids, **how, **further)


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("prefill", ["padded_64", "chunked_64"])
def test_prompts_at_the_edges(build: Any, prefill: str) -> None:
    """One token shorter than a bucket, as long, and one longer: the untuned tokens and logits, also where texts are
    padded on the left. Chunks need one program."""
    torch._dynamo.reset()
    tuned, plain = Tuned(build(), compiling(cache="static", cache_length=256, prefill=prefill)), build()
    for number, length in enumerate(EDGES):
        before = num_graphs()
        found, expected = (kept(model, prompt(1, length)) for model in (tuned.model, plain))
        assert found.sequences.tolist() == expected.sequences.tolist()
        assert all(map(close, found.logits, expected.logits))
        if prefill == "chunked_64" and number > 0:
            assert num_graphs() == before, "one program serves all prompts"
    mask = torch.ones(2, 65, dtype=torch.long)
    mask[0, :7] = 0
    ids = prompt(2, 65) * mask
    assert continued(tuned.model, ids, attention_mask=mask) == continued(plain, ids, attention_mask=mask)
    assert (tuned.generation.num_calls["untuned"], tuned.said) == (0, [])
    tuned.changes.undo()


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("prefill", ["padded_64", "chunked_64"])
def test_the_cache_is_as_if_nobody_had_padded(prefill: str) -> None:
    tuned = Tuned(llama(), compiling(cache="static", cache_length=256, prefill=prefill))
    plain = Tuned(llama(), Config({"execution": "eager", "cache": "static", "cache_length": 256}))
    found, expected = (kept(each.model, prompt(2, 65)).past_key_values for each in (tuned, plain))
    for layer, other in zip(found.layers, expected.layers, strict=True):
        assert int(layer.cumulative_length) == int(other.cumulative_length) == 65 + NEW - 1
        assert torch.allclose(layer.keys, other.keys, atol=1e-5)
        assert torch.allclose(layer.values, other.values, atol=1e-5)
        assert not layer.keys[:, :, 65 + NEW - 1 :].any()


def test_an_empty_cache_is_left_where_a_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the call is made again, untuned."""

    def failing(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("autotune.backends.torch.prefill.settle", failing)
    tuned = Tuned(llama(), compiling(cache="static", cache_length=64, prefill="padded_64"))
    caches = []
    take = tuned.generation._caches.take
    tuned.generation._caches.take = lambda form: caches.append(take(form)) or caches[-1]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of luck"):
        continued(tuned.model, prompt(1, 9))
    [cache] = caches
    assert [(int(layer.cumulative_length), bool(layer.keys.any())) for layer in cache.layers] == [(0, False)] * 2


class TestParts:
    @pytest.fixture
    def call(self) -> dict[str, Any]:
        """Five tokens into a cache of twelve, the first of which is padding."""
        places = torch.arange(12)
        mask = (places <= places[:5, None]) & (places > 0)
        return {
            "input_ids": torch.tensor([[9, 5, 6, 7, 8]]),
            "position_ids": torch.tensor([[0, 0, 1, 2, 3]]),
            "attention_mask": {"full_attention": mask[None, None]},
            "logits_to_keep": 1,
        }

    def test_a_padded_one(self, call: dict[str, Any]) -> None:
        """The last token, position and row of the mask are repeated, and the last real place is asked for."""
        [part] = PADDED.parts(call, 12)
        assert part["input_ids"].tolist() == [[9, 5, 6, 7, 8, 8, 8, 8]]
        assert part["position_ids"].tolist() == [[0, 0, 1, 2, 3, 3, 3, 3]]
        assert part["logits_to_keep"].tolist() == [4]
        mask = part["attention_mask"]["full_attention"]
        assert torch.equal(mask[:, :, :5], call["attention_mask"]["full_attention"])
        assert all(torch.equal(mask[0, 0, row], mask[0, 0, 4]) for row in (5, 6, 7))

    def test_chunks(self, call: dict[str, Any]) -> None:
        parts = CHUNKED.parts(call, 12)
        assert [part["input_ids"].tolist() for part in parts] == [[[9, 5, 6, 7]], [[8, 8, 8, 8]]]
        assert [part["position_ids"].tolist() for part in parts] == [[[0, 0, 1, 2]], [[3, 3, 3, 3]]]
        assert [part["logits_to_keep"].tolist() for part in parts] == [[3], [0]]
        assert [part["attention_mask"]["full_attention"].shape for part in parts] == [(1, 1, 4, 12)] * 2

    @pytest.mark.parametrize("mask", [None, {"full_attention": None}])
    def test_a_chunk_without_a_mask_gets_one(self, call: dict[str, Any], mask: Any) -> None:
        """It sees all tokens before it, and none behind."""
        parts = CHUNKED.parts({**call, "attention_mask": mask}, 12)
        found = [next(iter(m.values())) if isinstance(m := part["attention_mask"], dict) else m for part in parts]
        assert [part[0, 0].sum(1).tolist() for part in found] == [[1, 2, 3, 4], [5, 6, 7, 8]]

    def test_as_long_as_a_bucket(self, call: dict[str, Any]) -> None:
        short = {
            **call,
            "input_ids": call["input_ids"][:, 1:],
            "position_ids": call["position_ids"][:, 1:],
            "attention_mask": None,
        }
        for rounding in (PADDED, CHUNKED):
            [part] = rounding.parts(short, 12)
            assert part["input_ids"].tolist() == [[5, 6, 7, 8]]
            assert part["logits_to_keep"].tolist() == [3]

    @pytest.mark.parametrize(
        ("odd", "why"),
        [
            ({"position_ids": None}, "without a position"),
            ({"position_ids": torch.zeros(3, 1, 5)}, "without a position"),
            ({"attention_mask": torch.ones(1, 5)}, "a mask of an unknown form"),
            ({"attention_mask": torch.ones(1, 1, 5, 9)}, "a mask of an unknown form"),
            ({"logits_to_keep": 0}, "more than its last logits"),
            ({"token_type_ids": torch.zeros(1, 5)}, "token_type_ids"),
        ],
    )
    def test_what_cannot_be_padded(self, call: dict[str, Any], odd: dict[str, Any], why: str) -> None:
        for rounding in (PADDED, CHUNKED):
            with pytest.raises(UnsuitableCallError, match=why):
                rounding.parts({**call, **odd}, 12)

    def test_a_cache_that_is_too_short(self, call: dict[str, Any]) -> None:
        with pytest.raises(UnsuitableCallError, match="longer than its cache"):
            PADDED.parts({**call, "attention_mask": None}, 7)


def sliding() -> Any:
    """Windows that move."""
    config = transformers.MistralConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).eval()


def scaled() -> Any:
    """Positions that are scaled by how long a text is."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def recurrent() -> Any:
    """A state that goes from token to token."""
    config = transformers.MambaConfig(vocab_size=128, hidden_size=32, state_size=4, num_hidden_layers=1)
    return transformers.MambaForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("build", "prefill", "why"),
    [
        (sliding, "padded_64", "keeps more than keys and values"),
        (sliding, "chunked_64", "keeps more than keys and values"),
        (scaled, "chunked_64", "scales positions"),
        (recurrent, "padded_64", "takes no"),
        (t5, "padded_64", "encoder"),
    ],
)
def test_models_that_would_see_the_padding_are_refused(build: Any, prefill: str, why: str) -> None:
    model = build()
    before = dict(vars(model))
    with pytest.raises(InvalidConfigError, match=why):
        tune_generation(model, compiling(cache="static", prefill=prefill), UndoLog())
    assert vars(model) == before


def test_positions_that_are_scaled_by_the_longest_may_be_padded() -> None:
    """The longest position of a padded prompt is its own."""
    tuned, plain = Tuned(scaled(), compiling(cache="static", prefill="padded_64")), scaled()
    for length in (9, 40):
        assert continued(tuned.model, prompt(1, length)) == continued(plain, prompt(1, length))
    assert tuned.generation.num_calls["untuned"] == 0
