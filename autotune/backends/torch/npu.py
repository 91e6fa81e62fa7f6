"""What only an Ascend NPU runs: torch_npu, the graph backends that it registers, and TorchAir, which is part of it.

Written from the documentation, and checked against a stand-in that was written from it too (tests/stand_ins): no line
of this file has been run on an NPU (docs/support.md).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from autotune.backends.torch.knobs import Settings, compile_arguments
from autotune.errors import InvalidConfigError, MissingDeviceError

INSTALL = "https://gitcode.com/ascend/pytorch"
_FALLBACK = "INDUCTOR_ASCEND_AUTO_FALLBACK"
_INDUCTOR = "torch_npu._inductor.config"


def import_npu() -> bool:
    """Importing torch_npu registers the device `npu` and its compilers with torch: https://gitcode.com/ascend/pytorch"""
    if importlib.util.find_spec("torch_npu") is None:
        return False
    with suppress(ImportError, OSError):
        importlib.import_module("torch_npu")
        return True
    return False


def prepare_trial() -> None:
    """In a trial an operator that cannot be compiled is an error: by default its eager kernel is taken, without a word.
    Raises MissingDeviceError.

    torch_npu reads the variable as a text, of which only the empty one is false (torch_npu/_inductor/config.py).
    """
    os.environ[_FALLBACK] = ""
    if _INDUCTOR in sys.modules:
        sys.modules[_INDUCTOR].auto_fallback = False  # type: ignore[attr-defined]
    if not import_npu():
        raise MissingDeviceError("torch runs on Ascend through torch_npu, which is not installed", tip=INSTALL)


def device_label() -> str | None:
    """The first NPU as torch_npu names it; None where there is none."""
    if not import_npu() or not torch.get_device_module("npu").is_available():
        return None
    return str(torch.get_device_module("npu").get_device_name(0))


def graph_arguments(settings: Settings) -> dict[str, Any]:
    """Arguments of `torch.compile` for `torchair` or `npugraph_ex`."""
    if settings.backend == "torchair":
        return {**compile_arguments(settings, {}), "backend": _torchair(settings.torchair_mode)}
    # https://gitcode.com/Ascend/torchair/blob/master/docs/zh/npugraph_ex/quick_start.md: no mode. The whole graph is
    # recommended there, and advanced/multi_stream.md does without: most models of other libraries have a break.
    # And basic/memory_reuse.md: without clone_output the next call overwrites what this one gave.
    return {
        "backend": settings.backend, "fullgraph": settings.fullgraph, "dynamic": bool(settings.dynamic),
        "options": {"clone_output": True},
    }  # fmt: skip


def captures_graphs(settings: Settings) -> bool:
    """The config replays captured graphs whose next call writes over the outputs of the one before, and that offer no
    copies of their own."""
    return settings.backend == "npugraphs" or settings.torchair_mode == "reduce-overhead"


def cache_variables(folder: Path) -> dict[str, str]:
    """CANN keeps operators that it compiled, and TorchAir graphs, in the user's home; a cold trial needs places of its
    own.

    https://www.hiascend.com/document/detail/zh/canncommercial/800/apiref/envvar/envref_07_0012.html (operators called
    one by one, while ACL_OP_COMPILER_CACHE_MODE is enable); ASCEND_CACHE_PATH is of what CANN shares between processes.
    """
    if importlib.util.find_spec("torch_npu") is None:
        return {}
    own = str(folder / "cann")
    return {"ACL_OP_COMPILER_CACHE_DIR": own, "ACL_OP_COMPILER_CACHE_MODE": "enable", "ASCEND_CACHE_PATH": own}


def _torchair(mode: str | None) -> Any:
    """TorchAir's compiler. It has no name in torch, and is there once torch_npu is imported:
    https://gitcode.com/Ascend/torchair/blob/master/docs/zh/overview.md"""
    try:
        importlib.import_module("torch_npu")
        torchair = importlib.import_module("torchair")
    except (ImportError, OSError) as error:
        raise InvalidConfigError(f"knob backend: torchair cannot be imported: {error}") from None
    config = torchair.CompilerConfig()
    if mode is not None:
        try:
            config.mode = mode
        except (AttributeError, ValueError, TypeError) as error:
            raise InvalidConfigError(
                f"knob torchair_mode: this release of torch_npu refuses {mode!r}: {error}"
            ) from None
    return torchair.get_npu_backend(compiler_config=config)
