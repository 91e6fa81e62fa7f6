"""Models of MindYOLO: from a configuration file of its repository to a Cell and the image to call it with. Checked with
0.5.0 beside MindSpore 2.10. Its wheel has no such files: they are in `configs/` of a clone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore
import numpy as np

from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, marked, quoted
from autotune.files import read_yaml
from autotune.models import weights
from autotune.plugins.hubs.hubs import MINDYOLO, require_count, what_it_refuses

__all__ = ["build"]

_BASES = "__BASE__"
"""Key with the files that a configuration file adds to, seen from its folder."""
_DEEPEST = 8
_IMAGE_SIZE, _NUM_CLASSES = 640, 80


def build(
    name: str, *, batch: int = 1, image_size: int | None = None, seed: int = 0, **fields: Scalar
) -> tuple[mindspore.nn.Cell, mindspore.Tensor]:
    """The Cell in evaluation mode, and its input of (batch, 3, image_size, image_size).

    `name` is the path of the configuration file; `image_size` is what that says unless another is given, and `fields`
    are numbers of its `network` (`depth_multiple`, `width_multiple`, `nc`). Raises InputError for what MindYOLO does
    not have or does not take.
    """
    require_count("batch", batch)
    config = _configuration(Path(name))
    network = config.get("network")
    if not isinstance(network, Mapping) or "model_name" not in network:
        raise InputError(f"{marked('build', MINDYOLO + name)}: has no network with a model_name", tip=_WHERE)
    known = [key for key, value in network.items() if isinstance(value, (int, float))]
    for field in fields:
        if field not in known:
            raise InputError(
                f"{marked('arguments')} {field}: {name} has no such number in its network",
                tip=f"{did_you_mean(field, known)}it takes batch, image_size, seed, {', '.join(known)}",
            )
    size = config.get("img_size", _IMAGE_SIZE) if image_size is None else image_size
    require_count("image_size", size)
    np.random.seed(seed)  # Its layers draw their weights from both.
    mindspore.set_seed(seed)
    model = _made(name, {**network, **fields})
    model.set_train(False)
    return model, mindspore.Tensor(weights.normal_input((batch, 3, size, size), seed))


_WHERE = "name a file such as configs/yolov8/yolov8n.yaml of a clone of MindYOLO, whose wheel has none"


def _made(name: str, network: Mapping[str, Any]) -> Any:
    try:
        factory = importlib.import_module("mindyolo.models.model_factory")
        attributes = importlib.import_module("mindyolo.utils.config").Config(dict(network))
    except Exception as error:
        raise InputError(
            f"{marked('build', MINDYOLO + name)}: mindyolo cannot be imported: {quoted(error)}",
            tip="it needs opencv-python-headless, pycocotools, tqdm, pillow and setuptools below 80",
        ) from error
    with what_it_refuses(MINDYOLO + name, KeyError, AttributeError):
        return factory.create_model(
            network["model_name"], model_cfg=attributes, num_classes=network.get("nc", _NUM_CLASSES), sync_bn=False
        )


def _configuration(path: Path, depth: int = 0) -> dict[str, Any]:
    """What stands in the file, over what stands in the files that it adds to."""
    if path.suffix not in (".yaml", ".yml") or not path.is_file() or depth > _DEEPEST:
        raise InputError(f"{marked('build', f'{MINDYOLO}{path}')}: is no configuration file", tip=_WHERE)
    own = read_yaml(path)
    below: dict[str, Any] = {}
    for base in own.pop(_BASES, None) or ():
        below = _over(_configuration(path.parent / str(base), depth + 1), below)
    return _over(own, below)


def _over(own: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in own.items():
        under = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        merged[key] = _over(value, under) if both and isinstance(under, Mapping) else value
    return merged
