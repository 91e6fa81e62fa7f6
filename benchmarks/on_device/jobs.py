"""The path of a job, `load(...).apply(model)`, in a process of its own (`job.py`) for the configs that matter most."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.config import Scalar
from autotune.workload.workload import Device
from benchmarks.on_device.records import PathSeen, Tried
from benchmarks.on_device.session import LONGEST_TRIAL_S, TOLERANCE, OutOfTimeError, Session

SCRIPT = Path(__file__).with_name("job.py")
_DEFAULT: dict[str, Scalar] = {"execution": "compile", "backend": "inductor", "mode": "default"}


@dataclass(frozen=True)
class JobPath:
    """A config in a job."""

    name: str
    config: Mapping[str, Scalar]
    devices: tuple[Device, ...]

    def run(self, session: Session) -> PathSeen:
        """Run the job. It fails where an output that was kept is wrong, or the guard fell back to the untuned model."""
        command = [sys.executable, str(SCRIPT), session.device, json.dumps(dict(self.config))]
        limit_s = max(30.0, min(LONGEST_TRIAL_S, session.left_s()))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            if limit_s < LONGEST_TRIAL_S:
                raise OutOfTimeError("the session's time was used up within a job") from None
            return self._failed(f"no end after {limit_s:.0f} s")
        if done.returncode != 0:
            return self._failed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
        seen = json.loads(done.stdout.strip().splitlines()[-1])
        if not seen["error"] <= TOLERANCE:
            return self._failed(f"an output that the job kept is wrong: relative error {seen['error']:.3g}")
        if seen["state"] not in ("tuned", "settling"):
            return self._failed(f"the loaded model is {seen['state']}, not tuned: {done.stderr.strip()[-300:]}")
        return PathSeen(self.name, Tried(dict(self.config), error=seen["error"]), None)

    def _failed(self, why: str) -> PathSeen:
        return PathSeen(self.name, Tried(dict(self.config), failure=why), None)


JOBS = (
    JobPath("in a job: compiled by default", _DEFAULT, ("cpu", "gpu", "ascend")),
    JobPath("in a job: mode reduce-overhead", {**_DEFAULT, "mode": "reduce-overhead"}, ("gpu", "ascend")),
    JobPath("in a job: mode max-autotune", {**_DEFAULT, "mode": "max-autotune"}, ("gpu",)),
    JobPath("in a job: backend cudagraphs", {"execution": "compile", "backend": "cudagraphs"}, ("gpu",)),
    JobPath("in a job: backend npugraph_ex", {"execution": "compile", "backend": "npugraph_ex"}, ("ascend",)),
    JobPath("in a job: backend npugraphs", {"execution": "compile", "backend": "npugraphs"}, ("ascend",)),
)


def jobs_on(device: Device) -> list[JobPath]:
    """Those of a device."""
    return [each for each in JOBS if device in each.devices]
