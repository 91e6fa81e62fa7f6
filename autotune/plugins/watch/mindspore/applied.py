"""Exports put to use in a job that says nothing of them: `load(FILE).apply(cell)` at the first call of each Cell of the
class and the parameters that a file names, and calls of what that gave in place of the Cell's."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

import mindspore as ms

from autotune.job.policy import LoadedFile
from autotune.plugins.watch.applying import AppliedFiles, apply, class_of
from autotune.plugins.watch.mindspore.calls import ORIGINAL, is_traced

_Cell = ms.nn.Cell
_inside: set[int] = set()
"""Threads that are in a call of a tuned model."""


class _Applying:
    """What is applied in this process."""

    here = AppliedFiles("mindspore", ())
    classes: frozenset[str] = frozenset()
    """Names of those that the files are for."""


def use_with(use: Callable[[LoadedFile, Any], Any]) -> None:
    """Call something else in place of a Cell than what `load(FILE).apply(cell)` gives."""
    _Applying.here.use = use


def marked(cell: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call in place of the Cell's, of which gradients can be taken as of the Cell's own: MindSpore has such a call
    marked by the very Cell (measured)."""

    def called(*args: Any, **kwargs: Any) -> Any:
        if not cell.requires_grad:
            return call(*args, **kwargs)
        cell._call_pre_process(*args, **kwargs)
        cell.requires_grad = False  # What is called shares the Cell's attributes, and would mark it once more.
        try:
            output = call(*args, **kwargs)
        finally:
            cell.requires_grad = True
        cell._call_post_process(output, *args, **kwargs)
        return output

    return called


def _applied(loaded: LoadedFile, cell: Any) -> Any:
    given = apply(loaded, cell)
    return cell if given is cell else marked(cell, given)


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    thread, here = get_ident(), _Applying.here
    here.has_calls = True
    if thread in _inside or type(self).__name__ not in _Applying.classes or not _is_replaceable(self):
        return ORIGINAL(self, *args, **kwargs)
    known = here.known.get(id(self))
    instead = here.instead_of(self) if known is None else known[1]
    if instead is None:
        return ORIGINAL(self, *args, **kwargs)
    _inside.add(thread)
    try:
        return instead(*args, **kwargs)
    finally:
        _inside.discard(thread)


def _is_replaceable(cell: Any) -> bool:
    """A `__call__` of its author's would be made twice, and what a compiler records is the compiler's."""
    return type(cell).__call__ is _called and not is_traced()


def hook(wanted: Mapping[str, Any]) -> None:
    """Apply the files from now on."""
    applying = _Applying.here = AppliedFiles("mindspore", wanted["files"])
    applying.use = _applied
    _Applying.classes = frozenset(map(class_of, applying.answers))
    if applying.files:
        _Cell.__call__ = _called
        atexit.register(applying.say_what_was_not_found)
