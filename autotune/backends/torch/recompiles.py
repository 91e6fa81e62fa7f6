"""Recompiles of a job's model: where dynamo compiles for one value after another, and where it gives up.

Code is compiled for the attributes, flags and texts that it read. A job that sets one before each call has dynamo
compile again, seconds each time; at its limit of 8 dynamo runs the function as it is written from then on, and says so
in a line of its own log alone. Here the third recompile for one value ends that: it is not made, its call runs as
dynamo runs one beyond its limit, and the next call is refused with the value's name, before any of it runs. Changing
shapes, types of tensors and modes may recompile up to dynamo's limit. What dynamo does with shapes beyond it was
measured with a stream of shapes, and goes on.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from autotune.backends.torch.break_kinds import guard_of, recompile_kind_of
from autotune.backends.torch.compiler import Entry, Faults, setting_name
from autotune.errors import UnsuitableCallError
from autotune.measure.diagnosis import BreakKind

MAX_RECOMPILES = 2
"""Recompiles of one function of one module for the values of one attribute."""
_MODULE, _REASONS = "torch._dynamo.convert_frame", "get_and_maybe_log_recompilation_reasons"
_LIMIT = "exceeds_recompile_limit"
_SUBJECT = re.compile(r"(?:not |len\(|bool\()*(?:___\w+\()?(?P<what>[A-Za-z_][^\s,=!<>()]*)")
_OF_INPUTS = re.compile(r"tensor |GLOBAL_STATE|Unexpected recompilation")
"""Types of tensors and modes such as `no_grad`, of which there are few; and code that another thread has just made."""
_LOCAL = re.compile(r"\b[LG]\['(\w+)'\]")


class Recompiles:
    """What one job's model recompiles for."""

    def __init__(self, *, of_a_stream: bool = False) -> None:
        """`of_a_stream`: the config was measured with many shapes."""
        self._of_a_stream = of_a_stream
        self._is_for_a_shape = False
        self._num_times: Counter[tuple[object, int, str]] = Counter()
        """Function, the module that it is called on, and value -> recompiles."""
        self._latest = ""
        self._is_one_too_many = False
        self._why = ""
        """Nothing is compiled any more."""

    def _fault(self) -> UnsuitableCallError:
        return UnsuitableCallError(self._why, tip="give what changes as a tensor, or keep it as it is", lasting=True)

    def entries(self, faults: Faults) -> list[Entry]:
        """What is set while the model is compiled. None in a release that is made otherwise."""
        module: Any = importlib.import_module(_MODULE)
        reasons_of, is_beyond = getattr(module, _REASONS, None), getattr(module, _LIMIT, None)
        if reasons_of is None or is_beyond is None:
            return []

        def reasons(entries: Any, frame: Any, *args: Any, **kwargs: Any) -> list[str]:
            found: list[str] = reasons_of(entries, frame, *args, **kwargs)
            self._note(frame, found)
            if self._is_one_too_many:
                faults.append(self._fault)
            return found

        def exceeds(*args: Any, **kwargs: Any) -> tuple[bool, str]:
            found, name = is_beyond(*args, **kwargs)
            if found and not (self._of_a_stream and self._is_for_a_shape):
                self._why = self._why or f"it was compiled again and again, the last time since {self._latest}"
                faults.append(self._fault)
            elif self._is_one_too_many:
                self._is_one_too_many = False
                return _end_as_at_the_limit(self._why)
            return found, name

        return [(module, _REASONS, reasons), (module, _LIMIT, exceeds)]

    def _note(self, frame: Any, reasons: Sequence[str]) -> None:
        """Modules of one class share a function and its code, and each has values of its own, such as the number of its
        layer: each counts for itself. Code that is refused for its inputs alone may be this module's own."""
        guards = [guard_of(reason) for reason in reasons]
        self._latest = next(iter(guards), "") or "something changed"
        self._is_for_a_shape = all(recompile_kind_of(guard) is BreakKind.CHANGING_SHAPE for guard in guards)
        if not guards or any(_is_of_inputs(guard) for guard in guards):
            return
        value = _value_in(guards[0])
        counted = frame.f_code, id(frame.f_locals.get("self")), value
        self._num_times[counted] += 1
        if self._num_times[counted] > MAX_RECOMPILES:
            self._is_one_too_many = True
            self._why = f"{value} changes from call to call, and compiled code is for one value of it ({guards[0]})"


def _is_of_inputs(guard: str) -> bool:
    return not guard or bool(_OF_INPUTS.match(guard)) or recompile_kind_of(guard) is BreakKind.CHANGING_SHAPE


_watched: ContextVar[Recompiles | None] = ContextVar("recompiles", default=None)


@contextmanager
def watching(of_a_stream: bool = False) -> Iterator[None]:
    """See `Backend.watching_recompiles`."""
    token = _watched.set(Recompiles(of_a_stream=of_a_stream))
    try:
        yield
    finally:
        _watched.reset(token)


def watched() -> Recompiles | None:
    """Those of whoever watches now."""
    return _watched.get()


def _end_as_at_the_limit(why: str) -> tuple[bool, str]:
    """The frame runs with the code that there is, or as it is written. Where this release knows how, dynamo does not
    write to its log that a limit was hit."""
    exceptions, types = map(importlib.import_module, ("torch._dynamo.exc", "torch._dynamo.types"))
    end = exceptions.Unsupported(why)
    if not hasattr(end, "frame_exec_strategy"):
        return True, setting_name(importlib.import_module("torch._dynamo.config"), "recompile_limit")
    end.frame_exec_strategy = types.FrameExecStrategy(types.FrameAction.RUN_ONLY, types.FrameAction.RUN_ONLY)
    raise end


def _value_in(guard: str) -> str:
    """What a guard is about, as an author would write it: `self.level` of `L['self'].level == 'l7'`."""
    shown = _LOCAL.sub(r"\1", guard)
    found = _SUBJECT.match(shown)
    return found["what"] if found else shown
