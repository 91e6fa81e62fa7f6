"""The models of the zoo: nobody here wrote them, they are small, and their weights are random.

Each is named as a user would name it. Those that need a function of their own have it in `models/zoo/`. Untuned, a call
takes between 70 microseconds and 1.3 seconds on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from autotune.config import Scalar
from benchmarks.evidence import REPOSITORY

LIBRARIES = REPOSITORY / "build" / "zoo"
"""What `make zoo` installs, a folder for each of the files `models/zoo/NAME.txt`."""
FUNCTIONS = REPOSITORY / "benchmarks" / "models" / "zoo"


@dataclass(frozen=True)
class ZooModel:
    """A model, and where it comes from."""

    name: str
    about: str
    library: str
    """The package that it is of, as it is imported."""
    model: str
    """What `--model` takes."""
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    folder: str | None = None
    """Of `LIBRARIES`; None: the library belongs to the environment itself."""
    framework: Literal["torch", "mindspore"] = "torch"
    task: Literal["infer", "train"] = "infer"

    @property
    def path(self) -> Path | None:
        """What is to be on the path of all processes."""
        return LIBRARIES / self.folder if self.folder else None

    @property
    def is_installed(self) -> bool:
        """Looked for without importing it."""
        places = [str(self.path), *sys.path] if self.path else sys.path
        return PathFinder.find_spec(self.library, places) is not None


def _of_type(kind: str, about: str, name: str = "", **arguments: Scalar) -> ZooModel:
    """A model type of transformers."""
    return ZooModel(name or kind, about, "transformers", f"hf:{kind}", arguments)


def _function(name: str, about: str, library: str = "transformers") -> ZooModel:
    """A function of our own that makes a torch model."""
    place = f"{FUNCTIONS}/{_FILES[library]}:{name}"
    return ZooModel(name, about, library, place, folder=None if library == "transformers" else "torch")


def _timm(name: str, about: str, **arguments: Scalar) -> ZooModel:
    return ZooModel(name, about, "timm", f"timm:{name}", arguments, folder="timm")


def _mindspore(name: str, about: str, library: str, function: str, **arguments: Scalar) -> ZooModel:
    place = f"{FUNCTIONS}/mindspore_models.py:{function}"
    return ZooModel(name, about, library, place, arguments, folder="mindspore", framework="mindspore")


_FILES = {
    "transformers": "transformers_models.py",
    "diffusers": "diffusers_models.py",
    "torch_geometric": "geometric_models.py",
}

MODELS = (
    _of_type("bert", "text encoder", hidden_size=256, num_hidden_layers=4, seq=64),
    _of_type("gpt2", "decoder, prefill", head="causal", hidden_size=128),
    _of_type("llama", "decoder, prefill", head="causal", hidden_size=128),
    _of_type("mixtral", "mixture of experts", head="causal"),
    _of_type("mamba", "state space", head="causal"),
    _of_type("t5", "encoder and decoder", hidden_size=128),
    _of_type("segformer", "segmentation", image_size=128),
    _function("whisper", "speech to text"),
    _function("wav2vec2", "waveform"),
    _function("detr", "detection"),
    _function("clip", "texts and images"),
    _function("patchtst", "time series"),
    _timm("resnet50", "convolution", image_size=96),
    _timm("mobilenetv4_conv_small", "convolution by channel", image_size=128),
    _timm("convnext_tiny", "convolution, large kernels", image_size=96),
    _function("unet", "denoising", "diffusers"),
    _function("vae_decoder", "latents to a picture, a method", "diffusers"),
    _function("gcn", "graph", "torch_geometric"),
    _function("mlp", "70 microseconds a call", "torch_geometric"),
    ZooModel("lora", "adapters, training", "peft", f"{FUNCTIONS}/peft_models.py:lora", folder="torch", task="train"),
    _mindspore("mindcv_mobilenet", "convolution", "mindcv", "mindcv", network="mobilenet_v3_small_100"),
    _mindspore("mindcv_resnet50", "a second a call", "mindcv", "mindcv", network="resnet50"),
    _mindspore("mindone_bert", "text encoder", "mindone", "mindone_bert"),
    _mindspore("mindone_t5", "text encoder", "mindone", "mindone_t5"),
)
