"""A second object for a job's model: it is the model in all but its calls.

It is of a subclass of the model's class and shares its `__dict__`. Jobs do more with a class than call its objects:
they make others of it, change the class of an object, derive from it, patch it. None of that may lead to the compiled
code of this one model, so the subclass is for one object. Any other object of it gets the author's class at its first
use, and what is set in the subclass is set in the author's class.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

_ORIGINAL = "_autotune_original"
_set_class: Callable[[Any, type], None] = object.__dict__["__class__"].__set__


class _Unannounced:
    """Stands before the author's class, whose `__init_subclass__` (a registry, say) is not told of the subclass."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Nothing."""


class _Pair:
    """A model and its proxy."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.own = type(model)
        """The class that the proxy's class was made for."""
        self.kind: Any = None
        self.proxy: Any = None

    def without_call(self, instance: Any) -> Any:
        """An object of the proxy's class with the calls of its author's class."""
        if instance is self.proxy:
            return self.model
        _set_class(instance, type(self.model))
        return instance

    def follow(self) -> None:
        """The model's class was changed, as parametrizations do: the proxy has its attributes."""
        self.own = type(self.model)
        with suppress(TypeError):
            type.__setattr__(self.kind, "__bases__", (_Unannounced, self.own))


def proxy_of(
    model: Any,
    call: Callable[..., Any],
    empty: Callable[[type], Any],
    *,
    is_read: Callable[[], bool] = lambda: False,
    is_recorded: Callable[[], bool] | None = None,
    **methods: Any,
) -> Any:
    """An object that is `model` in all but its calls, which go to `call`.

    Copied or pickled it becomes the model itself, uncompiled. `empty` makes an object of a class without what its
    author and the framework do for a new one; `methods` are further ones of the proxy. `is_read`: a compiler reads the
    code that uses the proxy now, and is told of its own class, in which it finds the same methods as Python does.
    `is_recorded`: calls are those of the model's class now, made of the proxy; None: they never are.
    """
    pair = _Pair(model)
    own = pair.own
    body = {**_calls(pair, call, is_recorded), **_ways_to_the_class(pair, is_read), **methods}
    # Past the metaclass's and the class's own ways of making classes and objects: only the calls are to differ.
    kind = type.__new__(_patching(model, lambda cls: cls is pair.kind), own.__name__, (_Unannounced, own), body)
    type.__setattr__(kind, "__qualname__", own.__qualname__)
    pair.kind, pair.proxy = kind, empty(kind)
    object.__setattr__(pair.proxy, "__dict__", vars(model))
    return pair.proxy


def _calls(pair: _Pair, call: Callable[..., Any], is_recorded: Callable[[], bool] | None) -> dict[str, Any]:
    """Methods by which a proxy is called and copied. Other objects of its class are those of the author's."""
    model, without_call = pair.model, pair.without_call

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not pair.proxy:
            return without_call(self)(*args, **kwargs)
        if type(model) is not pair.own:
            pair.follow()
        if is_recorded is not None and is_recorded():
            return pair.own.__call__(self, *args, **kwargs)
        return call(*args, **kwargs)

    def reduce(self: Any, protocol: Any) -> Any:
        return (_itself, (model,)) if self is pair.proxy else without_call(self).__reduce_ex__(protocol)

    return {
        "__call__": called,
        "__init__": lambda self, *args, **kwargs: without_call(self).__init__(*args, **kwargs),
        "__reduce_ex__": reduce,
        "__copy__": lambda self: copy.copy(without_call(self)),
        "__deepcopy__": lambda self, memo: copy.deepcopy(without_call(self), memo),
        _ORIGINAL: without_call,
    }


def _ways_to_the_class(pair: _Pair, is_read: Callable[[], bool]) -> dict[str, Any]:
    """What tells of the proxy's class, or derives from it: it is the author's."""
    model = pair.model

    def set_class(self: Any, chosen: type) -> None:
        pair.without_call(self).__class__ = chosen
        pair.follow()

    def subclassed(cls: Any, /, **kwargs: Any) -> None:
        cls.__bases__ = tuple(type(model) if base is pair.kind else base for base in cls.__bases__)
        super(cls, cls).__init_subclass__(**kwargs)

    return {
        "__init_subclass__": classmethod(subclassed),
        "__class__": property(lambda _: pair.kind if is_read() else type(model), set_class),
        "__module__": pair.own.__module__,
        "__doc__": pair.own.__doc__,
    }


def _patching(model: Any, is_proxys: Callable[[type], bool]) -> Any:
    """The class of a proxy's class, by which what is set there is set in the class of the model."""
    made_by = type(type(model))

    def set_in_class(cls: Any, name: str, value: Any) -> None:
        setattr(type(model), name, value) if is_proxys(cls) else super(patching, cls).__setattr__(name, value)

    def delete_in_class(cls: Any, name: str) -> None:
        delattr(type(model), name) if is_proxys(cls) else super(patching, cls).__delattr__(name)

    body = {"__setattr__": set_in_class, "__delattr__": delete_in_class, "__module__": made_by.__module__}
    patching: Any = type.__new__(type(made_by), made_by.__name__, (made_by,), body)
    return patching


def function_of(function: Callable[..., Any], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function in place of another one, or of a method: `model.method = ...` makes it no part of the model."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    functools.update_wrapper(called, function)
    called.__name__ = name
    # What wraps it takes over its attributes.
    vars(called)[_ORIGINAL] = (weakref.ref(called), function)
    return called


def original(model: Any) -> Any:
    """The model that a proxy was made of, or the function; the very same object for any other."""
    if isinstance(model, FunctionType):
        called, function = vars(model).get(_ORIGINAL, (lambda: None, None))
        return function if called() is model else model
    found = getattr(type(model), _ORIGINAL, None)
    return model if found is None else found(model)


def method_of(kind: type, name: str) -> Any:
    """What a class or its bases have under this name, past whatever hands it out; None if nothing."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _itself(model: Any) -> Any:
    return model
