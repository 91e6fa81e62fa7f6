"""Which frameworks and which device a study uses."""

from __future__ import annotations

from typing import get_args

from autotune.backends.registry import bundled_names, entry_of, framework_version
from autotune.bench.probe import find_devices
from autotune.command_line import command
from autotune.errors import InputError, MissingDeviceError, MissingFrameworkError, SetupError, marked
from autotune.trial.deadline import LimitsNow
from autotune.trial.request import Limits
from autotune.workload.workload import Device

PREFERRED: dict[str, tuple[str, ...]] = {
    "cpu": ("torch", "mindspore"),
    "gpu": ("torch", "mindspore"),
    "ascend": ("mindspore", "torch"),
}
"""Device -> the frameworks to use for it, the first being what it is without `--framework`."""


def choose_target(
    framework: str | None, device: str, limits: LimitsNow = Limits, *, looks: bool = True
) -> tuple[str, Device]:
    """Framework and device to use. Raises InputError, MissingFrameworkError, MissingDeviceError.

    A CPU is taken for granted; any other device is looked for by the framework itself, in a child and within
    the limits of a trial. One that is named is not looked for with `looks=False`: the caller has `require_device`.
    """
    if framework is not None:
        framework_version(framework)
    if device not in ("auto", *get_args(Device)):
        apple = "Apple's GPU is not supported; " if device == "mps" else ""
        raise InputError(f"{marked('device', device)}: unknown", tip=f"{apple}choose auto, cpu, gpu or ascend")
    if device == "auto":
        return _best_target(framework, limits)
    chosen = framework or _installed_for(device)
    wanted: Device = device  # type: ignore[assignment]
    if looks:
        require_device(chosen, wanted, limits)
    return chosen, wanted


def _best_target(framework: str | None, limits: LimitsNow) -> tuple[str, Device]:
    """`auto`: a GPU if there is one, else an Ascend card, else the CPU."""
    frameworks = [framework] if framework else [name for name in bundled_names() if is_installed(name)]
    if not frameworks:
        raise _no_framework()
    found = _devices_of(frameworks, limits, named=framework is not None)
    accelerators: tuple[Device, ...] = ("gpu", "ascend")
    for device in accelerators:
        for name in frameworks if framework else sorted(frameworks, key=PREFERRED[device].index):
            if device in found[name]:
                return name, device
    return next((name for name in frameworks if found[name]), frameworks[0]), "cpu"


def _devices_of(frameworks: list[str], limits: LimitsNow, *, named: bool) -> dict[str, dict[Device, str]]:
    """What each framework finds. One that is installed but broken is passed over, unless it is all there is."""
    found: dict[str, dict[Device, str]] = {}
    for name in frameworks:
        try:
            found[name] = find_devices(name, limits).devices
        except SetupError:
            if named or len(frameworks) == 1:
                raise
            found[name] = {}
    return found


def _installed_for(device: str) -> str:
    """The preferred framework for a device among those installed; for a CPU any will do."""
    if device != "cpu":
        framework_version(PREFERRED[device][0])  # Where it is not installed, it raises with how to install it.
        return PREFERRED[device][0]
    for name in PREFERRED[device]:
        if is_installed(name):
            return name
    raise _no_framework()


def is_installed(framework: str) -> bool:
    """Whether this Python has the framework."""
    try:
        framework_version(framework)
    except MissingFrameworkError:
        return False
    return True


def _no_framework() -> MissingFrameworkError:
    commands = " or ".join(entry_of(name).install for name in bundled_names())
    return MissingFrameworkError("neither torch nor mindspore is installed in this Python", tip=f"run: {commands}")


def require_device(framework: str, device: Device, limits: LimitsNow) -> None:
    """Raises MissingDeviceError where the framework does not find the device, which is a child's work but for a CPU."""
    if device == "cpu" or device in (found := find_devices(framework, limits)).devices:
        return
    reasons = [note for note in found.notes if note.startswith(f"{device}:")]
    raise MissingDeviceError(
        f"{marked('device', device)}: {framework} {found.version} finds only {', '.join(found.devices)} on this "
        "machine",
        tip=reasons[0].removeprefix(f"{device}:").strip() if reasons else f"run `{command('doctor')}`",
    )
