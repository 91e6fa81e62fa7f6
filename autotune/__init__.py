"""autotune: find, prove and ship the best compile configuration of a deep-learning model.

In a job, two lines: `import autotune` and `model = autotune.load("best.yaml").apply(model)`. To tune from Python or a
notebook: `result = autotune.tune(build)` (docs/python-api.md).
"""

from __future__ import annotations

from autotune.version import __version__

TYPE_CHECKING = False
"""True for type checkers, which know the name. Python's own would cost the import of `typing`, in which an interrupt of
the command line would still have a traceback (`autotune.__main__`)."""

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from typing import Any

    from autotune.api import events
    from autotune.api.callbacks import CallbackError
    from autotune.api.result import TuneResult
    from autotune.api.side_by_side import compare, verify
    from autotune.api.tuning import load_study, resume, tune
    from autotune.errors import AutotuneError, InputError
    from autotune.job.fallback import MismatchError
    from autotune.job.load import Loaded

    diagnose: Callable[..., Any]
    expose: Callable[..., None]
    verify_against: Callable[..., Any]
    watch: Callable[..., Any]

__all__ = [
    "AutotuneError",
    "CallbackError",
    "InputError",
    "MismatchError",
    "TuneResult",
    "__version__",
    "compare",
    "diagnose",
    "events",
    "expose",
    "load",
    "load_study",
    "prepare",
    "resume",
    "stats",
    "tune",
    "verify",
    "verify_against",
    "watch",
]

_PLACES = {
    "AutotuneError": "autotune.errors",
    "CallbackError": "autotune.api.callbacks",
    "InputError": "autotune.errors",
    "MismatchError": "autotune.job.fallback",
    "TuneResult": "autotune.api.result",
    "compare": "autotune.api.side_by_side",
    "events": "autotune.api.events",
    "load_study": "autotune.api.tuning",
    "resume": "autotune.api.tuning",
    "tune": "autotune.api.tuning",
    "verify": "autotune.api.side_by_side",
}
"""Public name -> its module, which is imported when the name is asked for: a job that loads a config must not pay for
the search."""


def load(path: str | PathLike[str]) -> Loaded:
    """The tuned config in the YAML file at `path`, ready to `.apply(model)`.

    Never raises: a file that is missing or broken is what `apply` has a policy for. Importing this package costs a
    training job next to nothing: no framework and no search engine comes with it.
    """
    from autotune.job.load import load as load_answer

    return load_answer(path)


def stats(model: Any) -> Any:
    """What a model that `apply` gave has done until now; None for any other object."""
    from autotune.job.stats import recorder_of

    recorder = recorder_of(model)
    return None if recorder is None else recorder.stats()


def prepare(model: Any, /, *args: Any, **kwargs: Any) -> None:
    """Make the first call of a tuned model or training step before the job's own, with a batch as the job will have.

    `model` is what `apply` or `training_step` gave, or a wrapper of distributed training around it. It is called with
    the arguments, and differentiated where the call records gradients: that compiles. Then weights, gradients, buffers,
    attributes and generators of random numbers are as before, and an optimizer has taken no step. In a distributed job
    all ranks call this; they agree on how it went, and go on together: either all are tuned or none is. Raises
    InputError for any other object. What fails leaves the model untuned, with one warning.
    """
    from autotune.job.ranks import prepare as rehearse

    rehearse(model, args, kwargs)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PLACES:
        if _PLACES[name].startswith("autotune.api."):
            from autotune.command_line import require_tuning

            require_tuning()
        module = import_module(_PLACES[name])
        return getattr(module, name, module)
    found = _behind_the_door(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def _behind_the_door(name: str) -> Any:
    """The function that a package adds under this name (`autotune.uses`); None for none, and for a module of this
    package, which Python asks for before it imports one."""
    from importlib.util import find_spec

    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
        return None
    from autotune.doors import USES

    return USES.require(name) if name in __all__ else USES.find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
