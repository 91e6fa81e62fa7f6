"""`Ailment`: what kind of code breaks a graph, or has it compiled again; the same names for every framework.

Rule of this file: a kind is told by what its cure is. Two breaks that are mended alike are one ailment.
"""

from __future__ import annotations

from enum import StrEnum


class Ailment(StrEnum):
    """The kinds of graph breaks, then those of recompiles."""

    BRANCH = "tensor_branch"
    """Python's `if` or `while` on the values of a tensor."""
    SCALAR = "scalar"
    """A number or a list taken out of a tensor: `.item()`, `float(tensor)`, `.tolist()`."""
    PRINT = "print"
    """Printing, logging, a warning."""
    NUMPY = "numpy"
    """A NumPy function, or a tensor turned into an array."""
    CLOCK_OR_RANDOM = "clock_or_random"
    """A clock, or a random number of Python's own."""
    FOREIGN_CALL = "foreign_call"
    """A call of code that is neither plain Python nor the framework's: C extensions, files, other libraries."""
    CONTAINER = "container"
    """A Python container or object used in a way that cannot be captured."""
    DATA_SHAPE = "data_shape"
    """A result whose shape depends on the values of a tensor."""
    OPERATOR = "operator"
    """An operator of the framework's own that its compiler does not take."""
    CUSTOM_OP = "custom_op"
    """An operator of the user's own without what the compiler must know of it."""
    CONTEXT = "context_manager"
    """A `with` block that cannot be captured."""
    GENERATOR = "generator"
    EXCEPTION = "exception"
    """`try`, or an exception on the way."""
    DISABLED = "disabled"
    """Code that is kept from the compiler on purpose."""

    CHANGING_SHAPE = "changing_shape"
    CHANGING_VALUE = "changing_value"
    """A Python number, text or flag that differs from call to call."""
    CHANGING_CONTAINER = "changing_container"
    """A list or dict that has another length or other keys at each call."""
    CHANGING_TYPE = "changing_type"
    """Another element type, device, class, or another state of recording gradients."""
    CHANGING_INPUT = "changing_input"
    """Shape, type or value of an input: the framework does not tell which."""
    AFTER_BREAK = "after_break"
    """A value that came out of a graph break differs from call to call."""

    OTHER = "other"
