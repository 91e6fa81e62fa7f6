"""Which parts of a PyTorch model are compiled: the whole, chosen modules, or the whole around some."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

from autotune.backends.torch.compiler import Compile, Entry, setting_name
from autotune.errors import InvalidConfigError
from autotune.workload.regions import KNOB, Region, matching_paths

_DYNAMO, _LIMIT = "torch._dynamo.config", "recompile_limit"


def modules(model: torch.nn.Module) -> Mapping[str, torch.nn.Module]:
    """By their paths; a module that stands in two places has the first one's."""
    return dict(model.named_modules())


def check(model: torch.nn.Module, region: Region) -> None:
    """Raises InvalidConfigError for paths that are not there, and for modules that are never called."""
    _chosen(model, region)


def compile_region(model: torch.nn.Module, step: torch.nn.Module, region: Region, compile_: Compile) -> Any:
    """`step`, which is the model or stands around it, with the region compiled at its first call.

    Chosen modules are compiled in place, as `nn.Module.compile` does it, so that `step` itself is what is called.
    Dynamo does not compile a loop around a module that is left, and says so (torch 2.13): its other modules are
    compiled then.
    """
    if not region.compiled:
        leave(model, region)
        return compile_(step)
    for each in _chosen(model, region):
        each._compiled_call_impl = compile_(each._call_impl)
    return step


def leave(model: torch.nn.Module, region: Region) -> None:
    """Tell the compiler to leave the modules as they are that the region leaves out."""
    disable: Any = torch.compiler.disable
    for each in _chosen(model, region):
        each.forward = disable(each.forward)


def room_for(model: torch.nn.Module, region: Region, dynamo_options: Mapping[str, object]) -> list[Entry]:
    """Modules of one class share dynamo's limit of compilations, 8. Equal ones share one compilation too, but not if
    they are frozen, and past the limit they would run eagerly without a word (measured on torch 2.13)."""
    if not region.compiled:
        return []
    config = importlib.import_module(_DYNAMO)
    name = setting_name(config, _LIMIT)
    limit: Any = dynamo_options.get(_LIMIT, getattr(config, name))
    return [(config, name, limit + len(_chosen(model, region)))]


def compiled_paths(model: torch.nn.Module) -> list[str]:
    """Modules that are compiled each on its own, as the model tells."""
    return [path for path, each in model.named_modules() if each._compiled_call_impl is not None]


def left_paths(model: torch.nn.Module) -> list[str]:
    """Modules that the compiler is told to leave as they are, as the model tells."""
    return [path for path, each in model.named_modules() if _is_left(each)]


def _chosen(model: torch.nn.Module, region: Region) -> list[torch.nn.Module]:
    """Modules to compile, or to leave."""
    found = modules(model)
    paths = matching_paths((*region.compiled, *region.left), found)
    for path in paths:
        if type(found[path]).forward is torch.nn.Module.forward:
            raise InvalidConfigError(
                f"knob {KNOB}: {path} is a {type(found[path]).__name__}, which is never called itself",
                tip=f"write '{path}.*' for what is in it",
            )
    return [found[path] for path in paths]


def _is_left(module: torch.nn.Module) -> bool:
    return bool(getattr(vars(module).get("forward"), "_torchdynamo_disable", False))
