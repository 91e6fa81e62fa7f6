"""Options of the installed compiler as knobs: `inductor.NAME` is `torch._inductor.config.NAME`, `dynamo.NAME` is
`torch._dynamo.config.NAME`.

Which of them a config may set is decided here, for a trial and for a job alike (decision 31). Not those that take text
of any kind, which may name a program, a path or a function; and not those whose effect the comparison of outputs cannot
see, such as a check that is left out at run time.
"""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, Union, get_args, get_origin

import torch

from autotune.backends.torch.compiler import value_under
from autotune.backends.torch.knobs import OWN_KNOBS
from autotune.config import Scalar
from autotune.errors import InvalidConfigError, did_you_mean

MODULES = {"inductor": "torch._inductor.config", "dynamo": "torch._dynamo.config"}

_KEPT_BACK: dict[str, tuple[str, ...]] = {
    "it leaves out a check at run time, which the comparison of outputs cannot see": (
        *("*assert*", "*assume_*", "*unsafe*", "*guard*", "*skip_*", "*ignore*", "*check*", "*vec_isa_ok*"),
        *("*verify*", "*validate*", "*input_mutation*", "dynamo.suppress_errors", "dynamo.replay_side_effects"),
    ),
    "it takes something of the model from the job": (
        *("inductor.freezing_*", "dynamo.prepare_freezing", "inductor.keep_output_stride", "inductor.pad_outputs"),
    ),
    "it is for debugging: it writes files, logs or other code": (
        *("*debug*", "*trace.*", "*dump*", "*log*", "*save*", "*profil*", "*print*", "*verbose*", "*repro*", "*test*"),
        *("*TEST*", "*inject*", "*generate_*", "*benchmark_harness*", "*benchmark_kernel*", "*hook*", "*_tables*"),
        *("*store_cubin*", "*bisect*", "*halide*", "*record*", "*collect*", "*ptxas_info*", "*report*", "*objgraph*"),
        *("*proton*", "*lint*", "dynamo.disable", "inductor.fallback_by_default"),
    ),
    "it is about processes, caches or other machines": (
        *("*cache*", "*remote*", "*upload*", "*worker*", "*compile_threads*", "*subproc*", "*timeout*", "*async*"),
        *("*pgo*", "*precompil*", "*p2p*", "*collective*", "*multi_device*"),
    ),
    "it is not for torch.compile": ("*aot_inductor*", "*compile_standalone*", "*is_predispatch*", "*aot_compile*"),
    "it decides when the model is compiled": ("dynamo.minimum_call_count",),
    "it is private": ("*._*", "*.TYPE_CHECKING"),
}
"""Why -> patterns of the full names."""


def require_option(knob: str, value: Scalar) -> None:
    """Raises InvalidConfigError if a config may not set this option, this release has none of the name, or it takes no
    such value. It is set and read back, as where the model is compiled."""
    group, _, name = knob.partition(".")
    if knob in OWN_KNOBS:
        raise InvalidConfigError(
            f"knob {knob}: has a knob of its own, {OWN_KNOBS[knob]}", tip=f"use the knob {OWN_KNOBS[knob]}"
        )
    module = importlib.import_module(MODULES[group])
    if name not in module._config:
        raise InvalidConfigError(
            f"knob {knob}: torch {torch.__version__} has no setting {MODULES[group]}.{name}",
            tip=f"{did_you_mean(knob, _taken(group, module))}see the source of {MODULES[group]}",
        )
    refusal = _refusal(knob, module)
    if refusal is not None:
        raise InvalidConfigError(f"knob {knob}: {refusal}", tip="docs/search-spaces.md says which are taken")
    if value is None:
        return
    kinds = _kinds(module, name)
    if not any(_fits(value, kind) for kind in kinds or ()):
        raise InvalidConfigError(
            f"knob {knob}: {json.dumps(value)} is not {_text_of(kinds or ())}, which is what it takes",
            tip="null leaves it as it is",
        )
    found = value_under((module, name, value))
    if found != value:
        raise InvalidConfigError(
            f"knob {knob}: set to {json.dumps(value)}, it reads {found!r}",
            tip="an environment variable of the compiler may override it",
        )


def _refusal(knob: str, module: Any) -> str | None:
    """Why this option is not for a config; None: it is."""
    for because, patterns in _KEPT_BACK.items():
        if any(fnmatchcase(knob, pattern) for pattern in patterns):
            return f"{because}, so no config may set it"
    name = knob.partition(".")[2]
    alias = getattr(module._config[name], "alias", None)
    if alias is not None:
        return f"it is another name of {alias}"
    if _kinds(module, name) is None:
        return "it takes text or objects, which may name a program, a path or a function"
    return None


def _taken(group: str, module: Any) -> Iterable[str]:
    """The options of a group that a config may set."""
    names = (f"{group}.{name}" for name in module._config)
    return [each for each in names if each not in OWN_KNOBS and _refusal(each, module) is None]


def _kinds(module: Any, name: str) -> tuple[Any, ...] | None:
    """What an option takes: types of scalars, and the choices of a Literal; None where it takes anything else too."""
    declared = module._config[name].value_type
    kinds: list[Any] = []
    for part in get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,):
        if get_origin(part) is Literal:
            kinds += get_args(part)
        elif part in (bool, int, float):
            kinds.append(part)
        elif part is not type(None):
            return None
    return tuple(kinds) or None


def _fits(value: Scalar, kind: Any) -> bool:
    if isinstance(kind, type):
        return type(value) is kind
    return type(value) is type(kind) and value == kind


def _text_of(kinds: Iterable[Any]) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number with a point"}
    return " or ".join(names[each] if isinstance(each, type) else json.dumps(each) for each in kinds)
