"""Where a measurement was made: machine, versions, declared variables. Read, never set.

Versions come from the metadata of the running Python's own packages; nothing here imports a framework.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

RECORDED_PACKAGES = (
    "torch",
    "torch-npu",
    "triton",
    "zentorch",
    "openvino",
    "mindspore",
    "transformers",
    "numpy",
    "optuna",
)
INFLUENTIAL = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
"""Beginnings of the names of variables that make the same config faster or slower on a CPU."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
THREAD_VARIABLES = (
    *(THREADS_VARIABLE, "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY"),
    *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS"),
)
"""Variables that set how many threads compute, and where: PyTorch and MindSpore take their thread counts from them."""


class Environment(BaseModel):
    """A machine and its software at the time of a measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str
    system: str
    processor: str
    vector_instructions: str | None = None
    """Instruction sets of the processor, see `vector_instructions`; None where the system does not say."""
    num_cores: int | float
    """Cores that this process may use (affinity and the container's quota, which may be a fraction), not the machine's
    total."""
    memory_bytes: int
    """Memory that this process may use: the machine's, or less where a container has a limit."""
    governor: str | None
    load_1m: float | None
    device: str
    """As the framework names it: `cpu`, or e.g. `NVIDIA H200`, `Ascend910B4`."""
    driver: str | None = None
    """The accelerator's, as its files on this machine say; None where there is none."""
    packages: dict[str, str]
    variables: dict[str, str]
    """Environment variables that the study declared for every process that it measures."""
    inherited: dict[str, str] = {}
    """Variables of the user's that choose the allocator or the threads: a latency holds under them only."""

    @property
    def num_threads(self) -> int | float:
        """Threads that compute at a time on a CPU: one for each core, or as many as a variable says."""
        return threads_said(self.inherited | self.variables) or self.num_cores

    def differences(self, other: Environment) -> list[str]:
        """How the other computes on other hardware or with other threads, so that latencies must not be compared."""
        pairs: list[tuple[str, object, object]]
        pairs = [("processor", self.processor, other.processor), ("usable cores", self.num_cores, other.num_cores)]
        if self.vector_instructions and other.vector_instructions:
            pairs.append(("vector instructions", self.vector_instructions, other.vector_instructions))
        mine, theirs = self.variables | self.inherited, other.variables | other.inherited
        pairs += [(name, mine.get(name, "not set"), theirs.get(name, "not set")) for name in THREAD_VARIABLES]
        return [f"{name}: {before} then, {now} now" for name, before, now in pairs if before != now]


def threads_said(variables: Mapping[str, str]) -> int | None:
    """How many threads a process with these variables is told to compute with; None where it counts cores."""
    first = variables.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and int(first) > 0 else None


def package_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None. No import of the package takes place."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    # `metadata.version` parses the whole file as mail, which takes 50 times as long.
    headers = (found.read_text("METADATA") or found.read_text("PKG-INFO") or "").partition("\n\n")[0]
    version = re.search(r"^Version:[ \t]*(\S+)", headers, re.MULTILINE | re.IGNORECASE)
    return found.version if version is None else version[1]


@functools.cache
def installed_packages() -> dict[str, str]:
    """Those of the recorded packages that are installed, with their versions."""
    versions = {name: package_version(name) for name in RECORDED_PACKAGES}
    return {name: version for name, version in versions.items() if version is not None}


def describe(*, device: str, variables: dict[str, str]) -> Environment:
    """The environment of the calling process; `device` is what the framework calls the device it uses."""
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor(),
        vector_instructions=vector_instructions(),
        num_cores=usable_cores(),
        memory_bytes=usable_memory_bytes(),
        governor=_read_first_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        device=device,
        driver=driver(),
        packages=installed_packages(),
        variables=variables,
        inherited={n: v for n, v in sorted(os.environ.items()) if n.startswith(INFLUENTIAL) and n not in variables},
    )


def num_usable_cores() -> int:
    """Whole ones of the `usable_cores`, one at least: as many threads can run at a time."""
    return max(1, int(usable_cores()))


def usable_cores() -> int | float:
    """Cores' worth of CPU time that this process may use: its affinity, or less where a container has a quota."""
    num_cpus, quota = len(usable_cpus()), cpu_quota()
    if quota is None or quota >= num_cpus:
        return num_cpus
    return int(quota) if quota.is_integer() else quota


def usable_cpus() -> frozenset[int]:
    """Numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_quota(root: Path = _GROUPS, own: Path = _OWN) -> float | None:
    """Cores' worth of CPU time that control groups (version 1 or 2) allow; None where there is no limit.

    The smallest limit of the process's group and of those above it holds.
    """
    quotas = []
    for folder in _control_groups("cpu", root, own):
        period = _read_first_line(folder / "cpu.cfs_period_us")
        legacy = f"{_read_first_line(folder / 'cpu.cfs_quota_us')} {period}"
        words = (_read_first_line(folder / "cpu.max") or legacy).split()
        if len(words) == 2 and all(each.isdecimal() for each in words) and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def throttled_s(root: Path = _GROUPS, own: Path = _OWN) -> float:
    """Seconds in which control groups (version 1 or 2) have kept this process's group from its cores, since their quota
    was used up. They are counted for each core."""
    seconds = 0.0
    for folder in _control_groups("cpu", root, own):
        counted = _read_counts(folder / "cpu.stat")
        seconds += counted.get("throttled_usec", 0) / 1e6 + counted.get("throttled_time", 0) / 1e9
    return seconds


def memory_limit_bytes(root: Path = _GROUPS, own: Path = _OWN) -> int | None:
    """Bytes that control groups (version 1 or 2) allow this process and those beside it; None: as much as there is."""
    return min((limit for limit, _ in _memory_limits(root, own)), default=None)


def usable_memory_bytes() -> int:
    """Memory of this machine, or of this process's container where that has less."""
    return memory_limit_bytes() or psutil.virtual_memory().total


