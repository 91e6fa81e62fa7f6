"""Inputs for any model of transformers, made up by what its `forward` and its configuration name: token ids, pixels,
patches, waveforms, spectrograms, videos, time series, prompts of points, hidden states.

What a model needs of them stands nowhere: one takes an image with a text, another the text alone as long as no token of
the text stands for an image. So there are several calls, the fullest first, and who asks takes the first that runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from autotune.models import weights
from autotune.plugins.hubs.torch.hugging_face_sizes import IMAGE_SIZE, parts_of

Inputs = dict[str, torch.Tensor]
_MEL, _WIDE_MEL, _FRAMES, _WAVEFORM, _VIDEO = 80, 128, 200, 4000, 4
_DEEPEST = 4
_NAMES = {
    "tokens": ("input_ids", "decoder_input_ids", "task_inputs", "qformer_input_ids", "audio_input_ids"),
    "mask": ("attention_mask", "qformer_attention_mask"),
    "pixels": ("pixel_values", "pixel_values_videos", "image", "prompt_pixel_values", "prompt_masks"),
    "sounds": ("input_features", "input_values", "audio_values", "spectrogram", "audio_mel", "mel_spectrogram"),
    "heard": ("input_features_mask", "audio_mel_mask", "feature_lens", "chunk_sample_lengths"),
    "places": ("bbox", "input_points", "flattened_patches"),
    "grids": ("grid_thw", "image_grid_thw", "spatial_shapes", "target_sizes"),
    "patches": ("merge_sizes", "pixel_attention_mask", "pixel_position_ids"),
    "series": (
        "past_values",
        "past_time_features",
        "past_observed_mask",
        "past_values_padding",
        "future_time_features",
        "freq",
    ),
}
"""Kind of input -> arguments of that kind."""
_EXTRA = ("heard", "grids", "patches")
"""Kinds that are given where a call does not do without."""
_STATES = ("inputs_embeds", "hidden_states", "noise_embeds", "inputs", "latents", "patch_embeds")
"""Hidden states, given where they are a model's main input or a call does not do without."""
_LIKE_STATES = ("embeds", "states", "features", "context", "latents")
"""How further names of hidden states end."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the inputs; None: what the configuration says."""

    batch: int
    seq: int
    image_size: int | None


