"""What a device is: the words of `doctor`, and what the device says of itself in a process of its own.

Run as a program, this file prints one line of JSON: `machine.py gpu`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autotune.doctor import examine
from autotune.workload.workload import Device
from benchmarks.on_device.records import Machine
from benchmarks.on_device.session import Session

LONGEST_S = 120.0


def look(session: Session) -> Machine:
    """Both, the second as far as it can be had."""
    found = examine(session.folder)
    words = [f"{'ok' if each.ok else 'missing'}: {each.what}: {each.found}" for each in found]
    return Machine(words, facts_of(session.device))


def facts_of(device: Device) -> dict[str, str]:
    """Asked in a child: a driver that does not answer must not stop the command."""
    command = [sys.executable, str(Path(__file__)), device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"the device did not answer within {LONGEST_S:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        return {"problem": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return dict(json.loads(lines[-1]))


def _asked(device: Device) -> dict[str, str]:
    import torch

    from autotune.backends.torch.backend import TorchBackend

    backend = TorchBackend()
    backend.prepare(device, 0)
    facts: dict[str, Any] = {"name": backend.device_name(), "torch": torch.__version__}
    if backend.instruments is not None:
        now = backend.instruments.read()
        facts |= backend.instruments.identity()
        facts |= {"NVML": "cannot be read: pip install nvidia-ml-py"} if now is None else {"now": now.model_dump_json()}
    return {name: str(value) for name, value in facts.items() if value is not None}


if __name__ == "__main__":
    print(json.dumps(_asked(sys.argv[1])), flush=True)  # type: ignore[arg-type]
