"""What can go wrong with a config of the fake framework: the values of its knob `behaviour`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class FakeOutOfMemoryError(Exception):
    """Stands for a device's own out-of-memory error, which is no MemoryError."""


def _right(output: Any) -> Any:
    return output


def _wrong(output: Any) -> Any:
    return output + 1


def _saturates(output: Any) -> Any:
    """What is larger than an example gives is cut off."""
    return np.clip(output, -15, 15)


def _nan(output: Any) -> Any:
    return output * np.nan


def _compile_error(output: Any) -> Any:
    raise RuntimeError("the fake compiler does not know this operator\nand says so on a second line")


def _out_of_memory(output: Any) -> Any:
    raise FakeOutOfMemoryError("tried to allocate 1 TiB")


def _crash(output: Any) -> Any:
    print("about to crash", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(output: Any) -> Any:
    """Hangs together with a helper in a session of its own, as compilers' worker pools do."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)


def _silence(output: Any) -> Any:
    os._exit(3)


BEHAVIOURS: dict[str, Callable[[Any], Any]] = {
    "right": _right,
    "breaks": _right,
    "wrong": _wrong,
    "saturates": _saturates,
    "wrong_gradients": _right,
    "frozen": _right,
    "nan": _nan,
    "compile_error": _compile_error,
    "out_of_memory": _out_of_memory,
    "crash": _crash,
    "hang": _hang,
    "silence": _silence,
}
