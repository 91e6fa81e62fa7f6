"""The files of docs/serving.md under gunicorn: workers that start afresh or from a master, requests of any length, and
a place where nothing but one folder can be written to."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.workload.traffic import parse_shapes
from tests.conformance.test_fake import FakeKit, Model
from tests.conftest import REPOSITORY
from tests.stand_ins.exports import export
from tests.test_documentation import blocks

pytest.importorskip("gunicorn")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two workers have a core each")

FAKE_APP = f"""
import json, os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
import autotune
from tests.conformance.test_fake import FakeKit, Model

def make_app():
    model = autotune.load("best.yaml").apply(Model())
    for _ in range(15):
        assert (model(FakeKit.x) == Model()(FakeKit.x)).all()

    def app(environ, start_response):
        start_response("200 OK", [])
        told = {{"worker": os.getpid(), "model": autotune.stats(model).state}}
        return [json.dumps(told).encode()]

    return app
"""


class Service:
    """A gunicorn with the page's configuration, and what it says."""

    def __init__(self, folder: Path, before: list[str], arguments: list[str], **variables: str) -> None:
        self._log = folder / "log"
        given = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        command = [sys.executable, "-P", "-m", "gunicorn", "--config", "gunicorn.conf.py", "--bind", "127.0.0.1:0"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, *command, *arguments, "app:make_app()"],
                cwd=folder, stdout=log, stderr=log, env={**given, "PYTHONPATH": str(REPOSITORY), **variables},
            )  # fmt: skip
        self.address = re.findall(r"http://[\d.:]+", self._awaited(lambda: "Listening at" in self.said))[0]

    @property
    def said(self) -> str:
        return self._log.read_text()

    def _awaited(self, is_there: Callable[[], bool]) -> str:
        end = time.monotonic() + 300
        while not is_there():
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.05)
        return self.said

    def told(self, body: object = None) -> Any:
        """The answer to a request; without a body what a worker says of itself."""
        content = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.address, content), timeout=300) as answer:
            return json.load(answer)

    def workers(self) -> dict[int, str]:
        """Two that answer: number of the process -> state of its model."""
        found: dict[int, str] = {}

        def two_answer() -> bool:
            answer = self.told()
            found[answer["worker"]] = answer["model"]
            return len(found) == 2

        self._awaited(two_answer)
        return found

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=60)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start the page's files in a folder; nothing of it is left."""
    services: list[Service] = []
    for block in blocks():
        if block.page.name == "serving.md" and (file := re.match(r"# (\S+\.py)\n", block.text)):
            (tmp_path / file[1]).write_text(block.text)

    def start(*arguments: str, before: list[str] | None = None, **variables: str) -> Service:
        services.append(Service(tmp_path, before or [], [*arguments], **variables))
        return services[-1]

    yield start
    for each in services:
        if each.process.poll() is None:
            each.stop()


def pinned_to(workers: dict[int, str]) -> list[list[int]]:
    return sorted(psutil.Process(worker).cpu_affinity() for worker in workers)


@pytest.mark.parametrize("how", [[], ["--preload"]], ids=["afresh", "from the master"])
@pytest.mark.fast_cases("from the master")
def test_each_worker_has_a_core_and_a_tuned_model(
    started: Callable[..., Service], tmp_path: Path, how: list[str]
) -> None:
    """A file of two instances is no mismatch in any worker, also in one that took the place of another that was killed,
    and it is on the core that this one left. The service ends when it is told to."""
    (tmp_path / "app.py").write_text(FAKE_APP)
    export(tmp_path / "best.yaml", "fake", {"execution": "compile", "instances": "2x1"}, Model(), [FakeKit.x])
    service = started(*how)
    before = service.workers()
    assert set(before.values()) == {"tuned"}
    assert pinned_to(before) == [CORES[:1], CORES[1:2]]
    killed = max(before)
    os.kill(killed, signal.SIGKILL)
    while psutil.pid_exists(killed):
        time.sleep(0.02)
    after = service.workers()
    assert killed not in after
    assert set(after.values()) == {"tuned"}
    assert pinned_to(after) == [CORES[:1], CORES[1:2]]
    assert service.stop() == 0
    assert "untuned" not in service.said


