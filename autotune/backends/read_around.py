"""What the code of a model reads from around the model, as far as compilers do not follow it.

The environment is the one thing of that kind: code that was compiled while a variable was not set does not see it set
later, and `os.getenv` is asked once (PyTorch 2.13). Globals, classes, context variables, a thread's own values, files
and the time are followed. Found by reading code, which runs nothing: that of the model's classes, of what their objects
hold, and of the functions and classes that it names. Of an installed package the classes of the model alone are read,
with what they name in their own file.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from autotune.nesting import is_pythons

_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOBODYS = frozenset({"torch", "mindspore", "numpy", "autotune", "torch_npu"})
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_OF_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__setstate__", "__getstate__"})
"""Methods that calls come to only where they make an object."""
_MOST = 5000
"""Functions that are read."""


def variables_read(models: Iterable[Any]) -> tuple[str, ...] | None:
    """Names of variables of the environment that calls of these objects, such as the modules of a model, may read, or
    parts of them: texts in the code that reads it, those in capitals first. None where it is not read."""
    is_read, names = False, set[str]()
    for function in _Reachable(models).functions():
        for code in _codes(function.__code__):
            if _ENVIRONMENT.intersection(code.co_names):
                is_read = True
                named = map(function.__globals__.get, code.co_names)
                texts = (each for each in (*code.co_consts, *named) if isinstance(each, str))
                names |= {text for text in texts if _VARIABLE.fullmatch(text)}
    return tuple(sorted(names, key=lambda name: (not name.isupper(), name))) if is_read else None


def names_in(models: Iterable[Any]) -> frozenset[str]:
    """Global names and attributes in the code that calls of these objects may come to."""
    codes = (code for function in _Reachable(models).functions() for code in _codes(function.__code__))
    return frozenset(name for code in codes for name in code.co_names)


class EnvironmentRead:
    """What the environment held when it was asked first, for a model whose calls read it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names`: see `variables_read`."""
        self._names = names
        self._seen: dict[Any, Any] | None = None

    def changed(self) -> str | None:
        """A variable that is other than it was, if the calls may read it. Quick: 1 us for 50 variables."""
        now = getattr(os.environ, "_data", os.environ)
        if now == self._seen:
            return None
        before, self._seen = self._seen, dict(now)
        if before is None:
            return None
        others = (os.fsdecode(key) for key in {**before, **now} if before.get(key) != now.get(key))
        return next((name for name in others if not self._names or self._is_read(name)), None)

    def _is_read(self, name: str) -> bool:
        return any(part == name or (len(part) > _SHORT and part in name) for part in self._names)


_SHORT = 2
"""Letters of a text that is no part of the names of variables."""


class _Reachable:
    """The functions that calls of some objects may come to: by their names, whichever object has a method so named."""

    def __init__(self, models: Iterable[Any]) -> None:
        self._seen: set[int] = set()
        self._found: list[FunctionType] = []
        self._methods: dict[str, list[Any]] = {}
        self._wanted = {"forward", "construct", "__call__"}
        for model in models:
            self._add(model)
            for held in getattr(model, "__dict__", {}).values():
                for value in held.values() if isinstance(held, dict) else [held]:
                    self._add(value)
        for name in [*self._wanted]:
            self._add_methods(name)

    def functions(self) -> Iterator[FunctionType]:
        while self._found and len(self._seen) < _MOST:
            function = self._found.pop()
            yield function
            for value in _named(function):
                if not _is_installed(function) or getattr(value, "__module__", "") == function.__module__:
                    self._add(value)
            for code in _codes(function.__code__):
                for name in code.co_names:
                    self._add_methods(name)

    def _add(self, value: Any) -> None:
        """A function, or what can be called; a class that is named, whose objects may be made; the class of an
        object."""
        while isinstance(value, (functools.partial, MethodType)):
            value = value.func if isinstance(value, functools.partial) else value.__func__
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, type):
            self._add_class(value)
            for maker in (each for name in _OF_MAKING for each in _functions_of(getattr(value, name, None))):
                self._add(maker)
        elif not isinstance(value, FunctionType):
            self._add_class(type(value))
        elif id(value) not in self._seen and not _is_nobodys(value.__module__):
            self._seen.add(id(value))
            self._found.append(value)

    def _add_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if id(base) in self._seen or is_pythons(base) or _is_nobodys(base.__module__):
                continue
            self._seen.add(id(base))
            for name, member in [*vars(base).items()]:
                self._methods.setdefault(name, []).extend(_functions_of(member))
                if name in self._wanted or (name[:2] == "__" and name not in _OF_MAKING):
                    self._add_methods(name)

    def _add_methods(self, name: str) -> None:
        self._wanted.add(name)
        for function in self._methods.pop(name, ()):
            self._add(function)


def _functions_of(member: Any) -> Iterator[Any]:
    """A method, or the functions behind a property."""
    if isinstance(member, FunctionType):
        yield member
    for name in ("__func__", "fget", "func"):
        found = getattr(member, name, None)
        if isinstance(found, (FunctionType, functools.partial)):
            yield found


def _named(function: FunctionType) -> Iterator[Any]:
    """What the code of a function names: globals, what it takes from modules, and what it closes over."""
    for code in _codes(function.__code__):
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                if not _is_nobodys(value.__name__):
                    yield from (vars(value).get(attribute) for attribute in code.co_names)
            elif value is not None:
                yield value
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_nobodys(module: str | None) -> bool:
    first = (module or "").partition(".")[0]
    return first in _NOBODYS or first in sys.stdlib_module_names


def _is_installed(function: FunctionType) -> bool:
    return _INSTALLED.search(function.__code__.co_filename) is not None
