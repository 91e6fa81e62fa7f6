"""The zoo: what its models are, what a record says of a run, and how runs are judged. Nothing is tuned here."""

from __future__ import annotations

import ast
import re

from benchmarks.zoo_models import FUNCTIONS, MODELS

# The models


def test_models_are_named_once_and_are_where_they_are_said_to_be():
    """Files and functions are there, and what a library needs is pinned."""
    assert len({model.name for model in MODELS}) == len(MODELS) == 24
    for model in MODELS:
        place, _, function = model.model.rpartition(":")
        if place in ("hf", "timm"):
            continue
        tree = ast.parse((FUNCTIONS / place).read_text())
        defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {*model.arguments} <= {argument.arg for argument in defined[function].args.args}
    for folder in {model.folder for model in MODELS} - {None}:
        lines = (FUNCTIONS / f"{folder}.txt").read_text().splitlines()
        pinned = {line.partition("==")[0].replace("-", "_") for line in lines if not line.startswith("#")}
        assert {model.library for model in MODELS if model.folder == folder} <= pinned
        assert all(re.fullmatch(r"#.*|[\w-]+==[\d.]+", line) for line in lines)


# A run


# The job
