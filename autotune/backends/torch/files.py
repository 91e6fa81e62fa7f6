"""What is kept of PyTorch's in files: a live model with its inputs, which a trial loads, and a model's calls."""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from autotune.backends.array_file import SUFFIX, read_arrays
from autotune.errors import InputError
from autotune.files import write_whole
from autotune.workload.arguments import Arguments

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
    needed = write_model(model, inputs, path)
    if "__main__" in needed:
        raise InputError(
            f"{needed['__main__'][-1]} is defined in this notebook or script, where a trial's process does not find it",
            tip=f"put it in a module of its own and import it; {_WAY_OUT}",
        )
    return frozenset(needed)


def write_model(model: Any, inputs: list[Any] | None, path: Path) -> Mapping[str, Sequence[str]]:
    """Write both to `path`. Returns module -> the classes and functions that the file takes from it, those of a
    notebook or script among them. Raises InputError for a model that cannot be pickled."""
    # What torch.compile returned would be compiled once more in each trial.
    model = getattr(model, "_orig_mod", model)
    try:
        torch.save({"model": model, "inputs": inputs}, path)
    except OSError:
        raise
    except Exception as error:  # Whatever an attribute's own pickling raises.
        raise InputError(f"the model or its inputs cannot be saved: {error}", tip=_WAY_OUT) from None
    return _needed(path)


_WAY_OUT = "or give a function that builds model and inputs: tune(build)"


def _needed(path: Path) -> dict[str, list[str]]:
    """Module -> the classes and functions that the file takes from it."""
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        content = archive.read(name)
    needed: dict[str, list[str]] = {}
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            # This protocol names Python's own modules as Python 2 did.
            needed.setdefault(IMPORT_MAPPING.get(module, module), []).append(name)
    return needed


# Calls of a model in a file of `torch.save`, or of arrays.


def read(path: Path) -> list[Arguments]:
    """See `CallsFile`. A file holds a list of calls, each as a model's function gives its inputs. Only what
    `torch.load(weights_only=True)` takes is read: tensors, containers, numbers and texts, no code."""
    if path.suffix == SUFFIX:
        return read_arrays(path, _tensor_of)
    try:
        calls = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # Whatever its parsers raise for a file of another kind.
        first = str(error).strip().partition("\n")[0]
        raise InputError(
            f"{path}: cannot be read: {first}", tip="torch.save a list of calls of tensors, numbers and containers"
        ) from None
    if not isinstance(calls, (list, tuple)) or not calls:
        raise InputError(
            f"{path}: holds a {type(calls).__name__} and not a list of calls",
            tip="torch.save([(x1, mask1), (x2, mask2)], FILE)",
        )
    return [Arguments.of(call) for call in calls]


def write(calls: Sequence[Arguments], path: Path) -> None:
    """Write them so that `read` can read them. Raises OSError, and InputError for what cannot be read so."""
    buffer = io.BytesIO()
    torch.save([(_plain(call.positional), _plain(dict(call.keyword or {}))) for call in calls], buffer)
    try:
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"the calls hold what a safe file cannot: {str(error).partition(chr(10))[0]}") from None
    write_whole(path, buffer.getvalue())


def _tensor_of(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """`dtype` as any framework writes it: MindSpore calls its types alike, with a capital."""
    return torch.from_numpy(array).to(getattr(torch, dtype.lower()))


def _plain(value: Any) -> Any:
    """With dicts in place of other mappings, whose classes no safe file holds."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value
