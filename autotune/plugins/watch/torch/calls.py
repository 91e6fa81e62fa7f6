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
from weakref import WeakSet

import torch

from autotune.plugins.watch.layouts import layouts_of
from autotune.plugins.watch.recorder import Recorder, Seen
from autotune.plugins.watch.torch import kept, steps
from autotune.plugins.watch.watching import Met, Watching

AROUND = ("torch._dynamo.mutation_guard", "torch._dynamo.utils")
"""They take `Module.__call__` for that of every module that nobody has changed."""
_SETTLED_CALLS, _SETTLED_S = 16, 3.0
"""Calls of a model, and seconds without a new one, after which no further models are looked for."""
_LOOKED_FOR_S = 30.0
"""Seconds after which further models are looked for again, for some calls."""
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
num_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)
transform: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
"""That of `torch.func` in which a call is made, or None."""
_without_functions = torch._C.DisableTorchFunction
"""Within: tensors are looked at behind the back of modes and classes of the job's that see what is done to tensors."""
set_compiler: Any = torch._C._dynamo.eval_frame.set_eval_frame
"""Sets what compiles the frames that this thread goes on to run, None for nothing, and returns what it was."""
_Module = torch.nn.Module
ORIGINAL = _Module.__call__
"""That of PyTorch."""


def _made_by(module: Any) -> Any:
    compiled = module._compiled_call_impl
    return module._call_impl if compiled is None else compiled


own_of: Callable[[Any], Callable[..., Any]] = (
    _made_by if vars(_Module).get("_wrapped_call_impl") is ORIGINAL else ORIGINAL.__get__
)
"""What a module is called by without this: what `ORIGINAL` goes on to, so that no module costs a frame more. Models
whose modules are many within each other have just as many as Python allows."""
_watching = Watching(kept)
_inside = _watching.inside
is_over = _watching.is_over


class _Looking:
    """Where calls are seen in this process."""

    classes: WeakSet[type] = WeakSet()
    """Those that have a `__call__` of ours."""
    text_classes: dict[Any, tuple[Any, Any]] = {}
    """Class -> its `generate` of ours, and the one of its own; None: it has none."""
    newest_s = 0.0
    """When the last new model was seen, or models were looked for again."""
    stays = False


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of PyTorch's. Whoever has replaced `Module.__call__` since, and calls what was there, comes here."""
    if torch.compiler.is_compiling():
        return ORIGINAL(self, *args, **kwargs)
    if get_ident() in _inside or torch._C._get_tracing_state() is not None:
        return own_of(self)(*args, **kwargs)
    return _outermost(own_of(self), self, args, kwargs)


def _called_of_class(self: Any, *args: Any, **kwargs: Any) -> Any:
    """In a class whose models are seen: goes on to what modules are called by."""
    if torch.compiler.is_compiling():
        return ORIGINAL(self, *args, **kwargs)
    call = _Module.__call__
    own = own_of(self) if call is _called or call is ORIGINAL else call.__get__(self)
    if get_ident() in _inside or torch._C._get_tracing_state() is not None:
        return own(*args, **kwargs)
    return _outermost(own, self, args, kwargs)


stand_ins = [_called]
"""What stands in place of `Module.__call__` and is to be put back."""


