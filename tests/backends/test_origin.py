"""Whose an exception is: told by the frames that it came through."""

from __future__ import annotations

import signal
from concurrent.futures import CancelledError
from functools import partial

import pytest

from autotune.backends.origin import Origin, interruption, origin
from autotune.errors import let_through


class OwnError(Exception):
    """The job's."""


def function_in(module, source, name="function"):
    """A function as of another module."""
    held = {"__name__": module}
    exec(source, held)
    return held[name]


def calling(module, name="function", **held):
    """One that calls its argument."""
    return function_in(module, f"def {name}(call, self=None, func=None): call()", name)


def raised_by(*functions, error=OwnError):
    """What comes out of these, each of which calls the next; the last one calls what raises."""
    call = raising(error)
    for each in reversed(functions):
        call = partial(each, call)
    try:
        call()
    except Exception as caught:
        return caught
    raise AssertionError


def raising(error):
    def job():
        raise error

    return job


COMPILER = calling("torch._dynamo.convert_frame")
COMPILED = calling("torch._functorch._aot_autograd.runtime_wrappers")
ENGINE = calling("torch.autograd.graph")
LAYER = calling("torch.nn.modules.module")
GRAPH = function_in("mindspore.graph.api", "class _JitExecutor:\n    def compile(self, call): call()", "_JitExecutor")


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([], Origin.JOB),
        ([calling("torch.nn.functional")], Origin.JOB),
        ([ENGINE], Origin.HOOK),
        ([calling("torch.optim.optimizer")], Origin.HOOK),
        ([LAYER], Origin.HOOK),
        ([COMPILER], Origin.TUNED),
        ([ENGINE, COMPILER], Origin.TUNED),
        ([COMPILED], Origin.TUNED),
        ([GRAPH().compile], Origin.TUNED),
    ],
    ids=["job", "library", "engine", "optimizer", "layer", "compiler", "backward", "compiled", "MindSpore"],
)
def test_where_it_was_raised(functions, expected):
    """A frame of the job's that a framework's hooks call, that runs as it is written, or that a compiler calls."""
    assert origin(raised_by(*functions)) is expected


def test_what_a_layer_does_is_no_hook():
    """The same function of PyTorch calls hooks and a module's own `forward`."""

    def forward():
        raise OwnError

    layer = function_in("torch.nn.modules.module", "def call(self): self.forward()", "call")
    with pytest.raises(OwnError) as caught:
        layer(type("Module", (), {"forward": staticmethod(forward)})())
    assert origin(caught.value) is Origin.JOB


def test_there_is_no_telling():
    """A library raised it, and nobody of the job's or the compiler's is near."""
    raise_ = function_in("torch.autograd.graph", "def function(): raise RuntimeError")
    with pytest.raises(RuntimeError) as caught:
        raise_()
    # The frame of this test is not among those that the call came through.
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert origin(caught.value) is Origin.UNKNOWN


@pytest.mark.parametrize("error", [OwnError, TimeoutError, CancelledError])
def test_what_is_thrown_into_a_call(error):
    """It is raised where no statement raises it, in whatever code runs."""
    thrown = error()
    with pytest.raises(error) as caught:
        function_in("torch._inductor.graph", "def function(iterator): next(iterator)")(
            iter_of(thrown),
        )
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    own = caught.value
    own.__traceback__ = first_frames(own, 1)
    assert interruption(own) is own


def iter_of(error):
    yield from ()
    raise error


def first_frames(error, number):
    """A traceback that ends sooner: as of an exception that comes between two instructions."""
    from types import TracebackType

    frames, each = [], error.__traceback__
    while each is not None:
        frames.append(each)
        each = each.tb_next
    made = None
    for each in reversed(frames[:number]):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError, OwnError])
def test_what_is_raised_by_a_statement_is_not_thrown(error):
    """A compiler's own time-out, or what a function of the job's raises as it is compiled."""
    with pytest.raises(error) as caught:
        COMPILER(raising(error))
    assert interruption(caught.value) is None


def test_what_is_behind_it():
    """Dynamo makes an exception of its own of what comes while it compiles."""
    own, outer = raised_by(error=OwnError), RuntimeError()
    outer.inner_exception = own
    own.__traceback__ = None
    assert interruption(outer) is None
    let_through(outer)
    assert interruption(outer) is outer


def test_a_signals_handler():
    """An alarm ends the call."""

    def handler(*_):
        raise OwnError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(OwnError) as caught:
            COMPILER(handler)
        assert interruption(caught.value) is caught.value
    finally:
        signal.signal(signal.SIGALRM, before)
