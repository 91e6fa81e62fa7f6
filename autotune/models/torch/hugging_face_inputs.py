"""Inputs for any model of transformers, made up by what its `forward` and its configuration name: token ids, pixels,
waveforms, spectrograms, videos, time series, prompts of points.

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
from autotune.models.torch.hugging_face_sizes import IMAGE_SIZE, parts_of

Inputs = dict[str, torch.Tensor]
_MEL, _FRAMES, _WAVEFORM, _VIDEO = 80, 200, 4000, 4
_DEEPEST = 4
_NAMES = {
    "tokens": ("input_ids", "decoder_input_ids", "task_inputs", "qformer_input_ids"),
    "mask": ("attention_mask", "qformer_attention_mask"),
    "pixels": ("pixel_values", "pixel_values_videos"),
    "sounds": ("input_features", "input_values", "audio_values", "spectrogram", "audio_mel"),
    "places": ("bbox", "input_points", "flattened_patches"),
    "series": ("past_values", "past_time_features", "past_observed_mask", "future_time_features"),
}
"""Kind of input -> arguments of that kind."""
_STATES = ("inputs_embeds", "hidden_states", "noise_embeds", "inputs", "latents", "patch_embeds")
"""Hidden states, given only where they are a model's main input."""


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
        """Keyword arguments of a call, the fullest first; none twice."""
        known = {name: values for name in self._taken if (values := self._values(name))}
        main = [name for name in self._main if name in known]
        text = [name for name in ("input_ids", "attention_mask") if name in known]
        decoder = [name for name in ("decoder_input_ids",) if name in known]
        told: list[tuple[tuple[str, tuple[int, ...]], ...]] = []
        for names in (list(known), [*main, *decoder], [*text, *decoder], main, [*main, *text]):
            for variant in range(max((len(known[name]) for name in names), default=0)):
                call = {name: known[name][min(variant, len(known[name]) - 1)] for name in names}
                key = tuple((name, tuple(value.shape)) for name, value in sorted(call.items()))
                if key not in told:
                    told.append(key)
                    yield call
        dummy = getattr(self.model, "dummy_inputs", None)
        if isinstance(dummy, dict) and dummy and not self._main.isdisjoint(dummy):
            yield {name: value for name, value in dummy.items() if isinstance(value, torch.Tensor)}

    @cached_property
    def _main(self) -> set[str]:
        named: Any = self.model.main_input_name
        return {named} if isinstance(named, str) else set(named)

    @cached_property
    def _taken(self) -> list[str]:
        return list(inspect.signature(self.model.forward).parameters)

    def _values(self, name: str) -> list[torch.Tensor]:
        """What an argument of this name may be, the likeliest first; none where that is not known or not needed."""
        if name in _STATES:
            return self._states() if name in self._main else []
        kind = next((kind for kind, names in _NAMES.items() if name in names), None)
        made: dict[str | None, Callable[[str], list[torch.Tensor]]] = {
            "tokens": lambda _: [self._tokens],
            "mask": lambda _: [torch.ones_like(self._tokens)] if "input_ids" in self._taken else [],
            "pixels": self._pixels,
            "sounds": self._sounds,
            "places": self._places,
            "series": self._series,
        }
        return made[kind](name) if kind in made else []

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
        widths = self._fields("hidden_size", "d_model", "d_latents")
        return [self._normal(self.shape.batch, self.shape.seq, width) for width in widths]

    @cached_property
    def _tokens(self) -> torch.Tensor:
        """None is padding."""
        vocab = min(self._fields("vocab_size") or [2])
        return torch.from_numpy(weights.token_input((self.shape.batch, self.shape.seq), vocab, self.seed))

    def _pixels(self, name: str) -> list[torch.Tensor]:
        """Images; of a model of videos, with the number of frames first."""
        own = self.shape.image_size or next(iter(self._fields("image_size", "input_size", "img_size")), None)
        edge = own or IMAGE_SIZE
        height, width = (edge, edge) if isinstance(edge, int) else tuple(edge)[-2:]
        channels = self._field("num_channels", self._field("in_channels", self._field("in_chans", 3)))
        frames = self._field("num_frames", self._field("frames_per_clip", _VIDEO))
        image, video = (channels, height, width), (frames, channels, height, width)
        shapes = [video] if name.endswith("videos") else [image, video, (1, *image)]
        return [self._normal(self.shape.batch, *shape) for shape in shapes]

    def _sounds(self, name: str) -> list[torch.Tensor]:
        """A waveform, or a spectrogram in either order of its axes."""
        batch = self.shape.batch
        mel = next(iter(self._fields("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels")), _MEL)
        frames = next(iter(self._fields("max_length", "spec_size")), _FRAMES)
        longest = next(iter(self._fields("max_source_positions")), None)
        frames = 2 * longest if longest is not None else frames
        drawn = [(batch, mel, frames), (batch, frames, mel), (batch, 1, frames, mel)]
        waves = [(batch, _WAVEFORM), (batch, 1, _WAVEFORM)]
        return [self._normal(*shape) for shape in (drawn if name == "input_features" else [*waves, *drawn])]

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


def _configurations(config: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    yield config
    if depth:
        for _, part in parts_of(config):
            yield from _configurations(part, depth - 1)
