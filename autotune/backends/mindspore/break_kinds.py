"""What MindSpore writes to stderr about its captures, read back: pure text, no MindSpore in here.

Two of its own reports are asked for with `VARIABLES`: what capture `ast` leaves to the Python interpreter, and where
and why capture `bytecode` breaks and compiles again. A third one comes unasked: the error of a model that it refuses.
Their forms are those of MindSpore 2.10; a release that writes others gives no findings, which is not the same as none
being there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autotune.measure.diagnosis import BreakKind, GraphBreak, Recompile

VARIABLES = {"MS_DEV_FALLBACK_DUMP_NODE": "1", "MS_JIT_BYTECODE_LOGS": "graph_break,recompiles"}
"""Variables that must be set when the process starts."""
CAPTURABLE: tuple[BreakKind, ...] = ()
"""See `Reports`."""

INTERPRETED = "left to the Python interpreter at every call"
FROZEN = "run by Python once, while the graph is compiled: what it gives is a constant of the graph from then on"

_PLACE = re.compile(
    r"In file (?P<file>[^\n:]+):(?P<line>\d+)(?:~\d+)?(?:, (?P<begin>\d+)~(?P<end>\d+))?\s*\n(?P<code>.*)"
)
_FALLBACK = re.compile(
    r"Found unsupported syntax in graph mode.*?After Parser Phase \(total: \d+\)(?P<parsed>.*?)"
    r"After Optimizer Phase \(total: \d+\)(?P<kept>.*?)\n-{20,}\n\s*\n",
    re.DOTALL,
)
_BREAK = re.compile(
    r"Graph break at: (?P<at>In file .*?)\n\s*\nReason: (?P<reason>.*?)\n\s*\n"
    r"From user code:\n(?P<stack>.*?)(?=\n\s*\n|\Z)",
    re.DOTALL,
)
_FORBIDDEN = re.compile(r"func (?P<function><.*>) is forbidden to analyze, module is ?(?P<module>\S*)")
_RECOMPILE = re.compile(
    r"Guard check fail: \s*(?P<guard>(?:(?!Guard check fail).)*?)"
    r"Recompile func: <code object (?P<name>\S+) at \w+, file \"(?P<file>[^\"]+)\", line (?P<begin>-?\d+)",
    re.DOTALL,
)
_GUARDED = re.compile(r"(?P<guard>.*?), location: In file (?P<file>[^\n:]+):(?P<line>-?\d+)", re.DOTALL)
_SIZES = re.compile(r"\{shape_\[\d+\]:(\d+)\}")
_SHAPE_GUARD = "Shape equality check failed"
_INTERNAL = re.compile(
    r"got an unexpected c\+\+ error \[(?:Failure info \[)?(?P<error>[^\]\n]+)(?P<rest>.*?)\n\]", re.DOTALL
)
_REFUSAL = re.compile(
    r"^(?P<error>\w+Error: .*?)\n.*?The Traceback of Net Construct Code:(?P<stack>.*)", re.DOTALL | re.MULTILINE
)

_BY_NAME: dict[str, BreakKind] = {
    "np": BreakKind.NUMPY,
    "numpy": BreakKind.NUMPY,
    "asnumpy": BreakKind.NUMPY,
    "item": BreakKind.SCALAR,
    "tolist": BreakKind.SCALAR,
    "float": BreakKind.SCALAR,
    "int": BreakKind.SCALAR,
    "print": BreakKind.PRINT,
    "logging": BreakKind.PRINT,
    "warnings": BreakKind.PRINT,
    "time": BreakKind.CLOCK_OR_RANDOM,
    "datetime": BreakKind.CLOCK_OR_RANDOM,
    "random": BreakKind.CLOCK_OR_RANDOM,
    "Random": BreakKind.CLOCK_OR_RANDOM,
    "contextlib": BreakKind.CONTEXT,
}
"""First or last part of the name of what is called, or the module that MindSpore says it is from."""

_BY_WORDS: tuple[tuple[str, BreakKind], ...] = (
    ("Data-dependent", BreakKind.BRANCH),
    ("BUILD_SET", BreakKind.CONTAINER),
    ("Unsupported expression 'Set'", BreakKind.CONTAINER),
    ("Unsupported statement 'Try'", BreakKind.EXCEPTION),
    ("FindTryWithBlock", BreakKind.EXCEPTION),
    ("Raise", BreakKind.EXCEPTION),
    ("Yield", BreakKind.GENERATOR),
    ("YIELD", BreakKind.GENERATOR),
    ("Only support jit_class instance", BreakKind.CONTEXT),
    ("SETUP_WITH", BreakKind.CONTEXT),
    ("BEFORE_WITH", BreakKind.CONTEXT),
)
"""MindSpore's words for what it does not take, of its syntax nodes and of bytecode; the first that stands there."""

