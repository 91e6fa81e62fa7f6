"""Which parts of a PyTorch model are compiled (the whole, chosen modules, or the whole around some), and the copy of it
that is rewritten for that."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_
from types import MethodType
from typing import Any

import torch

from autotune.backends.torch.compiler import Compile, Entry, setting_name
from autotune.errors import InvalidConfigError, UnsuitableCallError
from autotune.workload.regions import KNOB, Region, matching_paths

rewrites = True
"""See `Regions`."""
_DYNAMO, _LIMIT = "torch._dynamo.config", "recompile_limit"


def modules(model: torch.nn.Module) -> Mapping[str, torch.nn.Module]:
    """By their paths; a module that stands in two places has the first one's."""
    return dict(model.named_modules())


def check_region(model: torch.nn.Module, region: str) -> None:
    """See `Regions`."""
    chosen(model, Region.parse(region))


def copy_modules(model: torch.nn.Module) -> ModelCopy:
    """See `Regions`."""
    return ModelCopy(model)


def compile_region(model: torch.nn.Module, step: torch.nn.Module, region: Region, compile_: Compile) -> Any:
    """`step`, which is the model or stands around it, with the region compiled at its first call.

    Chosen modules are compiled in place, as `nn.Module.compile` does it, so that `step` itself is what is called.
    Dynamo does not compile a loop around a module that is left, and says so (torch 2.13): its other modules are
    compiled then.
    """
    if not region.compiled:
        disable: Any = torch.compiler.disable
        for module in chosen(model, region):
            module.forward = disable(module.forward)
        return compile_(step)
    for module in chosen(model, region):
        module._compiled_call_impl = compile_(module._call_impl)
    return step


def room_for(model: torch.nn.Module, region: Region, dynamo_options: Mapping[str, object]) -> list[Entry]:
    """Dynamo's limit of compilations, 8, for each module. Modules of one class share the limit. Equal ones share one
    compilation too, but not if they are frozen or differ in an attribute such as the number of their layer, and past
    the limit they would run eagerly without a word (measured on torch 2.13)."""
    if not region.compiled:
        return []
    config = importlib.import_module(_DYNAMO)
    name = setting_name(config, _LIMIT)
    limit: Any = dynamo_options.get(_LIMIT, getattr(config, name))
    return [(config, name, limit * len(chosen(model, region)))]


def compiled_paths(model: torch.nn.Module) -> list[str]:
    """Modules that are compiled each on its own, as the model tells."""
    return [path for path, module in model.named_modules() if module._compiled_call_impl is not None]


def left_paths(model: torch.nn.Module) -> list[str]:
    """Modules that the compiler is told to leave as they are, as the model tells."""
    forwards = [(path, vars(module).get("forward")) for path, module in model.named_modules()]
    return [path for path, forward in forwards if getattr(forward, "_torchdynamo_disable", False)]


def chosen(model: torch.nn.Module, region: Region) -> list[torch.nn.Module]:
    """Modules to compile, or to leave. Raises InvalidConfigError for paths that are not there, and for modules that are
    never called."""
    found = modules(model)
    paths = matching_paths((*region.compiled, *region.left), found)
    for path in paths:
        if type(found[path]).forward is torch.nn.Module.forward:
            raise InvalidConfigError(
                f"knob {KNOB}: {path} is a {type(found[path]).__name__}, which is never called itself",
                tip=f"write '{path}.*' for what is in it",
            )
    return [found[path] for path in paths]


# A copy of a model's modules that shares its weights: what regions and variants rewrite in place of the job's model.
#
# Only modules that were rewritten, and those that hold them, stay copies; all others are the job's own. A copy holds
# the very dictionaries of parameters and buffers that the original holds, so weights, gradients and checkpoints are
# one. Plain attributes are brought along at each call, from the job's modules before it and back to them after it.
# The same idea as `torch.nn.parallel.replicate`, which shares no attributes.

_COMPILED = "_compiled_call_impl"
_PARTS = ("_modules", "_parameters", "_buffers")
"""Dictionaries in which a module keeps what it is made of."""
_OWN = frozenset({*_PARTS, _COMPILED, "forward"})
"""Attributes that a copy has for itself."""