NOBODY = 12345
"""A user without a name, a home or privileges, as `docker run --user` makes one."""
READ_ONLY = """
mount --make-rprivate / && mount -t tmpfs tmpfs /media || exit 77
for place in {needed}; do mkdir -p /media$place && mount --bind $place /media$place || exit 77; done
mount -t tmpfs -o mode=755 tmpfs {home} || exit 77
for place in {needed}; do mkdir -p $place && mount --bind /media$place $place || exit 77; done
mount --bind {folder} /mnt && mount -t tmpfs -o size=300m tmpfs /mnt/writable || exit 77
for place in {home} /media /mnt /; do mount -o remount,bind,ro $place || exit 77; done
touch {home}/x 2>/dev/null && exit 78
cd /mnt
unset LOGNAME USER LNAME USERNAME
export HOME=/
exec setpriv --reuid={user} --regid={user} --clear-groups --bounding-set=-all --inh-caps=-all "$@"
"""


def in_a_read_only_container(folder: Path) -> list[str]:
    """A command line's beginning: a root that nobody can write to, but for `writable` of `folder`, which is /mnt, and a
    user that is not root."""
    tools = [shutil.which(each) for each in ("unshare", "setpriv", "mount")]
    home = Path.home()
    # Root's home is closed to others, and may hold this Python or this checkout.
    needed = {str(each) for each in map(Path, (sys.base_prefix, sys.prefix, REPOSITORY)) if each.is_relative_to(home)}
    places = {"folder": shlex.quote(str(folder)), "home": shlex.quote(str(home)), "needed": shlex.join(sorted(needed))}
    start = ["unshare", "--mount", "bash", "-c", READ_ONLY.format(**places, user=NOBODY), "bash"]
    if not all(tools) or subprocess.run([*start, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a root read-only, or become another")
    # The second start is the other user's own, as a compiler's is: at the first one root may still enter any folder.
    program = "import autotune, gunicorn, os, sys; os.execv(sys.executable, [sys.executable, '--version'])"
    given = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [*start, sys.executable, "-P", "-c", program]
    tried = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"another user cannot run this Python: {tried.stderr.strip()[-200:]}")
    return start


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("way", ["afresh", "from the master", "read-only"])
def test_requests_of_any_length(started: Callable[..., Service], tmp_path: Path, monkeypatch, way: str) -> None:
    """The answers are the untuned model's, both workers are tuned, and none has died. A read-only one, of a user that
    is not root, compiles in the one folder that can be written to."""
    import torch

    monkeypatch.syspath_prepend(str(tmp_path))
    # Inductor sets it in a process that compiled something, for which this user's folder is another's.
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    # Fewer lengths to warm up with: what is compiled for three of them is compiled for all.
    page = (tmp_path / "app.py").read_text()
    (tmp_path / "app.py").write_text(page.replace("range(SHORTEST, LONGEST + 1)", "(SHORTEST, LONGEST, SHORTEST + 1)"))
    names: dict[str, Any] = {}
    exec(compile(page, "app.py", "exec"), names)
    model, tokens = names["build"]()
    axis = {"dimension": "seq", "leaf": 0, "axis": 1}
    traffic = parse_shapes(["seq=6..122"]).model_dump(mode="json")
    export(
        tmp_path / "best.yaml", "torch", {"execution": "compile", "backend": "inductor", "instances": "2x1"}, model,
        [tokens], shapes={"traffic": traffic, "inputs": [axis], "outputs": [], "padding": {}},
    )  # fmt: skip
    writable = tmp_path / "writable"
    writable.mkdir()
    before: list[str] = []
    if way == "read-only":
        tmp_path.chmod(0o755)
        before, writable = in_a_read_only_container(tmp_path), Path("/mnt/writable")
    service = started(*["--preload"] * (way == "from the master"), before=before, TMPDIR=str(writable))
    workers = service.workers()
    assert set(workers.values()) == {"tuned"}
    for length in (6, 7, 40, 121, 122, 123):
        given = [(13 * length + place) % 1000 for place in range(length)]
        with torch.inference_mode():
            expected = model(torch.tensor([given]))[0]
        for _ in range(4):
            torch.testing.assert_close(torch.tensor(service.told(given)), expected, rtol=1e-4, atol=1e-5)
    assert service.workers() == workers
    assert service.stop() == 0
    assert "seq from 6 to 122, here 123" in service.said
    assert "Traceback" not in service.said
