"""The call of a pipeline as a module, and which of its components that call calls.

A library's pipeline is called with what its call needs to be the same each time: a new generator of random numbers
where it takes one, and pictures as numbers instead of images of 8 bits, in which no small error shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from autotune.nesting import with_leaves
from autotune.workload.arguments import Arguments
from autotune.workload.components import Pipeline

SEED = 0
"""Seed of the generator that a pipeline is given if it takes one and its inputs have none."""


class PipelineModel(torch.nn.Module):
    """A module whose calls are those of a pipeline. Its parameters are those of the components."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.components = torch.nn.ModuleDict(pipeline.parts)
        # The components have modes of their own.
        self.training = self.components.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return with_leaves(self._result(*args, **kwargs), _as_tensor)

    def _result(self, *args: Any, **kwargs: Any) -> Any:
        if self.pipeline.call is not None:
            return self.pipeline(*args, **kwargs)
        given = {name: _begun_anew(value) for name, value in kwargs.items()}
        return self.pipeline(*args, **{**_usual(self.pipeline.holder), **given})


def _as_tensor(leaf: Any) -> Any:
    """A pipeline of transformers gives scores as numbers, which are compared as the tensors that they were."""
    return torch.tensor(leaf, dtype=torch.float64) if type(leaf) is float else leaf


def _usual(holder: Any) -> dict[str, Any]:
    """Arguments of a pipeline's call that its inputs need not have."""
    taken = inspect.signature(type(holder).__call__).parameters
    usual: dict[str, Any] = {}
    if "generator" in taken:
        usual["generator"] = torch.Generator().manual_seed(SEED)
    if "output_type" in taken and taken["output_type"].default == "pil":
        usual["output_type"] = "np"
    return usual


def _begun_anew(value: Any) -> Any:
    """A generator in the state that the one among the inputs has: a call goes on from where it begins."""
    if isinstance(value, list):
        return [_begun_anew(each) for each in value]
    if not isinstance(value, torch.Generator):
        return value
    other = torch.Generator(value.device)
    other.set_state(value.get_state())
    return other


def watch_components(
    model: torch.nn.Module,
    begun: Callable[[str, torch.nn.Module, Arguments], None],
    ended: Callable[[str], None],
) -> Callable[[], None]:
    """See `ComponentWatch`."""
    watch = _Watch(begun, ended)
    handles = []
    for path, module in _paths(model):
        handles.append(module.register_forward_pre_hook(partial(watch.enter, path), with_kwargs=True))
        handles.append(module.register_forward_hook(partial(watch.leave, path), always_call=True))

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


class _Watch:
    """Calls that are under way."""

    def __init__(self, begun: Callable[[str, torch.nn.Module, Arguments], None], ended: Callable[[str], None]) -> None:
        self._begun = begun
        self._ended = ended
        self._num_within = 0

    def enter(self, path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._num_within += 1
        if self._num_within == 1:
            self._begun(path, module, Arguments(args, kwargs or None))

    def leave(self, path: str, *_: Any) -> None:
        self._num_within -= 1
        if not self._num_within:
            self._ended(path)


def _paths(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module of the components, by its path from what holds them; one that stands in two places once."""
    if isinstance(model, PipelineModel):
        yield from ((path, module) for path, module in model.components.named_modules() if path)