@dataclass
class _Pair:
    """A module of the job and its copy, with what both held when they were last made equal."""

    original: torch.nn.Module
    copy: torch.nn.Module
    kind: type
    """The original's class."""
    forward: Any
    """What the original has in place of its class's method."""
    parts: list[tuple[dict[str, Any], dict[str, Any]]]
    """Dictionaries of the original that the copy does not share, and their content then."""
    of_original: dict[str, Any]
    of_copy: dict[str, Any]
    containers: dict[str, list[_Container]] = field(default_factory=dict)
    """By attribute: what the two do not share, since modules are in it."""

    def __post_init__(self) -> None:
        for name in vars(self.original).keys() - _OWN:
            self._watch(name)

    def is_other_model(self) -> bool:
        """The job gave the original another class or method `forward`, replaced parts of it that the copy does not
        share, or changed a list of modules."""
        return (
            type(self.original) is not self.kind
            or vars(self.original).get("forward") is not self.forward
            or not all(_same(now, then) for now, then in self.parts)
            or (bool(self.containers) and self.has_other_contents())
        )

    def has_other_contents(self) -> bool:
        """Items of a list or dict changed that the original and the copy each have for themselves."""
        return any(container.has_changed() for found in self.containers.values() for container in found)

    def bring_along(self, by: dict[Any, Any]) -> None:
        """What the job changed in the original goes to the copy; what happens to the copy meanwhile is still news."""
        if not _same(vars(self.original), self.of_original):
            self.of_original = self._carry(self.of_original, self.original, self.copy, self.of_copy, by)

    def bring_back(self, by: dict[Any, Any]) -> None:
        """What a call changed in the copy goes to the original; what the job changed there meanwhile is still news."""
        if not _same(vars(self.copy), self.of_copy):
            self.of_copy = self._carry(self.of_copy, self.copy, self.original, self.of_original, by)

    def _carry(
        self,
        before: dict[str, Any],
        source: torch.nn.Module,
        target: torch.nn.Module,
        of_target: dict[str, Any],
        by: dict[Any, Any],
    ) -> dict[str, Any]:
        """Set in the target, and note, what changed in the source since `before`; what the source holds now."""
        now = dict(vars(source))
        for name in before.keys() | now.keys():
            if name in _OWN or (name in before and name in now and before[name] is now[name]):
                continue
            if name in now:
                vars(target)[name] = of_target[name] = _replaced(now[name], by)
            else:
                vars(target).pop(name, None)
                of_target.pop(name, None)
            self._watch(name)
        return now

    def _watch(self, name: str) -> None:
        self.containers.pop(name, None)
        values = [vars(module).get(name) for module in (self.original, self.copy)]
        if values[0] is not values[1]:
            one, other = ({id(container.container): container for container in _containers(value)} for value in values)
            if alone := one.keys() ^ other.keys():
                self.containers[name] = [container for key, container in (one | other).items() if key in alone]


@dataclass(frozen=True)
class _Container:
    """A list or dict that holds modules, or stands in place of one that does, and its items then."""

    container: list[Any] | dict[Any, Any]
    items: list[Any]

    def has_changed(self) -> bool:
        now = _items(self.container)
        return len(now) != len(self.items) or not all(map(is_, now, self.items))


def _items(container: list[Any] | dict[Any, Any]) -> list[Any]:
    return list(container) if isinstance(container, list) else [*container, *container.values()]


def _containers(value: Any) -> Iterator[_Container]:
    """Those of which `_replaced` makes others, at any depth."""
    if type(value) in (list, dict):
        yield _Container(value, _items(value))
    if type(value) in (list, dict, tuple):
        for part in value.values() if type(value) is dict else value:
            yield from _containers(part)


@dataclass(frozen=True)
class _Held:
    """What a module held when the copy was made."""

    kind: type
    attributes: dict[str, Any]
    parts: dict[str, dict[str, Any]]

    @classmethod
    def by(cls, module: torch.nn.Module) -> _Held:
        held = vars(module)
        return cls(type(module), dict(held), {name: dict(held[name]) for name in _PARTS})


@dataclass(frozen=True)
class _Weight:
    """A parameter or buffer of the job's model when the copy was made."""

    holder: dict[str, Any]
    name: str
    tensor: torch.Tensor
    writes: tuple[int, int] | None

    def has_changed(self) -> bool:
        return self.holder.get(self.name) is not self.tensor or _writes(self.tensor) != self.writes


