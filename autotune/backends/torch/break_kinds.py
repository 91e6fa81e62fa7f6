"""Which `Ailment` is behind what dynamo says: pure text and tables, no torch in here.

Dynamo gives each graph break a type of its own (`gb_type`, listed in its graph_break_registry.json since 2.8) as the
first line of the reason, then its explanation, its hints and, last, the developer's context, which names the builtin or
the module that was called. Older releases have one line; its words are the last resort.
"""

from __future__ import annotations

import re

from autotune.measure.diagnosis import Ailment, GraphBreak, Recompile

_BY_TYPE: dict[str, Ailment] = {
    "Data-dependent branching": Ailment.BRANCH,
    "Data-dependent branching with non-constant __bool__": Ailment.BRANCH,
    "generic_jump TensorVariable()": Ailment.BRANCH,
    "Data-dependent assertion failed (cannot compile partial graph)": Ailment.BRANCH,
    "Unsupported Tensor.item() call with capture_scalar_outputs=False": Ailment.SCALAR,
    "Tensor.tolist() with non-integer tensor": Ailment.SCALAR,
    "Data dependent operator": Ailment.SCALAR,
    "unsupported index(Tensor)": Ailment.SCALAR,
    "Dynamic shape operator": Ailment.DATA_SHAPE,
    "Dynamic shape operator (no meta kernel)": Ailment.CUSTOM_OP,
    "Attempted to use `torch.nn.functional.one_hot` with data-dependent output shape": Ailment.DATA_SHAPE,
    "logging.Logger method not supported for non-export cases": Ailment.PRINT,
    "attempted to reorder a debugging function that can't actually be reordered": Ailment.PRINT,
    "attempted to trace numpy function unsupported by PyTorch": Ailment.NUMPY,
    "attempted to trace numpy.* function as a method": Ailment.NUMPY,
    "attempted to trace numpy function with config.trace_numpy=False": Ailment.NUMPY,
    "failed to convert numpy.ndarray to Tensor": Ailment.NUMPY,
    "numpy function that produces a const collection type encountered non-const arguments": Ailment.NUMPY,
    "ndarray.astype(object)": Ailment.NUMPY,
    "random.Random() with improper arguments": Ailment.CLOCK_OR_RANDOM,
    "Operator does not support running with fake tensors": Ailment.CUSTOM_OP,
    "NotImplementedError/UnsupportedFakeTensorException when running FX node": Ailment.OPERATOR,
    "RuntimeError when making fake tensor call": Ailment.OPERATOR,
    "TypeError when making fake tensor call": Ailment.OPERATOR,
    "Backend compiler exception": Ailment.OPERATOR,
    "Attempted to wrap RNN, GRU, or LSTM": Ailment.OPERATOR,
    "Attempted to wrap sparse Tensor with VariableTracker": Ailment.OPERATOR,
    "Unsupported context manager": Ailment.CONTEXT,
    "Graph break under GenericContextWrappingVariable": Ailment.CONTEXT,
    "unsupported contextlib.* API": Ailment.CONTEXT,
    "attempted to trace contextlib.contextmanager": Ailment.CONTEXT,
    "Attempt to trace generator": Ailment.GENERATOR,
    "call_method on generator": Ailment.GENERATOR,
    "Unreachable sub-generator code": Ailment.GENERATOR,
    "Missing tp_iternext": Ailment.GENERATOR,
    "Generator reconstruction with mutations": Ailment.GENERATOR,
    "infinite generator detected": Ailment.GENERATOR,
    "Observed exception": Ailment.EXCEPTION,
    "Observed exception (EXCEPT_HANDLER)": Ailment.EXCEPTION,
    "Exception with bad expected type": Ailment.EXCEPTION,
    "Exception with non-type expectation": Ailment.EXCEPTION,
    "Keyword args passed to exception constructor": Ailment.EXCEPTION,
    "Unsupported attribute assignment on Exception object": Ailment.EXCEPTION,
    "traceback.tb_lasti not supported": Ailment.EXCEPTION,
    "Skip calling `torch.compiler.disable()`d function": Ailment.DISABLED,
    "Skip inlining `torch.compiler.disable()`d function": Ailment.DISABLED,
    "Call to `torch._dynamo.graph_break()`": Ailment.DISABLED,
    "Attempted to copy.deepcopy a tensor": Ailment.CONTAINER,
    "copy.deepcopy()": Ailment.CONTAINER,
    "list elements are pointing to the list itself": Ailment.CONTAINER,
    "sort with non-constant keys": Ailment.CONTAINER,
    "key not found in dict": Ailment.CONTAINER,
    "missing BUILD_SET handler": Ailment.CONTAINER,
    "Attempted to wrap a set with tensors": Ailment.CONTAINER,
    "Unsupported method call": Ailment.FOREIGN_CALL,
    "Attempted to call function marked as skipped": Ailment.FOREIGN_CALL,
    "Attempted to inline function marked as skipped": Ailment.FOREIGN_CALL,
    "Attempted to inline function marked as skipped (SkipFunctionVariable)": Ailment.FOREIGN_CALL,
    "can't handle functions not implemented in python ": Ailment.FOREIGN_CALL,
    "Failed to trace builtin operator": Ailment.FOREIGN_CALL,
    "Import failure": Ailment.FOREIGN_CALL,
}
"""Dynamo's type of a break. What it means by a call that it skips, the called thing tells: `_BY_CALL`."""

