"""The source of a function that no file holds alone: one of a notebook, a script, or of another function's body.

The text that is written imports the modules and repeats the constants that the function uses, and holds the functions
and classes of the same notebook or script that it names. What lives in this process only (a model, a tensor, a
variable of an enclosing function) cannot be written, and is refused with a sentence.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from autotune.errors import InputError

WAY_OUT = "put it in a file, and give tune('FILE.py:FUNCTION')"


@dataclass(frozen=True)
class FunctionSource:
    """A module's text that defines the function, and the modules that it imports."""

    name: str
    text: str
    modules: frozenset[str]


def source_of(function: FunctionType) -> FunctionSource:
    """Raises InputError for a function that cannot be written so that another process can run it."""
    if not function.__name__.isidentifier():
        raise InputError("a lambda has no name by which a trial could find it", tip="define it with `def`")
    # A decorator leaves its own function; the source and the names are those of the one that it wraps.
    inner = inspect.unwrap(function)
    writing = _Writing(inner.__name__, inner.__globals__)
    writing.define(inner)
    return FunctionSource(inner.__name__, writing.text(), frozenset(writing.modules))


def source_of_classes(classes: Iterable[type]) -> FunctionSource:
    """A text that defines classes of one notebook or script, with what they need. Raises InputError as `source_of`."""
    each = list(classes)
    writing = _Writing(each[0].__name__, vars(sys.modules[each[0].__module__]))
    for cls in each:
        if cls.__name__ not in writing.definitions:
            writing.define(cls)
    return FunctionSource(each[0].__name__, writing.text(), frozenset(writing.modules))


@dataclass
class _Writing:
    """A module's text in the making: what is defined in it, after what it needs."""

    function: str
    names: Mapping[str, Any]
    """The module-level names of the notebook or script."""
    imports: dict[str, None] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)

    def define(self, thing: FunctionType | type) -> None:
        """Add a function or class of the notebook, after all that it needs."""
        name = thing.__name__
        free = thing.__code__.co_freevars if isinstance(thing, FunctionType) else ()
        if free:
            raise self._refused(
                f"{name} uses {', '.join(free)} of the function around it",
                "give what it needs as arguments={'NAME': VALUE}, or create it inside",
            )
        source = self._source(thing)
        self.definitions[name] = ""  # Its place is taken: a function may name itself.
        for used in sorted(_free_names(source)):
            if used not in self.definitions:
                self._provide(used, source)
        del self.definitions[name]
        self.definitions[name] = source

    def text(self) -> str:
        heading = (
            f'"""The source of `{self.function}`, as it was when autotune.tune was called with it.\n\n'
            'Written by autotune, so that the study needs neither the notebook nor the script again."""'
        )
        parts = [
            f"{heading}\n\nfrom __future__ import annotations",
            "\n".join(sorted(self.imports)),
            "\n".join(f"{name} = {value}" for name, value in self.constants.items()),
        ]
        blocks = "\n\n\n".join(self.definitions.values())
        return "\n\n".join(filter(None, parts)) + f"\n\n\n{blocks}\n"

    def _provide(self, name: str, source: str) -> None:
        """Make a module-level name available in the text."""
        if name not in self.names:
            if hasattr(builtins, name):
                return
            raise self._refused(f"{self.function} uses {name}, which is not defined", "define or import it first")
        value = self.names[name]
        if isinstance(value, ModuleType):
            self._import_module(name, value, source)
        elif isinstance(value, (FunctionType, type)) and value.__module__ == self.names.get("__name__"):
            if value.__name__ != name:
                raise self._refused(f"{name} is another name of {value.__qualname__}", f"write {value.__name__}")
            self.define(value)
        elif _is_importable(value):
            self.modules.add(value.__module__)
            renamed = "" if value.__name__ == name else f" as {name}"
            self.imports[f"from {value.__module__} import {value.__name__}{renamed}"] = None
        elif _is_constant(value):
            self.constants[name] = repr(value)
        else:
            raise self._refused(
                f"{self.function} uses {name}, a {type(value).__name__} that exists in this process only",
                "create it inside of the function, or call tune(model, inputs) with the model itself",
            )

    def _import_module(self, name: str, module: ModuleType, source: str) -> None:
        """With the submodules that the source reaches through it, such as `scipy.sparse` of `import scipy`."""
        self.modules.add(module.__name__)
        if name != module.__name__:
            self.imports[f"import {module.__name__} as {name}"] = None
            return
        self.imports[f"import {module.__name__}"] = None
        for chain in _chains(source, name):
            for end in range(2, len(chain) + 1):
                submodule = ".".join(chain[:end])
                if submodule in sys.modules:
                    self.modules.add(submodule)
                    self.imports[f"import {submodule}"] = None

    def _source(self, thing: FunctionType | type) -> str:
        try:
            source = _class_source(thing) if isinstance(thing, type) else inspect.getsource(thing)
        except (OSError, TypeError, SyntaxError):
            raise self._refused(f"the source of {thing.__name__} is not available", WAY_OUT) from None
        return textwrap.dedent(source).strip()

    def _refused(self, why: str, tip: str) -> InputError:
        way_out = tip if tip == WAY_OUT else f"{tip}; or {WAY_OUT}"
        return InputError(f"{self.function} cannot be run by another process: {why}", tip=way_out)


def _class_source(cls: type) -> str:
    """Also of a class in a notebook's cell, which `inspect` cannot find: by the file that its methods name."""
    for method in vars(cls).values():
        if not isinstance(method, FunctionType):
            continue
        text = "".join(linecache.getlines(method.__code__.co_filename))
        for node in ast.walk(ast.parse(text)):
            line = method.__code__.co_firstlineno
            if not isinstance(node, ast.ClassDef) or node.name != cls.__name__:
                continue
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return inspect.getsource(cls)


def _free_names(source: str) -> set[str]:
    """Names that a definition takes from its module: in its body, defaults, decorators and bases.

    Annotations do not count: in the text that is written they are never evaluated.
    """
    table = symtable.symtable(f"from __future__ import annotations\n{source}", "<source>", "exec")
    return {
        symbol.get_name()
        for scope in _scopes(table)
        for symbol in scope.get_symbols()
        if symbol.is_global() and symbol.is_referenced()
    } - {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _chains(source: str, name: str) -> Iterator[list[str]]:
    """The attributes that are reached from a name, e.g. `["torch", "nn", "functional", "gelu"]`."""
    for node in ast.walk(ast.parse(source)):
        chain: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.insert(0, inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id == name:
            yield [name, *chain]


def _is_importable(value: Callable[..., Any] | Any) -> bool:
    """A function or class that its module has under its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    return getattr(sys.modules.get(module), name, None) is value


def _is_constant(value: object) -> bool:
    """Its `repr` gives it again: numbers, texts, None, and tuples, lists, sets and dicts of these."""
    try:
        again = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return type(again) is type(value) and bool(again == value)
