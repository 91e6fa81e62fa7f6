"""Models of other packages by name: what is imported for one. `hf:NAME` is of Hugging Face transformers, `timm:NAME` of
PyTorch Image Models, `mindcv:NAME` of MindCV, `mindone:NAME` of MindOne, `mindyolo:FILE` of MindYOLO.

`hf:` without a slash is a model type (`hf:llama`), built from its configuration with random weights. One with a slash
is a model of the Hub (`hf:google/vit-base-patch16-224`) or a folder (`hf:./my_model`), with its own weights. What the
others name has random weights.

Importing this file imports neither these packages nor a framework.
"""

from __future__ import annotations

import hashlib
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.command_line import asked
from autotune.environment import package_version
from autotune.errors import InputError, MissingFrameworkError

SCHEME = "hf:"
EXAMPLES = ("hf:vit", "hf:bert", "hf:gpt2", "hf:llama")
TIMM = "timm:"
TIMM_EXAMPLES = ("timm:resnet50", "timm:vit_tiny_patch16_224", "timm:convnext_atto")
MINDCV = "mindcv:"
MINDCV_EXAMPLES = ("mindcv:resnet50", "mindcv:mobilenet_v3_small_100", "mindcv:swin_tiny")
MINDONE = "mindone:"
MINDONE_EXAMPLES = ("mindone:bert", "mindone:t5", "mindone:UNet2DConditionModel")
MINDYOLO = "mindyolo:"
MINDYOLO_EXAMPLES = ("mindyolo:configs/yolov8/yolov8n.yaml",)


@dataclass(frozen=True)
class _Hub:
    """A package of models."""

    whose: str
    package: str
    """The distribution."""
    builder: str
    """Module of `autotune.models.FRAMEWORK` with functions `build(name, ...)` and, where they are trained by name,
    `build_to_train(name, ...)`; where they generate text, `build` of the module whose name
    ends in `_generation`."""
    examples: tuple[str, ...]
    install: str
    framework: str = "torch"
    trains: bool = True
    generates: bool = False


_HUBS = {
    SCHEME: _Hub(
        "Hugging Face", "transformers", "hugging_face", EXAMPLES, "pip install 'autotune-compile[hf]'", generates=True
    ),
    TIMM: _Hub("timm", "timm", "timm_models", TIMM_EXAMPLES, "pip install 'autotune-compile[timm]'"),
    MINDCV: _Hub("MindCV", "mindcv", "mindcv_models", MINDCV_EXAMPLES, "pip install mindcv", framework="mindspore"),
    MINDONE: _Hub(
        "MindOne",
        "mindone",
        "mindone_models",
        MINDONE_EXAMPLES,
        "pip install mindone==0.3.0 transformers==4.46.3",
        framework="mindspore",
        trains=False,
    ),
    MINDYOLO: _Hub(
        "MindYOLO",
        "mindyolo",
        "mindyolo_models",
        MINDYOLO_EXAMPLES,
        "pip install mindyolo opencv-python-headless pycocotools 'setuptools<80'",
        framework="mindspore",
        trains=False,
    ),
}


def is_hub(model: str) -> bool:
    """Whether the text names a model of one of these packages."""
    return model.startswith(tuple(_HUBS))


def reference(model: str, framework: str, task: Literal["infer", "train", "generate"] = "infer") -> tuple[str, str]:
    """The import reference of the builder, and a digest of what holds the model's code: builder and package.

    Raises InputError for an empty name or a framework that it is not of, MissingFrameworkError without the package.
    """
    scheme = _scheme_of(model)
    hub = _HUBS[scheme]
    if model == scheme:
        raise InputError(f"{asked('build', model)}: names no model", tip=f"for example: {', '.join(hub.examples)}")
    if framework != hub.framework:
        raise InputError(
            f"{asked('build', model)}: the models of {hub.whose} are written in {hub.framework}, and this is a study "
            f"of {framework}",
            tip=f"use {asked('framework', hub.framework)}",
        )
    if task == "train" and not hub.trains:
        raise InputError(
            f"{asked('task', task)} {asked('build', model)}: models of {hub.whose} come without a loss by name",
            tip=f"return one with its loss in a function of your own: {asked('build', 'FILE.py:FUNCTION')}",
        )
    if task == "generate" and not hub.generates:
        raise InputError(
            f"{asked('task', task)} {asked('build', model)}: models of {hub.whose} generate no text by name",
            tip=f"take one of {_HUBS[SCHEME].whose}, such as {asked('build', 'hf:llama')}",
        )
    release = package_version(hub.package)
    if release is None:
        raise MissingFrameworkError(
            f"{asked('build', model)}: the package {hub.package} is not installed in this Python environment",
            tip=f"run: {hub.install}",
        )
    folder = Path(__file__).parent / hub.framework
    files = sorted(folder.glob(f"{hub.builder.partition('_models')[0]}*.py"))
    function, builder = "build", hub.builder
    if task == "train":
        function = "build_to_train"
        files.append(folder / "training.py")
    if task == "generate":
        builder = f"{builder}_generation"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files) + release.encode()).hexdigest()
    return f"autotune.models.{hub.framework}.{builder}:{function}", digest


def name_of(model: str, search_path: Path) -> str:
    """The NAME behind the scheme; that of a folder or a file, which is seen from `search_path`, as an absolute path."""
    scheme = _scheme_of(model)
    name = model.removeprefix(scheme)
    place = search_path / os.path.expanduser(name)
    is_place = (scheme == SCHEME and "/" in name and place.is_dir()) or (scheme == MINDYOLO and place.is_file())
    return str(place.resolve()) if is_place else name


def require_count(argument: str, count: object) -> None:
    """Raises InputError for an argument of a builder that is no whole number above zero."""
    if not isinstance(count, int) or count < 1:
        raise InputError(f"{asked('arguments', {argument: count})}: must be a whole number above zero")


@contextmanager
def what_it_refuses(model: str, *more: type[Exception]) -> Iterator[None]:
    """What a package raises within, as it makes this model of given arguments, is an InputError. `more`: exceptions of
    this package beside the usual ones."""
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError, AssertionError, RuntimeError, *more)
    try:
        yield
    except refusals as error:
        raise InputError(f"{asked('build', model)}: {textwrap.shorten(str(error), 300)}") from error


def _scheme_of(model: str) -> str:
    return next(scheme for scheme in _HUBS if model.startswith(scheme))
