"""The outermost calls of PyTorch's modules in a job, as they are made.

While it is not known which models a job has, `torch.nn.Module.__call__` is one that asks whether another call is going
on in this thread. Once calls of new models have become rare the class has its own again, and only the classes of the
models that were found keep one, so that the calls inside of a model cost what they cost without. Where the job compiles
or where a model's class has a `__call__` of its own the first stays: to change it then would be seen by a compiler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from autotune.plugins.watch import saving
from autotune.plugins.watch.layouts import layouts_of
from autotune.plugins.watch.recorder import MOST_KEPT, Recorder, Seen, Wanted
from autotune.plugins.watch.torch import kept, steps

AROUND = ("torch._dynamo.mutation_guard", "torch._dynamo.utils")
"""They take `Module.__call__` for that of every module that nobody has changed."""
_SETTLED_CALLS, _SETTLED_S = 16, 3.0
"""Calls of a model, and seconds without a new one, after which no further models are looked for."""
_LOOKED_FOR_S = 30.0
"""Seconds after which further models are looked for again, for some calls."""
_ALWAYS_KEPT = 3
"""Calls that are kept first, whatever their shape; later ones are of new shapes."""
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
set_compiler: Any = torch._C._dynamo.eval_frame.set_eval_frame
"""Sets what compiles the frames that this thread goes on to run, None for nothing, and returns what it was."""
_Module = torch.nn.Module
ORIGINAL = _Module.__call__
"""That of PyTorch."""
_inside: set[int] = set()
"""Threads that are in a call of a model."""


class _Watching:
    """What is watched in this process; there is one."""

    recorder: Recorder | None = None
    by_id: dict[int, Seen] = {}
    classes: dict[type, None] = {}
    """Those that have a `__call__` of ours."""
    text_classes: dict[Any, Any] = {}
    newest_s = 0.0
    """When the last new model was seen, or models were looked for again."""
    stays = False


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return ORIGINAL(self, *args, **kwargs)
    call = _Module.__call__
    if call is _called:
        call = ORIGINAL
    if get_ident() in _inside or torch._C._get_tracing_state() is not None:
        return call(self, *args, **kwargs)
    return _outermost(call, self, args, kwargs)


def _outermost(call: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a model that is within no other's call in this thread."""
    recorder = _Watching.recorder
    if recorder is None or recorder.is_over:
        return call(model, *args, **kwargs)
    compiling = set_compiler(None)  # Where the job is within compiled code, what is done here is not to be compiled.
    try:
        met = _met(recorder, model, args, kwargs)
    finally:
        set_compiler(compiling)
    thread = get_ident()
    _inside.add(thread)
    begun = time.perf_counter_ns()
    try:
        result = call(model, *args, **kwargs)
        took = time.perf_counter_ns() - begun
    finally:
        _inside.discard(thread)
    if met is not None:
        compiling = set_compiler(None)
        try:
            _note(recorder, met, result, begun, took)
        finally:
            set_compiler(compiling)
    return result


def _met(
    recorder: Recorder, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Seen, tuple[Any, ...]] | None:
    """The model of a call that is about to be made, and what the call is counted by. Never raises."""
    try:
        seen = _Watching.by_id.get(id(model)) or _found(recorder, model)
        if seen is None:
            return None
        key = _key_of(seen, model, args, kwargs)
        num = len(seen.kept)
        if num < MOST_KEPT and (num < _ALWAYS_KEPT or key not in seen.counts):
            saving.keep(seen, key, args, kwargs, kept)
    except Exception as problem:  # Whatever the job's objects raise when they are looked at.
        _say(problem)
        return None
    return seen, key


def _note(recorder: Recorder, met: tuple[Seen, tuple[Any, ...]], result: Any, begun: int, took: int) -> None:
    """Count a call that was made. Never raises."""
    seen, key = met
    try:
        if key[1] and kept.is_recorded(result):
            if seen.steps is None:
                seen.steps = steps.SeenSteps(seen.model(), result)
            seen.backward += 1
            seen.steps.look()
        recorder.note(seen, key, begun, took)
        _settle(seen)
    except Exception as problem:
        _say(problem)


