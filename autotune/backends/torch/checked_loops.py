"""Checks of indices that raise, where inductor's C++ for a CPU ends the process (pytorch#195402).

Generated code checks an index where it is used, and throws. No exception may leave a loop that several threads share
(OpenMP): the process is terminated, where the same code in one thread raises RuntimeError, and the untuned model
IndexError. So each such loop's body catches, the first exception is kept, and thrown when all threads have ended the
loop. What is written to outputs until then is dropped with them: the call has raised.

A check of one index under a mask (within what `pad` or `cat` reads) is written with `~` of a bool, which is never zero,
so that nothing is checked (2.13): the code reads beyond the table, or dies of it. It is put right here, too.

The text of a kernel is rewritten on its way to the C++ compiler. The digest of that text names the compiled library, so
no cache confuses the two, and one that was made with this is found with it. A kernel of another form than is known is
compiled as it is. docs/decisions/0097-which-calls-are-tuned.md has what it costs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+(?P<words>[^\n]*)\n", re.MULTILINE)
_SHARED = re.compile(r"\b(for|simd|single)\b")
_PARALLEL = re.compile(r"\bparallel\b")
_COLLAPSED = re.compile(r"collapse\((\d+)\)")
_CHECK = re.compile(r"\b\w*TORCH_CHECK\w*\s*\(")
_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*')
_SKIPPED = re.compile(r"(?:\s|#[^\n]*\n)*")
_FLAG = "inductor_cpu_integer_div_error_flag"
"""Name of what points to a value of the kernel, in a release that notes a division by zero while a kernel runs."""
_UNDER_MASK = re.compile(r'\| ~\((?:(?P<bool>\w+)|\((?P<lanes>\w+)\)\.all_masked\(\))\)(?=, "index out of bounds)')
_CLOSES = {"(": ")", "{": "}"}

_BEGIN = "{ std::atomic<bool> autotune_failed{false}; std::exception_ptr autotune_error;\n"
_TRY = " try {"
_CATCH = "} catch (...) { if (!autotune_failed.exchange(true)) autotune_error = std::current_exception(); } "
_END = " if (autotune_error) { RESETstd::rethrow_exception(autotune_error); } }"


def raising(source: str) -> str:
    """The text of a kernel whose checks raise, within loops of several threads and under a mask too; itself where there
    is none, and where it has a form that is not known."""
    if not _CHECK.search(source):
        return source
    source = _UNDER_MASK.sub(_or_masked, source)
    try:
        return _Rewriting(source).rewritten()
    except (ValueError, IndexError):
        return source


def _or_masked(found: re.Match[str]) -> str:
    """Nothing is read: the mask is false, or that of all lanes."""
    return f"| !({found['bool']})" if found["bool"] else f"| ({found['lanes']}).all_zero()"


@dataclass
class _Rewriting:
    """Places where something is put in, found in a copy of the text that has no strings and comments."""

    source: str
    added: list[tuple[int, str]] = field(default_factory=list)
    regions: list[tuple[int, int]] = field(default_factory=list)
    """Beginnings and ends of what several threads do, and of loops outside of it that are vectorised."""

    def __post_init__(self) -> None:
        self.text = _TEXT.sub(lambda found: " " * len(found[0]), self.source)

    def rewritten(self) -> str:
        """Raises ValueError for a form that is not known."""
        for pragma in _PRAGMA.finditer(self.text):
            words = pragma["words"]
            if not (_SHARED.search(words) or _PARALLEL.search(words)):
                continue
            begin, end = self._body(pragma.end(), int((_COLLAPSED.findall(words) or [1])[0]))
            if not _CHECK.search(self.text, begin, end):
                continue
            if not self.regions or pragma.start() >= self.regions[-1][1]:
                self._surround(pragma.start(), end)
            if _SHARED.search(words):
                self.added += [(begin, _TRY), (end - 1, _CATCH)]
        self._require_caught()
        pieces, at = [], 0
        for place, text in sorted(self.added, key=lambda each: each[0]):
            pieces += [self.source[at:place], text]
            at = place
        return "".join([*pieces, self.source[at:]])

    def _surround(self, start: int, end: int) -> None:
        """A region begins here: what it throws is kept, and thrown behind it."""
        reset = f"{_FLAG} = nullptr; " if _FLAG in self.text else ""
        self.added += [(start, _BEGIN), (end, _END.replace("RESET", reset))]
        self.regions.append((start, end))

    def _require_caught(self) -> None:
        """Raises ValueError for a check within a region and outside of the bodies that catch."""
        tries = [place for place, text in self.added if text is _TRY]
        catches = [place for place, text in self.added if text is _CATCH]
        for start, end in self.regions:
            for check in _CHECK.finditer(self.text, start, end):
                if not any(begin <= check.start() < stop for begin, stop in zip(tries, catches, strict=True)):
                    raise ValueError("a check that nothing catches")

    def _body(self, place: int, num_loops: int) -> tuple[int, int]:
        """Where the block of a construct begins, behind its brace, and where it ends: that of the innermost of so many
        loops, or the block itself."""
        for _ in range(num_loops):
            place = self._next(place)
            if self.text[place] == "{" and num_loops > 1:
                place = self._next(place + 1)
            if not self.text.startswith("for", place):
                break
            place = self._closing(self.text.index("(", place)) + 1
        place = self._next(place)
        if self.text[place] != "{":
            raise ValueError("no block")
        return place + 1, self._closing(place) + 1

    def _next(self, place: int) -> int:
        found = _SKIPPED.match(self.text, place)
        return place if found is None else found.end()

    def _closing(self, place: int) -> int:
        """Where the bracket that opens here is closed."""
        opens, depth = self.text[place], 0
        closes = _CLOSES[opens]
        for at in range(place, len(self.text)):
            depth += (self.text[at] == opens) - (self.text[at] == closes)
            if not depth:
                return at
        raise ValueError("it is never closed")


@contextmanager
def checks_raise() -> Iterator[None]:
    """Within: what inductor compiles for a CPU is compiled so. Nothing changes in a release that does it elsewhere."""
    from torch._inductor import codecache

    kind: Any = getattr(codecache, "CppCodeCache", None)
    before = None if kind is None else vars(kind).get("load_async")
    if not isinstance(before, classmethod):
        yield
        return
    kind.load_async = classmethod(_rewriting(before.__func__))
    try:
        yield
    finally:
        kind.load_async = before


def _rewriting(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_rewritten(kind: Any, *args: Any, **kwargs: Any) -> Any:
        changed = {name: _raising_if_text(value) for name, value in kwargs.items()}
        return load(kind, *map(_raising_if_text, args), **changed)

    return load_rewritten


def _raising_if_text(value: Any) -> Any:
    return raising(value) if isinstance(value, str) else value
