"""A model under peft: low-rank adapters that are trained on a language model whose weights stay."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers

VOCABULARY = 1000


def own_loss(model: torch.nn.Module, **batch: torch.Tensor) -> torch.Tensor:
    """The loss that the model computes itself from `labels`, as the library's trainer takes it."""
    loss: torch.Tensor = model(**batch).loss
    return loss


def lora(seed: int = 0) -> dict[str, Any]:
    """Training steps of the adapters of a small Llama, without dropout."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=VOCABULARY, use_cache=False,
    )  # fmt: skip
    adapters = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)
    tokens = torch.randint(5, VOCABULARY, (2, 32))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "model": model,
        "inputs": {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()},
        "loss": own_loss,
        "optimizer": torch.optim.AdamW(trained, lr=1e-4),
    }
