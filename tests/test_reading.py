"""What keeps the code quick to read, as rules: lengths, rooms with one door, and words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

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
    "autotune.backends.torch.shapes": "a capability is a module",
    "autotune.tuning.rerun": "measures a trial, which `cli` does not hold",
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


MOST_CLASS_LINES = 200
MOST_CHANGING = 8
MOST_PARAMETERS = 4

LARGE_CLASSES = {
    "answer/result.py:StudyResult": 250,
    "backends/torch/backend.py:TorchBackend": 269,
    "backends/torch/generation.py:TorchGeneration": 264,
    "bench/local.py:_Supervised": 211,
    "bench/supervisor.py:Supervisor": 259,
    "plugins/hubs/torch/hugging_face_inputs.py:InputMaker": 239,
    "plugins/ray/bench.py:RayBench": 237,
    "study/study.py:Study": 335,
    "tuning/field.py:Field": 208,
    "tuning/loop.py:Tuner": 284,
}
"""Class of more lines -> the lines that it may have. It is not added to, and a class that was mended leaves it."""
RESTLESS_CLASSES = {
    "backends/torch/frozen.py:FrozenWeights": 11,
    "bench/child.py:Child": 10,
}
"""Class of which more attributes change -> how many may."""
CROWDED_METHODS = {
    "backends/torch/regions.py:_Pair._carry": 5,
    "plugins/ray/bench.py:RayBench._send": 6,
}
"""Private method with more parameters -> how many it may have."""


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(PACKAGE).as_posix()}:{node.name}", node


def methods(of: ast.ClassDef) -> list[Function]:
    return [node for node in of.body if isinstance(node, Function)]


def changing(of: ast.ClassDef) -> set[str]:
    """Attributes that a method sets after the object was made."""
    return {
        node.attr
        for method in methods(of)
        if method.name not in ("__init__", "__post_init__")
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def num_parameters(method: Function) -> int:
    """Those that a caller gives, `self` left out."""
    given = (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)
    return sum(each.arg not in ("self", "cls") for each in given)


def exceeding(sizes: dict[str, int], most: int, known: dict[str, int]) -> dict[str, int]:
    """What is larger than it may be, and what is known to be and is so no longer."""
    too_large = {name: size for name, size in sizes.items() if size > known.get(name, most)}
    return too_large | {name: sizes.get(name, 0) for name, size in known.items() if sizes.get(name, 0) <= most}


def test_no_class_is_long() -> None:
    """A class is read in one go: what does several things is several classes."""
    sizes = {name: (node.end_lineno or node.lineno) - node.lineno + 1 for name, node in classes()}
    assert not exceeding(sizes, MOST_CLASS_LINES, LARGE_CLASSES)


def test_few_attributes_change() -> None:
    """State that changes is what a reader has to carry through all methods of a class."""
    assert not exceeding({name: len(changing(node)) for name, node in classes()}, MOST_CHANGING, RESTLESS_CLASSES)


def test_a_private_method_has_few_parameters() -> None:
    """A method that is told everything belongs to another object."""
    sizes = {
        f"{name}.{method.name}": num_parameters(method)
        for name, node in classes()
        for method in methods(node)
        if method.name.startswith("_") and not method.name.endswith("__")
    }
    assert not exceeding(sizes, MOST_PARAMETERS, CROWDED_METHODS)


TWO_THINGS = {
    "Asked": "what a question has, as a contract and as keyword arguments, and one of watching",
    "Attributes": "of a study, and of a model of MindSpore",
    "Content": "of a file that is applied, and of a value of MindSpore",
    "Diagnosis": "public, and what a compiler reports of a trial",
    "Effects": "a contract and what fulfils it",
    "Evidence": "in an exported file, whose format is public, and in a run",
    "ImportedAhead": "a contract and what fulfils it",
    "Kept": "a call that is watched, and what tensors of a trial hold",
    "Knob": "of a space, and of either framework's table",
    "Member": "a model of a fleet, and a worker of a cluster",
    "ModelCopy": "a contract and what fulfils it",
    "Process": "what a watched one wrote, and one of a bench",
    "Seen": "calls that are watched, and outputs of a trial",
}
"""Name that two modules give to a class each -> what the two are. It is not added to."""


def test_a_name_means_one_thing() -> None:
    """Two public classes do not share a name, but for those that stand at the same place for each framework."""
    homes: dict[str, set[str]] = {}
    for name, node in classes():
        place = re.sub("mindspore|torch", "FRAMEWORK", name.partition(":")[0])
        if node.col_offset == 0 and not node.name.startswith("_"):
            homes.setdefault(node.name, set()).add(place)
    assert {name for name, places in homes.items() if len(places) > 1} == TWO_THINGS.keys()


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of docstrings, also of those below an attribute."""
    for path in sources():
        place = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(parsed(path)):
            if _is_text(node):
                yield f"{place}:{node.lineno}", node.value.value


def test_a_docstring_tells_of_one_thing() -> None:
    """Of two in a row the second one is left of something that is gone."""
    bodies = (getattr(node, "body", ()) for path in sources() for node in ast.walk(parsed(path)))
    pairs = (pair for body in bodies if isinstance(body, list) for pair in pairwise(body))
    assert not [each.value.value for _, each in filter(lambda pair: all(map(_is_text, pair)), pairs)]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


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
