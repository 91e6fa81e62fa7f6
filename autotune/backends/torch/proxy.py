"""A second object for the same module: what a job holds while its calls go through the compiled code.

`torch.compile` wraps a module, and a wrapper puts `_orig_mod.` before each name in a checkpoint and is of another
class. A proxy is of a subclass of the model's own class and shares its `__dict__`: parameters, buffers, modes, hooks'
registers and attributes are the model's own, and only its calls go elsewhere.

Some calls stay with the model. Those that PyTorch records (in a function that the job compiles, by `torch.export`,
`torch.jit.trace` or `torch.fx`): the job's own compiler gets all of it, as it sees through `torch.compile`. And those
under a dispatch mode, which acts on operators, where compiled code has kernels: under `FakeTensorMode` these end the
process (measured, 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import _symbolic_trace

from autotune.backends.proxy_object import proxy_of

_num_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def make_proxy(model: torch.nn.Module, call: Callable[..., Any]) -> torch.nn.Module:
    """A module that is `model` in all but its calls, which go to `call`."""

    def called(*args: Any, **kwargs: Any) -> Any:
        if (
            torch.compiler.is_dynamo_compiling()
            or _symbolic_trace._is_fx_tracing_flag  # Asked by its function (2.13), PyTorch writes a warning.
            or torch._C._is_tracing()
            or _num_dispatch_modes()
        ):
            # The object that is being recorded: exported weights get their names by it.
            return type(model).__call__(other, *args, **kwargs)
        return call(*args, **kwargs)

    other: torch.nn.Module = proxy_of(model, called, object.__new__)
    return other
