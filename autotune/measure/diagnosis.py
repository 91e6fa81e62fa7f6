"""`BreakKind`: the kind of code that breaks a graph or causes a recompile, with the same names for every framework.

Rule of this file: kinds differ by their fix. Two breaks with the same fix are of one kind.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import NonNegativeInt

from autotune.schema import Record


class BreakKind(StrEnum):
    """The kinds of graph breaks, then those of recompiles."""

    BRANCH = "tensor_branch"
    """Python's `if` or `while` on the values of a tensor."""
    SCALAR = "scalar"
    """A tensor converted to a number or a list: `.item()`, `float(tensor)`, `.tolist()`."""
    PRINT = "print"
    """Printing, logging, a warning."""
    NUMPY = "numpy"
    """A NumPy function, or a tensor turned into an array."""
    CLOCK_OR_RANDOM = "clock_or_random"
    """A clock, or a random number of Python's `random`."""
    FOREIGN_CALL = "foreign_call"
    """A call of code that is neither plain Python nor the framework's: C extensions, files, other libraries."""
    CONTAINER = "container"
    """A Python container or object used in a way that cannot be captured."""
    DATA_SHAPE = "data_shape"
    """A result whose shape depends on the values of a tensor."""
    OPERATOR = "operator"
    """An operator of the framework that its compiler does not support."""
    CUSTOM_OP = "custom_op"
    """A custom operator without the registrations that the compiler needs."""
    CONTEXT = "context_manager"
    """A `with` block that cannot be captured."""
    GENERATOR = "generator"
    EXCEPTION = "exception"
    """`try`, or an exception that is raised."""
    DISABLED = "disabled"
    """Code that is excluded from compilation on purpose."""

    CHANGING_SHAPE = "changing_shape"
    CHANGING_VALUE = "changing_value"
    """A Python number, text or flag that differs from call to call."""
    CHANGING_CONTAINER = "changing_container"
    """A list or dict whose length or keys change from call to call."""
    CHANGING_TYPE = "changing_type"
    """The element type, device, class or gradient mode changes."""
    CHANGING_INPUT = "changing_input"
    """Shape, type or value of an input changes: the framework does not report which."""
    AFTER_BREAK = "after_break"
    """A value that came out of a graph break differs from call to call."""

    OTHER = "other"


class GraphBreak(Record):
    """A place where the compiler stopped capturing. `location` is the user's `file:line`, if known."""

    reason: str
    location: str | None = None
    count: int = 1
    ailment: BreakKind | None = None
    """None: not known."""
    hint: str | None = None
    """The framework's own advice."""
    gives_up: bool = False
    """The whole function around it ran eagerly, not only this place."""


class Recompile(Record):
    """A compilation of code that had been compiled before, with the guard that failed."""

    reason: str
    location: str | None = None
    ailment: BreakKind | None = None
    compile_s: float | None = None
    """Seconds that this compilation took, by the framework's own clock."""


class Diagnosis(Record):
    """What the compiler reports that it did. None: this framework or release does not report it.

    `compiled` is the proof that a compiled graph really ran: False for the untuned model, and False too where a
    framework silently fell back to eager execution (`note` then says so).
    """

    compiled: bool | None
    num_graphs: int | None = None
    graph_breaks: tuple[GraphBreak, ...] | None = None
    recompiles: tuple[Recompile, ...] | None = None
    cache_hits: int | None = None
    num_kernels: int | None = None
    """Kernels of the compiled graphs: generated ones, and library calls if the compiler reports them."""
    num_fused: int | None = None
    """Operators of the captured graphs that have no kernel of their own, because they were fused."""
    fused: dict[str, int] | None = None
    """Fused kernels -> the number of operators in each; None where the compiler does not report it."""
    unfused: dict[str, int] | None = None
    """Operators that are launched as kernels of their own beside fused ones -> how often; None likewise."""
    note: str | None = None

    @property
    def num_graph_breaks(self) -> int | None:
        return None if self.graph_breaks is None else sum(broken.count for broken in self.graph_breaks)

    @property
    def num_recompiles(self) -> int | None:
        return None if self.recompiles is None else len(self.recompiles)


class Compilations(Record):
    """How often the compiler ran in this process so far."""

    num_graphs: NonNegativeInt
    """Graphs that it compiled."""
    num_given_up: NonNegativeInt | None
    """Functions left to eager execution because they had been compiled too often; None: not reported."""
