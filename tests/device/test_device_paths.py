"""Every way of running a model on an accelerator, on the accelerator itself: the paths that `device.py` tries.

Skipped where there is none: `pytest -m device tests/device` says why. What CPUs can run of it, other tests run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.bench.probe import find_devices
from autotune.planning.targets import is_installed
from benchmarks.on_device.jobs import JOBS
from benchmarks.on_device.paths import PATHS
from benchmarks.on_device.session import Session

pytestmark = [pytest.mark.device, pytest.mark.slow]
SIGNS = {
    "gpu": lambda: shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists(),
    "ascend": lambda: shutil.which("npu-smi") is not None or Path("/dev/davinci_manager").exists(),
}
"""Device -> whether anything of it is there; only then is the framework asked, which takes seconds."""


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    """The session's processes serve all tests of the module, and end with it."""


@pytest.fixture(scope="module", params=["gpu", "ascend"])
def session(request):
    """On a device that this machine has."""
    device = request.param
    if not SIGNS[device]():
        pytest.skip(f"no {device} on this machine: neither its tool nor its driver is there")
    if not is_installed("torch"):
        pytest.skip("torch is not installed")
    found = find_devices("torch")
    if device not in found.devices:
        pytest.skip(next((note for note in found.notes if note.startswith(device)), f"torch finds no {device}"))
    with Session(device, small=True, minutes=60) as session:
        yield session


@pytest.mark.parametrize("path", PATHS, ids=[path.name for path in PATHS])
def test_a_path_gives_the_untuned_model_s_outputs(session, path):
    """The trial ends with outputs that the gate lets pass."""
    if not path.exists_on(session.device):
        pytest.skip(f"not on {session.device}, or not in this release")
    tried = path.run(session).tried
    assert tried.failure is None


@pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])
def test_a_job_may_keep_its_outputs(session, job):
    """What `apply` gives returns outputs that later calls leave alone."""
    if session.device not in job.devices:
        pytest.skip(f"not on {session.device}")
    tried = job.run(session).tried
    assert tried.failure is None
