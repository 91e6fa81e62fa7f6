"""What only a GPU answers, against stand-ins of pynvml and of CUDA's events that are written from the documentation.

They record each call, and refuse what the real ones refuse. NVML: https://docs.nvidia.com/deploy/nvml-api/, its
binding: https://pypi.org/project/nvidia-ml-py/, events: https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from autotune import doctor
from autotune.backends.contracts.runtime import DeviceReport
from autotune.measure.device_state import HARD, POWER_CAP

torch = pytest.importorskip("torch")
from autotune.backends.torch import backend, instruments  # noqa: E402
from autotune.backends.torch.instruments import (  # noqa: E402
    REASONS,
    CudaInstruments,
    Nvml,
    cuda_uuid,
    others_on_gpu,
)

pytestmark = pytest.mark.torch
UUID = "GPU-0b5a2c1e"


class NVMLError(Exception):
    """NVML's statuses are exceptions of the binding."""


class FakeNvml(ModuleType):
    """One or more GPUs. Every function but `nvmlInit` fails before it (NVML_ERROR_UNINITIALIZED)."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(
        self, *, has_driver: bool = True, num_gpus: int = 1, reasons: int = 0, compute_mode: int = 0, unsupported=()
    ) -> None:
        super().__init__("pynvml")
        self.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
        self._has_driver, self._num_gpus = has_driver, num_gpus
        self._reasons, self._compute_mode, self._unsupported = reasons, compute_mode, unsupported
        self._is_ready = False
        self.processes: list[SimpleNamespace] = []
        self.asked: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._has_driver:
            raise NVMLError("NVML_ERROR_LIBRARY_NOT_FOUND")
        self._is_ready = True

    def _answer(self, name: str, value: object) -> object:
        self.asked.append(name)
        if not self._is_ready:
            raise NVMLError("NVML_ERROR_UNINITIALIZED")
        if name in self._unsupported:
            raise NVMLError("NVML_ERROR_NOT_SUPPORTED")
        return value

    def __getattr__(self, name: str):
        if name not in ANSWERS:
            raise AttributeError(name)

        def ask(*arguments: object) -> object:
            if name == "nvmlDeviceGetHandleByUUID" and arguments[0] != UUID:
                raise NVMLError("NVML_ERROR_NOT_FOUND")
            return self._answer(name, ANSWERS[name](self, *arguments))

        return ask


ANSWERS = {
    "nvmlDeviceGetCount": lambda nvml: nvml._num_gpus,
    "nvmlDeviceGetHandleByUUID": lambda nvml, uuid: f"handle of {uuid}",
    "nvmlDeviceGetHandleByIndex": lambda nvml, index: f"handle {index}",
    "nvmlDeviceGetClockInfo": lambda nvml, handle, clock: {1: 1980, 2: 3201}[clock],
    "nvmlDeviceGetMaxClockInfo": lambda nvml, handle, clock: 1980,
    "nvmlDeviceGetPowerUsage": lambda nvml, handle: 412_500,
    "nvmlDeviceGetEnforcedPowerLimit": lambda nvml, handle: 700_000,
    "nvmlDeviceGetTemperature": lambda nvml, handle, sensor: 61,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda nvml, handle: nvml._reasons,
    "nvmlDeviceGetPersistenceMode": lambda nvml, handle: 1,
    "nvmlDeviceGetComputeMode": lambda nvml, handle: nvml._compute_mode,
    "nvmlDeviceGetMigMode": lambda nvml, handle: [0, 0],
    "nvmlDeviceGetComputeRunningProcesses": lambda nvml, handle: nvml.processes,
    "nvmlSystemGetDriverVersion": lambda nvml: b"580.159.04",
}


class FakeEvent:
    """`elapsed_time` is in milliseconds, needs timing, and raises before both events have happened."""

    def __init__(self, cuda: FakeCuda, *, enable_timing: bool = False) -> None:
        self._cuda, self._timing = cuda, enable_timing
        self.at_ms: float | None = None
        self.has_happened = False

    def record(self) -> None:
        self._cuda.log.append("record")
        self.at_ms = self._cuda.device_ms

    def synchronize(self) -> None:
        self._cuda.log.append("wait for event")
        self.has_happened = True

    def elapsed_time(self, end: FakeEvent) -> float:
        if not (self._timing and end._timing):
            raise ValueError("event was created without enable_timing")
        if self.at_ms is None or end.at_ms is None or not end.has_happened:
            raise RuntimeError("device not ready")
        return end.at_ms - self.at_ms


class FakeCuda:
    """What `torch.cuda` offers to the instruments."""

    def __init__(self) -> None:
        self.device_ms = 0.0
        self.log: list[str] = []

    def Event(self, *, enable_timing: bool = False) -> FakeEvent:  # noqa: N802
        return FakeEvent(self, enable_timing=enable_timing)

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, device: int) -> SimpleNamespace:
        assert device == 0
        return SimpleNamespace(
            major=9, minor=0, multi_processor_count=132, total_memory=139 * 2**30, uuid=UUID.removeprefix("GPU-")
        )

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def launch(self) -> None:
        self.log.append("launch")
        self.device_ms += 1.5


@pytest.fixture
def nvml(monkeypatch):
    """Installs a stand-in of the binding."""

    def install(**given: object) -> FakeNvml:
        fake = FakeNvml(**given)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install


def test_a_device_is_selected_without_its_driver(monkeypatch):
    """Beginning it takes seconds, and whoever reads what a model declares has no use for it. Instruments ask for it."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1")
    monkeypatch.setattr(backend.CudaInstruments, "own", lambda: "of the device")
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("it begins the driver"))
    selected = backend.TorchBackend()
    selected.prepare("gpu", 0)
    assert selected.instruments == "of the device"
    selected.prepare("cpu", 0)
    assert selected.instruments is None