def available_memory_bytes(root: Path = _GROUPS, own: Path = _OWN) -> int:
    """Memory that is free, or that can be at once, within all limits."""
    free = (max(limit - _used_bytes(group), 0) for limit, group in _memory_limits(root, own))
    return min([psutil.virtual_memory().available, *free])


def _memory_limits(root: Path, own: Path) -> list[tuple[int, Path]]:
    """Limit of each group that may use less than the machine has, and the group."""
    most = psutil.virtual_memory().total
    groups = _control_groups("memory", root, own)
    limits = [_read_number(group / "memory.max", group / "memory.limit_in_bytes") for group in groups]
    return [(limit, group) for limit, group in zip(limits, groups, strict=True) if limit is not None and limit < most]


def _used_bytes(group: Path) -> int:
    """What is in use of its limit: without files that were read once, which the kernel drops when it needs room."""
    used = _read_number(group / "memory.current", group / "memory.usage_in_bytes")
    kept = _read_counts(group / "memory.stat")
    return (used or 0) - kept.get("total_inactive_file", kept.get("inactive_file", 0))


def num_oom_kills(root: Path = _GROUPS, own: Path = _OWN) -> int:
    """Processes that the kernel has killed for memory so far: those of this process's control group, or all since boot
    where groups do not count them."""
    files = [group / name for group in _control_groups("memory", root, own) for name in _OOM_KILLS]
    counts = (_read_counts(file).get("oom_kill") for file in [*files, Path("/proc/vmstat")])
    return next((count for count in counts if count is not None), 0)


_OOM_KILLS = ("memory.events", "memory.oom_control")


def _control_groups(controller: str, root: Path, own: Path) -> list[Path]:
    """The process's groups that may limit what `controller` controls, with all above them. In a container the group's
    path may be that of the host, which is not there: then the topmost folder is the container's own."""
    try:
        return list(_folders_of_groups(controller, root, own.read_text()))
    except OSError:
        return []


@functools.lru_cache(maxsize=16)
def _folders_of_groups(controller: str, root: Path, groups: str) -> tuple[Path, ...]:
    folders: list[Path] = []
    for _, controllers, path in (line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2):
        if controllers == "":
            top = root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        group = top / path.lstrip("/")
        folders += [group, *(each for each in group.parents if each == top or top in each.parents)]
    return tuple(folders)


def hostname() -> str:
    """This machine's name, to tell a lease of another machine from our own."""
    return socket.gethostname()


def boot_id() -> str:
    """It changes at each boot, so that a process number of before the boot is not taken for a living process."""
    return _read_first_line(Path("/proc/sys/kernel/random/boot_id")) or str(psutil.boot_time())


def platform_name() -> str:
    """What compiled code must find here besides the processor: system, machine and C library."""
    return " ".join(filter(None, [platform.system(), platform.machine(), *platform.libc_ver()]))


def cpu_flags_sha256() -> str | None:
    """A digest of the processor's instruction sets; None where the system does not list them.

    Under a hypervisor two machines with the same model name can differ in them.
    """
    flags = _cpu_flags()
    return None if flags is None else hashlib.sha256(" ".join(flags).encode()).hexdigest()


_VECTOR_INSTRUCTIONS = ("avx", "amx", "fma", "asimd", "sve")
"""Beginnings of the names of the flags by which compilers and libraries choose their kernels."""


def vector_instructions() -> str | None:
    """The processor's wide vector and matrix instructions, as the system names them: `avx avx2 fma`."""
    flags = _cpu_flags()
    return None if flags is None else " ".join(each for each in flags if each.startswith(_VECTOR_INSTRUCTIONS))


def _cpu_flags() -> list[str] | None:
    flags = _cpu_line("flags") or _cpu_line("Features")
    return None if flags is None else sorted(flags.split())


def processor() -> str:
    """The processor's name."""
    return _cpu_line("model name") or platform.processor() or platform.machine()


def _cpu_line(name: str) -> str | None:
    """The first core's."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), None)


_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/usr/local/Ascend/driver/version.info"))
"""Files whose first line names the installed driver. They are there without a framework, and cost no start of one."""


def driver() -> str | None:
    """The accelerator's driver, as its own files name it; None where there is none."""
    return next((line for line in map(_read_first_line, _DRIVERS) if line), None)


def _read_first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None


def _read_number(*paths: Path) -> int | None:
    """That of the first file that holds one."""
    lines = (_read_first_line(path) or "" for path in paths)
    return next((int(line) for line in lines if line.isdecimal()), None)


def _read_counts(path: Path) -> dict[str, int]:
    """Name -> number, of the lines that are such a pair; empty where there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}