@dataclass(frozen=True)
class InputMaker:
    """Calls that a model may take."""

    model: torch.nn.Module
    shape: Shape
    seed: int

    def calls(self) -> Iterator[Inputs]:
        """Keyword arguments of a call, the fullest first and those with extras last; none twice."""
        told: list[tuple[tuple[str, tuple[int, ...]], ...]] = []
        for has_extras in (False, True):
            taken = [name for name in self._taken if has_extras or _kind(name) not in _EXTRA or name in self._required]
            is_packed = any(_kind(name) == "grids" or name == "pixel_position_ids" for name in taken)
            known = {name: values for name in taken if (values := self._values(name, is_packed))}
            for names in self._groups(list(known)):
                for variant in range(max((len(known[name]) for name in names), default=0)):
                    call = {name: known[name][min(variant, len(known[name]) - 1)] for name in names}
                    key = tuple((name, tuple(value.shape)) for name, value in sorted(call.items()))
                    if key not in told:
                        told.append(key)
                        yield call
        dummy = getattr(self.model, "dummy_inputs", None)
        if isinstance(dummy, dict) and dummy and not self._main.isdisjoint(dummy):
            yield {name: value for name, value in dummy.items() if isinstance(value, torch.Tensor)}

    def _groups(self, known: list[str]) -> Iterator[list[str]]:
        """Which arguments to give together; always those that a call does not do without."""
        main = [name for name in self._main if name in known]
        text = [name for name in ("input_ids", "attention_mask") if name in known]
        decoder = [name for name in ("decoder_input_ids",) if name in known]
        extra = [name for name in known if _kind(name) in _EXTRA]
        for names in (known, [*main, *decoder, *extra], [*text, *decoder, *extra], [*main, *extra], [*main, *text]):
            yield [name for name in known if name in names or name in self._required]

    @cached_property
    def _main(self) -> set[str]:
        named: Any = self.model.main_input_name
        return {named} if isinstance(named, str) else set(named)

    @cached_property
    def _parameters(self) -> dict[str, inspect.Parameter]:
        return {
            name: each
            for name, each in inspect.signature(self.model.forward).parameters.items()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        }

    @property
    def _taken(self) -> list[str]:
        """Names of the arguments; the main one of a model that is wrapped so that none are seen."""
        return list(self._parameters) or sorted(self._main)

    @cached_property
    def _required(self) -> set[str]:
        return {name for name, each in self._parameters.items() if each.default is each.empty}

    def _values(self, name: str, is_packed: bool) -> list[torch.Tensor]:
        """What an argument of this name may be, the likeliest first; none where that is not known or not needed.
        Images are packed as patches beside their grids."""
        kind = _kind(name)
        if kind is None and name not in _STATES and not (name in self._required and name.endswith(_LIKE_STATES)):
            return []
        if kind is None or (kind == "pixels" and is_packed):
            is_needed = name in self._main or name in self._required or name == "pixel_values"
            return [] if not is_needed else self._patches() if is_packed else self._states()
        made: dict[str, Callable[[str], list[torch.Tensor]]] = {
            "tokens": self._ids,
            "mask": self._mask,
            "pixels": self._pixels,
            "sounds": self._sounds,
            "heard": self._heard,
            "places": self._places,
            "grids": self._grids,
            "patches": self._of_patches,
            "series": self._series,
        }
        return made[kind](name)

    # Text

    def _ids(self, name: str) -> list[torch.Tensor]:
        """Token ids; of a model of sounds as tokens, with those of each codebook too."""
        if name == "task_inputs" and self._fields("task_seq_len"):
            return [self._drawn_ids(self.shape.batch, self._field("task_seq_len", 0))]
        batch, seq = self._tokens.shape
        count = self._field("num_codebooks", 0 if "pixel_values" in self._taken else self._field("num_channels", 0))
        are_many = count > 1 and name == ("decoder_input_ids" if "decoder_input_ids" in self._taken else "input_ids")
        books = [(batch * count, seq), (batch, seq, count), (batch, count, seq)] if are_many else []
        return [self._tokens, *(self._drawn_ids(*shape) for shape in books)]

    @cached_property
    def _tokens(self) -> torch.Tensor:
        """None is padding; not more than the text part has positions for."""
        texts = (config for config in _configurations(self.model.config) if hasattr(config, "vocab_size"))
        places = getattr(next(texts, None), "max_position_embeddings", None)
        seq = self.shape.seq
        return self._drawn_ids(self.shape.batch, min(seq, places) if isinstance(places, int) and places > 0 else seq)

    def _drawn_ids(self, *shape: int) -> torch.Tensor:
        vocab = min(self._fields("vocab_size") or [2])
        return torch.from_numpy(weights.token_input(shape, vocab, self.seed))

    def _mask(self, name: str) -> list[torch.Tensor]:
        is_needed = name in self._required or "input_ids" in self._taken
        return [torch.ones_like(self._tokens)] if is_needed else []

    def _places(self, name: str) -> list[torch.Tensor]:
        """Boxes of words, points of a prompt, patches with their row and column."""
        batch, seq = self.shape.batch, self.shape.seq
        if name == "bbox":
            return [torch.zeros(batch, seq, 4, dtype=torch.long)]
        if name == "input_points":
            return [self._normal(batch, 1, 2, 2).abs() * 8]
        width = self._field("patch_embed_hidden_size", 768)
        return [torch.cat([torch.ones(batch, seq, 2), self._normal(batch, seq, width)], dim=-1)]

    def _states(self) -> list[torch.Tensor]:
        """One of each width that the configuration names; of a model of images, images too."""
        batch, seq = self.shape.batch, self.shape.seq
        widths = self._fields("hidden_size", "d_model", "d_latents", "input_dim", "encoder_hidden_size", "embed_dim")
        states = [self._normal(batch, seq, width) for width in widths if isinstance(width, int)]
        return [*states, *self._pixels("")] if "pixel_values" in self._main else states

    # Images

    def _pixels(self, name: str) -> list[torch.Tensor]:
        """Images; of a model of videos, with the number of frames first; of one that compares, two."""
        own = self.shape.image_size or next(iter(self._fields("image_size", "input_size", "img_size")), None)
        edge = own or IMAGE_SIZE
        height, width = (edge, edge) if isinstance(edge, int) else tuple(edge)[-2:]
        channels = self._field("num_channels", self._field("in_channels", self._field("in_chans", 3)))
        frames = self._field("num_frames", self._field("frames_per_clip", _VIDEO))
        image, video = (channels, height, width), (frames, channels, height, width)
        shapes = [video] if name.endswith("videos") else [image, video, (1, *image), (2, *image)]
        return [self._normal(self.shape.batch, *shape) for shape in shapes]

    @property
    def _patch(self) -> tuple[int, int, int]:
        """Pixels along an edge of a patch, patches along one of what is merged, patches along one of an image."""
        size = self._field("patch_size", 16)
        merged = self._field("spatial_merge_size", self._field("merge_size", self._field("pooling_kernel_size", 2)))
        edge = self.shape.image_size or IMAGE_SIZE
        return size, merged, max(1, edge // (size * merged)) * merged

    def _patches(self) -> list[torch.Tensor]:
        """Patches of all images in one row, flat or as small images; or in a row for each image."""
        size, merged, edge = self._patch
        batch, each = self.shape.batch, edge * edge
        channels = self._field("num_channels", self._field("in_channels", self._field("in_chans", 3)))
        flat = channels * size * size
        if "target_sizes" in self._taken:  # All in one image, one beside the other.
            return [self._normal(1, channels, size, batch * each * size)]
        shapes = [
            (batch * each, flat * self._field("temporal_patch_size", 1)),
            (batch * each, flat),
            (batch * each, 2 * flat),
            (batch * each, channels, size, size),
            (1, batch * each, channels, size, size),
            (batch, each, flat),
            (batch * each, merged * size, merged * size, channels),
        ]
        return [self._normal(*shape) for shape in shapes]

    def _grids(self, name: str) -> list[torch.Tensor]:
        """How many patches each image has: along time, height and width, or along the last two."""
        *_, edge = self._patch
        sizes = (1, edge, edge) if name.endswith("thw") else (edge, edge)
        return [torch.tensor([sizes] * self.shape.batch)]

    def _of_patches(self, name: str) -> list[torch.Tensor]:
        """What goes with patches: which are there, where they are, how many are merged along an edge."""
        _, merged, edge = self._patch
        if name == "merge_sizes":
            return [torch.full((self.shape.batch,), merged)]
        if name == "pixel_attention_mask":
            return [torch.ones(self.shape.batch, edge * edge, dtype=torch.long)]
        places = torch.cartesian_prod(torch.arange(edge), torch.arange(edge))
        return [places.repeat(self.shape.batch, 1, 1)]

    # Sounds and series

    @cached_property
    def _frames(self) -> int:
        longest = next(iter(self._fields("max_source_positions")), None)
        own: int = next(iter(self._fields("max_length", "spec_size")), _FRAMES)
        return own if longest is None else 2 * int(longest)

    def _sounds(self, name: str) -> list[torch.Tensor]:
        """A waveform, or a spectrogram in either order of its axes."""
        batch, frames = self.shape.batch, self._frames
        usual = self._fields("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels")
        mel = next(iter([*usual, *self._fields("mel_dim", "input_feat_size", "input_dim")]), _MEL)
        wide = [*self._fields("feature_projection_input_dim", "input_dim", "input_size"), _WIDE_MEL, 4 * mel]
        drawn = [(batch, mel, frames), (batch, frames, mel), (batch, 1, frames, mel), (mel, batch * frames)]
        drawn += [(batch, min(frames, _FRAMES), width) for width in wide if isinstance(width, int)]
        waves = [(batch, _WAVEFORM), (batch, 1, _WAVEFORM)]
        return [self._normal(*shape) for shape in (drawn if name == "input_features" else [*waves, *drawn])]

    def _heard(self, name: str) -> list[torch.Tensor]:
        """Which frames count, all of them, or how many do; of a spectrogram of `audio_mel`, which do not."""
        batch, frames = self.shape.batch, self._frames
        if name == "audio_mel_mask":
            return [torch.zeros(batch, frames, dtype=torch.bool)]
        if name.endswith("mask"):
            return [torch.ones(batch, frames, dtype=torch.bool)]
        return [torch.full((batch,), frames * (self._field("hop_length", 160) if "sample" in name else 1))]

    def _series(self, name: str) -> list[torch.Tensor]:
        """A past with the lags that the configuration asks for, and a future as long as the prediction."""
        lags = max([0, *(getattr(self.model.config, "lags_sequence", None) or [])])
        past, future = self._field("context_length", 32) + lags, self._field("prediction_length", 8)
        batch, length = self.shape.batch, past if name.startswith("past") else future
        width = self._field("input_size", self._field("num_input_channels", 1))
        if name.endswith("time_features"):
            return [self._normal(batch, length, getattr(self.model.config, "num_time_features", 1))]
        if name.endswith("observed_mask"):
            return [torch.ones(batch, length), torch.ones(batch, length, width)]
        if name.endswith("padding"):
            return [torch.zeros(batch, length, dtype=torch.long)]
        if name == "freq":
            return [torch.zeros(batch, dtype=torch.long)]
        return [self._normal(batch, length), self._normal(batch, length, width)]

    def _normal(self, *shape: int) -> torch.Tensor:
        dtype = getattr(self.model, "dtype", torch.float32)
        return torch.from_numpy(weights.normal_input(shape, self.seed)).to(dtype)

    def _field(self, name: str, otherwise: int) -> int:
        return next((value for value in self._fields(name) if isinstance(value, int)), otherwise)

    def _fields(self, *names: str) -> list[Any]:
        """What the configuration, and then those of its parts, have under these names."""
        found = [
            value
            for config in _configurations(self.model.config)
            for name in names
            if (value := getattr(config, name, None)) is not None and not isinstance(value, bool)
        ]
        return list(dict.fromkeys(value if isinstance(value, int) else tuple(value) for value in found if value))


def _kind(name: str) -> str | None:
    return next((kind for kind, names in _NAMES.items() if name in names), None)


def _configurations(config: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    yield config
    if depth:
        for _, part in parts_of(config):
            yield from _configurations(part, depth - 1)
