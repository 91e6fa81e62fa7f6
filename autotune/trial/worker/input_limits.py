"""The limits of the whole numbers in the untuned model's inputs, looked for when its trial is over.

Nothing of a measurement is at stake here: the outcome is on disk, and is written again with each input whose limits
were found. So a call may end the process, as one does in C++ that checks nothing, or take memory or time without end,
as one does whose number is a size: this process may have little more memory than it ever had, and ends by an alarm.

Not on an accelerator, where a wrong index ends the process for the untuned model as well.
"""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.backends.protocol import Backend
from autotune.measure.limits import InputLimits, Takes, find_limits, hold_for
from autotune.measure.measurement import Reason
from autotune.trial.worker.calls.calls import Calls, Step
from autotune.trial.worker.memory import virtual_peak_bytes
from autotune.workload.arguments import Arguments

LONGEST_S, LONGEST_CALLS = 1.0, 8
"""The search takes at most so long, or so many calls if these take longer."""
_SLOW, _SLOW_S = 10, 0.05
"""A call that takes so many times as long as others, and so much more, is of a number that is a size."""
_ROOM_BYTES = 2**30
_ALARM_S, _ALARM_CALLS = 10.0, 20
_MOST_OTHERS = 3
"""Further inputs for which the limits of the example have to hold."""


class _OverError(Exception):
    """There is no time for another call."""


@dataclass
class _Caller:
    """Calls of the untuned model with another array in place of one input."""

    calls: Calls
    step: Step
    backend: Backend
    usual_s: float
    ends: float

    def takes(self, inputs: Arguments, place: int) -> Takes:
        """Whether the model takes a leaf in this place. Raises _OverError."""
        leaves = inputs.leaves()

        def takes(array: Any) -> bool | None:
            if time.monotonic() > self.ends:
                raise _OverError
            moved = self.backend.place(self.backend.like(array, leaves[place]))
            start = time.monotonic()
            try:
                self.calls.reset()
                inputs.with_leaves([*leaves[:place], moved, *leaves[place + 1 :]]).call(self.step)
                self.backend.synchronise()
            except Exception as error:
                exhausted = isinstance(error, MemoryError) or self.backend.classify(error) is Reason.OUT_OF_MEMORY
                return None if exhausted else False
            return None if time.monotonic() - start > _SLOW * self.usual_s + _SLOW_S else True

        return takes


def look_for_limits(
    calls: Calls, step: Step, backend: Backend, usual_s: float, found: Callable[[tuple[InputLimits, ...]], None]
) -> None:
    """Tells what was `found` so far after each input; nothing where there is no input of whole numbers. `usual_s`: what
    a call takes."""
    given = calls.authors_inputs
    places = list(_whole_numbers(given[0], backend)) if given else []
    if not places:
        return
    ends = time.monotonic() + max(LONGEST_S, LONGEST_CALLS * usual_s)
    caller, limits = _Caller(calls, step, backend, usual_s, ends), list[InputLimits]()
    sizes = _sizes(calls, given[0], backend)
    try:
        for place, name in places:
            array = backend.to_array(given[0].leaves()[place])
            assert array is not None
            one = find_limits(name, array, sizes, caller.takes(given[0], place))
            if one is not None and _hold(one, caller, given[1 : 1 + _MOST_OTHERS], backend):
                limits.append(one)
            found(tuple(limits))
    except _OverError:
        pass
    except Exception:  # Whatever the author's code raises: the job finds the limits by itself.
        traceback.print_exc()


def _whole_numbers(inputs: Arguments, backend: Backend) -> Iterator[tuple[int, str]]:
    """Place and name of each tensor of whole numbers, the one with the greatest first: masks, which have no limits,
    are the last."""
    tops = []
    for place, (name, leaf) in enumerate(inputs.named_leaves()):
        array = backend.to_array(leaf)
        if array is not None and array.dtype.kind in "iu" and array.size and backend.opened(leaf) is None:
            tops.append((-int(array.max()), place, name))
    yield from ((place, name) for _, place, name in sorted(tops))


def _sizes(calls: Calls, inputs: Arguments, backend: Backend) -> frozenset[int]:
    """Sizes of the model's tables, and of all inputs."""
    specs = [spec for _, spec in backend.parameters(calls.untouched)]
    specs += [spec for leaf in inputs.leaves() if (spec := backend.spec(leaf)) is not None]
    return frozenset(size for spec in specs for size in spec.shape)


def _hold(limits: InputLimits, caller: _Caller, others: Sequence[Arguments], backend: Backend) -> bool:
    """Whether they are those of the author's other inputs as well, which may have other sizes."""
    for inputs in others:
        named = [name for name, _ in inputs.named_leaves()]
        place = named.index(limits.name) if limits.name in named else None
        array = None if place is None else backend.to_array(inputs.leaves()[place])
        if array is None or place is None or not np.issubdtype(array.dtype, np.integer) or not array.size:
            return False
        if not hold_for(limits, array, caller.takes(inputs, place)):
            return False
    return True


@contextmanager
def little_to_lose(call_s: float) -> Iterator[None]:
    """Within: this process ends by itself after some seconds, or many times what a call takes, and gets little more
    memory than it ever had."""
    peak = virtual_peak_bytes()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        if peak is not None:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_AS, (peak + _ROOM_BYTES, before[1]))
        signal.setitimer(signal.ITIMER_REAL, _ALARM_S + _ALARM_CALLS * call_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
