"""Which `BreakKind` is behind what dynamo says: pure text and tables, no torch in here.

Dynamo gives each graph break a type of its own (`gb_type`, listed in its graph_break_registry.json since 2.8) as the
first line of the reason, then its explanation, its hints and, last, the developer's context, which names the builtin or
the module that was called. Older releases have one line; its words are the last resort.
"""

from __future__ import annotations

import re

from autotune.measure.diagnosis import BreakKind, GraphBreak

_BY_TYPE: dict[str, BreakKind] = {
    "Data-dependent branching": BreakKind.BRANCH,
    "Data-dependent branching with non-constant __bool__": BreakKind.BRANCH,
    "generic_jump TensorVariable()": BreakKind.BRANCH,
    "Data-dependent assertion failed (cannot compile partial graph)": BreakKind.BRANCH,
    "Unsupported Tensor.item() call with capture_scalar_outputs=False": BreakKind.SCALAR,
    "Tensor.tolist() with non-integer tensor": BreakKind.SCALAR,
    "Data dependent operator": BreakKind.SCALAR,
    "unsupported index(Tensor)": BreakKind.SCALAR,
    "Dynamic shape operator": BreakKind.DATA_SHAPE,
    "Dynamic shape operator (no meta kernel)": BreakKind.CUSTOM_OP,
    "Attempted to use `torch.nn.functional.one_hot` with data-dependent output shape": BreakKind.DATA_SHAPE,
    "logging.Logger method not supported for non-export cases": BreakKind.PRINT,
    "attempted to reorder a debugging function that can't actually be reordered": BreakKind.PRINT,
    "attempted to trace numpy function unsupported by PyTorch": BreakKind.NUMPY,
    "attempted to trace numpy.* function as a method": BreakKind.NUMPY,
    "attempted to trace numpy function with config.trace_numpy=False": BreakKind.NUMPY,
    "failed to convert numpy.ndarray to Tensor": BreakKind.NUMPY,
    "numpy function that produces a const collection type encountered non-const arguments": BreakKind.NUMPY,
    "ndarray.astype(object)": BreakKind.NUMPY,
    "random.Random() with improper arguments": BreakKind.CLOCK_OR_RANDOM,
    "Operator does not support running with fake tensors": BreakKind.CUSTOM_OP,
    "NotImplementedError/UnsupportedFakeTensorException when running FX node": BreakKind.OPERATOR,
    "RuntimeError when making fake tensor call": BreakKind.OPERATOR,
    "TypeError when making fake tensor call": BreakKind.OPERATOR,
    "Backend compiler exception": BreakKind.OPERATOR,
    "Attempted to wrap RNN, GRU, or LSTM": BreakKind.OPERATOR,
    "Attempted to wrap sparse Tensor with VariableTracker": BreakKind.OPERATOR,
    "Unsupported context manager": BreakKind.CONTEXT,
    "Graph break under GenericContextWrappingVariable": BreakKind.CONTEXT,
    "unsupported contextlib.* API": BreakKind.CONTEXT,
    "attempted to trace contextlib.contextmanager": BreakKind.CONTEXT,
    "Attempt to trace generator": BreakKind.GENERATOR,
    "call_method on generator": BreakKind.GENERATOR,
    "Unreachable sub-generator code": BreakKind.GENERATOR,
    "Missing tp_iternext": BreakKind.GENERATOR,
    "Generator reconstruction with mutations": BreakKind.GENERATOR,
    "infinite generator detected": BreakKind.GENERATOR,
    "Observed exception": BreakKind.EXCEPTION,
    "Observed exception (EXCEPT_HANDLER)": BreakKind.EXCEPTION,
    "Exception with bad expected type": BreakKind.EXCEPTION,
    "Exception with non-type expectation": BreakKind.EXCEPTION,
    "Keyword args passed to exception constructor": BreakKind.EXCEPTION,
    "Unsupported attribute assignment on Exception object": BreakKind.EXCEPTION,
    "traceback.tb_lasti not supported": BreakKind.EXCEPTION,
    "Skip calling `torch.compiler.disable()`d function": BreakKind.DISABLED,
    "Skip inlining `torch.compiler.disable()`d function": BreakKind.DISABLED,
    "Call to `torch._dynamo.graph_break()`": BreakKind.DISABLED,
    "Attempted to copy.deepcopy a tensor": BreakKind.CONTAINER,
    "copy.deepcopy()": BreakKind.CONTAINER,
    "list elements are pointing to the list itself": BreakKind.CONTAINER,
    "sort with non-constant keys": BreakKind.CONTAINER,
    "key not found in dict": BreakKind.CONTAINER,
    "missing BUILD_SET handler": BreakKind.CONTAINER,
    "Attempted to wrap a set with tensors": BreakKind.CONTAINER,
    "Unsupported method call": BreakKind.FOREIGN_CALL,
    "Attempted to call function marked as skipped": BreakKind.FOREIGN_CALL,
    "Attempted to inline function marked as skipped": BreakKind.FOREIGN_CALL,
    "Attempted to inline function marked as skipped (SkipFunctionVariable)": BreakKind.FOREIGN_CALL,
    "can't handle functions not implemented in python ": BreakKind.FOREIGN_CALL,
    "Failed to trace builtin operator": BreakKind.FOREIGN_CALL,
    "Import failure": BreakKind.FOREIGN_CALL,
}
"""Dynamo's type of a break. What it means by a call that it skips, the called thing tells: `_BY_CALL`."""

