"""Tiny causal models of random weights, and streams of prompts for them."""

from __future__ import annotations

from typing import Any

import torch

NEW = 6
"""Tokens that each prompt is continued by."""
SIZES = [(1, 5), (1, 9), (2, 7), (1, 12)]
"""Batch and length of each prompt."""
LONGEST = 20


def llama(seed: int = 0) -> Any:
    """It has one layer: the others, of two, have compiled caches of several."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=256, n_embd=64, n_layer=2, n_head=4, eos_token_id=None, pad_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def t5() -> Any:
    """It has an encoder."""
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=128, d_model=64, d_kv=24, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


def prompt(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, 128, (batch, length), generator=torch.Generator().manual_seed(100 * batch + length))


def continued(model: Any, tokens: torch.Tensor, **further: Any) -> list[list[int]]:
    """The prompt and what comes after it, greedily unless told otherwise."""
    wanted: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, **further}
    found: list[list[int]] = model.generate(tokens, **wanted).tolist()
    return found


def stream(model: Any) -> list[list[list[int]]]:
    """All prompts, one after the other."""
    return [continued(model, prompt(*size)) for size in SIZES]
