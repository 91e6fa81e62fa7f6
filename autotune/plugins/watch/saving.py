"""What is written into the folder of a model and its calls, by what its framework can write."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from autotune.errors import InputError, quoted
from autotune.nesting import leaves, with_leaves
from autotune.plugins.watch.document import raise_of_signal
from autotune.plugins.watch.recorder import Recorder, Seen

if TYPE_CHECKING:
    from autotune.workload.arguments import Arguments

_MOST_KEPT_BYTES = 64 << 20
"""Most room for the arguments of a model's calls."""
_SAFE = (bool, int, float, str, type(None))
NO_CALLS = "calls cannot be kept"
WAY_OUT = "give a function that builds model and inputs: autotune tune FILE.py:FUNCTION"


class ModelFiles(Protocol):
    """What a framework writes of its models. A module has this form."""

    SUFFIX: str
    """What the name of a model's file ends with."""
    CALLS_SUFFIX: str
    """What that of the file of its calls ends with."""

    def tensor_bytes(self, leaf: Any) -> int | None:
        """Size of an argument's tensor; None for what is none that a file can hold."""

    def copied(self, tensor: Any) -> Any:
        """A tensor as it is now, for `write_calls`."""

    def why_not(self, model: Any) -> str | None:
        """What keeps the model from being written, in words."""

    def size_bytes(self, model: Any) -> int:
        """Room that its weights take."""

    def write_model(self, model: Any, path: Path) -> Mapping[str, Sequence[str]]:
        """Write it. Returns module -> the classes and functions that the file takes from it. Raises InputError."""

    def write_calls(self, calls: Sequence[Arguments], path: Path) -> None:
        """Write calls as they were kept. Raises InputError."""


def copied(seen: Seen, args: tuple[Any, ...], kwargs: dict[str, Any], files: ModelFiles) -> tuple[int, Any] | None:
    """Size and a copy of the arguments of a call that is about to be made, if they are few and a safe file holds
    them."""
    size = 0
    for path, leaf in leaves((args, kwargs)):
        if (num_bytes := files.tensor_bytes(leaf)) is not None:
            size += num_bytes
        elif not isinstance(leaf, _SAFE):
            what = f"{path.removeprefix('[0]').removeprefix('[1]')} is a {type(leaf).__name__}"
            seen.notes[f"{NO_CALLS}: argument {what}; give a function that builds model and inputs"] = None
            return None
    if size > _MOST_KEPT_BYTES - seen.kept_bytes:
        seen.notes["some calls are not kept: their arguments take too much room"] = None
        return None

    def held(leaf: Any) -> Any:
        return leaf if files.tensor_bytes(leaf) is None else files.copied(leaf)

    return size, with_leaves((args, kwargs), held)


def save(recorder: Recorder, seen: Seen, files: ModelFiles) -> None:
    """Write the model, once, and the calls that were kept since the last time."""
    model = seen.model()
    if model is not None and not seen.extra.get("is_tried"):
        seen.extra["is_tried"] = True
        try:
            _save_model(recorder, seen, model, files)
        except Exception as problem:  # Whatever its parts, or a disk that is full, raise.
            raise_of_signal(problem)
            what = str(problem) if isinstance(problem, InputError) else quoted(problem)
            tip = getattr(problem, "tip", None)
            seen.notes[f"it cannot be kept: {what}" + (f"; {tip}" if tip else "")] = None
    if "model" in seen.files and len(seen.kept) > seen.extra.get("calls_written", 0):
        _save_calls(recorder, seen, files)


def _save_model(recorder: Recorder, seen: Seen, model: Any, files: ModelFiles) -> None:
    if (why := files.why_not(model)) is not None:
        raise InputError(why, tip=WAY_OUT)
    if (size := files.size_bytes(model)) > recorder.room_bytes():
        raise InputError(f"its weights take {size / 2**30:.1f} GiB", tip=f"watch with more disk, or {WAY_OUT}")
    recorder.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saved_model.", dir=recorder.folder) as private:
        partial = Path(private, "model")
        source = _source_of(files.write_model(model, partial).get("__main__", ()))
        name = f"{seen.name}_{_digest_of(partial)}"
        if source is not None:
            Path(private, "source").write_text(source)
            Path(private, "source").replace(recorder.folder / f"{name}_source.py")
            seen.files["source"] = f"{name}_source.py"
        partial.replace(recorder.folder / f"{name}{files.SUFFIX}")
    seen.files["model"] = f"{name}{files.SUFFIX}"


def _source_of(names: Iterable[str]) -> str | None:
    """The text of the job's own classes, where its first file defines the model's. Raises InputError."""
    if not names:
        return None
    from autotune.api.function_source import source_of_classes

    main = vars(sys.modules["__main__"])
    if (inner := next((name for name in names if name not in main), None)) is not None:
        raise InputError(f"{inner} is defined inside of something else", tip=f"define it by itself, or {WAY_OUT}")
    return source_of_classes([main[name] for name in dict.fromkeys(names)]).text


def _save_calls(recorder: Recorder, seen: Seen, files: ModelFiles) -> None:
    from autotune.workload.arguments import Arguments

    number = next(number for number, each in enumerate(recorder.models) if each is seen)  # Others may have its weights.
    name = f"{Path(seen.files['model']).stem}-{recorder.token}-{number}.calls{files.CALLS_SUFFIX}"
    try:
        if seen.kept_bytes > recorder.room_bytes():
            raise InputError("the folder holds as much as it may")
        files.write_calls([Arguments(args, kwargs or None) for _, (args, kwargs) in seen.kept], recorder.folder / name)
    except Exception as problem:
        raise_of_signal(problem)
        seen.notes[f"{NO_CALLS}: {problem if isinstance(problem, InputError) else quoted(problem)}; {WAY_OUT}"] = None
        del seen.kept[seen.extra.get("calls_written", 0) :]
        return
    seen.files["calls"] = name
    seen.extra["calls_written"] = len(seen.kept)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def define(path: Path) -> None:
    """The job's own classes and functions, under the name by which the model's file knows them."""
    spec = importlib.util.spec_from_file_location(f"_autotune_watched_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    main = sys.modules["__main__"]
    for name, value in vars(module).items():
        if isinstance(value, (type, FunctionType)) and value.__module__ == spec.name:
            setattr(main, name, value)
