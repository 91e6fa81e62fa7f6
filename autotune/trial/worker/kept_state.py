"""What a model keeps from call to call, in words: which attribute or input its calls change, and by which line."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_MAX_NAMED = 3
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\['([^']*)'\]")


def kept_state(model: Any, changed: Sequence[str], *, has_reset: bool = False) -> str | None:
    """A phrase about what was other after the calls than before; None if nothing was. `changed`: names such as
    `model.norm.num` and `cache.keys[0] of input 1`; with a reset, what that does not put back."""
    if not changed:
        return None
    shown = []
    for name in changed[:_MAX_NAMED]:
        place = next(_places(model, name), None)
        shown.append(name if place is None else f"{name} ({place})")
    more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
    what = f"its calls change {', '.join(shown)}{more}"
    if has_reset:
        return f"{what}, and reset does not put that back"
    way_out = (
        "make it anew in each call, take it as an input and return it"
        if any(name.startswith("model") for name in changed)
        else "let it work on a copy, made within the call"
    )
    return f"{what}: {way_out}, or return a reset that puts it back"


def _places(model: Any, name: str) -> Iterator[str]:
    """`file.py, line 12`: the lines that write to the attribute of this name, of the object that has it."""
    if not name.startswith("model"):
        return
    owner = model
    for step in _STEP.finditer(name, len("model")):
        field, index, key = step.groups()
        if field is not None:
            yield from _lines(owner, field)
        owner = _held(owner, field, index, key)


def _held(owner: Any, field: str | None, index: str | None, key: str | None) -> Any:
    try:
        if field is not None:
            return getattr(owner, field, None)
        return owner[int(index)] if index is not None else owner[key]
    except (LookupError, TypeError, ValueError):
        return None


def _lines(owner: Any, field: str) -> Iterator[str]:
    """Those outside of `__init__`, of the classes of the object."""
    for kind in type(owner).__mro__[:-1]:
        try:
            source, first = inspect.getsourcelines(kind)
            file = inspect.getsourcefile(kind)
            tree = ast.parse(textwrap.dedent("".join(source)))
        except (OSError, TypeError, SyntaxError):
            continue
        methods = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
        for node in (inner for method in methods for inner in ast.walk(method)):
            if _writes(node, field):
                yield f"{Path(file or '?').name}, line {first + node.lineno - 1}"  # type: ignore[attr-defined]


def _writes(node: ast.AST, field: str) -> bool:
    """It assigns to the field of `self`, to what is in it, or calls a method of it as a statement, such as `append`."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(_names(target, field) for target in targets)
    called = node.value if isinstance(node, ast.Expr) else None
    return isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and _names(called.func.value, field)


def _names(node: ast.AST, field: str) -> bool:
    return any(
        isinstance(each, ast.Attribute)
        and each.attr == field
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
        for each in ast.walk(node)
    )
