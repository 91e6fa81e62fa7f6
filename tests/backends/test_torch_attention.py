"""Another implementation of attention in compiled calls: masks in its form, and a model that stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autotune.backends.torch import attention
from autotune.backends.torch.generating import offers
from autotune.backends.torch.generation import tune_generation
from autotune.backends.undo import UndoLog
from autotune.errors import InvalidConfigError
from tests.backends.test_torch_generation import Tuned, compiling
from tests.generating import continued, gpt2, llama, prompt, stream, t5

transformers = pytest.importorskip("transformers")


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Implementations that are called, in order."""
    from transformers.models.llama import modeling_llama

    called: list[Any] = []
    own = modeling_llama.eager_attention_forward

    def eager(*args: Any, **kwargs: Any) -> Any:
        called.append("eager")
        return own(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    return called


def test_compiled_calls_have_it_and_others_have_the_models_own(targets: list[Any]) -> None:
    torch._dynamo.reset()
    tuned = Tuned(llama(), compiling(cache="static", attention="eager", backend="eager"))
    assert stream(tuned.model) == stream(llama())
    assert targets, "the decode step was traced with it"
    seen = len(targets)
    model = tuned.model
    assert attention.implementation_of(model) == "sdpa"
    assert model.model.layers[0].self_attn.config._attn_implementation == "sdpa"
    model(input_ids=prompt(1, 5))
    assert len(targets) == seen
    tuned.changes.undo()
    assert stream(model) == stream(llama())
    assert len(targets) == seen


@pytest.mark.parametrize("own", ["eager", "sdpa"])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("build", [llama, gpt2])
def test_left_padding(own: str, cache: str, build: Any) -> None:
    """Masks that are made for one implementation are right under the other."""
    torch._dynamo.reset()
    model, plain = build(), build()
    model.set_attn_implementation(own)
    other = "sdpa" if own == "eager" else "eager"
    tuned = Tuned(model, compiling(cache=cache, attention=other, prefill="compile_dynamic"))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
    ids = prompt(2, 7) * mask
    assert continued(tuned.model, ids, attention_mask=mask) == continued(plain, ids, attention_mask=mask)
    assert continued(tuned.model, prompt(1, 9)) == continued(plain, prompt(1, 9))
    assert tuned.generation.num_calls["untuned"] == 0


def test_masks_as_numbers() -> None:
    mask = torch.tensor([True, False]).reshape(1, 1, 1, 2)
    least = torch.finfo(torch.float32).min
    assert attention.numbers_of(mask, torch.float32).flatten().tolist() == [0.0, least]
    assert attention.numbers_of({"full_attention": mask}, torch.float32)["full_attention"].dtype is torch.float32
    tokens, numbers = torch.ones(1, 2, dtype=torch.bool), mask.float()
    assert attention.numbers_of(tokens, torch.float32) is tokens
    assert attention.numbers_of(numbers, torch.float32) is numbers
    assert attention.numbers_of(None, torch.float32) is None
    assert attention.numbers_of({"full_attention": mask, "sliding_attention": None}, torch.float32) is None


def test_what_a_model_offers() -> None:
    eager = llama()
    eager.set_attn_implementation("eager")
    assert offers(llama()) == ("plain decoder", "padded prompts", "prompts in chunks", "eager attention")
    assert offers(eager)[-1] == "sdpa attention"
    assert offers(t5()) == ("plain decoder",)
    assert offers(torch.nn.Linear(2, 2)) == ()


def test_a_model_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda _: False))
    before = dict(vars(model))
    with pytest.raises(InvalidConfigError, match="has no eager attention"):
        tune_generation(model, compiling(cache="static", attention="eager"), UndoLog())
    assert vars(model) == before
    with pytest.raises(InvalidConfigError, match="masks of a T5"):
        tune_generation(t5(), compiling(cache="static", attention="eager"), UndoLog())
