"""`digest_of`: a digest of a function's source and of what it uses from its file, so that what else is written in the
file, or how it is laid out, ends no study.

Found by reading, without an import: from the function's statement to the module-level names that stand in it, and from
the statements that bind these names to those that stand in them. What may have an effect without being named counts
always: expressions, loops, writes to attributes and elements, decorated functions. The whole file counts where names
may be used that stand nowhere: under `globals()`, `eval`, a star import, a metaclass.
"""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterator

_BY_ANY_NAME = {
    *("globals", "locals", "vars", "eval", "exec", "__import__", "sys.modules"),
    *("metaclass", "__init_subclass__"),
}
"""What may reach names of the module that do not stand in the text."""


def digest_of(source: bytes, function: str) -> str:
    """SHA-256. Of the whole text where it is no Python, or does not tell what the function uses."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return hashlib.sha256(source).hexdigest()
    used = _used_by(tree, function)
    text = source if used is None else "\n".join(map(ast.unparse, used)).encode()
    return hashlib.sha256(text).hexdigest()


def _used_by(tree: ast.Module, function: str) -> list[ast.stmt] | None:
    """The statements that the function needs, in the order of the file; None: nobody can tell."""
    binding: dict[str, list[ast.stmt]] = defaultdict(list)
    waiting: list[ast.stmt] = []
    for statement in tree.body:
        for name in _bound_by(statement):
            binding[name].append(statement)
        if not _is_by_need(statement):
            waiting.append(statement)
    if function not in binding or "*" in binding:
        return None
    waiting += binding[function]
    found: set[ast.stmt] = set()
    while waiting:
        statement = waiting.pop()
        if statement not in found:
            found.add(statement)
            names = set(_names_in(statement))
            if names & _BY_ANY_NAME:
                return None
            waiting += [other for name in names for other in binding.get(name, ())]
    return [statement for statement in tree.body if statement in found]


def _is_by_need(statement: ast.stmt) -> bool:
    """It has no effect but to bind names, or is not run where the file is imported."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return not statement.decorator_list
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return all(isinstance(target, ast.Name) for target in targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)  # A docstring.
    return isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test) and not statement.orelse


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Names of the module that it binds, those within `if` and `try` included, but not those of a function's body."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield from _bound_by(node)
        elif isinstance(node, ast.ExceptHandler):
            yield from (name for each in node.body for name in _bound_by(each))
        else:
            inner = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            yield from (each.id for each in inner if isinstance(each.ctx, ast.Store))


def _names_in(statement: ast.stmt) -> Iterator[str]:
    """Every name that stands in it, also as an attribute or as a text that may be a name, such as an annotation."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
            if isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, (ast.keyword, ast.arg)):
            yield node.arg or ""
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