def _key_of(seen: Seen, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The layout of the arguments, and the state that the call is made in."""
    autocast = (_any_autocast() and kept.autocast_of(model)) or seen.extra["autocast"]
    layouts = layouts_of(args, kwargs, torch.Tensor)
    return layouts, torch.is_grad_enabled(), model.training, autocast


def _found(recorder: Recorder, model: Any) -> Seen | None:
    """What is kept of a model from its first call on; None for one too many."""
    seen = recorder.take_in(model, _Watching.by_id)
    if seen is None:
        return None
    _Watching.newest_s = time.monotonic()
    _own_call(type(model))
    if hasattr(type(model), "generate") and _is_in_generate(sys._getframe(1), model):
        _own_generate(type(model))
        seen.extra["within_generate"] = True
    return seen


def _is_in_generate(frame: FrameType | None, model: Any) -> bool:
    for _ in range(40):
        if frame is None:
            return False
        if frame.f_code.co_name == "generate" and frame.f_locals.get("self") is model:
            return True
        frame = frame.f_back
    return False


def _own_call(kind: type) -> None:
    """Calls of this class are seen from now on, whatever becomes of those of all modules."""
    is_new = "__call__" not in vars(kind)
    if not give_call(kind, _called):
        _Watching.stays = True
    elif is_new:
        _Watching.classes[kind] = None


def give_call(kind: type, call: Any) -> bool:
    """Give a class of modules this `__call__`; False for one that has a `__call__` of another's."""
    if kind.__call__ not in (call, ORIGINAL, _Module.__call__):
        return False
    if "__call__" not in vars(kind):
        kind.__call__ = call  # type: ignore[method-assign]
    return True


def _own_generate(kind: Any) -> None:
    """A call of `generate` is one call of the model, with the text that it wrote."""
    if kind in _Watching.text_classes:
        return
    generate = kind.generate
    is_own = "generate" in vars(kind)

    def generated(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder, thread = _Watching.recorder, get_ident()
        if recorder is None or recorder.is_over or thread in _inside:
            return generate(self, *args, **kwargs)
        _inside.add(thread)
        begun = time.perf_counter_ns()
        try:
            result = generate(self, *args, **kwargs)
        finally:
            took = time.perf_counter_ns() - begun
            _inside.discard(thread)
        compiling = set_compiler(None)
        try:
            with suppress(Exception):
                seen = _Watching.by_id.get(id(self)) or _found(recorder, self)
                if seen is not None:
                    key = kept.keep_text(seen, args, kwargs, result)
                    recorder.note(seen, key, begun, took)
        finally:
            set_compiler(compiling)
        return result

    generated.__wrapped__ = generate  # type: ignore[attr-defined]
    generated.__name__ = "generate"
    generated.__doc__ = generate.__doc__
    kind.generate = generated
    _Watching.text_classes[kind] = generate if is_own else None


def _settle(seen: Seen) -> None:
    """Give `Module` its own `__call__` again where all models seem to be found, and look for others later."""
    if seen.calls % _SETTLED_CALLS:
        return
    now = time.monotonic()
    quiet_s = now - _Watching.newest_s
    if _Module.__call__ is _called:
        if quiet_s > _SETTLED_S and not _Watching.stays and not _has_compiled():
            _Module.__call__ = ORIGINAL  # type: ignore[method-assign]
    elif quiet_s > _LOOKED_FOR_S and not _has_compiled():
        _Watching.newest_s = now
        _Module.__call__ = _called  # type: ignore[method-assign]


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(dynamo.counters.get(name) for name in ("frames", "stats"))


def hook(wanted: Mapping[str, Any]) -> bool:
    """See all calls from now on. False: they are seen already."""
    if _Watching.recorder is not None and not _Watching.recorder.is_over:
        return False
    _Watching.recorder = Recorder(Wanted(**wanted), kept)
    _Watching.newest_s = time.monotonic()
    for function in (_called, _outermost):
        pass_over(function)
    _Module.__call__ = _called  # type: ignore[method-assign]
    steps.hook()
    return True


def pass_over(function: Any) -> None:
    """Let Dynamo compile what the function calls, and not the function: as with PyTorch's own that it stands for."""
    frames: Any = torch._C._dynamo.eval_frame
    with suppress(AttributeError):  # Other releases of PyTorch.
        if hasattr(frames, "skip_code"):
            frames.skip_code(function.__code__)
        else:
            skips = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
            frames.set_code_exec_strategy(function.__code__, skips)


def unhook() -> None:
    """See none any more, and write what was seen."""
    recorder, _Watching.recorder = _Watching.recorder, None
    _Module.__call__ = ORIGINAL  # type: ignore[method-assign]
    steps.unhook()
    for kind in _Watching.classes:
        del kind.__call__
    for kind, before in _Watching.text_classes.items():
        if before is None:
            del kind.generate
        else:
            kind.generate = before
    _Watching.classes, _Watching.text_classes, _Watching.by_id = {}, {}, {}
    if recorder is not None:
        recorder.close()


@contextmanager
def unhooked() -> Iterator[None]:
    """A time in which the class is as PyTorch made it."""
    before = _Module.__call__
    _Module.__call__ = ORIGINAL  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Module.__call__ = before  # type: ignore[method-assign]


def _say(problem: Exception) -> None:
    recorder = _Watching.recorder
    if recorder is not None and len(recorder.notes) < 20:
        recorder.notes[f"a call was not looked at: {problem!r}"[:300]] = None