_CALLED = re.compile(r"module: (\S+?), qualname: (\S+?),|builtin (\w+) \[|method `?(\S+?)`? of class `(\S+?)`")
_EXPLAINED_BUILTIN = re.compile(r"builtin `(?:<unknown module>\.)?([\w.]+?)\.?`")

_BY_CALL: dict[str, BreakKind] = {
    "print": BreakKind.PRINT,
    "_warnings": BreakKind.PRINT,
    "warnings": BreakKind.PRINT,
    "logging": BreakKind.PRINT,
    "time": BreakKind.CLOCK_OR_RANDOM,
    "datetime": BreakKind.CLOCK_OR_RANDOM,
    "random": BreakKind.CLOCK_OR_RANDOM,
    "Random": BreakKind.CLOCK_OR_RANDOM,
    "numpy": BreakKind.NUMPY,
}
"""First part of the name of what was called, where a break is about a call."""

_BY_NODE: tuple[tuple[str, BreakKind], ...] = (
    ("no fake impl registered", BreakKind.CUSTOM_OP),
    ("call_function <Wrapped function", BreakKind.NUMPY),
    ("call_function <Wrapped method", BreakKind.NUMPY),
)
"""Why a node of the graph could not be run on fake tensors: NumPy's functions arrive wrapped."""

_BY_WORDS: tuple[tuple[str, BreakKind], ...] = (
    ("generic_jump", BreakKind.BRANCH),
    ("capture_scalar_outputs", BreakKind.SCALAR),
    ("tensor.item", BreakKind.SCALAR),
    ("capture_dynamic_output_shape_ops", BreakKind.DATA_SHAPE),
    ("dynamic shape operator", BreakKind.DATA_SHAPE),
    ("logger", BreakKind.PRINT),
    ("builtin: print", BreakKind.PRINT),
    ("numpy", BreakKind.NUMPY),
    ("builtin time.", BreakKind.CLOCK_OR_RANDOM),
    ("random", BreakKind.CLOCK_OR_RANDOM),
    ("_dynamo.disable", BreakKind.DISABLED),
    ("generator", BreakKind.GENERATOR),
    ("context manager", BreakKind.CONTEXT),
    ("exception", BreakKind.EXCEPTION),
    ("deepcopy", BreakKind.CONTAINER),
    ("in skip_files", BreakKind.FOREIGN_CALL),
    ("unsupported builtin", BreakKind.FOREIGN_CALL),
)
"""For a reason without a type that is known: the first of these that stands in its first line."""

