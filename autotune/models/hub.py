"""Models of Hugging Face transformers by name, `hf:NAME`: what is imported for one.

A name without a slash is a model type (`hf:llama`), built from its configuration with random weights. One with a slash
is a model of the Hub (`hf:google/vit-base-patch16-224`) or a folder (`hf:./my_model`), with its own weights.

Importing this file imports neither transformers nor a framework.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from autotune.environment import package_version
from autotune.errors import InputError, MissingFrameworkError

SCHEME = "hf:"
EXAMPLES = ("hf:vit", "hf:bert", "hf:gpt2", "hf:llama")


def reference(model: str, framework: str) -> tuple[str, str]:
    """The import reference of the builder, and a digest of what holds the model's code: builder and transformers.

    Raises InputError for an empty name or another framework than torch, MissingFrameworkError without transformers.
    """
    if model == SCHEME:
        raise InputError(f"--model {model}: names no model", tip=f"for example: {', '.join(EXAMPLES)}")
    if framework != "torch":
        raise InputError(
            f"--model {model}: the models of Hugging Face are written in torch, and this is a study of {framework}",
            tip="use --framework torch",
        )
    release = package_version("transformers")
    if release is None:
        raise MissingFrameworkError(
            f"--model {model}: the package transformers is not installed in this Python environment",
            tip="run: pip install 'autotune-compile[hf]'",
        )
    builder = (Path(__file__).parent / "torch" / "hugging_face.py").read_bytes()
    return "autotune.models.torch.hugging_face:build", hashlib.sha256(builder + release.encode()).hexdigest()


def name_of(model: str, search_path: Path) -> str:
    """The NAME of `hf:NAME`; that of a folder, which is seen from `search_path`, as an absolute path."""
    name = model.removeprefix(SCHEME)
    folder = search_path / Path(name).expanduser()
    return str(folder.resolve()) if "/" in name and folder.is_dir() else name
