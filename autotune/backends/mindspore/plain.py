"""A config as one line of plain MindSpore, for whoever wants to read, check or use it without this package.

MindSpore knows most settings for the whole process only: they stand in front in the same line. What has to be set
before the process starts is named beside it. No mindspore in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.backends.mindspore.knobs import CompileArguments, compile_arguments
from autotune.backends.protocol import PlainCode
from autotune.config import Config
from autotune.workload.regions import Region
from autotune.workload.workload import Device, Task

_PLAIN_STRATEGIES = (None, "static", "automatic")
"""Values of the knob `shapes` that are nothing but settings of the compiler."""


def plain_code(config: Config, version: str, device: Device, task: Task) -> PlainCode | None:
    """The line; None where no line does what the config does. Raises InvalidConfigError."""
    arguments = compile_arguments(config, version, device, task)
    compiles = arguments.jit is not None or arguments.whole_graph
    if not compiles or arguments.region != Region() or config.get("shapes") not in _PLAIN_STRATEGIES:
        return None
    beside = [f"set {name}={value} before the process starts" for name, value in arguments.variables.items()]
    if task == "train" and config.get("scope") != "model":
        beside.append("the training step is compiled, not the model alone")
    return PlainCode("; ".join(_statements(arguments)), tuple(beside))


def _statements(arguments: CompileArguments) -> Iterator[str]:
    context = {**arguments.context, **arguments.compiling}
    if arguments.whole_graph:
        mode = "mode=mindspore.GRAPH_MODE"
        yield f"mindspore.set_context({', '.join([mode, *_named(context)])})"
    elif context:
        yield f"mindspore.set_context({', '.join(_named(context))})"
    for function, given in arguments.calls.items():
        yield f"mindspore.{function}({', '.join(_named(given))})"
    if arguments.mixed_precision is not None:
        level, kind = arguments.mixed_precision
        yield f"model = mindspore.amp.auto_mixed_precision(model, {_written(level)}, mindspore.{kind})"
    config = f"mindspore.JitConfig({', '.join(_named(arguments.jit_config))})"
    if arguments.whole_graph:
        yield f"model.set_jit_config({config})"
    else:
        before_2_6 = [f"jit_config={config}"] if arguments.jit_config else []
        yield f"call = mindspore.jit({', '.join(['model', *_named(arguments.jit or {}), *before_2_6])})"


def _named(given: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_written(value)}" for name, value in given.items()]


def _written(value: object) -> str:
    """As Python code, texts in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)
