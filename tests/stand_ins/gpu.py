"""A stand-in for a GPU under torch's own backend: a process that imports this module in place of torch finds one.

Its driver is a line in the file that STAND_IN_GPU names, with the number of the process that began it, and torch's own
flag of it, which a fork inherits as it would inherit a dead driver. Asking whether there is a GPU begins it, but where
torch is told to ask NVML: https://docs.pytorch.org/docs/stable/cuda_environment_variables.html. What is moved there
gets memory of its own, on the host. A model of a MiB is large there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from autotune.backends.torch.backend import TorchBackend
from autotune.backends.torch.instruments import require_found
from autotune.trial.worker import subjects
from autotune.workload.workload import Device


def _note(what: str) -> None:
    with Path(os.environ["STAND_IN_GPU"]).open("a") as log:
        log.write(f"{what} {os.getpid()}\n")


def begin_driver() -> bool:
    """As whatever touches the device does. Raises RuntimeError in a fork of a process that did."""
    global _begun_in  # noqa: PLW0603
    if _begun_in not in (None, os.getpid()):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    if _begun_in is None:
        _note("driver")
    _begun_in = os.getpid()
    torch.cuda._initialized = True
    return True


_begun_in: int | None = None
_prepare, _place = TorchBackend.prepare, TorchBackend.place


def _prepare_here(self: TorchBackend, device: Device, seed: int) -> None:
    if device != "cpu":
        require_found(device, "cuda")
    _prepare(self, "cpu", seed)


def _place_here(self: TorchBackend, value: Any) -> Any:
    begin_driver()
    if not isinstance(value, torch.nn.Module):
        return value.clone() if isinstance(value, torch.Tensor) else value
    _note("model")
    for parameter in value.parameters():
        parameter.data = parameter.data.clone()
    return value


torch.cuda.is_available = lambda: os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1" or begin_driver()
torch.cuda.init = begin_driver
subjects.LARGE_BYTES = 2**20
TorchBackend.prepare = _prepare_here  # type: ignore[method-assign]
TorchBackend.place = _place_here  # type: ignore[method-assign]
