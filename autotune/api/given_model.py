"""What a Python program gives to be tuned, as the text that `--model` takes.

A name stays as it is; a function of a file is named by its place. A function of a notebook or script, and a live model
with its inputs, are written into the study's folder, so that the study needs nothing else when it goes on.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

from autotune import own_folders
from autotune.api.function_source import source_of
from autotune.backends.registry import framework_of, saved_models_of
from autotune.errors import InputError, StoreError, marked
from autotune.files import write_whole
from autotune.planning.manifest import check_text, study_name
from autotune.planning.targets import choose_target
from autotune.question.question import Question
from autotune.trial.processes import last_json, package_path
from autotune.tuning.events import ModelSaved
from autotune.workload.kinds.work import noun_of

Notify = Callable[[ModelSaved], None]


def split_inputs(inputs: Any, more_inputs: Sequence[Any] = ()) -> tuple[str | PathLike[str] | None, list[Any] | None]:
    """The file that the inputs are in, and those of a live model. Raises InputError."""
    if isinstance(inputs, (str, PathLike)) or inputs is None:
        if more_inputs:
            raise InputError(
                "more_inputs are given with a live model and its inputs; a function brings its own",
                tip="let it return (model, inputs, more_inputs)",
            )
        return inputs, None
    return None, [inputs, *more_inputs]


@contextmanager
def named_model(
    build: Any, inputs: list[Any] | None, question: Question, studies_dir: Path, notify: Notify
) -> Iterator[Question]:
    """The request with its model as a text; `inputs` are those of a live model, the example first.

    What was written for it is removed if the block raises and makes no study.

    Raises InputError for what cannot be tuned, and StoreError where nothing can be written.
    """
    naming = _Naming(question, studies_dir, notify)
    try:
        yield naming.request_for(build, inputs)
    except BaseException:
        naming.remove_written()
        raise


@dataclass
class _Naming:
    question: Question
    studies_dir: Path
    notify: Notify
    written: list[Path] = field(default_factory=list)
    """What was not there before, the folder first."""

    def request_for(self, build: Any, inputs: list[Any] | None) -> Question:
        is_live = inputs is not None or (self.question.inputs is not None and framework_of(build) is not None)
        model = self._saved(build, inputs) if is_live else self._text(build)
        return self.question.model_copy(update={"build": model})

    def remove_written(self) -> None:
        for path in reversed(self.written):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()

    def _text(self, build: Any) -> str:
        """The value of `--model`."""
        if isinstance(build, str):
            return build
        if not isinstance(build, FunctionType):
            raise _not_a_function(build)
        module = sys.modules.get(build.__module__)
        file = getattr(module, "__file__", None)
        is_found = module is not None and getattr(module, build.__name__, None) is build
        if build.__module__ == "__main__" or file is None or not is_found:
            return self._source(build)
        if not getattr(module, "__package__", None):
            return f"{Path(file).resolve()}:{build.__name__}"
        self._update(search_path=_home_of(build.__module__, Path(file)))
        return f"{build.__module__}:{build.__name__}"

    def _source(self, build: FunctionType) -> str:
        source = source_of(build)
        self._require_importable(source.modules, source.name)
        digest = hashlib.sha256(source.text.encode()).hexdigest()[:8]
        path = self._folder(source.name) / f"{source.name}_{digest}.py"
        self._write(path, source.text)
        return f"{path}:{source.name}"

    def _saved(self, model: Any, inputs: list[Any] | None) -> str:
        """A live model with its inputs, if it has any, in a file that is named after its content."""
        if isinstance(model, (str, FunctionType)):
            raise InputError(
                "inputs are given with a live model; a function or a name brings its own",
                tip="give tune(build) alone: build returns (model, inputs)",
            )
        framework = framework_of(model)
        if framework is None:
            raise InputError(f"a {type(model).__name__} is no model of an imported framework", tip=_WHAT_TO_GIVE)
        if self.question.framework not in (None, framework):
            raise InputError(f"{marked('framework', self.question.framework)}: the model is one of {framework}")
        saving = saved_models_of(framework)
        if saving is None:
            raise InputError(
                f"a live {framework} model cannot be written into a study",
                tip="give a function that returns (model, inputs): tune(build)",
            )
        self._update(framework=framework)
        name = type(model).__name__
        folder = self._folder(name)
        try:
            # A folder that nobody else may write: a framework writes through a link that lies at the name it is given.
            with tempfile.TemporaryDirectory(prefix=".saved_model.", dir=folder) as private:
                partial = Path(private, "model")
                modules = saving.save_model(model, inputs, partial)
                self._require_importable(modules, name)
                path = folder / f"{name}_{_digest_of(partial)}.pt"
                self._note(path)
                own_folders.move(partial, path)
        except OSError as error:
            raise _unwritable(folder, error) from None
        self._write(path.with_suffix(".py"), saving.LOADER.format(file=path.name))
        self.notify(ModelSaved(str(path), path.stat().st_size))
        return f"{path.with_suffix('.py')}:build"

    def _folder(self, model: str) -> Path:
        """The folder of the study to be, which thereby has a name."""
        if self.question.study is None:
            framework, device = choose_target(self.question.framework, self.question.device)
            name = study_name(self.question, framework, device, model)
            self._update(study=name, framework=framework, device=device)
        check_text(self.question)
        folder = self.studies_dir / str(self.question.study)
        self._note(folder)
        try:
            own_folders.make(folder)
        except OSError as error:
            raise _unwritable(folder, error) from None
        return folder

    def _write(self, path: Path, text: str) -> None:
        self._note(path)
        try:
            write_whole(path, text)
        except OSError as error:
            raise _unwritable(path.parent, error) from None

    def _note(self, path: Path) -> None:
        if not path.exists():
            self.written.append(path)

    def _update(self, **values: object) -> None:
        self.question = self.question.model_copy(update=values)

    def _require_importable(self, modules: frozenset[str], what: str) -> None:
        variables = self.question.env
        missing = _missing_in_a_child(modules, variables.get("PYTHONPATH"))
        if missing:
            raise InputError(
                f"{what} needs {', '.join(missing)}, which a new Python does not find from {Path.cwd()}",
                tip="start from the folder that holds it, install it, or name its folder in PYTHONPATH",
            )


def _missing_in_a_child(modules: frozenset[str], python_path: str | None) -> list[str]:
    """The packages that a trial's process would not find: it has this folder and its PYTHONPATH, not our `sys.path`."""
    packages = sorted({module.partition(".")[0] for module in modules} - set(sys.builtin_module_names))
    child = subprocess.run(
        [sys.executable, "-P", "-c", _FIND, str(Path.cwd()), *packages],
        env={**os.environ, "PYTHONPATH": package_path(python_path)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return (last_json(child.stdout, list) or []) if child.returncode == 0 else []


_FIND = """
import importlib.util, json, sys
sys.path.insert(0, sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if importlib.util.find_spec(name) is None]))
"""


def _home_of(module: str, file: Path) -> Path:
    """The folder from which a module of a package is importable."""
    depth = module.count(".") + (file.name == "__init__.py")
    return file.resolve().parents[depth]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _not_a_function(build: Any) -> InputError:
    if isinstance(build, functools.partial):
        return InputError("a functools.partial has no source", tip="give the function, and arguments={'NAME': VALUE}")
    if inspect.isclass(build) or inspect.ismethod(build):
        return InputError(f"{build.__qualname__} is not a plain function", tip=_WHAT_TO_GIVE)
    if framework_of(build) is not None:
        return InputError("a live model needs example inputs", tip="give tune(model, inputs)")
    return InputError(f"{noun_of(build)} cannot be tuned", tip=_WHAT_TO_GIVE)


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write in {folder}: {error.strerror}", tip="choose another folder with studies_dir")


_WHAT_TO_GIVE = "give a function that returns (model, inputs), 'FILE.py:FUNCTION', a bundled name, hf:TYPE, or a "
_WHAT_TO_GIVE += "torch.nn.Module with its inputs"
