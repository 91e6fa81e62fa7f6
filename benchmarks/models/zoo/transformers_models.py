"""Models of Hugging Face transformers that `hf:TYPE` does not take: with several parts, or with other inputs than text.

Small sizes, random weights of a seed. Everything else is the library's own.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

hf: Any = transformers
"""Its configurations take more than their signatures say."""

Built = tuple[torch.nn.Module, dict[str, torch.Tensor]]

LAYERS: dict[str, Any] = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 256}
LAYERS |= {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 256}
"""Of an encoder with a decoder, as Whisper and DETR name them."""
BLOCKS: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
BLOCKS |= {"num_attention_heads": 4}
"""Of a stack of transformer blocks, as most others name them."""


def whisper(seed: int = 0) -> Built:
    """Speech to text: two seconds of sound, and eight tokens of its text."""
    torch.manual_seed(seed)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = hf.WhisperConfig(
        **LAYERS, **tokens, d_model=128, vocab_size=1000, max_source_positions=100, use_cache=False
    )
    model = hf.WhisperForConditionalGeneration(config)
    text = torch.randint(3, 1000, (1, 8))
    return model.eval(), {"input_features": torch.randn(1, config.num_mel_bins, 200), "decoder_input_ids": text}


def wav2vec2(seed: int = 0) -> Built:
    """Speech recognition from the waveform: half a second of it."""
    torch.manual_seed(seed)
    convolutions = {"conv_dim": (64,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    model = hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**BLOCKS, **convolutions, vocab_size=32))
    return model.eval(), {"input_values": torch.randn(1, 8000)}


def detr(seed: int = 0) -> Built:
    """Object detection: a ResNet, then a transformer with twenty queries."""
    torch.manual_seed(seed)
    backbone = hf.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip
    config = hf.DetrConfig(
        **LAYERS, d_model=128, num_queries=20, num_labels=10, backbone_config=backbone, backbone=None,
        use_timm_backbone=False, use_pretrained_backbone=False,
    )  # fmt: skip
    return hf.DetrForObjectDetection(config).eval(), {"pixel_values": torch.randn(1, 3, 128, 128)}


def clip(seed: int = 0) -> Built:
    """Texts and images in one space: three texts, two images."""
    torch.manual_seed(seed)
    end = 999
    text = {**BLOCKS, "vocab_size": end + 1, "bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": 1}
    config = hf.CLIPConfig(
        text_config=text, vision_config={**BLOCKS, "image_size": 64, "patch_size": 16}, projection_dim=64
    )
    tokens = torch.randint(2, end - 1, (3, 16))
    tokens[:, -1] = end
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "pixel_values": torch.randn(2, 3, 64, 64)}
    return hf.CLIPModel(config).eval(), inputs


def patchtst(seed: int = 0) -> Built:
    """Forecasts of four series, from 256 past values each."""
    torch.manual_seed(seed)
    config = hf.PatchTSTConfig(
        num_input_channels=4, context_length=256, prediction_length=24, patch_length=16, patch_stride=8, d_model=64,
        num_hidden_layers=3, num_attention_heads=4, ffn_dim=128, scaling=None,
    )  # fmt: skip
    return hf.PatchTSTForPrediction(config).eval(), {"past_values": torch.randn(8, 256, 4)}
