"""Models of MindCV and MindOne, two libraries for MindSpore: random weights of a seed."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np


def mindcv(network: str, image_size: int = 64, seed: int = 0) -> tuple[Any, Any]:
    """An image classifier of MindCV by its name there, and one image."""
    import mindcv as library

    numbers = _seeded(seed)
    model = library.create_model(network, num_classes=10, pretrained=False)
    model.set_train(False)
    pixels = numbers.standard_normal((1, 3, image_size, image_size), dtype=np.float32)
    return model, mindspore.Tensor(pixels)


def mindone_bert(seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """A small BERT of MindOne, on two texts of 32 tokens."""
    from mindone.transformers import BertModel
    from transformers import BertConfig

    numbers = _seeded(seed)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512, vocab_size=1000
    )
    model = BertModel(config)
    model.set_train(False)
    tokens = mindspore.Tensor(numbers.integers(5, 1000, (2, 32)), mindspore.int64)
    return model, {"input_ids": tokens, "attention_mask": mindspore.ops.ones_like(tokens)}


def mindone_t5(seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """The encoder of a small T5 of MindOne, on two texts of 32 tokens."""
    from mindone.transformers import T5EncoderModel
    from transformers import T5Config

    numbers = _seeded(seed)
    config = T5Config(d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4, vocab_size=1000)
    model = T5EncoderModel(config)
    model.set_train(False)
    tokens = mindspore.Tensor(numbers.integers(5, 1000, (2, 32)), mindspore.int64)
    return model, {"input_ids": tokens, "attention_mask": mindspore.ops.ones_like(tokens)}


def _seeded(seed: int) -> np.random.Generator:
    """The libraries draw weights from NumPy's and MindSpore's own numbers."""
    np.random.seed(seed)
    mindspore.set_seed(seed)
    return np.random.default_rng(seed)
