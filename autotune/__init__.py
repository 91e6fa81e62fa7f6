"""autotune: find, prove and ship the best compile configuration of a deep-learning model.

In a job, two lines: `import autotune` and `model = autotune.load("best.yaml").apply(model)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from autotune.tuned import TunedConfig

__version__ = "0.1.0"

__all__ = ["__version__", "load"]


def load(path: str | PathLike[str]) -> TunedConfig:
    """The tuned config in the YAML file at `path`, ready to `.apply(model)`. Raises InputError.

    Importing this package costs a training job next to nothing: no framework and no search engine comes with it.
    """
    from autotune.tuned import load_tuned

    return load_tuned(path)
