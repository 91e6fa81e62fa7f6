"""What keeps the code quick to read, as rules: lengths, rooms with one door, and words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.import_graph import PACKAGE, REPOSITORY, dotted_name, own_imports, parsed, sources

MOST_FUNCTION_LINES = 60
LONG_FUNCTION_LINES = 40
REASONS: dict[str, str] = {}
"""Function of more than forty lines -> why it reads better in one piece."""

ROOM_LINES = 80
"""A module that only one other imports has as many lines, or belongs into that one."""

LISTED = (
    *("answer/sections/", "integrations/", "models/", "plugins/"),
    *("job/uses/", "trial/worker/calls/", "trial/worker/subjects/", "workload/kinds/"),
)
"""Folders with a list of their modules, each of which is one thing to add or to take away, or stands behind a door."""
SMALL = {
    "autotune.backends.mindspore.compile_cache": "a capability is a module",
    "autotune.backends.mindspore.plain": "each backend has a module of this name, which imports no framework",
    "autotune.doctor.machine": "an answer, which `cli` prints and does not hold",
    "autotune.backends.torch.toolchain": "a program, which is started by its path",
}
"""Module with one importer that is small for a reason -> the reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, Function):
                yield f"{path.relative_to(PACKAGE).as_posix()}:{node.name}", node


def length(function: Function) -> int:
    """Lines without those of the docstring."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    told = 0 if docstring is None else (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - told


def test_no_function_is_long() -> None:
    """A function of more than sixty lines does several things; one of more than forty says why it is not two."""
    long = {name: length(node) for name, node in functions() if length(node) > LONG_FUNCTION_LINES}
    assert not {name: lines for name, lines in long.items() if lines > MOST_FUNCTION_LINES or name not in REASONS}
    assert not REASONS.keys() - long.keys()


def importers() -> dict[str, set[str]]:
    """Module -> those that import it."""
    found: dict[str, set[str]] = {dotted_name(path): set() for path in sources()}
    for path in sources():
        for module in own_imports(path):
            found.setdefault(module.module, set()).add(dotted_name(path))
    return found


def test_a_room_with_one_door_is_large() -> None:
    """A small module that a single other one imports is a room to walk through: it belongs into the other one."""
    doors = importers()
    small = {
        dotted_name(path): lines
        for path in sources()
        if path.name not in ("__init__.py", "__main__.py")
        and not path.relative_to(PACKAGE).as_posix().startswith(LISTED)
        and len(doors[dotted_name(path)]) <= 1
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) < ROOM_LINES
    }
    assert not small.keys() - SMALL.keys(), small
    assert not SMALL.keys() - small.keys()


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of docstrings, also of those below an attribute."""
    for path in sources():
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield f"{place}:{node.lineno}", node.value.value


def test_a_docstring_begins_with_its_noun() -> None:
    """One that begins with "Of" or "The same" cannot be read without its neighbour."""
    leaning = re.compile(r"(Of|The same|As above|Ditto)\b")
    assert not [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if leaning.match(text)]


NO_CODE = re.compile(r'^[ \t]*r?"""(?:[^"\\]|\\[\s\S]|"(?!""))*"""|#[^\n]*', re.MULTILINE)
"""Docstrings and comments."""


@cache
def words_of_the_code() -> frozenset[str]:
    """Identifiers, words of strings that are no docstrings, and names of files, of the package and its surroundings."""
    words: set[str] = set()
    for path in (*sources(), *(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")):
        words.update(path.relative_to(REPOSITORY).with_suffix("").parts)
        words.update(re.findall(r"\w+", NO_CODE.sub(" ", path.read_text(encoding="utf-8"))))
    return frozenset(words)


IDENTIFIER = re.compile(r"`(~?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`")

FOREIGN = {
    *("Markup", "dnnl_cpu_isa_t", "gb_type", "generated_kernel_count", "gpcW", "mint", "moment1", "set_env"),
    *("save_cache_artifacts", "trace_autograd_ops", "XDG_RUNTIME_DIR"),
}
"""Names of other libraries and of their programs that docstrings mention and the code does not."""


def test_names_in_docstrings_exist() -> None:
    """What stands in backquotes is a name that the code has; one that was renamed is renamed there too."""
    stale = [
        f"{place}: `{name}`"
        for place, text in docstrings()
        for name in IDENTIFIER.findall(text)
        if not set(name.split(".")) <= words_of_the_code() | FOREIGN
    ]
    assert not stale, "\n".join(stale)
