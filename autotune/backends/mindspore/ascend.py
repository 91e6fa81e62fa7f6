"""What only an Ascend NPU runs: settings of CANN that hold from the device's start on, its caches, and its release.

Written from MindSpore's and CANN's documentation, and checked against a stand-in that was written from it too
(tests/stand_ins/mindspore_ascend.py): no line of this file has been run on an NPU (docs/support.md).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.knobs import PYNATIVE_FUSION
from autotune.backends.mindspore.moved_names import first
from autotune.errors import InvalidConfigError

_log = logging.getLogger("autotune")
_TARGET = "Ascend"
_HOMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
"""Variables of CANN's `set_env.sh`: the folder of the release that the process uses."""


def refuse_late(context: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """Settings of CANN come before the device's first operator: later ones "may not take effect", which MindSpore says
    in a warning only, so that nobody knows what a trial measured. Nor is a variable read again.

    https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.set_context.html, `ascend_config`.
    """
    settings = [*context.get("ascend_config", {}), *({PYNATIVE_FUSION} & variables.keys())]
    if settings and is_initialised():
        raise InvalidConfigError(
            f"MindSpore has run operators on the NPU already, and may ignore {', '.join(sorted(settings))}: "
            "they are set before the first operator of the process"
        )


def is_initialised() -> bool:
    """The NPU has run something in this process. False in a release that does not say.

    https://www.mindspore.cn/docs/en/r2.10.0/api_python/hal/mindspore.hal.is_initialized.html
    """
    ask = first("mindspore.hal:is_initialized")
    return ask is not None and bool(ask(_TARGET))


def call(function: str, settings: dict[str, Any]) -> None:
    """A function in `mindspore` that is taken once in a process: `runtime.set_kernel_launch_group` and its like.

    https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore.runtime.html, and `mindspore.device_context`. Before
    `set_device("Ascend")` those of `device_context` log an error and set nothing.
    """
    found: Any = ms
    for name in function.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise InvalidConfigError(f"MindSpore {ms.__version__} has no mindspore.{function}")
    if function.startswith("device_context.ascend") and ms.get_context("device_target") != _TARGET:
        raise InvalidConfigError(f"mindspore.{function} sets nothing before the device is Ascend")
    try:
        found(**settings)
    except RuntimeError as error:
        if "repeatedly" not in str(error) and "together" not in str(error):
            raise
        _log.warning("autotune: mindspore.%s was called before in this process and stays as it was", function)


def cache_variables(folder: str) -> dict[str, str]:
    """CANN keeps operators that it compiled in the user's home (`~/atc_data/kernel_cache`): a cold trial needs a place
    of its own. The folder is there already, as some releases of CANN ask for.

    https://www.hiascend.com/document/detail/zh/canncommercial/800/apiref/envvar/envref_07_0006.html
    """
    return {} if _home() is None else {"ASCEND_CACHE_PATH": folder}


def build_tools() -> dict[str, str]:
    """CANN's release, as the folder that `latest` points to; none on a CPU, whose compiler is in the wheel."""
    home = _home()
    return {} if home is None else {"CANN": str(Path(home).resolve())}


def _home() -> str | None:
    return next((os.environ[name] for name in _HOMES if os.environ.get(name)), None)
