"""Regions as text: what a pattern fits, and which blocks of a model are repeated. No framework."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.errors import InvalidConfigError
from autotune.workload.regions import Region, matching_paths, repeated_blocks

PATHS = ["", "stem", "blocks", "blocks.0", "blocks.0.mlp", "blocks.1", "blocks.1.mlp", "head"]


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("whole", Region()),
        ("blocks.*", Region(compiled=("blocks.*",))),
        ("blocks.*, head", Region(compiled=("blocks.*", "head"))),
        ("whole but head", Region(left=("head",))),
        ("whole  but head,blocks.*.mlp", Region(left=("head", "blocks.*.mlp"))),
        ("wholesome", Region(compiled=("wholesome",))),
    ],
)
def test_the_forms_of_a_region(text: str, region: Region) -> None:
    """The whole, patterns of modules, or the whole but patterns; nothing else is written anywhere."""
    assert Region.parse(text) == region


@pytest.mark.parametrize("text", ["", " ", "whole but", "whole but ", "whole head", "a b", "blocks.", ".head", "a,,b"])
def test_what_is_no_region_is_refused(text: str) -> None:
    """A text that is none of the forms says which there are."""
    with pytest.raises(InvalidConfigError, match="is not understood") as caught:
        Region.parse(text)
    assert "blocks.*" in str(caught.value.tip)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["blocks.*"], ["blocks.0", "blocks.1"]),
        (["blocks.*.mlp", "head"], ["blocks.0.mlp", "blocks.1.mlp", "head"]),
        (["blocks.*.mlp", "blocks.1"], ["blocks.0.mlp", "blocks.1"]),
        (["*"], ["stem", "blocks", "head"]),
        (["blocks.[1-9]"], ["blocks.1"]),
        ([], []),
    ],
)
def test_a_wildcard_stays_within_one_part_of_a_path(patterns: list[str], expected: list[str]) -> None:
    """`*` is any one name; what lies inside a module that fits already is left out; the order is the model's."""
    assert matching_paths(patterns, PATHS) == expected


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    """A misspelt path names itself and the parts that the model has."""
    with pytest.raises(InvalidConfigError, match=r"has the path 'blokcs\.\*'") as caught:
        matching_paths(["head", "blokcs.*"], PATHS)
    assert caught.value.tip == "its own parts are: stem, blocks, head"


class Block: ...


class Other: ...


@dataclass(frozen=True)
class Shape:
    shape: tuple[int, ...]


def found(kinds: dict[str, type], sizes: dict[str, int]) -> str | None:
    """The repeated blocks of a model of these modules; each module's size counts for those around it too."""
    modules = {path: kind() for path, kind in kinds.items()}
    paths = {id(module): path for path, module in modules.items()}

    def parameters(module: object) -> list[tuple[str, Shape]]:
        own = paths[id(module)]
        inside = {p: n for p, n in sizes.items() if not own or p == own or p.startswith(f"{own}.")}
        return [(path.removeprefix(own), Shape((size,))) for path, size in inside.items()]

    return repeated_blocks(modules, parameters)


ROW = {"": Other, "stem": Other, "row": Other, "row.0": Block, "row.0.fc": Other, "row.1": Block, "row.1.fc": Other}


@pytest.mark.parametrize(
    ("change", "sizes", "expected"),
    [
        ({}, {"row.0.fc": 5, "row.1.fc": 5}, "row.*"),
        ({}, {"stem": 10, "row.0.fc": 5, "row.1.fc": 5}, "row.*"),
        ({}, {"stem": 11, "row.0.fc": 5, "row.1.fc": 5}, None),
        ({}, {"row.0.fc": 5, "row.1.fc": 6}, None),
        ({"row.1": Other}, {"row.0.fc": 5, "row.1.fc": 5}, None),
        ({"row.2": Block}, {"row.0.fc": 5, "row.1.fc": 5}, None),
        ({}, {}, None),
        (
            {"top": Other, "top.0": Block, "top.0.fc": Other, "top.1": Block, "top.1.fc": Other},
            {"row.0.fc": 5, "row.1.fc": 5, "top.0.fc": 3, "top.1.fc": 3},
            "row.*, top.*",
        ),
    ],
)
def test_repeated_blocks(change: dict[str, type], sizes: dict[str, int], expected: str | None) -> None:
    """Equal modules of one class in a row, with at least half of the model's parameters between them."""
    assert found({**ROW, **change}, sizes) == expected


def test_a_model_can_be_the_row_itself() -> None:
    """The children of a sequential model are blocks too; rows inside of blocks, and of layers, are not looked for."""
    layers = {"": Other, "row": Other, "row.0": Block, "row.1": Block}
    assert found(layers, {"row.0": 5, "row.1": 5}) is None, "compiling single layers would only cut the model up"
    kinds = {"": Other, "0": Block, "0.0": Other, "0.0.fc": Other, "0.1": Other, "0.1.fc": Other}
    kinds |= {path.replace("0", "1", 1): kind for path, kind in kinds.items() if path}
    assert found(kinds, {f"{block}.{row}.fc": 5 for block in "01" for row in "01"}) == "*"
