"""The model under a config: its variants, what the backend compiles, and around that the config's shape strategy.

A variant is another implementation of a part of a model that computes the same: a function that changes a model in
place by setting attributes of its modules (a layer, a method, a flag). It is given a copy of the model's modules that
shares their weights. Backends know nothing of variants.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from autotune.apply import shape_strategies
from autotune.apply.config_parts import ConfigParts
from autotune.apply.shape_strategies import Step, StrategyContext
from autotune.backends.capabilities import require
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import VARIANT, Config
from autotune.errors import InvalidConfigError, MissingVariantError
from autotune.workload.build import MODEL_FILE, Apply, Variants
from autotune.workload.components import configs_of, held_at, pipeline_of, put_at
from autotune.workload.traffic import Shapes

Places = Mapping[str, str | None]
"""Variant -> `package.module:function` of the value that a config has, for people to read; None: it has no name."""


def compile_under(
    backend: Backend,
    model: Any,
    config: Config,
    variants: Iterable[Apply],
    changes: UndoLog,
    *,
    shapes: Shapes | None = None,
) -> Callable[..., Any]:
    """The model under `config`, its variants first: what a trial runs, and what a job gets. See `Backend.compile`.

    `variants` are the functions that the config asks for (`declared_functions` or `given_functions`), `shapes` is the
    traffic that its shape strategy goes by. Raises InvalidConfigError.
    """
    rewritten, around = _rewritten(backend, model, config, variants)
    step = around(backend.compile(rewritten, ConfigParts.of(config).settings, changes))
    return shape_strategies.with_strategy(StrategyContext(backend, model, step, changes, shapes), config)


def pipeline_under(backend: Backend, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
    """The call of a pipeline, of which `model` is the backend's, with tuned modules in the places of its components.
    Raises InvalidConfigError."""
    pipeline = pipeline_of(model)
    assert pipeline is not None
    for path, own in configs_of(config, [*pipeline.parts]).items():
        module = held_at(pipeline.holder, path)
        step = compile_under(backend, module, own, (), changes)
        if step is not module:
            tuned = backend.proxies.proxy(module, step, backend.proxies.direct(step), changes)
            put_in_place(pipeline.holder, path, tuned, changes)
    step_of_all: Callable[..., Any] = backend.proxies.direct(model)
    return step_of_all


def put_in_place(holder: Any, path: str, module: Any, changes: UndoLog) -> None:
    """Put a module where a pipeline has another one, until it is undone."""
    before = held_at(holder, path)
    changes.make(partial(put_at, holder, path, module), partial(put_at, holder, path, before))


def program(backend: Backend, model: Any, config: Config) -> str | None:
    """`Backend.program` with the config's variants, which do not show in what is not compiled, the knobs of a shape
    strategy, which decide about calls that are still to come, and what the process was started with. None where the
    backend gives no digest."""
    parts = ConfigParts.of(config)
    digest = None if backend.program is None else backend.program(model, parts.settings)
    content = [
        digest,
        parts.variants,
        *(further for further in (parts.new_shapes, parts.start.facts, parts.generation) if further),
    ]
    if digest is None or not any(content[1:]):
        return digest
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def declared_functions(config: Config, variants: Variants) -> list[Apply]:
    """The functions of a config, from what the model's author declared. Raises InvalidConfigError."""
    functions = []
    for name, value in ConfigParts.of(config).variants.items():
        if value not in variants.get(name, {}):
            raise InvalidConfigError(f"knob {VARIANT}{name}: the model declares no variant {value!r}")
        function = variants[name][value]
        if function is not None:
            functions.append(function)
    return functions


def given_functions(config: Config, places: Places, given: Variants) -> list[Apply]:
    """The functions of an exported config in a job, out of those that the job gives: a file names them, and nothing
    that a file names is ever imported or called.

    `places` has the variants that are not the model as it is. Raises MissingVariantError.
    """
    functions = []
    for name, value in ConfigParts.of(config).variants.items():
        if name not in places:
            continue
        function = given.get(name, {}).get(value)
        if function is None:
            place = f" (in the study: {places[name]})" if places[name] else ""
            raise MissingVariantError(
                f"the config uses the variant {name}={value}{place}, whose function the job must give: "
                "a file cannot name code to run",
                tip=f"give it: apply(model, variants={{{name!r}: {{{value!r}: FUNCTION}}}})",
            )
        functions.append(function)
    return functions


def place_of(function: Apply | None) -> str | None:
    """`package.module:function`, if that is where the function is found under its own name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or module.startswith(MODEL_FILE):
        return None
    place = f"{module}:{name}"
    try:
        return place if _found(place) is function else None
    except (ImportError, AttributeError):
        return None


def _rewritten(
    backend: Backend, model: Any, config: Config, variants: Iterable[Apply]
) -> tuple[Any, Callable[[Step], Step]]:
    """What is compiled in place of the model, with its variants; and what has to stand around the compiled step."""
    functions = list(variants)
    has_region = ConfigParts.of(config).has_region
    if not functions and not has_region:
        return model, lambda step: step
    regions = require(backend.regions, "knobs region and variant")
    if not functions and not regions.rewrites:
        return model, lambda step: step
    copy = regions.copy_modules(model)
    for apply in functions:
        apply(copy.model)
    return copy.model, copy.around


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