def test_a_reading_is_in_the_units_of_the_record(nvml):
    """NVML speaks of milliwatts and of bits."""
    nvml(reasons=0x4 | 0x40)
    reading = CudaInstruments(FakeCuda()).read()
    assert reading is not None
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1980, 3201)
    assert (reading.power_w, reading.temperature_c) == (412.5, 61)
    assert reading.reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert reading.is_throttled


def test_the_reasons_that_drop_samples_are_known_to_the_binding():
    """Words that no bit stands for would never drop anything."""
    assert {*HARD, POWER_CAP} <= set(REASONS.values())


def test_a_device_is_more_than_its_name(nvml):
    """Two GPUs of one name differ in speed by what is set on them."""
    nvml(compute_mode=3)
    said = CudaInstruments(FakeCuda()).identity()
    assert said["power limit"] == "700 W"
    assert said["compute mode"] == "exclusive process"
    assert (said["persistence"], said["MIG"], said["driver"]) == ("on", "off", "580.159.04")
    assert (said["compute capability"], said["multiprocessors"], said["memory"]) == ("9.0", "132", "139 GiB")


def test_other_processes_on_the_gpu_are_said(nvml):
    """How many there are, and what memory they hold, as far as the driver tells; this process is none of them."""
    fake, cuda = nvml(), FakeCuda()
    fake.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**30)]
    assert others_on_gpu(cuda) is None
    fake.processes.append(SimpleNamespace(pid=0, usedGpuMemory=3 * 2**29))
    assert others_on_gpu(cuda) == "1 other process on it, with 1.5 GiB"
    fake.processes.append(SimpleNamespace(pid=0, usedGpuMemory=None))
    assert others_on_gpu(cuda) == "2 other processes on it, with 1.5 GiB"
    reading = CudaInstruments(cuda).read()
    assert reading is not None
    assert reading.num_processes == 3
    nvml(unsupported=("nvmlDeviceGetComputeRunningProcesses",))
    assert others_on_gpu(cuda) is None
    assert CudaInstruments(cuda).read().num_processes is None


def test_a_mode_that_lets_one_process_in_is_said(nvml):
    """`doctor` tells it before a confirmation fails with an error of CUDA's."""
    nvml()
    assert others_on_gpu(FakeCuda()) is None
    nvml(compute_mode=3)
    assert others_on_gpu(FakeCuda()) == "compute mode exclusive process: a study needs `default`"


def test_nothing_on_the_device_is_set(nvml):
    """A lent machine's clocks and modes are not ours."""
    fake = nvml()
    own = CudaInstruments(FakeCuda())
    own.read()
    own.identity()
    assert fake.asked
    assert not [name for name in fake.asked if "Set" in name or "Reset" in name]


def test_what_the_driver_does_not_tell_is_left_out(nvml):
    """A slice of a GPU has no power of its own, a virtual one often no clocks."""
    nvml(unsupported=("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMigMode", "nvmlDeviceGetCurrentClocksEventReasons"))
    own = CudaInstruments(FakeCuda())
    reading = own.read()
    assert reading is not None
    assert (reading.power_w, reading.reasons) == (None, ())
    assert "MIG" not in own.identity()
    nvml(unsupported=("nvmlDeviceGetClockInfo",))
    assert CudaInstruments(FakeCuda()).read() is None


def test_a_binding_of_an_older_driver_has_another_name(nvml, monkeypatch):
    """Clock event reasons were called throttle reasons."""
    answer = ANSWERS["nvmlDeviceGetCurrentClocksEventReasons"]
    monkeypatch.delitem(ANSWERS, "nvmlDeviceGetCurrentClocksEventReasons")
    monkeypatch.setitem(ANSWERS, "nvmlDeviceGetCurrentClocksThrottleReasons", answer)
    nvml(reasons=0x20)
    reading = CudaInstruments(FakeCuda()).read()
    assert reading is not None
    assert reading.reasons == ("sw_thermal_slowdown",)


