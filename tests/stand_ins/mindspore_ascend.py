"""A stand-in for what MindSpore offers for an Ascend NPU: the device, its context, launches, CANN's cache.

Written from, as of 2026-11:
    https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.set_context.html      ascend_config
    https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore.runtime.html                    set_kernel_launch_*
    https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore.device_context.html             ascend.op_tuning
    https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore.hal.html                        is_initialized
and the Python sources of these pages in the wheel of 2.10.0. Releases before 2.10: the same pages of r2.3 to r2.9.

It records every call, and refuses what the release refuses. What MindSpore answers with a line in its log alone, and
does not do, is recorded as ignored.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore as ms
from packaging.version import Version

ASCEND_CONFIG: dict[str, tuple[Any, ...]] = {
    "precision_mode": (
        "force_fp16", "allow_fp32_to_fp16", "allow_mix_precision", "must_keep_origin_dtype", "force_fp32",
        "allow_fp32_to_bf16", "allow_mix_precision_fp16", "allow_mix_precision_bf16",
    ),
    "jit_compile": (True, False),
    "matmul_allow_hf32": (True, False),
    "conv_allow_hf32": (True, False),
}  # fmt: skip
"""Of its entries those that the backend sets, with their values."""
SINCE = {
    "set_device": "2.5", "set_kernel_launch_group": "2.6", "set_kernel_launch_capture": "2.7", "aclnn_cache": "2.7",
}  # fmt: skip
"""Function -> the release that brought it."""


class StandIn:
    """MindSpore of a release, in a process whose NPU has run nothing yet."""

    def __init__(self, version: str = "2.10.0") -> None:
        self.version = version
        self.calls: list[tuple[Any, ...]] = []
        self.is_initialised = False
        self.target = "CPU"
        self._context: dict[str, Any] = {"ascend_config": {}}
        self._configured: set[str] = set()

    def install(self, monkeypatch: Any) -> None:
        """In place of MindSpore's own, until the test has ended."""
        from autotune.backends.mindspore import backend

        monkeypatch.setattr(backend, "_CONTEXT", None)  # Its plugin for Ascend is loaded.
        monkeypatch.setattr(ms, "__version__", self.version)
        monkeypatch.setattr(ms, "set_context", self.set_context)
        monkeypatch.setattr(ms, "get_context", self.get_context)
        monkeypatch.setattr(ms, "set_device", self.set_device)
        if not self._has("set_device"):
            monkeypatch.delattr(ms, "set_device")
        monkeypatch.setattr("mindspore.hal.is_initialized", lambda target: target == "Ascend" and self.is_initialised)
        monkeypatch.setattr("mindspore.hal.device_count", lambda target: 1 if target == "Ascend" else 0)
        monkeypatch.setattr("mindspore.hal.get_device_name", lambda number, target: f"{target}910B{number}")
        launches = {name: getattr(self, name) for name in SINCE if "launch" in name and self._has(name)}
        monkeypatch.setattr(ms, "runtime", SimpleNamespace(**launches))
        tuning = SimpleNamespace(**({"aclnn_cache": self.aclnn_cache} if self._has("aclnn_cache") else {}))
        monkeypatch.setattr(ms, "device_context", SimpleNamespace(ascend=SimpleNamespace(op_tuning=tuning)))

    def _has(self, function: str) -> bool:
        return Version(self.version) >= Version(SINCE[function])

    def set_device(self, device_target: str, device_id: int = 0) -> None:
        """Once, and before anything has run."""
        if device_target not in ("CPU", "GPU", "Ascend"):
            raise ValueError(f"The argument 'device_target' must be one of CPU, GPU, Ascend, but got {device_target}.")
        if "device" in self._configured and self.target != device_target:
            raise RuntimeError("The 'mindspore.set_device' can not be modified.")
        if self.is_initialised and "device" not in self._configured:
            raise RuntimeError("The runtime has been initialized, please set it before the kernel is executed")
        self.calls.append(("set_device", device_target))
        self._configured.add("device")
        self.target = device_target

    def get_context(self, name: str) -> Any:
        """What was set, and MindSpore's own default of the rest."""
        if name == "device_target":
            return self.target
        return self._context.get(name, ms.PYNATIVE_MODE if name == "mode" else 0)

    def set_context(self, **settings: Any) -> None:
        """`ascend_config` is ignored where the device is another, and may be once the NPU has run something."""
        for name, value in settings.items():
            if name == "device_target":
                self.set_device(value)
                continue
            if name == "ascend_config":
                if self.target != "Ascend" or self.is_initialised:
                    self.calls.append(("ignored", name, value))
                    continue
                _check_ascend_config(value)
            self.calls.append(("set_context", name, value))
            self._context[name] = value

    def set_kernel_launch_group(self, thread_num: int = 2, kernel_group_num: int = 8) -> None:
        """Once, not beside capturing, and groups that the threads can share out evenly."""
        self._once("kernel_launch_group")
        if "capture" in self._configured:
            raise RuntimeError("The kernel launch group and kernel launch capture can not be set together")
        if thread_num < 1 or kernel_group_num < 1 or kernel_group_num % thread_num:
            raise ValueError(f"{kernel_group_num} cannot be evenly divisible by thread_num: {thread_num}")
        self._configured.add("kernel_launch_group")
        self.calls.append(("set_kernel_launch_group", thread_num, kernel_group_num))

    def set_kernel_launch_capture(self, enable_capture_graph: bool) -> None:
        """As often as one likes, but not beside groups."""
        if not isinstance(enable_capture_graph, bool):
            raise TypeError("enable_capture_graph must be a bool")
        if "kernel_launch_group" in self._configured:
            raise RuntimeError("The kernel launch group and kernel launch capture can not be set together")
        self._configured.add("capture")
        self.calls.append(("set_kernel_launch_capture", enable_capture_graph))

    def aclnn_cache(self, enable_global_cache: bool = False, cache_queue_length: int = 10000) -> None:
        """Once; before the device is Ascend it logs an error and returns."""
        if self.target != "Ascend":
            self.calls.append(("ignored", "aclnn_cache"))
            return
        self._once("aclnn_cache")
        if enable_global_cache not in (True, False):
            raise ValueError(f"For 'aclnn_cache', the config must be one of [True, False], not {enable_global_cache}")
        self._configured.add("aclnn_cache")
        self.calls.append(("aclnn_cache", enable_global_cache))

    def _once(self, name: str) -> None:
        if name in self._configured:
            raise RuntimeError(f"The '{name}' can not be set repeatedly.")


def _check_ascend_config(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if name not in ASCEND_CONFIG:
            raise ValueError(f"the key of argument 'ascend_config' must be one of {list(ASCEND_CONFIG)}, not {name}.")
        if value not in ASCEND_CONFIG[name]:
            raise ValueError(f"For 'ascend_config', the value of argument {name} must be one of {ASCEND_CONFIG[name]}")
