"""`Prompts`: what a generating model is given, task `generate`: prompts of several lengths, each continued by a forced
number of tokens.

A model's function declares them under the key `generate`, as a dict:

    prompts     lengths in tokens, or lists of token ids; a prompt that is a length has seeded random tokens
    new_tokens  tokens that each prompt is continued by, the first of them by the prefill
    batch       how many sequences are generated at a time; all have the same prompt

Each prompt is continued greedily. One pass over all of them is a call: its latency is that of the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.errors import InputError

KEY = "generate"
"""The key of a model's function's dict."""
LENGTHS = (16, 64, 200)
"""Prompts of a model that is taken by its name: about a question, a paragraph and a page."""
NEW_TOKENS = 64
BUCKETS = (64, 256)
"""Multiples to which a config may round lengths up."""
EDGE_TOKENS = 4
"""Tokens by which a prompt at the edge of a bucket is continued."""


@dataclass(frozen=True)
class Prompts:
    """A stream of prompts."""

    prompts: tuple[int | tuple[int, ...], ...] = LENGTHS
    """The length of each, or its token ids."""
    new_tokens: int = NEW_TOKENS
    batch: int = 1

    @classmethod
    def of(cls, value: object, model: str) -> Prompts:
        """What a model's function gave under `KEY`. Raises InputError, which names the `model`."""
        if not isinstance(value, Mapping):
            raise InputError(f"{model} returned a {type(value).__name__} as {KEY}", tip=f"it must be a dict {_FORM}")
        unknown = [str(key) for key in value if key not in cls.__dataclass_fields__]
        if unknown:
            raise InputError(f"{model} returned {KEY} with {unknown[0]!r}", tip=f"write it as {_FORM}")
        given = value.get("prompts", LENGTHS)
        if not isinstance(given, (list, tuple)) or not given:
            raise InputError(f"{model}: {KEY} has no list of prompts", tip=f"write it as {_FORM}")
        return cls(
            tuple(_prompt(prompt, model) for prompt in given),
            _count("new_tokens", value.get("new_tokens", NEW_TOKENS), 2, model),
            _count("batch", value.get("batch", 1), 1, model),
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length of each prompt in tokens."""
        return tuple(prompt if isinstance(prompt, int) else len(prompt) for prompt in self.prompts)

    @property
    def num_tokens(self) -> int:
        """Tokens that a pass over the stream generates."""
        return len(self.prompts) * self.new_tokens * self.batch

    def edges(self, bucket: int) -> tuple[int, ...]:
        """Lengths of prompts that, themselves or with `EDGE_TOKENS` more, are one token shorter than a multiple of the
        bucket, as long, or one longer. The multiple is the last within the stream, so that what is compiled for it is
        likely to be there."""
        edge = max(max(self.lengths) // bucket, 1) * bucket
        around = [edge - 1, edge, edge + 1]
        return tuple(sorted({length - shift for length in around for shift in (0, EDGE_TOKENS)} - {0}))

    def all_edges(self) -> Iterator[int]:
        """The edges of all buckets that a config may have, each once."""
        yield from sorted({length for bucket in BUCKETS for length in self.edges(bucket)})


_FORM = "{'prompts': [16, 64, 200], 'new_tokens': 64, 'batch': 1}"


def _prompt(value: object, model: str) -> int | tuple[int, ...]:
    if isinstance(value, (list, tuple)) and value and all(map(_is_count, value)):
        return tuple(value)
    if _is_count(value) and value:
        return value  # type: ignore[return-value]
    raise InputError(
        f"{model}: {KEY} has the prompt {value!r:.60}", tip="a prompt is its length in tokens, or a list of token ids"
    )


def _count(name: str, value: object, least: int, model: str) -> int:
    if not _is_count(value) or value < least:  # type: ignore[operator]
        raise InputError(f"{model}: {KEY} has {name}={value!r:.60}; it must be a whole number, at least {least}")
    return value  # type: ignore[return-value]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
