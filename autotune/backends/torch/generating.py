"""Text generation as a trial makes and compares it: task `generate`. How a config changes it is in `generation`.

The untuned model and a tuned one generate by the very same call, `model.generate`. Times are taken where a token
reaches the one who reads it: a streamer is handed each token on the host, so that it waits for the device. What a
token is chosen by (logits) comes from the same loop, and so do the steps of a forced continuation, in which a processor
of logits leaves one token to choose.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.backends.capabilities import Continuation
from autotune.backends.torch import generation
from autotune.backends.torch.apply import mode_options
from autotune.backends.torch.knobs import compile_arguments, settings_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.workload.regions import Region

_SPECIAL = ("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id")
"""Tokens that mean something to the loop of a generation."""


def check_generating(model: Any) -> str | None:
    """See `Generation`."""
    if callable(getattr(model, "generate", None)) and getattr(model, "generation_config", None) is not None:
        return None
    return f"a {type(model).__name__}, which has no `generate` as the models of Hugging Face transformers have it"


def offers(model: Any) -> tuple[str, ...]:
    """See `Generation`."""
    return ("plain decoder",) if generation.problem_of(model) is None else ()


def tune_generation(model: Any, config: Config, changes: UndoLog, *, longest: int) -> None:
    """See `Generation`. With `cache: transformers` it is Hugging Face's static cache, and its own compiling."""
    asked = {name: value for name, value in config.root.items() if value is not None}
    if asked.get(generation.CACHE) == "transformers":
        _as_transformers_does(model, config, changes, longest)
    elif asked not in _UNTUNED:
        generation.tune_generation(model, config, changes, longest=longest)


_UNTUNED: tuple[dict[str, Any], ...] = ({"execution": "eager"}, {"execution": "eager", generation.CACHE: "dynamic"})


def _as_transformers_does(model: Any, config: Config, changes: UndoLog, longest: int) -> None:
    """What Hugging Face's generation settings offer: `generate` compiles the decode step, also where it would not by
    itself (CPU). Raises InvalidConfigError for knobs that have no such setting."""
    settings = settings_of(config)
    length = config.get(generation.CACHE_LENGTH)
    others = [
        settings.freezes,
        settings.is_third_party,
        settings.autocast,
        settings.attention,
        settings.region != Region(),
        settings.dynamo_options,
    ]
    if not settings.compiled or any(others) or config.get(generation.PREFILL) is not None or isinstance(length, int):
        raise InvalidConfigError(
            f"knob {generation.CACHE}: 'transformers' takes backend, mode, dynamic and inductor's options, and a "
            f"{generation.CACHE_LENGTH} that is exact or most; it compiles the decode step only"
        )
    arguments = compile_arguments(settings, mode_options(settings.mode))
    from transformers import CompileConfig

    how = CompileConfig(**{"mode": None, **arguments})
    how.__dict__["_compile_all_devices"] = True
    changes.set_attribute(model.generation_config, "cache_implementation", "static")
    changes.set_attribute(model.generation_config, "compile_config", how)
    if length == "most":
        changes.set_attribute(model.generation_config, "max_cache_len", longest)
    # What `generate` has compiled it keeps in the model.
    changes.make(
        lambda: None, lambda: [vars(model).pop(name, None) for name in ("_compiled_call", "_last_compile_config")]
    )


def buckets(config: Config) -> tuple[int, ...]:
    """See `Generation`."""
    length = config.get(generation.CACHE_LENGTH)
    return (length,) if isinstance(length, int) else ()


def prompt(model: Any, tokens: int | Sequence[int], batch: int, seed: int) -> torch.Tensor:
    """See `Generation`."""
    if isinstance(tokens, int):
        drawn = draw(model, (batch, tokens), seed)
        return torch.from_numpy(drawn)
    return torch.tensor([list(tokens)] * batch, dtype=torch.int64)


def draw(model: Any, shape: tuple[int, ...], seed: int) -> NDArray[np.int64]:
    """See `Generation`."""
    special = {token for name in _SPECIAL for token in _tokens(getattr(model.generation_config, name, None))}
    plain = np.setdiff1d(np.arange(model.get_input_embeddings().num_embeddings), sorted(special))
    return np.random.default_rng(seed).choice(plain, shape)


def generate(
    model: Any, tokens: torch.Tensor, new_tokens: int, *, forced: NDArray[Any] | None = None, with_logits: bool = False
) -> Continuation:
    """See `Generation`."""
    choice = _Choice(None if forced is None else torch.from_numpy(forced).to(tokens.device), keeps=with_logits)
    stamps = _Stamps()
    # A processor is work in each step, and is left out where times are taken. What is forced never ends a text.
    how: dict[str, Any] = {"logits_processor": [choice]} if choice.has_work else {}
    least = {} if forced is not None else {"min_new_tokens": new_tokens}
    begun = time.perf_counter()
    sequences = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
        pad_token_id=_padding(model),
        streamer=stamps,
        **least,
        **how,
    )
    _, first, *_, last = stamps.seconds
    chosen = sequences[:, -new_tokens:].cpu().numpy()
    return Continuation(chosen, first - begun, last - begun, np.stack(choice.logits) if with_logits else None)


@dataclass
class _Stamps:
    """A streamer: when each token was there. The first entry is the prompt's."""

    seconds: list[float] = field(default_factory=list)

    def put(self, tokens: torch.Tensor) -> None:
        del tokens
        self.seconds.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to hand on."""


class _Choice:
    """A processor of logits: keeps those of each step, and leaves one token to choose where it is forced."""

    def __init__(self, forced: torch.Tensor | None, *, keeps: bool) -> None:
        self.logits: list[NDArray[Any]] = []
        self._forced = forced
        self._keeps = keeps
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return self._keeps or self._forced is not None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        if self._keeps:
            self.logits.append(scores.float().cpu().numpy().copy())
        if self._forced is None:
            return scores
        chosen = self._forced[:, self._num_steps, None]
        self._num_steps += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)


def _padding(model: Any) -> int:
    """A token for places that are left, of which there are none: without it each call warns."""
    settings = model.generation_config
    return next(iter([*_tokens(settings.pad_token_id), *_tokens(settings.eos_token_id)]), 0)


def _tokens(value: Any) -> list[int]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [int(token) for token in values if token is not None]
