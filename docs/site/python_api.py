"""The public names of `autotune` as Markdown: their signatures and docstrings, which explain them once."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import autotune
from autotune import events
from autotune.api.side_by_side import Comparison
from autotune.job.load import Loaded
from autotune.job.stats import Stats
from autotune.measure.findings import Finding
from autotune.measure.statistics import Speedup
from autotune.plugins.diagnose.command import Diagnosis
from autotune.plugins.diagnose.diagnoser import ModelDiagnosis
from autotune.plugins.upgrade.upgrade import Upgrade
from autotune.study.records import TrialRecord
from autotune.verification.verify import Verification

GROUPS: dict[str, list[Any]] = {
    "Tune": [
        autotune.tune,
        autotune.resume,
        autotune.load_study,
        autotune.watch,
        autotune.TuneResult,
        Speedup,
        TrialRecord,
    ],
    "Measure again": [
        autotune.verify,
        Verification,
        autotune.verify_against,
        Upgrade,
        autotune.compare,
        Comparison,
        autotune.diagnose,
        Diagnosis,
        ModelDiagnosis,
        Finding,
    ],
    "In a job": [
        autotune.load,
        Loaded,
        autotune.stats,
        Stats,
        autotune.expose,
        autotune.prepare,
    ],
    "Errors": [autotune.AutotuneError, autotune.InputError, autotune.MismatchError, autotune.CallbackError],
}
"""Heading -> public names, and classes of what they return."""


def text() -> str:
    """All of it. A name of `autotune.__all__` that no group has is an error: the page would miss it."""
    told = {each.__name__ for group in GROUPS.values() for each in group}
    if missing := set(autotune.__all__) - told - {"events", "__version__"}:
        raise LookupError(f"docs/site/python_api.py: no group has {', '.join(sorted(missing))}")
    parts = [f"## {title}\n\n" + "\n".join(map(_entry, group)) for title, group in GROUPS.items()]
    return "\n".join([*parts, f"## Events\n\n{_events()}"])


def _entry(thing: Any) -> str:
    public = thing.__name__ in autotune.__all__
    name = f"autotune.{thing.__name__}" if public else thing.__name__
    if not isinstance(thing, type):
        return f"### `{name}`\n\n{_signature(thing)}\n{_prose(thing)}\n"
    attributes = "".join(f"* `{line}`{': ' if doc else ''}{doc}\n" for line, doc in _attributes(thing))
    methods = "".join(
        f"\n#### `{thing.__name__}.{key}`\n\n{_signature(each)}\n{_prose(each)}\n" for key, each in _methods(thing)
    )
    return f"### `{name}`\n\n{_prose(thing)}\n" + (f"\n{attributes}" if attributes else "") + methods


def _prose(thing: Any) -> str:
    return linked(inspect.getdoc(thing) or "")


def _in_a_line(doc: str) -> str:
    return linked(" ".join(inspect.cleandoc(doc).split()))


def linked(words: str) -> str:
    """The text of a docstring or space file, in which `(docs/x.md)` becomes a link."""
    return re.sub(r"\(docs/([\w/-]+\.md)\)", r"([more](\1))", words)


# Signatures


def _signature(function: Callable[..., Any]) -> str:
    found = inspect.signature(function)
    parameters = list(found.parameters.values())
    words = [_parameter(each) for each in parameters]
    first = next((n for n, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None:
        words.insert(first, "*")
    name, returned = function.__name__, f" -> {found.return_annotation}: ..."
    line = f"def {name}({', '.join(words)}){returned}"
    if len(line) > 100:
        line = f"def {name}(\n" + "".join(f"    {each},\n" for each in words) + f"){returned}"
    return f"```python\n{line}\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = str(parameter.default) if isinstance(parameter.default, Path) else parameter.default
    return f"{stars}{parameter.name}{kind}" + ("" if default is parameter.empty else f" = {default!r}")


# Classes


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Those that a caller uses; what an error can do is for this package."""
    for key, value in vars(thing).items():
        if inspect.isfunction(value) and not key.startswith("_") and not issubclass(thing, Exception):
            yield key, value


def _attributes(thing: type) -> Iterator[tuple[str, str]]:
    """Fields, properties and what `__init__` sets, with the text below each."""
    if thing.__bases__ != (object,) and is_dataclass(thing.__bases__[0]):
        yield from _attributes(thing.__bases__[0])
    body = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(body, ast.ClassDef)
    inits = [each for each in body.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    for statements in (body.body, *(each.body for each in inits)):
        for one, after in zip(statements, [*statements[1:], None], strict=True):
            name = _field_name(one)
            match after:
                case ast.Expr(value=ast.Constant(value=str(doc))) if name:
                    yield name, _in_a_line(doc)
                case _ if name and statements is body.body:
                    yield name, ""
    for key, value in vars(thing).items():
        if isinstance(value, property) and not key.startswith("_"):
            kind = inspect.signature(value.fget).return_annotation if value.fget else ""
            yield f"{key}: {kind}", _in_a_line(value.__doc__ or "")


def _field_name(statement: ast.stmt) -> str | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if not name.startswith("_"):
            return f"{name}: {_kind(kind)}"
        case ast.Assign(targets=[ast.Attribute(attr=name)]) if not name.startswith("_"):
            return name
    return None


def _kind(annotation: ast.expr) -> str:
    """A type without what pydantic is told about it."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return ast.unparse(kind)
    return ast.unparse(annotation)


# Events


def _events() -> str:
    lines = []
    for name in sorted(events.__all__):
        event = getattr(events, name)
        if isinstance(event, type):
            fields = ", ".join(line.partition(":")[0] for line, _ in _attributes(event))
            lines.append(f"* `events.{name}({fields})`: {_in_a_line(event.__doc__ or '')}")
    return "\n".join(lines)