def _outermost(own: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a model that is within no other's call in this thread."""
    recorder = _watching.recorder
    if recorder is None or recorder.is_over:
        return own(*args, **kwargs)
    compiling = set_compiler(None)  # Where the job is within compiled code, what is done here is not to be compiled.
    try:
        with _without_functions():
            met = _met(recorder, model, args, kwargs)
    finally:
        set_compiler(compiling)
    thread = get_ident()
    _inside.add(thread)
    begun = time.perf_counter_ns()
    try:
        result = own(*args, **kwargs)
        took = time.perf_counter_ns() - begun
    finally:
        _inside.discard(thread)
    if met is not None:
        compiling = set_compiler(None)
        try:
            with _without_functions():
                _note(met, result, begun, took)
        finally:
            set_compiler(compiling)
    return result


def _met(recorder: Recorder, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Met | None:
    """What is remembered of a call that is about to be made. Raises nothing but what is the job's."""
    try:
        if _is_anothers(recorder):
            return None
        seen = _watching.by_id.get(id(model)) or _found(recorder, model)
        return None if seen is None else _watching.met(seen, _key_of(seen, model, args, kwargs), args, kwargs)
    except Exception as problem:  # Whatever the job's objects raise when they are looked at.
        _watching.say(problem)
        return None


def _is_anothers(recorder: Recorder) -> bool:
    """The call is part of what something else does with the model, whose tensors are not those of a call by itself, or
    are not to be read now."""
    if torch._C._current_graph_task_id() != -1:
        return True  # A backward pass computes it anew.
    if is_looked_into():
        recorder.notes["calls under a TorchDispatchMode, or within torch.func, are not looked at"] = None
        return True
    return steps.is_captured()


def is_looked_into() -> bool:
    """Something of the job's sees each operator of a call, or puts other tensors in the place of its tensors."""
    return bool(num_dispatch_modes()) or transform() is not None


def _note(met: Met, result: Any, begun: int, took: int) -> None:
    """Count a call that was made. Raises nothing but what is the job's."""
    seen, key, _ = met
    try:
        if key[1] and kept.is_recorded(result):
            if seen.steps is None:
                seen.steps = steps.SeenSteps(seen.model(), result)
            seen.backward += 1
            seen.steps.look()
        _watching.note(met, begun, took)
        _settle(seen)
    except Exception as problem:
        _watching.say(problem)


def _key_of(seen: Seen, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The layout of the arguments, and the state that the call is made in."""
    autocast = (_any_autocast() and kept.autocast_of(model)) or seen.extra["autocast"]
    layouts = layouts_of(args, kwargs, torch.Tensor)
    return layouts, torch.is_grad_enabled(), model.training, autocast


def _found(recorder: Recorder, model: Any) -> Seen | None:
    """What is kept of a model from its first call on; None for one too many, and for a replica of one."""
    if getattr(model, "_is_replica", False):  # DataParallel makes some for each call.
        return None
    seen = recorder.take_in(model, _watching.by_id)
    if seen is None:
        return None
    _Looking.newest_s = time.monotonic()
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
    if not give_call(kind, _called_of_class):
        _Looking.stays = True
    elif is_new:
        _Looking.classes.add(kind)


def give_call(kind: type, call: Any) -> bool:
    """Give a class of modules this `__call__`; False for one that has a `__call__` of another's."""
    if kind.__call__ not in (call, ORIGINAL, _Module.__call__):
        return False
    if "__call__" not in vars(kind):
        kind.__call__ = call  # type: ignore[method-assign]
    return True


def _own_generate(kind: Any) -> None:
    """A call of `generate` is one call of the model, with the text that it wrote."""
    if kind in _Looking.text_classes:
        return
    generate = kind.generate
    is_own = "generate" in vars(kind)

    def generated(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder, thread = _watching.recorder, get_ident()
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
            with _without_functions():
                _note_text(recorder, self, (args, kwargs, result), (begun, took))
        finally:
            set_compiler(compiling)
        return result

    pass_over(generated)
    generated.__wrapped__ = generate  # type: ignore[attr-defined]
    generated.__name__ = "generate"
    generated.__doc__ = generate.__doc__
    kind.generate = generated
    _Looking.text_classes[kind] = generated, generate if is_own else None


def _note_text(recorder: Recorder, model: Any, call: tuple[Any, Any, Any], times_ns: tuple[int, int]) -> None:
    """`call`: its arguments, and what it gave. `times_ns`: when it began, and what it took."""
    try:
        seen = _watching.by_id.get(id(model)) or _found(recorder, model)
        if seen is not None:
            recorder.note(seen, kept.keep_text(seen, *call), *times_ns)
    except Exception as problem:
        _watching.say(problem)


def _settle(seen: Seen) -> None:
    """Give `Module` its own `__call__` again where all models seem to be found, and look for others later."""
    if seen.calls % _SETTLED_CALLS:
        return
    now = time.monotonic()
    quiet_s = now - _Looking.newest_s
    if _Module.__call__ is _called:
        if quiet_s > _SETTLED_S and not _Looking.stays and not _has_compiled():
            _Module.__call__ = ORIGINAL  # type: ignore[method-assign]
    elif quiet_s > _LOOKED_FOR_S and _Module.__call__ is ORIGINAL and not _has_compiled():
        _Looking.newest_s = now
        _Module.__call__ = _called  # type: ignore[method-assign]


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(dynamo.counters.get(name) for name in ("frames", "stats"))


def hook(wanted: Mapping[str, Any]) -> None:
    """See all calls from now on."""
    _watching.begin(wanted)
    _Looking.newest_s = time.monotonic()
    for function in (_called, _called_of_class, _outermost, _made_by):
        pass_over(function)
    if _Module.__call__ is ORIGINAL:
        _Module.__call__ = _called  # type: ignore[method-assign]
    elif _Module.__call__ is not _called and _watching.recorder is not None:
        _watching.recorder.notes["torch.nn.Module.__call__ is not PyTorch's own: put it back before"] = None
    steps.hook()


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
    """See none any more, and write what was seen. What the job has put in place of what is taken out stays."""
    if _Module.__call__ is _called:
        _Module.__call__ = ORIGINAL  # type: ignore[method-assign]
    steps.unhook()
    for kind in _Looking.classes:
        if vars(kind).get("__call__") is _called_of_class:
            del kind.__call__
    for kind, (generated, before) in _Looking.text_classes.items():
        if vars(kind).get("generate") is not generated:
            continue
        if before is None:
            del kind.generate
        else:
            kind.generate = before
    _Looking.classes, _Looking.text_classes = WeakSet(), {}
    _watching.end()


@contextmanager
def unhooked() -> Iterator[None]:
    """A time in which the class is as PyTorch made it, unless the job has changed it."""
    before = _Module.__call__
    if before not in stand_ins:
        yield
        return
    _Module.__call__ = ORIGINAL  # type: ignore[method-assign]
    try:
        yield
    finally:
        has_ended = before is _called and _watching.recorder is None
        if _Module.__call__ is ORIGINAL and not has_ended:
            _Module.__call__ = before  # type: ignore[method-assign]