_HARMLESS_IF_FROZEN = frozenset(BreakKind) - {BreakKind.PRINT, BreakKind.CLOCK_OR_RANDOM}


def breaks(text: str) -> tuple[GraphBreak, ...]:
    """Every graph break that the process reported, each place once."""
    seen: dict[tuple[str | None, BreakKind], GraphBreak] = {}
    for broken in (*_interpreted(text), *_bytecode_breaks(text), *_internal_errors(text)):
        key = (broken.location, broken.ailment or BreakKind.OTHER)
        known = seen.get(key)
        seen[key] = broken if known is None else known.model_copy(update={"count": known.count + 1})
    return tuple(seen.values())


def recompiles(text: str) -> tuple[Recompile, ...]:
    """Every recompile of capture `bytecode`, with the guard that failed."""
    return tuple(_recompile(found) for found in _RECOMPILE.finditer(text))


def refusal(text: str) -> GraphBreak | None:
    """The place that made MindSpore refuse to compile at all, from the error that the process ended with."""
    found = _REFUSAL.search(text)
    place = _users(found["stack"]) if found else None
    if found is None or place is None:
        return None
    break_kind = next((break_kind for words, break_kind in _BY_WORDS if words in found["error"]), BreakKind.OTHER)
    return GraphBreak(reason=found["error"], location=place, ailment=break_kind, gives_up=True)


def _interpreted(text: str) -> Iterator[GraphBreak]:
    """Capture `ast`: what stays in the graph as a call of the interpreter, and what was run while compiling."""
    for block in _FALLBACK.finditer(text):
        kept = _calls(block["kept"])
        break_kinds = {location: _of_names(names) for location, names in kept.items()}
        # What is computed with a value of the interpreter's is left to it as well, MindSpore's own operators included.
        is_named = any(break_kind is not BreakKind.FOREIGN_CALL for break_kind in break_kinds.values())
        for location, break_kind in break_kinds.items():
            follows = is_named and break_kind is BreakKind.FOREIGN_CALL
            yield GraphBreak(
                reason=INTERPRETED, location=location, ailment=BreakKind.AFTER_BREAK if follows else break_kind
            )
        for location, names in _calls(block["parsed"]).items():
            break_kind = _of_names(names)
            if location not in kept and break_kind not in _HARMLESS_IF_FROZEN:
                yield GraphBreak(reason=FROZEN, location=location, ailment=break_kind)


def _calls(section: str) -> dict[str, list[str]]:
    """The user's lines in a list of fallbacks -> dotted names of what is called there. Where only values that came
    from such a call are computed with, the call is what is to be mended."""
    found: dict[str, list[str]] = {}
    for place in _PLACE.finditer(section):
        name = _called(place["code"][int(place["begin"] or 0) : int(place["end"] or 0)])
        if name and not _is_machinery(place["file"]):
            found.setdefault(f"{place['file']}:{place['line']}", []).append(name)
    return found


def _called(expression: str) -> str | None:
    """`np.sort` for `np.sort(x)`; None for what is no call."""
    try:
        node = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError:
        return None
    return ast.unparse(node.func) if isinstance(node, ast.Call) else None