_GUARDS: tuple[tuple[re.Pattern[str], BreakKind], ...] = tuple(
    (re.compile(pattern), break_kind)
    for pattern, break_kind in (
        (r"___stack\d|Cache line invalidated", BreakKind.AFTER_BREAK),
        (r"(size|stride|rank) mismatch|\.size\(\)\[|\.stride\(\)\[", BreakKind.CHANGING_SHAPE),
        (r"^len\(|^not \S+$|dict\.keys|_contains|missing key", BreakKind.CHANGING_CONTAINER),
        (r"mismatch|___check_type_id|expected type|GLOBAL_STATE|grad_mode", BreakKind.CHANGING_TYPE),
        (r" == ", BreakKind.CHANGING_VALUE),
    )
)
"""A guard as dynamo writes it, without the line of code that it adds; the first that fits."""


VARIABLES: dict[str, str] = {}
"""Dynamo counts in the process (`counters`), and need not be asked to write."""
CAPTURABLE = (BreakKind.SCALAR, BreakKind.DATA_SHAPE, BreakKind.PRINT)
"""See `Reports`, and `apply.capture_despite`."""

_REFUSAL = re.compile(
    r"^torch\._dynamo\.exc\.\w+: (?P<reason>.*?)^from user code:\n(?P<stack>.*?)(?=\n\s*\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')


def breaks(text: str) -> tuple[GraphBreak, ...]:
    """None: the counters have them."""
    return ()


def refusal(text: str) -> GraphBreak | None:
    """The place at which dynamo gave the model up with an error, from the traceback that the process ended with."""
    found = _REFUSAL.search(text)
    frames = (
        [frame for frame in _FRAME.finditer(found["stack"]) if "-packages/torch/" not in frame["file"]] if found else []
    )
    if found is None or not frames:
        return None
    return GraphBreak(
        reason=found["reason"].strip().partition("\n")[0],
        location=f"{frames[-1]['file']}:{frames[-1]['line']}",
        ailment=break_kind_of(found["reason"]),
        hint=hint_of(found["reason"]),
        gives_up=True,
    )


def break_kind_of(reason: str) -> BreakKind:
    """The kind of a graph break, from dynamo's whole reason."""
    first, _, rest = reason.strip().partition("\n")
    kind = _BY_TYPE.get(first.rstrip(), _BY_TYPE.get(first))
    if kind is BreakKind.FOREIGN_CALL:
        return _BY_CALL.get(_called(rest).partition(".")[0], kind)
    if kind is BreakKind.OPERATOR:
        return next((break_kind for words, break_kind in _BY_NODE if words in rest), kind)
    if kind is not None:
        return kind
    return next((break_kind for words, break_kind in _BY_WORDS if words in first.lower()), BreakKind.OTHER)


def recompile_kind_of(guard: str) -> BreakKind:
    """The kind of a recompile, from the guard that failed."""
    return next((break_kind for pattern, break_kind in _GUARDS if pattern.search(guard)), BreakKind.OTHER)


def guard_of(reason: str) -> str:
    """The guard in a recompile's reason: without the number of the compiled code before it and the code behind it."""
    first = reason.strip().partition("\n")[0]
    return re.sub(r"^\d+/\d+: ", "", first).partition("  # ")[0].strip()


def hint_of(reason: str) -> str | None:
    """Dynamo's first hint on a break, in one line."""
    found = re.search(
        r"^\s*Hint: (.+?)(?=\n\s*(?:Hint:|Developer debug context:)|\n\n|\Z)", reason, re.DOTALL | re.MULTILINE
    )
    return " ".join(found[1].split()) if found else None


def _called(text: str) -> str:
    """The called thing's dotted name, as far as dynamo's context or explanation has it."""
    explained = _EXPLAINED_BUILTIN.search(text)
    if explained:
        return explained[1]
    found = _CALLED.search(text)
    return next((name for name in found.groups() if name), "") if found else ""
