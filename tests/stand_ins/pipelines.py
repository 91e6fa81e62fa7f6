"""Tiny pipelines with random weights: of plain modules, of diffusers, of transformers. Nothing is downloaded: the
tokenizers know letters."""

from __future__ import annotations

import json
import string
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

WORDS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]


class Decoder(nn.Module):
    """What `Autoencoder.decode` calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, latents):
        return self.layers(latents)


class Autoencoder(nn.Module):
    """Called by its method alone, as those of diffusers are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 8), Decoder()

    def decode(self, latents):
        return self.decoder(latents)

    def forward(self, pictures):
        return self.decode(self.encoder(pictures))


class Denoiser(nn.Module):
    """Called once for each step, with a number that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))

    def forward(self, latents, step, text):
        for block in self.blocks:
            latents = block(latents + text) / (1 + step)
        return latents


def modules(seed: int = 0) -> dict[str, nn.Module]:
    torch.manual_seed(seed)
    return {"text": nn.Sequential(nn.Embedding(10, 8)), "denoiser": Denoiser(), "vae": Autoencoder()}


def call(parts: Any, ids: torch.Tensor, steps: int = 4) -> torch.Tensor:
    text = parts.text(ids).mean(1)
    latents = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        latents = latents - 0.1 * parts.denoiser(latents, torch.tensor(step), text)
    return parts.vae.decode(latents)


def build(seed: int = 0, regions: str | None = None) -> dict[str, Any]:
    declared = {} if regions is None else {"regions": [regions]}
    return {"components": modules(seed), "call": call, "inputs": (torch.arange(8).reshape(2, 4),), **declared}


def drawing() -> dict[str, Any]:
    return {"components": modules(), "call": lambda parts: parts.vae.decode(torch.randn(2, 8))}


def in_training() -> dict[str, Any]:
    dropping = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    return {"components": {"net": dropping}, "call": lambda parts: parts.net(torch.ones(2, 8))}


def growing() -> dict[str, Any]:
    return {"components": modules(), "call": lambda parts: [parts.vae.decode(torch.ones(n, 8)) for n in range(1, 12)]}


def elsewhere() -> dict[str, Any]:
    others = modules()
    return {"components": modules(), "call": lambda parts: others["vae"].decode(torch.ones(2, 8))}


def pictures() -> dict[str, Any]:
    pipe, inputs = dit()
    return {"pipeline": pipe, "inputs": {**inputs, "output_type": "pil"}}


def _settled(pipe: Any) -> Any:
    for part in pipe.components.values():
        if isinstance(part, nn.Module):
            part.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _autoencoder() -> Any:
    import diffusers

    return diffusers.AutoencoderKL(
        block_out_channels=(8,), layers_per_block=1, latent_channels=4, norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
    )  # fmt: skip


def _scheduler() -> Any:
    import diffusers

    return diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)


def stable_diffusion(seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """As a user has it: the pipeline, and what it is called with."""
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(seed)
    tokens = [*WORDS, *(f"{word}</w>" for word in WORDS), "<|startoftext|>", "<|endoftext|>"]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder, "vocab.json"), Path(folder, "merges.txt")
        vocabulary.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        merges.write_text("#version: 0.2\n")
        tokenizer = CLIPTokenizer(str(vocabulary), str(merges), model_max_length=12)
    text = CLIPTextConfig(
        hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=len(tokens),
        max_position_embeddings=12, bos_token_id=len(tokens) - 2, eos_token_id=len(tokens) - 1,
    )  # fmt: skip
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8,), cross_attention_dim=16, attention_head_dim=4,
        norm_num_groups=4, down_block_types=("CrossAttnDownBlock2D",), up_block_types=("CrossAttnUpBlock2D",),
    )  # fmt: skip
    pipe = diffusers.StableDiffusionPipeline(
        vae=_autoencoder(), text_encoder=CLIPTextModel(text), tokenizer=tokenizer, unet=unet, scheduler=_scheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    return _settled(pipe), {"prompt": ["a cat", "dogs"], "num_inference_steps": 3, "height": 8, "width": 8}


def dit(seed: int = 0) -> tuple[Any, dict[str, Any]]:
    import diffusers

    torch.manual_seed(seed)
    transformer = diffusers.DiTTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=4, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, num_embeds_ada_norm=1000,
    )  # fmt: skip
    pipe = diffusers.DiTPipeline(transformer=transformer, vae=_autoencoder(), scheduler=_scheduler())
    return _settled(pipe), {"class_labels": [1, 2], "num_inference_steps": 3}


def _letters() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(["[UNK]", "[PAD]", *string.ascii_lowercase])}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="[UNK]", pad_token="[PAD]")


def texts(seed: int = 0) -> tuple[Any, tuple[list[str]]]:
    """A classifier of texts of transformers."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=28, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config).eval()
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=_letters(), device="cpu")
    return pipe, (["a good one", "not a good one"],)


def writer(seed: int = 0) -> tuple[Any, Any]:
    """A pipeline of transformers that generates text."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=28, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=_letters(), device="cpu")
    return pipe, (("abc",), {"max_new_tokens": 4, "do_sample": False})


def images(seed: int = 0) -> dict[str, Any]:
    """A classifier of images of transformers."""
    import transformers
    from PIL import Image

    torch.manual_seed(seed)
    config = transformers.ViTConfig(
        image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        num_labels=3,
    )  # fmt: skip
    pipe = transformers.pipeline(
        "image-classification", model=transformers.ViTForImageClassification(config).eval(), device="cpu",
        image_processor=transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}),
    )  # fmt: skip
    picture = Image.new("RGB", (16, 16), (200, 30, 90))
    return {"pipeline": pipe, "call": lambda pipe: pipe(picture, top_k=3)}
