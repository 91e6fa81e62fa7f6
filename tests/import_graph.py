"""The imports between the packages of `autotune/`, read from the source. `python -m tests.import_graph` prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "autotune"
_IN_A_STRING = re.compile(r"autotune(\.\w+)+(:\w+)?")
"""A module, or an object in one, as a registry names it."""


@dataclass(frozen=True)
class Import:
    """One import in one file: `module` is the module that is loaded, as far as the file system can tell."""

    line: int
    module: str


def sources() -> list[Path]:
    """All files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """Of each file once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def is_module(dotted: str) -> bool:
    """And not a name in one."""
    where = REPOSITORY / dotted.replace(".", "/")
    return where.with_suffix(".py").is_file() or (where / "__init__.py").is_file()


def imported(path: Path, node: ast.AST) -> Iterator[Import]:
    """The modules that one import statement loads."""
    if isinstance(node, ast.Import):
        yield from (Import(node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: write the import in full, so that it can be checked"
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield Import(node.lineno, full if is_module(full) else str(node.module))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Imports wherever they stand, for a type checker alone too, and modules that a string names."""
    return tuple(_found_in(ast.walk(parsed(path)), path))


def _found_in(nodes: Iterable[ast.AST], path: Path) -> Iterator[Import]:
    for node in nodes:
        yield from imported(path, node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _IN_A_STRING.fullmatch(node.value):
            module = node.value.partition(":")[0]
            if is_module(module):
                yield Import(node.lineno, module)


def unit_of(dotted: str) -> str:
    """The package, or the module at the top, that a module belongs to. `autotune` is `autotune/__init__.py`; the three
    lines of `autotune/__main__.py`, which Python looks for at the top, are the command line's."""
    parts = dotted.split(".")
    unit = parts[1] if len(parts) > 1 else "autotune"
    return "cli" if unit == "__main__" else unit


def dotted_name(path: Path) -> str:
    """As an import statement writes it."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own_imports(path: Path) -> list[Import]:
    """Of modules of this package."""
    return [found for found in imports_of(path) if found.module.split(".")[0] == "autotune"]


def package_edges() -> dict[str, set[str]]:
    """Package -> the packages that it imports, wherever in a file the import stands."""
    edges: dict[str, set[str]] = {}
    for path in sources():
        unit = unit_of(dotted_name(path))
        edges.setdefault(unit, set()).update({unit_of(found.module) for found in own_imports(path)} - {unit})
    return edges


def file_edges() -> dict[str, set[str]]:
    """Between files, for the imports that stand outside of functions."""
    return {
        dotted_name(path): {
            found.module
            for found in _found_in(_at_the_top(parsed(path)), path)
            if found.module.split(".")[0] == "autotune" and found.module != dotted_name(path)
        }
        for path in sources()
    }


def _at_the_top(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _at_the_top(node)


def floors(edges: Mapping[str, set[str]]) -> dict[str, int]:
    """Name -> the length of the longest chain of imports below it. Raises CycleError."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(edges).static_order():
        found[name] = 1 + max((found[below] for below in edges.get(name, ())), default=0)
    return found


def lines() -> Iterator[str]:
    """A line for each package, from the ground up: its floor, its name and what it imports."""
    edges = package_edges()
    numbers = floors(edges)
    for name in sorted(numbers, key=lambda each: (numbers[each], each)):
        below = sorted(edges[name], key=lambda each: (numbers[each], each))
        yield f"{numbers[name]:>2}  {name:<13} {' '.join(below)}".rstrip()
    floors(file_edges())
    yield f"{max(numbers.values())} floors, no cycle of packages, no cycle of files"


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201
