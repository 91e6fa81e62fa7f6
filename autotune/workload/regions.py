"""`Region`: which modules of a model are compiled, as text in a config. Pure; knows no framework.

    whole                 the model in one piece
    blocks.*              each module whose path matches, on its own; everything between them is not compiled
    encoder.*, head       the same with several patterns
    whole but head        the model in one piece except for modules that are not compiled

A pattern is a module's dotted path, as the framework names it. A wildcard matches within one part of the path, so
`blocks.*` is each block and nothing inside one. The text is complete: an exported file needs nothing else to apply it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from autotune.config import Config
from autotune.errors import InvalidConfigError

KNOB = "region"
WHOLE = "whole"
_BUT = "but"


@dataclass(frozen=True)
class Region:
    """Patterns of modules that are `compiled` each on its own (none: the model as a whole), or `left` as they are."""

    compiled: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the model is compiled in one piece with nothing left out."""
        return not self.compiled and not self.left

    @classmethod
    def of(cls, config: Config) -> Region:
        """What a config says; without the knob, the whole model. Raises InvalidConfigError, as `parse` does."""
        return cls.parse(str(config.get(KNOB, WHOLE)))

    @classmethod
    def parse(cls, text: str) -> Region:
        """Raises InvalidConfigError if the text has none of the forms above."""
        words = text.split(maxsplit=2)
        if words == [WHOLE]:
            return cls()
        if words[:2] == [WHOLE, _BUT]:
            return cls(left=_patterns(words[2] if len(words) > 2 else "", text))
        return cls(compiled=_patterns(text, text))


def _patterns(listed: str, text: str) -> tuple[str, ...]:
    patterns = tuple(pattern.strip() for pattern in listed.split(","))
    if any(not part or part.split() != [part] for pattern in patterns for part in pattern.split(".")):
        raise InvalidConfigError(
            f"knob {KNOB}: {text!r} is not understood",
            tip=f"write {WHOLE!r}, paths of modules such as 'blocks.*' or 'encoder.*, head', or '{WHOLE} {_BUT} head'",
        )
    return patterns


def matching_paths(patterns: Sequence[str], paths: Iterable[str]) -> list[str]:
    """The paths that match a pattern, without those inside another match. Raises InvalidConfigError if one has none."""
    known = list(paths)
    for pattern in patterns:
        if not any(_fits(pattern, path) for path in known):
            parts = ", ".join(path for path in known if path and "." not in path) or "none"
            raise InvalidConfigError(
                f"knob {KNOB}: no module of the model has the path {pattern!r}", tip=f"its own parts are: {parts}"
            )
    found = {path for path in known if any(_fits(pattern, path) for pattern in patterns)}
    return [path for path in known if path in found and not found.intersection(_ancestors(path))]


def _fits(pattern: str, path: str) -> bool:
    wanted, parts = pattern.split("."), path.split(".")
    return bool(path) and len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted))


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


Parameters = Callable[[Any], Sequence[tuple[str, Any]]]
"""Module -> name and shape (an object with `shape`, which can be compared) of each of its parameters."""


def repeated_blocks(modules: Mapping[str, Any], parameters: Parameters) -> str | None:
    """The region of the repeated blocks of a deep model: compiled on their own they may share one compilation.

    `modules` is every module by its path, the model itself under the empty one. A row of blocks is a list (children
    named 0, 1, ...) of two or more modules of one class with equal parameters that contain modules themselves. None if
    such rows hold less than half of the model's parameters, since too little would be compiled.
    """
    children = _children(modules)
    rows: list[str] = []
    size = 0
    for path in modules:
        blocks = [modules[child] for child in children[path]]
        inside = any(not row or path.startswith(f"{row}.") for row in rows)
        if not inside and _are_listed(children[path]) and any(children[child] for child in children[path]):
            kinds: set[Hashable] = {(type(block), tuple(parameters(block))) for block in blocks}
            if len(blocks) > 1 and len(kinds) == 1:
                rows.append(path)
                size += sum(_size(parameters(block)) for block in blocks)
    if not rows or 2 * size < _size(parameters(modules[""])) or not size:
        return None
    return ", ".join(f"{row}.*" if row else "*" for row in rows)


def _children(modules: Mapping[str, Any]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = defaultdict(list)
    for path in modules:
        if path:
            children[path.rpartition(".")[0]].append(path)
    return children


def _are_listed(paths: Sequence[str]) -> bool:
    return [path.rpartition(".")[2] for path in paths] == [str(number) for number in range(len(paths))]


def _size(named: Sequence[tuple[str, Any]]) -> int:
    return sum(prod(spec.shape) for _, spec in named)
