"""`Pipeline`: several models and a call that uses them, such as a text encoder, a denoiser and a decoder of images.

What is timed, compared and promised is the call. What is compiled are modules that it calls: a *component* is named by
its path from what holds it, such as `unet` or `vae.decoder`. A tuned component takes the place of the module there.
Pure: knows no framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError
from autotune.workload.regions import KNOB, Region


@dataclass(frozen=True)
class Pipeline:
    """Called with inputs alone; `call` is given what holds the components first."""

    holder: Any
    """A pipeline of a library, or an object with the components as attributes."""
    call: Callable[..., Any] | None = None
    """None: the holder itself is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.holder(*args, **kwargs) if self.call is None else self.call(self.holder, *args, **kwargs)

    @property
    def parts(self) -> dict[str, Any]:
        """The models that it holds, by name."""
        return models_in(self.holder)


def as_pipeline(given: Any) -> Any:
    """An object that can be called and holds models as a pipeline; anything else as it is."""
    is_code = isinstance(given, (type, partial)) or inspect.isroutine(given)
    if is_code or _is_model(given) or not callable(given) or not models_in(given):
        return given
    return Pipeline(given)


def held_components(components: Any, call: Any, model: str) -> Pipeline:
    """The pipeline of a dict of components, which `call` finds as attributes. Raises InputError about `model`."""
    names = [*components] if isinstance(components, Mapping) else []
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise InputError(
            f"{model} returned components that are no dict of models by name",
            tip='write it as {"components": {"unet": unet, "vae": vae}, "call": FUNCTION}',
        )
    return Pipeline(SimpleNamespace(**components), called(call, model))


def called(call: Any, model: str) -> Callable[..., Any]:
    """The `call` that a model's author gave. Raises InputError."""
    if not callable(call):
        raise InputError(
            f"{model} returned no call of its components",
            tip="a function that takes what holds them, and the inputs: def call(parts, x): return parts.vae(x)",
        )
    function: Callable[..., Any] = call
    return function


def pipeline_of(model: Any) -> Pipeline | None:
    """The pipeline whose call a backend's model makes; None for any other model."""
    found = getattr(model, "__dict__", {}).get("pipeline")
    return found if isinstance(found, Pipeline) else None


def models_in(holder: Any) -> dict[str, Any]:
    """The models that an object or a dict holds, by name."""
    held = holder if isinstance(holder, Mapping) else getattr(holder, "components", None)
    if not isinstance(held, Mapping):
        held = getattr(holder, "__dict__", {})
    return {name: part for name, part in held.items() if isinstance(name, str) and _is_model(part)}


def _is_model(value: Any) -> bool:
    return callable(value) and hasattr(type(value), "named_parameters")


def held_at(holder: Any, path: str) -> Any:
    """The module at a path. Raises InvalidConfigError where there is none."""
    found = holder
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        if found is None:
            have = ", ".join(models_in(holder)) or "none"
            raise InvalidConfigError(
                f"there is no component {path!r} in a {type(holder).__name__}", tip=f"its models are: {have}"
            )
    return found


def put_at(holder: Any, path: str, module: Any) -> None:
    """Put a module in the place of the one at the path."""
    above, _, name = path.rpartition(".")
    owner = held_at(holder, above) if above else holder
    if isinstance(owner, dict):
        owner[name] = module
    else:
        setattr(owner, name, module)


def configs_of(config: Config, parts: Mapping[str, Any] | list[str]) -> dict[str, Config]:
    """Path -> the config of each component that is not left as it is.

    The knob `region` names components by their paths, and blocks within one by patterns (`unet.blocks.*`). Without it
    the config is for each of the `parts`. Raises InvalidConfigError for a region that is none of these.
    """
    own = Config({name: value for name, value in config.root.items() if name != KNOB})
    region = Region.of(config)
    if region.left:
        raise InvalidConfigError(f"knob {KNOB}: {config[KNOB]!r} is for one model, and this is a pipeline")
    if region.is_whole:
        return dict.fromkeys(parts, own)
    inner: dict[str, list[str]] = {}
    for pattern in region.compiled:
        if "*" in pattern:
            part, _, rest = pattern.partition(".")
            inner.setdefault(part, []).append(rest)
    within = {part: Config({**own.root, KNOB: ", ".join(patterns)}) for part, patterns in inner.items()}
    return within | {pattern: own for pattern in region.compiled if "*" not in pattern}


MAX_PARTS = 3
"""Components that are compiled together at most, unless the author declares regions."""
MIN_SHARE = 0.01
"""Share of the call's time from which a component is worth a trial."""


def regions_of(shares: Mapping[str, float]) -> tuple[str, ...]:
    """Regions to try for components with these shares of the call's time: the one that takes most, then with it the
    next, and so on."""
    ordered = sorted(shares, key=lambda path: -shares[path])
    worth = [path for path in ordered if shares[path] >= MIN_SHARE][:MAX_PARTS] or ordered[:1]
    return tuple(", ".join(worth[:end]) for end in range(1, len(worth) + 1))
