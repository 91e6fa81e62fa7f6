"""Environment variables as knobs, `env.NAME`: of the libraries under a framework, which read them when a process
starts.

In a trial the process is started with the variable. In a job nothing is set: the config is applied where the process
has it already (decision 31). Only variables that take a number or one of a few words are here: none that names a file,
a command or code.
"""

from __future__ import annotations

from autotune.command_line import asked
from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean

PREFIX = "env."
"""What the name of such a knob begins with."""

MOST = 2**31 - 1

_SWITCH = ("true", "false")
VARIABLES: dict[str, tuple[str, ...] | None] = {
    "OMP_DYNAMIC": _SWITCH,
    "OMP_PROC_BIND": (*_SWITCH, "master", "primary", "close", "spread"),
    "OMP_PLACES": ("threads", "cores", "sockets"),
    "OMP_WAIT_POLICY": ("active", "passive"),
    "GOMP_SPINCOUNT": None,
    "KMP_BLOCKTIME": None,
    "MKL_DYNAMIC": _SWITCH,
    "ONEDNN_DEFAULT_FPMATH_MODE": ("STRICT", "BF16", "F16", "TF32", "ANY"),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": None,
    "MALLOC_ARENA_MAX": None,
    "MALLOC_MMAP_THRESHOLD_": None,
    "MALLOC_TRIM_THRESHOLD_": None,
    "CUDA_DEVICE_MAX_CONNECTIONS": None,
    "NVIDIA_TF32_OVERRIDE": ("0", "1"),
    "TASK_QUEUE_ENABLE": ("0", "1", "2"),
}
"""Variable -> the words that it takes; None: a number from 0 on."""

_OWN_KNOBS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "the knob threads"),
    **{"TORCHINDUCTOR_": "the knob inductor.NAME", "TORCHDYNAMO_": "the knob dynamo.NAME"},
}
"""Variable, or the beginning of its name -> what is there for it."""


def require_variable(knob: str, value: Scalar) -> None:
    """Raises InputError if a config may not ask for this variable, or not for this value. Null asks for nothing."""
    name = knob.removeprefix(PREFIX)
    for beginning, instead in _OWN_KNOBS.items():
        if name.startswith(beginning):
            raise InputError(f"knob {knob}: no config may ask for this variable", tip=f"use {instead}")
    if name not in VARIABLES:
        raise InputError(
            f"knob {knob}: no config may ask for this variable",
            tip=f"{did_you_mean(name, VARIABLES)}{asked('env', {'NAME': 'VALUE'})} sets any variable for all processes "
            "of a study",
        )
    if value is None:
        return
    words, text = VARIABLES[name], text_of(value)
    if words is None and not (text.isdecimal() and text.isascii() and int(text) <= MOST):
        raise InputError(f"knob {knob}: {text!r} is no number from 0 to {MOST}")
    if words is not None and text not in words:
        raise InputError(f"knob {knob}: {text!r} is none of {', '.join(words)}", tip=did_you_mean(text, words) or None)


def text_of(value: Scalar) -> str:
    """A knob's value as the variable has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
