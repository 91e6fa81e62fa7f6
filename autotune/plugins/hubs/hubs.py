"""Packages of models by name. `hf:NAME` is of Hugging Face transformers, `timm:NAME` of PyTorch Image Models,
`mindcv:NAME` of MindCV, `mindone:NAME` of MindOne, `mindyolo:FILE` of MindYOLO.

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

from autotune import models
from autotune.command_line import install
from autotune.environment import package_version
from autotune.errors import InputError, MissingFrameworkError, marked
from autotune.workload.hubs import Hub

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
class PackageHub(Hub):
    """A package of models, whose builders lie beside this file in `FRAMEWORK/`."""

    scheme: str
    whose: str
    package: str
    """The distribution."""
    module: str
    """Module in `FRAMEWORK/` with functions `build(name, ...)` and, where they are trained by name,
    `build_to_train(name, ...)`; where they generate text, `build` of the module whose name ends in `_generation`."""
    examples: tuple[str, ...]
    install: str
    about: str
    framework: str = "torch"
    tasks: tuple[str, ...] = ("infer", "train")
    """What its models can be tuned for by name."""
    place: Literal["folder", "file"] | None = None
    """What a name may be beside one of the package's own."""

    def builder(self, task: str) -> str:
        ending, function = _BUILDERS[task]
        return f"{__package__}.{self.framework}.{self.module}{ending}:{function}"

    def require(self, model: str, task: str) -> None:
        if model == self.scheme:
            raise InputError(
                f"{marked('build', model)}: names no model", tip=f"for example: {', '.join(self.examples)}"
            )
        if task not in self.tasks:
            lacks, tip = _lacking(task)
            raise InputError(
                f"{marked('task', task)} {marked('build', model)}: models of {self.whose} {lacks} by name", tip=tip
            )
        if package_version(self.package) is None:
            raise MissingFrameworkError(
                f"{marked('build', model)}: the package {self.package} is not installed in this Python environment",
                tip=f"run: {self.install}",
            )

    def digest(self, task: str) -> str:
        files = sorted((Path(__file__).parent / self.framework).glob(f"{self.module.partition('_models')[0]}*.py"))
        files += [Path(models.__file__).parent / self.framework / name for name in _BESIDE.get(task, ())]
        release = package_version(self.package) or ""
        return hashlib.sha256(b"".join(path.read_bytes() for path in files) + release.encode()).hexdigest()

    def name_of(self, name: str, search_path: Path) -> str:
        place = search_path / os.path.expanduser(name)
        is_place = (self.place == "folder" and "/" in name and place.is_dir()) or (
            self.place == "file" and place.is_file()
        )
        return str(place.resolve()) if is_place else name


_BUILDERS = {"infer": ("", "build"), "train": ("", "build_to_train"), "generate": ("_generation", "build")}
"""Task -> the ending of the module of its builders, and the function there."""
_BESIDE = {"train": ("training.py",)}
"""Task -> files of `models/FRAMEWORK/` that its builders are made of."""


def _lacking(task: str) -> tuple[str, str]:
    """What models of a hub lack that are not tuned for the task, and what to do."""
    return {
        "train": (
            "come without a loss",
            f"return one with its loss in a function of your own: {marked('build', 'FILE.py:FUNCTION')}",
        ),
        "generate": ("generate no text", f"take one of {HF.whose}, such as {marked('build', 'hf:llama')}"),
    }[task]


def require_count(argument: str, count: object) -> None:
    """Raises InputError for an argument of a builder that is no whole number above zero."""
    if not isinstance(count, int) or count < 1:
        raise InputError(f"{marked('arguments', {argument: count})}: must be a whole number above zero")


@contextmanager
def what_it_refuses(model: str, *more: type[Exception]) -> Iterator[None]:
    """What a package raises within, as it makes this model of given arguments, is an InputError. `more`: exceptions of
    this package beside the usual ones."""
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError, AssertionError, RuntimeError, *more)
    try:
        yield
    except refusals as error:
        raise InputError(f"{marked('build', model)}: {textwrap.shorten(str(error), 300)}") from error


def _shown(examples: tuple[str, ...]) -> str:
    return f"{', '.join(examples)}, ..."


HF = PackageHub(
    scheme=SCHEME,
    whose="Hugging Face",
    package="transformers",
    module="hugging_face",
    examples=EXAMPLES,
    install=install("hf"),
    about=f"any model type of Hugging Face transformers: {_shown(EXAMPLES)}",
    tasks=("infer", "train", "generate"),
    place="folder",
)
TIMM_HUB = PackageHub(
    scheme=TIMM,
    whose="timm",
    package="timm",
    module="timm_models",
    examples=TIMM_EXAMPLES,
    install=install("timm"),
    about=f"any model of timm: {_shown(TIMM_EXAMPLES)}",
)
MINDCV_HUB = PackageHub(
    scheme=MINDCV,
    whose="MindCV",
    package="mindcv",
    module="mindcv_models",
    examples=MINDCV_EXAMPLES,
    install="pip install mindcv",
    about=f"any model of MindCV: {_shown(MINDCV_EXAMPLES)}",
    framework="mindspore",
)
MINDONE_HUB = PackageHub(
    scheme=MINDONE,
    whose="MindOne",
    package="mindone",
    module="mindone_models",
    examples=MINDONE_EXAMPLES,
    install="pip install mindone==0.3.0 transformers==4.46.3",
    about=f"models of MindOne: {_shown(MINDONE_EXAMPLES)}",
    framework="mindspore",
    tasks=("infer",),
)
MINDYOLO_HUB = PackageHub(
    scheme=MINDYOLO,
    whose="MindYOLO",
    package="mindyolo",
    module="mindyolo_models",
    examples=MINDYOLO_EXAMPLES,
    install="pip install mindyolo opencv-python-headless pycocotools 'setuptools<80'",
    about="a configuration file of MindYOLO",
    framework="mindspore",
    tasks=("infer",),
    place="file",
)