_CALLED = re.compile(r"module: (\S+?), qualname: (\S+?),|builtin (\w+) \[|method `?(\S+?)`? of class `(\S+?)`")
_EXPLAINED_BUILTIN = re.compile(r"builtin `(?:<unknown module>\.)?([\w.]+?)\.?`")

_BY_CALL: dict[str, Ailment] = {
    "print": Ailment.PRINT,
    "_warnings": Ailment.PRINT,
    "warnings": Ailment.PRINT,
    "logging": Ailment.PRINT,
    "time": Ailment.CLOCK_OR_RANDOM,
    "datetime": Ailment.CLOCK_OR_RANDOM,
    "random": Ailment.CLOCK_OR_RANDOM,
    "Random": Ailment.CLOCK_OR_RANDOM,
    "numpy": Ailment.NUMPY,
}
"""First part of the name of what was called, where a break is about a call."""

_BY_NODE: tuple[tuple[str, Ailment], ...] = (
    ("no fake impl registered", Ailment.CUSTOM_OP),
    ("call_function <Wrapped function", Ailment.NUMPY),
    ("call_function <Wrapped method", Ailment.NUMPY),
)
"""Why a node of the graph could not be run on fake tensors: NumPy's functions arrive wrapped."""

_BY_WORDS: tuple[tuple[str, Ailment], ...] = (
    ("generic_jump", Ailment.BRANCH),
    ("capture_scalar_outputs", Ailment.SCALAR),
    ("tensor.item", Ailment.SCALAR),
    ("capture_dynamic_output_shape_ops", Ailment.DATA_SHAPE),
    ("dynamic shape operator", Ailment.DATA_SHAPE),
    ("logger", Ailment.PRINT),
    ("builtin: print", Ailment.PRINT),
    ("numpy", Ailment.NUMPY),
    ("builtin time.", Ailment.CLOCK_OR_RANDOM),
    ("random", Ailment.CLOCK_OR_RANDOM),
    ("_dynamo.disable", Ailment.DISABLED),
    ("generator", Ailment.GENERATOR),
    ("context manager", Ailment.CONTEXT),
    ("exception", Ailment.EXCEPTION),
    ("deepcopy", Ailment.CONTAINER),
    ("in skip_files", Ailment.FOREIGN_CALL),
    ("unsupported builtin", Ailment.FOREIGN_CALL),
)
"""For a reason without a type that is known: the first of these that stands in its first line."""

_GUARDS: tuple[tuple[re.Pattern[str], Ailment], ...] = tuple(
    (re.compile(pattern), ailment)
    for pattern, ailment in (
        (r"___stack\d|Cache line invalidated", Ailment.AFTER_BREAK),
        (r"(size|stride|rank) mismatch|\.size\(\)\[|\.stride\(\)\[", Ailment.CHANGING_SHAPE),
        (r"^len\(|^not \S+$|dict\.keys|_contains|missing key", Ailment.CHANGING_CONTAINER),
        (r"mismatch|___check_type_id|expected type|GLOBAL_STATE|grad_mode", Ailment.CHANGING_TYPE),
        (r" == ", Ailment.CHANGING_VALUE),
    )
)
"""A guard as dynamo writes it, without the line of code that it adds; the first that fits."""


VARIABLES: dict[str, str] = {}
"""Dynamo keeps books in the process (`torch_books`), and need not be asked to write."""

_REFUSAL = re.compile(
    r"^torch\._dynamo\.exc\.\w+: (?P<reason>.*?)^from user code:\n(?P<stack>.*?)(?=\n\s*\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')


def breaks(text: str) -> tuple[GraphBreak, ...]:
    """None: they stand in the books."""
    return ()


def recompiles(text: str) -> tuple[Recompile, ...]:
    """None: they stand in the books."""
    return ()


def refusal(text: str) -> GraphBreak | None:
    """The place at which dynamo gave the model up with an error, from the traceback that the process ended with."""
    found = _REFUSAL.search(text)
    frames = (
        [each for each in _FRAME.finditer(found["stack"]) if "-packages/torch/" not in each["file"]] if found else []
    )
    if found is None or not frames:
        return None
    return GraphBreak(
        reason=found["reason"].strip().partition("\n")[0],
        location=f"{frames[-1]['file']}:{frames[-1]['line']}",
        ailment=ailment_of(found["reason"]),
        hint=hint_of(found["reason"]),
        gives_up=True,
    )


def ailment_of(reason: str) -> Ailment:
    """The kind of a graph break, from dynamo's whole reason."""
    first, _, rest = reason.strip().partition("\n")
    kind = _BY_TYPE.get(first.rstrip(), _BY_TYPE.get(first))
    if kind is Ailment.FOREIGN_CALL:
        return _BY_CALL.get(_called(rest).partition(".")[0], kind)
    if kind is Ailment.OPERATOR:
        return next((ailment for words, ailment in _BY_NODE if words in rest), kind)
    if kind is not None:
        return kind
    return next((ailment for words, ailment in _BY_WORDS if words in first.lower()), Ailment.OTHER)


def ailment_of_guard(guard: str) -> Ailment:
    """The kind of a recompile, from the guard that failed."""
    return next((ailment for pattern, ailment in _GUARDS if pattern.search(guard)), Ailment.OTHER)


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
    return next((each for each in found.groups() if each), "") if found else ""
