"""Whose an exception is that comes out of a tuned call: the job's own, or the tuned code's.

The job's own are those that its hooks and its other code raise, and those that another thread or a signal's handler
throws into the call, wherever it is: a cancellation, a timeout. The tuned code's are those of the compiler, also where
it runs code of the job's to compile it, and those of what it made. Frames of the traceback tell them apart, by the
modules that they belong to. Of some exceptions there is no telling, such as one of the autograd engine, in which
neither has a frame.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from enum import Enum
from types import CodeType, FrameType

from autotune.errors import is_let_through

_FRAMEWORKS = frozenset({"torch", "functorch", "triton", "torch_npu", "torchair", "torchao", "mindspore", "te", "akg"})
_LIBRARIES = _FRAMEWORKS | {"autotune", "numpy", "sympy", "mpmath", "networkx", "builtins"} | sys.stdlib_module_names
"""What they raise, and what is raised in them, says nothing of the job."""
_COMPILES = ("torch._dynamo.convert_frame", "torch._dynamo.backends.common", "torch._inductor.compile_fx")
"""Modules that every compilation goes through, and no call of what was compiled."""
_COMPILED = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "triton")
_CALLS = ("torch._dynamo.eval_frame", "torch._dynamo.external_utils")
"""Modules among these that code goes through which is not compiled, too."""
_CALL_HOOKS = ("torch.nn.modules.module", "torch.optim.optimizer", "torch.autograd.graph", "torch.utils.hooks")
_MINDSPORE = ("mindspore.common.api", "mindspore.graph.api")
"""Modules that compile and call graphs, and hold PyNative's executor as well."""
_GRAPHS = ("_JitExecutor", "_CellGraphExecutor", "_MindsporeFunctionExecutor")
"""Classes of these modules through which a graph is compiled and called."""
_RAISE = dis.opmap["RAISE_VARARGS"]


class Origin(Enum):
    """Whose code raised an exception."""

    HOOK = "a hook of the job's"
    JOB = "the job's"
    """Code that runs as it is written. Under a config's precision it may fail where it would not untuned."""
    TUNED = "the tuned code's"
    UNKNOWN = "unknown"


def interruption(error: BaseException) -> BaseException | None:
    """The exception, at or behind `error`, that was thrown into the call from outside of it, or that a backend lets
    through; None where there is none."""
    if is_let_through(error):
        return error
    handlers = _handlers()
    for raised in _behind(error):
        if not handlers.isdisjoint(frame.f_code for frame in _frames(raised)) or _is_thrown(raised):
            return raised
    return None


def origin(error: BaseException) -> Origin:
    """Whose code raised it: that of the innermost frame that is one's or the other's."""
    if _is_within(type(error).__module__, _COMPILED):
        return Origin.TUNED  # Dynamo takes its own frames out of them.
    found, callers = Origin.UNKNOWN, list[FrameType]()
    for frame in _frames(error):
        of_frame = _origin_of(frame)
        if _compiles(frame) or (of_frame is Origin.JOB and _call_what_was_compiled(callers)):
            return Origin.TUNED
        if of_frame is Origin.JOB and _is_hook(frame.f_code, [by for by in callers if _module(by) not in _CALLS]):
            return Origin.HOOK
        found = of_frame or found
        callers.append(frame)
    return found


def _origin_of(frame: FrameType) -> Origin | None:
    module, code = _module(frame), frame.f_code
    if module in _MINDSPORE:
        return Origin.TUNED if code.co_qualname.startswith(_GRAPHS) else None
    if code.co_filename.startswith("<eval_with_key>") or _is_within(module, _COMPILED):
        return None if module in _CALLS else Origin.TUNED
    if not module or module.partition(".")[0] in _LIBRARIES:
        return None
    return Origin.JOB


def _compiles(frame: FrameType) -> bool:
    """What is called from here on is called to compile."""
    module, name = _module(frame), frame.f_code.co_qualname
    return module in _COMPILES or (module in _MINDSPORE and name in [f"{executor}.compile" for executor in _GRAPHS])


def _call_what_was_compiled(callers: list[FrameType]) -> bool:
    """What they call next is what a compiler made, whose package may be any."""
    if not callers:
        return False
    *_, outer, caller = callers[0], *callers
    if _module(caller) != "torch._dynamo.eval_frame":
        return _is_within(_module(caller), ("torch._functorch", "torch._inductor"))
    called = caller.f_locals.get("fn")
    made = [value for name, value in outer.f_globals.items() if name.startswith("__compiled_fn")]
    return called is not None and any(getattr(one, "_torchdynamo_orig_callable", None) is called for one in made)


def _is_hook(code: CodeType, callers: list[FrameType]) -> bool:
    """A framework called it, and not as what a module or an optimizer of the job's does."""
    if not callers:
        return False
    caller = callers[-1]
    module, name = _module(caller), caller.f_code.co_qualname
    if module.partition(".")[0] == "mindspore":
        return "hook" in name or name == "_PyNativeExecutor.grad"
    if module not in _CALL_HOOKS:
        return False
    held = caller.f_locals
    own = getattr(held.get("self"), "forward", None), held.get("func")
    return code.co_name != "forward" and code not in [_code_of(function) for function in own if callable(function)]


def _is_thrown(error: BaseException) -> bool:
    """It is of a type that no compiler raises, and no code of the job's raised it where its traceback ends."""
    if error.__traceback__ is None:
        return False
    if isinstance(error, (TimeoutError, CancelledError)):
        return not _raised_by_statement(error)
    if type(error).__module__.partition(".")[0] in _LIBRARIES or not _is_of_python(type(error)):
        return False
    *_, innermost = map(_module, _frames(error))
    return innermost.partition(".")[0] in _LIBRARIES or not _raised_by_statement(error)


def _is_of_python(kind: type) -> bool:
    """Written in Python, and not of an extension, whose functions raise without a statement."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or file.endswith((".py", ".pyc"))


def _raised_by_statement(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that a framework made it of."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        is_frameworks = type(current).__module__.partition(".")[0] in _FRAMEWORKS
        inner = getattr(current, "inner_exception", None) or current.__cause__ or current.__context__
        current = inner if is_frameworks else None


def _handlers() -> set[CodeType]:
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return {code for handler in handlers if callable(handler) and (code := _code_of(handler)) is not None}


def _code_of(function: Callable[..., object]) -> CodeType | None:
    found = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return found if isinstance(found, CodeType) else None


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Those that the exception came through, the outermost first."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
