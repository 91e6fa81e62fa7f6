"""A live model with its inputs, written to a file from which a trial's process loads both."""

from __future__ import annotations

import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING
from pathlib import Path
from typing import Any

import torch

from autotune.errors import InputError

LOADER = '''"""A model and its inputs, as they were when autotune.tune(model, inputs) was called with them.

Written by autotune. The file beside this one holds both; to load it is to run what is in it.
"""

from pathlib import Path

import torch


def build():
    saved = torch.load(Path(__file__).with_name("{file}"), map_location="cpu", weights_only=False)
    if saved["inputs"] is None:
        return saved["model"]
    inputs, *more_inputs = saved["inputs"]
    return (saved["model"], inputs, more_inputs) if more_inputs else (saved["model"], inputs)
'''
"""The text of a module whose function `build` gives what was saved in `file`."""


def save_model(model: Any, inputs: list[Any] | None, path: Path) -> frozenset[str]:
    """Write both to `path`. Returns the modules that are needed to load them.

    Raises InputError for a model that another process cannot load: one with a lambda or a local function in it, or of a
    class that a notebook or script defines.
    """
    # What torch.compile returned would be compiled once more in each trial.
    model = getattr(model, "_orig_mod", model)
    try:
        torch.save({"model": model, "inputs": inputs}, path)
    except OSError:
        raise
    except Exception as error:  # Whatever an attribute's own pickling raises.
        raise InputError(f"the model or its inputs cannot be saved: {error}", tip=_WAY_OUT) from None
    needed = _needed(path)
    if "__main__" in needed:
        raise InputError(
            f"{needed['__main__']} is defined in this notebook or script, where a trial's process does not find it",
            tip=f"put it in a module of its own and import it; {_WAY_OUT}",
        )
    return frozenset(needed)


_WAY_OUT = "or give a function that builds model and inputs: tune(build)"


def _needed(path: Path) -> dict[str, str]:
    """Module -> one of the classes or functions that the file takes from it."""
    with zipfile.ZipFile(path) as archive:
        name = next(each for each in archive.namelist() if each.endswith("data.pkl"))
        content = archive.read(name)
    needed = {}
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            # This protocol names Python's own modules as Python 2 did.
            needed[IMPORT_MAPPING.get(module, module)] = name
    return needed