class _Replaced:
    """Weights of the job in place of which a variant put others, as quantisation does: what it made of them holds for
    as long as they are what they were, and takes no gradient to them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = list(_weights(model))

    def settle(self, copy: torch.nn.Module) -> None:
        """The variants have run: the weights that the copy still holds are none of them."""
        held = {id(weight.tensor) for weight in _weights(copy)}
        self._weights = [weight for weight in self._weights if id(weight.tensor) not in held]

    def require_unchanged(self) -> None:
        """Raises UnsuitableCallError."""
        if any(weight.has_changed() for weight in self._weights):
            raise UnsuitableCallError(
                "the model's weights changed after a variant of the config had made others of them",
                tip="apply the config again once the weights are final",
                lasting=True,
            )


class ModelCopy:
    """The copy of one model, and what brings it up to date around each call."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._lock = threading.Lock()
        self._copies: dict[Any, Any] = {module: module.__new__(type(module)) for module in model.modules()}
        self._originals = {copy: original for original, copy in self._copies.items()}
        for original, copy in self._copies.items():
            held = {name: _replaced(value, self._copies) for name, value in vars(original).items()}
            # What rewrites the copy may add to them and take from them.
            held |= {name: dict(held[name]) for name in _PARTS} | {_COMPILED: None}
            object.__setattr__(copy, "__dict__", held)
        self._begun = {copy: _content(copy) for copy in self._originals}
        # The job may change its model before the first call.
        self._then = {original: _Held.by(original) for original in self._copies}
        self._replaced = _Replaced(model)
        self.model: torch.nn.Module = self._copies[model]
        self._pairs: list[_Pair] | None = None
        _NEWEST[model] = self.model

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._pairs is None:
                self._settle()
            self._bring_along()
            try:
                result = step(*args, **kwargs)
            except BaseException:
                self._bring_back()
                raise
            if any(pair.containers and pair.has_other_contents() for pair in self._pairs or ()):
                raise _other_model()  # Nothing was brought back: the model's own call will do all of it.
            self._bring_back()
            return result

        return called

    def _settle(self) -> None:
        with self._lock:
            if self._pairs is None:
                self._replaced.settle(self.model)
                self._drop_unneeded()
                kept = set(self.model.modules())
                self._pairs = [
                    self._paired(original, copy) for copy, original in self._originals.items() if copy in kept
                ]
                self._then.clear()

    def _paired(self, original: torch.nn.Module, copy: torch.nn.Module) -> _Pair:
        """From now on parameters and buffers that were not rewritten are held in one dictionary."""
        then, parts = self._then[original], []
        for name in _PARTS:
            now, own = vars(original)[name], vars(copy)[name]
            if _same(own, now) or (name != "_modules" and _same(own, then.parts[name])):
                vars(copy)[name] = now
            else:
                parts.append((now, then.parts[name]))
        forward = then.attributes.get("forward")
        return _Pair(original, copy, then.kind, forward, parts, then.attributes, dict(vars(copy)))

    def _drop_unneeded(self) -> None:
        """Let go of the copies in which nothing was rewritten, nor in what they hold."""
        needed = {copy for copy, begun in self._begun.items() if not _same(_content(copy), begun)} | {self.model}
        while more := {copy for copy in self._originals if copy not in needed and _holds(copy, needed)}:
            needed |= more
        plain = {copy: original for copy, original in self._originals.items() if copy not in needed}
        kept = {original: copy for copy, original in self._originals.items() if copy in needed}
        for module in [module for module in self.model.modules() if module not in plain]:
            held, unwritten = vars(module), self._unwritten(module)
            for name, value in list(held.items()):
                held[name] = _replaced(unwritten[name], kept) if name in unwritten else _replaced(value, plain)

    def _unwritten(self, copy: torch.nn.Module) -> dict[str, Any]:
        """Attributes of the original that nothing rewrote in the copy: the job may have changed lists among them."""
        if copy not in self._originals:
            return {}
        begun, attributes = self._begun[copy], self._then[self._originals[copy]].attributes
        ours = {name for name, value in vars(copy).items() if name not in _OWN and value is begun.get(name)}
        return {name: value for name, value in attributes.items() if name in ours}

    def _bring_along(self) -> None:
        self._replaced.require_unchanged()
        for pair in self._pairs or ():
            if pair.is_other_model():
                raise _other_model()
            pair.bring_along(self._copies)

    def _bring_back(self) -> None:
        for pair in self._pairs or ():
            pair.bring_back(self._originals)


def _other_model() -> UnsuitableCallError:
    return UnsuitableCallError(
        "parts of the model were replaced after the config was applied",
        tip="apply the config again once the model is as it is to be used",
        lasting=True,
    )


def _content(module: torch.nn.Module) -> dict[Any, Any]:
    held = vars(module)
    parts = {(name, key): value for name in _PARTS for key, value in held[name].items()}
    return {name: value for name, value in held.items() if name not in _PARTS} | parts


def _weights(model: torch.nn.Module) -> Iterator[_Weight]:
    for module in model.modules():
        for holder in (module._parameters, module._buffers):
            for name, tensor in holder.items():
                if tensor is not None:
                    yield _Weight(holder, name, tensor, _writes(tensor))


def _writes(tensor: torch.Tensor) -> tuple[int, int] | None:
    """PyTorch's count of writes, and where the tensor lies (`.data = ...`); None: it cannot be told."""
    if tensor.is_inference() or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    return tensor._version, tensor.data_ptr()


_NEWEST: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def newest_copy(model: torch.nn.Module) -> torch.nn.Module:
    """The newest copy of a model; the model itself where there is none."""
    copy: torch.nn.Module = _NEWEST.get(model, model)
    return copy


def _replaced(value: Any, by: dict[Any, Any]) -> Any:
    """The value with modules replaced by others, also in lists, tuples and dicts and behind bound methods; the very
    same object where none is in it."""
    if isinstance(value, torch.nn.Module):
        return by.get(value, value)
    if isinstance(value, MethodType) and isinstance(value.__self__, torch.nn.Module):
        return MethodType(value.__func__, by[value.__self__]) if value.__self__ in by else value
    if type(value) is dict:
        pairs = {key: _replaced(part, by) for key, part in value.items()}
        return value if _same(pairs, value) else pairs
    if type(value) in (list, tuple):
        parts = [_replaced(part, by) for part in value]
        return value if all(map(is_, parts, value)) else type(value)(parts)
    return value


def _holds(module: torch.nn.Module, wanted: set[Any]) -> bool:
    stand_ins: dict[Any, Any] = dict.fromkeys(wanted, object())
    return any(_replaced(value, stand_ins) is not value for value in vars(module).values())


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one.values(), other.values()))
