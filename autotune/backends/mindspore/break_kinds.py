"""What MindSpore writes to stderr about its graphs, read back: pure text, no MindSpore in here.

A report of its own is asked for with `VARIABLES`: what a graph leaves to the Python interpreter. Another one comes
unasked: the error of a model that it refuses. Their forms are those of MindSpore 2.10; a release that writes others
gives no findings, which is not the same as none being there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autotune.measure.diagnosis import BreakKind, GraphBreak

VARIABLES = {"MS_DEV_FALLBACK_DUMP_NODE": "1"}
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
    ("Unsupported expression 'Set'", BreakKind.CONTAINER),
    ("Unsupported statement 'Try'", BreakKind.EXCEPTION),
    ("Raise", BreakKind.EXCEPTION),
    ("Yield", BreakKind.GENERATOR),
    ("Only support jit_class instance", BreakKind.CONTEXT),
)
"""MindSpore's words for what it does not take; the first that stands there."""

_HARMLESS_IF_FROZEN = frozenset(BreakKind) - {BreakKind.PRINT, BreakKind.CLOCK_OR_RANDOM}


def breaks(text: str) -> tuple[GraphBreak, ...]:
    """Every graph break that the process reported, each place once."""
    seen: dict[tuple[str | None, BreakKind], GraphBreak] = {}
    for broken in _interpreted(text):
        key = (broken.location, broken.ailment or BreakKind.OTHER)
        known = seen.get(key)
        seen[key] = broken if known is None else known.model_copy(update={"count": known.count + 1})
    return tuple(seen.values())


def refusal(text: str) -> GraphBreak | None:
    """The place that made MindSpore refuse to compile at all, from the error that the process ended with."""
    found = _REFUSAL.search(text)
    place = _users(found["stack"]) if found else None
    if found is None or place is None:
        return None
    break_kind = next((break_kind for words, break_kind in _BY_WORDS if words in found["error"]), BreakKind.OTHER)
    return GraphBreak(reason=found["error"], location=place, ailment=break_kind, gives_up=True)


def _interpreted(text: str) -> Iterator[GraphBreak]:
    """What stays in the graph as a call of the interpreter, and what was run while compiling."""
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


def _users(stack: str) -> str | None:
    """`file:line` of the innermost frame that is not MindSpore's own."""
    places = [(place["file"], place["line"]) for place in _PLACE.finditer(f"{stack}\n")]
    users = [place for place in places if not _is_machinery(place[0])]
    return f"{users[-1][0]}:{users[-1][1]}" if users else None


def _is_machinery(file: str) -> bool:
    return "-packages/mindspore/" in file
