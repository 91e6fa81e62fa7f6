"""The ways in which a framework can run a model on a device, one by one: each is a trial of a small model, checked
against the untuned one. `tests/device` runs the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from autotune.config import Scalar
from autotune.environment import package_version
from autotune.workload.workload import Device
from benchmarks.on_device.records import PathSeen
from benchmarks.on_device.session import Session, Subject

ALL: tuple[Device, ...] = ("cpu", "gpu", "ascend")
_GPU: tuple[Device, ...] = ("gpu",)
_ACCELERATORS: tuple[Device, ...] = ("gpu", "ascend")
PROBE = Subject()
_BFLOAT16 = Subject(arguments={"dtype": "bfloat16"}, tolerance=3e-2)
_CHANNELS_LAST = Subject(arguments={"channels_last": 1})
_TRAINING = Subject("probe_training", task="train")
_DROPOUT = Subject("probe_training", {"dropout": 0.1}, task="train")
_HALF = Subject(tolerance=3e-2)
_TF32 = Subject(tolerance=1e-2)


@dataclass(frozen=True)
class ExecutionPath:
    """A config on a small model, where and since which release of torch it exists."""

    name: str
    config: Mapping[str, Scalar]
    subject: Subject = PROBE
    like: Subject | None = None
    """The subject that must give the same outputs, where it is not this one untuned."""
    devices: tuple[Device, ...] = ALL
    versions: str = ""
    package: str | None = None
    expected_s: float = field(default=40.0, compare=False)

    def exists_on(self, device: Device) -> bool:
        """Whether this device and this release have it."""
        release = package_version("torch")
        return (
            device in self.devices
            and release is not None
            and SpecifierSet(self.versions).contains(release, prereleases=True)
            and (self.package is None or package_version(self.package) is not None)
        )

    def run(self, session: Session) -> PathSeen:
        """Try it; the untuned model's time stands beside it."""
        tried = session.try_(self.subject, self.config, self.like)
        return PathSeen(self.name, tried, session.untuned(self.like or self.subject).median_s)


def _compile(name: str, subject: Subject = PROBE, like: Subject | None = None, **given: object) -> ExecutionPath:
    where = {key: given.pop(key) for key in ("devices", "versions", "package") if key in given}
    config: dict[str, Scalar] = {"execution": "compile", "backend": "inductor", "mode": "default"}
    config |= given  # type: ignore[arg-type]
    if config["backend"] != "inductor":
        del config["mode"]
    return ExecutionPath(name, config, subject, like, **where)  # type: ignore[arg-type]


def _attention(kernel: str, dtype: str, devices: tuple[Device, ...]) -> ExecutionPath:
    """One kernel of scaled_dot_product_attention, against what PyTorch chooses by itself."""
    tolerance = _BFLOAT16.tolerance if dtype == "bfloat16" else 1e-3
    subject = Subject(arguments={"attention": kernel, "dtype": dtype}, tolerance=tolerance)
    like = _BFLOAT16 if dtype == "bfloat16" else PROBE
    return _compile(f"attention by the {kernel} kernel, {dtype}", subject, like, devices=devices)


PATHS = (
    ExecutionPath("eager", {"execution": "eager"}),
    _compile("compiled by default"),
    _compile("mode reduce-overhead", mode="reduce-overhead", devices=_ACCELERATORS),
    _compile("mode max-autotune-no-cudagraphs", mode="max-autotune-no-cudagraphs", devices=_GPU),
    _compile("mode max-autotune", mode="max-autotune", devices=("cpu", "gpu")),
    _compile("backend cudagraphs", backend="cudagraphs", devices=_GPU),
    _compile("bfloat16 by autocast, compiled", _HALF, precision="bf16_autocast"),
    _compile("float16 by autocast, compiled", _HALF, precision="fp16_autocast", devices=_ACCELERATORS),
    _compile("bfloat16 by autocast, CUDA graphs", _HALF, precision="bf16_autocast", mode="reduce-overhead",
             devices=_GPU),
    _compile("TF32, compiled", _TF32, matmul_precision="high", devices=_GPU),
    _compile("a bfloat16 model, compiled", _BFLOAT16),
    _compile("a channels-last model, compiled", _CHANNELS_LAST, PROBE),
    _compile("a channels-last model, CUDA graphs", _CHANNELS_LAST, PROBE, mode="reduce-overhead", devices=_GPU),
    _attention("math", "float32", ALL),
    _attention("efficient", "float32", _GPU),
    _attention("flash", "bfloat16", ("cpu", "gpu")),
    _attention("cudnn", "bfloat16", _GPU),
    _compile("a training step, the model compiled", _TRAINING, scope="model"),
    _compile("a training step, the loss compiled", _TRAINING, scope="loss"),
    _compile("a training step, CUDA graphs", _TRAINING, scope="model", mode="reduce-overhead", devices=_GPU),
    _compile("a training step with dropout", _DROPOUT, scope="model"),
    _compile("a training step with dropout, CUDA graphs", _DROPOUT, scope="model", mode="reduce-overhead",
             devices=_GPU),
    _compile("a training step, fused optimizer", _TRAINING, scope="model", optimizer_impl="fused"),
    _compile("a training step, the optimizer compiled", _TRAINING, scope="model", optimizer_compiled=True),
    _compile("C++ wrapper", cpp_wrapper=True, devices=("cpu", "gpu")),
    _compile("frozen weights", freezing=True, devices=("cpu",)),
    _compile("block by block", region="blocks.*"),
    _compile("any shape", dynamic=True),
    _compile("mode lite", mode="lite", versions=">=2.10"),
    _compile("capture only", backend="aot_eager"),
    _compile("npugraph_ex", backend="npugraph_ex", devices=("ascend",), package="torch_npu"),
    _compile("npugraphs", backend="npugraphs", devices=("ascend",), package="torch_npu"),
    _compile("TorchAir", backend="torchair", torchair_mode="max-autotune", devices=("ascend",), package="torch_npu"),
    _compile("TorchAir, captured", backend="torchair", torchair_mode="reduce-overhead", devices=("ascend",),
             package="torch_npu"),
)  # fmt: skip
"""By worth: what the most configs go through comes first."""


def paths_on(device: Device) -> list[ExecutionPath]:
    """Those that this device and this release have."""
    return [path for path in PATHS if path.exists_on(device)]
