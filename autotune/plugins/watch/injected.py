"""The begin of the watching in a process of the job: what happens when the job imports its framework. Only Python's own
modules are imported before that."""

from __future__ import annotations

import json
import os
import sys
import threading
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
watching, which may be over before that (`is_over()`). `AROUND`, if there is one, names modules of the framework that
are to be imported while nothing is watched, in a time of `unhooked()`."""


def begin() -> None:
    """Watch, or apply files, as the variables say, in this process and those that it starts."""
    if text := os.environ.get(TRY_VARIABLE):
        watch(json.loads(text), TRYING)
    elif text := os.environ.get(APPLY_VARIABLE):
        watch(json.loads(text), APPLYING)
    elif text := os.environ.get(VARIABLE):
        watch(json.loads(text))


def is_from_outside() -> bool:
    """This process was started to be watched, or tuned."""
    return any(name in os.environ for name in (TRY_VARIABLE, APPLY_VARIABLE, VARIABLE))


def watch(wanted: Mapping[str, Any], what: str = WATCHING) -> Callable[[], None] | None:
    """Watch the frameworks that are imported, now or later. Returns what ends that; None where another watching goes
    on. `what`: see `WATCHING`."""
    with _Current.lock:
        before, current = _Current.one, _Injected(wanted, what)
        if before is not None and not before.is_over():
            return None
        _Current.one = current
    if before is not None:
        before.end()
    try:
        current.begin()
    except BaseException:
        current.end()
        raise
    return current.end


class _Current:
    """What this process was asked last."""

    lock = threading.Lock()
    one: _Injected | None = None


class _Injected:
    """One watching, whichever frameworks are imported before its end, and in whichever thread."""

    def __init__(self, wanted: Mapping[str, Any], what: str) -> None:
        self._wanted, self._what = wanted, what
        self._lock = threading.Lock()
        self._has_ended = False
        self._finders: list[_Finder] = []
        self._hooked: list[Any] = []

    def begin(self) -> None:
        for name in FRAMEWORKS:
            if name in sys.modules:
                self._hook(name)
            else:
                self._wait_for(name, partial(self._hook_or_say, name))

    def is_over(self) -> bool:
        """Nothing is watched any more, whether or not `end` was called."""
        ends = [getattr(calls, "is_over", bool)() for calls in self._hooked]
        return self._has_ended or (bool(ends) and all(ends))

    def end(self) -> None:
        with self._lock:
            self._has_ended = True
            hooked, self._hooked = self._hooked, []
            finders, self._finders = self._finders, []
        _take_out(*finders)
        for calls in hooked:
            calls.unhook()

    def _hook_or_say(self, name: str) -> None:
        """The job's import goes on."""
        try:
            self._hook(name)
        except Exception as problem:
            import logging  # The job may never need it.

            what = "are not seen" if self._what == WATCHING else "stay untuned"
            tip = "; its Python needs the packages that a serving image needs" * isinstance(problem, ImportError)
            logging.getLogger("autotune").warning(
                "autotune: calls of %s %s in this process: %s%s", name, what, problem, tip
            )

    def _hook(self, name: str) -> None:
        calls = import_module(f"{__package__}.{name}.{self._what}")
        with self._lock:
            if self._has_ended:  # In another thread, while this one imported the framework.
                return
            calls.hook(self._wanted)
            self._hooked.append(calls)
        for around in getattr(calls, "AROUND", ()):
            if around not in sys.modules:
                self._wait_for(around, lambda: None, calls.unhooked)

    def _wait_for(
        self,
        name: str,
        after: Callable[[], object],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        finder = _Finder(name, after, within)
        with self._lock:
            if not self._has_ended:
                self._finders.append(finder)
                sys.meta_path.insert(0, finder)


def _take_out(*finders: _Finder) -> None:
    """By a list of their own: another thread may be going through this one, and would leave a finder out."""
    sys.meta_path = [each for each in sys.meta_path if not any(each is one for one in finders)]


class _Finder:
    """Lets those behind it find one module, however often it is looked for, and calls `after` once it was imported,
    which is done `within` something."""

    def __init__(
        self, name: str, after: Callable[[], object], within: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._name, self._after, self._within = name, after, within

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        finders = sys.meta_path
        places = [place for place, each in enumerate(finders) if each is self]
        if name != self._name or not places:
            return None
        for finder in finders[places[0] + 1 :]:
            find = getattr(finder, "find_spec", None)
            if find is not None and (spec := find(name, path, target)) is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec  # type: ignore[no-any-return]
        return None

    def execute(self, loader: Any, module: ModuleType) -> None:
        """Execute the module by its own loader. Where that fails, it is looked for again."""
        with self._within():
            loader.exec_module(module)
        _take_out(self)
        self._after()


class _Loader:
    """Stands in a module's spec for its loader, which may be that of many modules, until the module is executed."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._finder.execute(self._loader, module)
