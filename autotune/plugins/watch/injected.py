"""The begin of the watching in a process of the job: what happens when the job imports its framework. Only Python's own
modules are imported before that."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "AUTOTUNE_WATCH"
"""Holds what was asked, as JSON (`Wanted` of `recorder`). The job's processes inherit it."""
FRAMEWORKS = ("torch", "mindspore")
"""Modules by whose import the watching begins. `plugins/watch` has a folder for each."""

APPLY_VARIABLE = "AUTOTUNE_APPLY"
"""Holds, as JSON, the files that are applied to models of the job."""
TRY_VARIABLE = "AUTOTUNE_TRY"
"""Holds, as JSON, the files that are applied in turns, and the folder for what that gives."""
WATCHING, APPLYING, TRYING = "calls", "applied", "alternating"
"""Modules in the folder of a framework. `hook(wanted)` is called once the framework is imported; `unhook()` ends the
watching. `AROUND`, if there is one, names modules of the framework that are to be imported while nothing is watched, in
a time of `unhooked()`."""


def begin() -> None:
    """Watch, or apply files, as the variables say, in this process and those that it starts."""
    if text := os.environ.get(TRY_VARIABLE):
        watch(json.loads(text), TRYING)
    elif text := os.environ.get(APPLY_VARIABLE):
        watch(json.loads(text), APPLYING)
    elif text := os.environ.get(VARIABLE):
        watch(json.loads(text))


def watch(wanted: Mapping[str, Any], what: str = WATCHING) -> Callable[[], None] | None:
    """Watch the frameworks that are imported, now or later. Returns what ends that; None where it is done already.
    `what`: see `WATCHING`."""
    finders: list[_Finder] = []
    places = {name: f"{__package__}.{name}.{what}" for name in FRAMEWORKS}
    for name, place in places.items():
        if name not in sys.modules:
            finders.append(_Finder(name, partial(_hook, place, wanted)))
        elif not _hook(place, wanted):
            return None
    sys.meta_path[:0] = finders

    def stop() -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in finders]
        for place in places.values():
            if place in sys.modules:
                sys.modules[place].unhook()

    return stop


def _hook(place: str, wanted: Mapping[str, Any]) -> bool:
    calls = import_module(place)
    if not calls.hook(wanted):
        return False
    for name in getattr(calls, "AROUND", ()):
        if name not in sys.modules:
            sys.meta_path.insert(0, _Finder(name, lambda: None, calls.unhooked))
    return True


class _Finder:
    """Lets others find one module, and calls `after` when it was imported, which is done `within` something."""

    def __init__(
        self,
        name: str,
        after: Callable[[], object],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._name, self._after, self._within = name, after, within

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        """The loader, which stays in the module's attributes, is as it was once the module is executed."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            with self._within():
                execute(module)
            try:
                self._after()
            except Exception as problem:
                if os.environ.get(f"{VARIABLE}_DEBUG"):
                    sys.stderr.write(f"autotune: not watched: {problem!r}\n")

        loader.exec_module = exec_module