def test_the_gpu_is_found_by_its_uuid(nvml):
    """CUDA numbers devices in an order of its own, and CUDA_VISIBLE_DEVICES hides some."""
    fake = nvml(num_gpus=8)
    found = Nvml.of(UUID)
    assert found is not None
    assert found._handle == f"handle of {UUID}"
    assert "nvmlDeviceGetHandleByIndex" not in fake.asked
    assert Nvml.of("GPU-unknown") is None, "one of eight would be a guess"
    nvml(num_gpus=1)
    assert Nvml.of("MIG-slice") is not None


@pytest.mark.parametrize(
    ("visible", "found"), [(None, UUID), ("0", UUID), ("MIG-a1, MIG-b2", "MIG-a1"), ("GPU-1234,MIG-b2", UUID)]
)
def test_a_slice_has_its_own_uuid(monkeypatch, visible, found):
    """Readings and other processes are then those of the slice, and not of the whole card."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda_uuid(FakeCuda()) == found


@pytest.mark.parametrize(("release", "said"), [("3.2.0", "3.2.0"), (None, "missing: inductor compiles for Ascend")])
def test_ascend_needs_a_triton_of_its_own(monkeypatch, release, said):
    """`doctor` looks for it where torch_npu is installed, and nowhere else."""
    assert "triton-ascend" not in backend._compilers()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "torch_npu" else find(name))
    monkeypatch.setattr(backend, "package_version", lambda _: release)
    assert backend._compilers()["triton-ascend"].startswith(said)


def test_without_a_driver_or_the_binding_there_are_no_readings(nvml, monkeypatch):
    """The extra is optional: figures are made without it."""
    nvml(has_driver=False)
    own = CudaInstruments(FakeCuda())
    assert own.read() is None
    assert own.identity()["multiprocessors"] == "132"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Nvml.of(UUID) is None


def test_a_call_is_timed_between_two_events(nvml):
    """Both are recorded around the launch, and the last one is waited for before it is read."""
    nvml()
    cuda = FakeCuda()
    assert CudaInstruments(cuda).device_s(cuda.launch) == pytest.approx(0.0015)
    assert cuda.log == ["record", "launch", "record", "wait for event"]


def test_the_cache_is_overwritten_by_one_buffer(nvml, monkeypatch):
    """It is made once and larger than any L2, and the device is waited for: the flush must not run into the call."""
    nvml()
    cuda, made = FakeCuda(), []

    def empty(num_bytes, *, dtype, device):
        made.append((num_bytes, device))
        return torch.zeros(1, dtype=dtype)

    monkeypatch.setattr(instruments.torch, "empty", empty)
    own = CudaInstruments(cuda)
    own.flush_cache()
    own.flush_cache()
    assert made == [(256 * 2**20, "cuda")]
    assert cuda.log == ["synchronize"] * 2


def test_only_a_cuda_graph_takes_two_calls():
    """And none on a CPU, whatever the config says."""
    from autotune.backends.torch.apply import captures_graphs
    from autotune.backends.torch.backend import TorchBackend
    from autotune.backends.torch.knobs import Settings
    from autotune.config import Config

    model = torch.nn.Linear(2, 2)
    config = Config({"execution": "compile", "backend": "inductor", "mode": "reduce-overhead"})
    assert TorchBackend().copies_outputs(model, config) is None
    on_device = torch.nn.Linear(2, 2, device="meta")
    assert TorchBackend().copies_outputs(on_device, config) is not None
    assert captures_graphs(on_device, Settings(compiled=True, backend="cudagraphs"))
    assert not captures_graphs(on_device, Settings(compiled=True, mode="max-autotune-no-cudagraphs"))
    assert not captures_graphs(on_device, Settings(compiled=False))


def test_what_is_copied_can_be_timed():
    """The same copies as the job gets, of a config with captured graphs alone."""
    from autotune.backends.torch.backend import TorchBackend
    from autotune.config import Config

    graphs = Config({"execution": "compile", "backend": "inductor", "mode": "reduce-overhead"})
    plain = Config({"execution": "compile", "backend": "inductor", "mode": "default"})
    on_device = torch.nn.Linear(2, 2, device="meta")
    assert TorchBackend().copies_outputs(on_device, plain) is None
    assert TorchBackend().copies_outputs(torch.nn.Linear(2, 2), graphs) is None
    copy = TorchBackend().copies_outputs(on_device, graphs)
    outputs = (torch.ones(2), {"more": torch.zeros(3)})
    kept = copy(outputs)
    assert torch.equal(kept[0], outputs[0])
    assert kept[0] is not outputs[0]


def test_doctor_says_what_else_computes_on_a_gpu(monkeypatch, tmp_path):
    """Beside the name of the device, before any study: a shared GPU gives no figures."""
    report = DeviceReport("2.13.0", {"cpu": "cpu", "gpu": "H200"}, {}, (), {"gpu": "1 other process on it"})
    monkeypatch.setattr(doctor, "framework_names", lambda: ("torch",))
    monkeypatch.setattr(doctor, "find_devices", lambda framework: report)
    found = {each.what: each.found for each in doctor.examine(tmp_path)}
    assert (found["torch on cpu"], found["torch on gpu"]) == ("cpu", "H200; 1 other process on it")
