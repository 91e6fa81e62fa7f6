"""Parts of a diffusion pipeline, of diffusers: small sizes, random weights of a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch

CHANNELS = (32, 64)


def unet(seed: int = 0) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The denoising U-Net of Stable Diffusion: a picture's noisy latents, a time step, a text."""
    torch.manual_seed(seed)
    model = diffusers.UNet2DConditionModel(
        sample_size=16, layers_per_block=1, block_out_channels=CHANNELS, cross_attention_dim=64, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    latents, text = torch.randn(2, 4, 16, 16), torch.randn(2, 8, 64)
    return model.eval(), {"sample": latents, "timestep": torch.tensor(10), "encoder_hidden_states": text}


def vae_decoder(seed: int = 0) -> tuple[Callable[..., Any], tuple[torch.Tensor]]:
    """From latents to a picture: a method of the autoencoder, as a pipeline calls it."""
    torch.manual_seed(seed)
    model = diffusers.AutoencoderKL(
        block_out_channels=CHANNELS, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4,
    )  # fmt: skip
    return model.eval().decode, (torch.randn(1, 4, 16, 16),)