def _of_names(names: list[str]) -> BreakKind:
    # MindSpore lists them in any order. In `y.asnumpy().item`, the longer name, what is called last is what was wanted.
    ordered = sorted(names, key=len, reverse=True)
    parts = [part for name in ordered for part in (name.split(".")[0], name.split(".")[-1])]
    return next((_BY_NAME[part] for part in parts if part in _BY_NAME), BreakKind.FOREIGN_CALL)


def _bytecode_breaks(text: str) -> Iterator[GraphBreak]:
    begin = 0
    for found in _BREAK.finditer(text):
        forbidden = list(_FORBIDDEN.finditer(text, begin, found.start()))
        begin = found.end()
        reason, *hints = (line.strip() for line in found["reason"].splitlines())
        yield GraphBreak(
            reason=reason,
            location=_users(found["stack"]) or _users(found["at"]),
            ailment=_of_break(found, forbidden[-1] if forbidden else None),
            hint=hints[0].removeprefix("Hint: ") if hints else None,
        )


def _of_break(found: re.Match[str], forbidden: re.Match[str] | None) -> BreakKind:
    told = next((break_kind for words, break_kind in _BY_WORDS if words in found["reason"]), None)
    if told is not None:
        return told
    if "Unsupported function" not in found["reason"]:
        return BreakKind.OTHER
    called = (
        [] if forbidden is None else [forbidden["module"].split(".")[0], *re.findall(r"\w+", forbidden["function"])]
    )
    # The innermost line may be MindSpore's own, of the method that leads out of it.
    called += re.findall(r"\w+", found["at"].rpartition("\n")[2])
    return next((_BY_NAME[name] for name in called if name in _BY_NAME), BreakKind.FOREIGN_CALL)


def _internal_errors(text: str) -> Iterator[GraphBreak]:
    for found in _INTERNAL.finditer(text):
        thrown_by = found["rest"].rpartition("\n")[2]
        break_kind = next((break_kind for words, break_kind in _BY_WORDS if words in thrown_by), BreakKind.OPERATOR)
        reason = f"capture bytecode failed in itself ({found['error']}): the function runs as PyNative"
        yield GraphBreak(reason=reason, ailment=break_kind, gives_up=True)


def _recompile(found: re.Match[str]) -> Recompile:
    guarded = _GUARDED.match(found["guard"])
    guard = " ".join((guarded["guard"] if guarded else found["guard"].partition("\n")[0]).split())
    if not found["name"].isidentifier():
        # The rest of a function behind a graph break is named like `24I.21B.construct`.
        return Recompile(reason=guard, location=None, ailment=BreakKind.AFTER_BREAK)
    if guard.startswith(_SHAPE_GUARD):
        return _reshaped(found)
    is_value = re.search(r"== \{(int|float|bool|str)Var_", guard)
    return Recompile(
        reason=guard,
        location=f"{guarded['file']}:{guarded['line']}" if guarded and int(guarded["line"]) > 0 else None,
        ailment=BreakKind.CHANGING_VALUE if is_value else BreakKind.CHANGING_INPUT,
    )


def _reshaped(found: re.Match[str]) -> Recompile:
    """The guard names no line: it is about an argument of the function, which has one."""
    then, _, now = found["guard"].partition("v.s.")
    shapes = (f"[{', '.join(_SIZES.findall(shape))}]" for shape in (then, now))
    return Recompile(
        reason=f"{_SHAPE_GUARD}: {' then, now '.join(shapes)}",
        location=f"{found['file']}:{found['begin']}",
        ailment=BreakKind.CHANGING_SHAPE,
    )


def _users(stack: str) -> str | None:
    """`file:line` of the innermost frame that is not MindSpore's own."""
    places = [(place["file"], place["line"]) for place in _PLACE.finditer(f"{stack}\n")]
    users = [place for place in places if not _is_machinery(place[0])]
    return f"{users[-1][0]}:{users[-1][1]}" if users else None


def _is_machinery(file: str) -> bool:
    return "-packages/mindspore/" in file
