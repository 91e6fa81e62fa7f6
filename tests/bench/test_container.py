"""The limits of containers, real ones where this system lets a test make control groups: what may run, and what is said
of what was too large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune import environment
from autotune.backends.registry import entry_of
from autotune.environment import available_memory_bytes, memory_limit_bytes, num_oom_kills, usable_cpus
from autotune.planning.manifest import variables_of
from autotune.planning.spaces import bundled_space
from autotune.question.question import Question
from autotune.space.load import Circumstances, load_space
from tests import FAKE_BACKEND
from tests.conftest import REPOSITORY

GROUPS = Path("/sys/fs/cgroup")
MIB = 2**20
LIMITS = {
    "cpu.max": ("cores", "{:.0f} 100000", 100_000),
    "cpu.cfs_quota_us": ("cores", "{:.0f}", 100_000),
    "memory.max": ("memory", "{:.0f}", 1),
    "memory.limit_in_bytes": ("memory", "{:.0f}", 1),
    "memory.memsw.limit_in_bytes": ("memory", "{:.0f}", 1),
    "memory.swap.max": ("memory", "0", 1),
}
"""File of a group -> what it limits, how that is written, and the unit."""
ENTER = 'for group in $GROUPS; do echo $$ > "$group/cgroup.procs" || exit 9; done; exec "$@"'
Run = Callable[..., dict[str, object]]


@pytest.fixture
def run_within(tmp_path) -> Iterator[Run]:
    """Run a Python program in control groups with limits of `cores` and `memory` (bytes): what it prints, as JSON."""
    name = f"autotune-test-{os.getpid()}"
    is_legacy = (GROUPS / "memory").is_dir()
    folders = [GROUPS / each / name for each in ("cpu", "memory")] if is_legacy else [GROUPS / name]

    def run(program: str, *arguments: object, **limits: float) -> dict[str, object]:
        try:
            if not is_legacy:
                (GROUPS / "cgroup.subtree_control").write_text("+cpu +memory")
            for folder in folders:
                folder.mkdir()
            for file, (what, text, unit) in LIMITS.items():
                for path in [folder / file for folder in folders if (folder / file).exists() and what in limits]:
                    path.write_text(text.format(unit * limits[what]))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        command = ["sh", "-c", ENTER, "sh", sys.executable, "-c", program, *map(str, arguments)]
        variables = {
            "GROUPS": " ".join(map(str, folders)),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), FAKE_BACKEND]),
        }
        ended = subprocess.run(
            command, check=False, env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    yield run
    for folder in folders:
        if folder.exists():
            folder.rmdir()


COMPILED = """
import json, os
from autotune import environment
from autotune.planning.manifest import variables_of
from autotune.question.question import Question

variables = variables_of(Question(build="m"), "torch", "cpu")
os.environ.update(variables)

import torch
from torch._inductor import async_compile
from autotune.backends.torch.apply import apply
from autotune.backends.undo import UndoLog
from autotune.config import Config

asked, workers = async_compile.get_compile_threads, set()
async_compile.get_compile_threads = lambda: workers.add(asked()) or asked()
model = apply(torch.nn.Linear(4, 4).eval(), Config({"execution": "compile", "backend": "inductor"}), UndoLog())
with torch.no_grad():
    model(torch.ones(2, 4)).relu()
here = environment.describe(device="cpu", variables=variables)
print(json.dumps({
    "cores": here.num_cores, "variables": variables, "threads": torch.get_num_threads(), "workers": sorted(workers),
}))
"""


@pytest.mark.torch
def test_threads_and_workers_follow_a_quota(run_within, monkeypatch):
    """Half of the cores, as a quota: the framework sees all processors, but computes and compiles with half as many
    threads, and the machine is another one."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    half = len(usable_cpus()) / 2
    threads = max(1, int(half))
    within = run_within(COMPILED, cores=half)
    assert within["cores"] == half
    assert within["threads"] == threads
    assert within["workers"] == [threads]
    assert within["variables"] == ({} if threads == len(usable_cpus()) else {"OMP_NUM_THREADS": str(threads)})


LARGE = """
import numpy as np, os

def tiny(rows=4, seed=0):
    def model(x):
        kept = [np.ones(2**20) for _ in range(300)] if os.getcwd().endswith("/large/scratch") else None
        return x + 0
    return model, np.ones((2, 2))
"""

TOO_LARGE = """
import json, sys
from pathlib import Path
from autotune import environment
from autotune.bench.local import LocalBench
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

home = Path(sys.argv[1])
available = environment.available_memory_bytes()
with LocalBench({}, preload=True, log=home / "log") as bench:
    for name in ("small", "large"):
        request = TrialRequest.model_validate_json((home / f"{name}.json").read_text())
        failure = bench.run(TrialFolder(home / name), request)
print(json.dumps({
    "reason": failure.reason, "error": failure.error, "memory": environment.usable_memory_bytes(), "free": available,
}))
"""


def test_what_is_too_large_for_a_container(run_within, make_request, model_file, tmp_path):
    """A process that is killed for memory says whose limit it was; that is the memory there is, less what is in use."""
    limit = 1000 * MIB
    model_file.write_text(LARGE)
    requests = {"small": make_request(), "large": make_request({"execution": "compile", "behaviour": "right"})}
    for name, request in requests.items():
        (tmp_path / f"{name}.json").write_text(request.model_dump_json(by_alias=True))
    within = run_within(TOO_LARGE, tmp_path, memory=limit)
    assert within["memory"] == limit
    assert 0 < within["free"] < limit
    assert within["reason"] == "out_of_memory"
    assert "this container may use 0.977 GiB" in within["error"]


class TestFiles:
    """What the files of either version say."""

    @pytest.fixture
    def groups(self, tmp_path):
        (tmp_path / "own").write_text("4:cpu,cpuacct:/x\n3:memory:/pod/job\n0::/pod/job\n")

        def write(place: str, **files: str) -> tuple[Path, Path]:
            folder = tmp_path / place
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (folder / f"memory.{name}").write_text(content)
            return tmp_path, tmp_path / "own"

        return write

    def test_the_smallest_limit_holds(self, groups):
        """Of the group and those above it; `max` is none, and so is more than there is."""
        where = groups("pod/job", max="max\n", current="5\n")
        assert memory_limit_bytes(*where) is None
        where = groups("pod", max=f"{64 * MIB}\n", current=f"{24 * MIB}\n", stat=f"anon 9\ninactive_file {4 * MIB}\n")
        assert memory_limit_bytes(*where) == 64 * MIB
        assert available_memory_bytes(*where) == 44 * MIB
        where = groups("memory/pod/job", limit_in_bytes=f"{8 * MIB}\n", usage_in_bytes=f"{9 * MIB}\n")
        assert memory_limit_bytes(*where) == 8 * MIB
        assert available_memory_bytes(*where) == 0
        where = groups("pod", max=f"{2**62}\n")
        where = groups("memory/pod/job", limit_in_bytes="9223372036854771712\n")
        assert memory_limit_bytes(*where) is None

    def test_kills_of_the_own_group_are_counted(self, groups, tmp_path):
        """Those of other containers are none of ours. Without a group, all since boot."""
        where = groups("pod/job", events="low 0\noom 7\noom_kill 3\n")
        assert num_oom_kills(*where) == 3
        where = groups("memory/pod/job", oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
        assert num_oom_kills(*where) == 4
        assert num_oom_kills(tmp_path, tmp_path / "none") == num_oom_kills(Path("/nowhere"), Path("/nowhere"))


def test_threads_of_a_quota_are_a_variable_of_the_study(monkeypatch):
    """Not where the user set them, nor on an accelerator, nor on a cluster, whose workers have quotas of their own."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(environment, "usable_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr("autotune.planning.manifest.usable_cpus", lambda: frozenset(range(8)))
    question = Question(build="m")
    assert variables_of(question, "torch", "cpu") == {}
    monkeypatch.setattr(environment, "cpu_quota", lambda: 2.5)
    assert environment.usable_cores() == 2.5
    assert variables_of(question, "torch", "cpu") == {"OMP_NUM_THREADS": "2"}
    assert variables_of(question, "torch", "gpu") == {}
    assert variables_of(question.model_copy(update={"on": "ray"}), "torch", "cpu") == {}
    assert variables_of(question.model_copy(update={"env": {"OMP_NUM_THREADS": "3"}}), "torch", "cpu") == {
        "OMP_NUM_THREADS": "3"
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert variables_of(question, "torch", "cpu") == {}


def test_threads_of_a_framework_that_counts_the_machines_processors(monkeypatch):
    """MindSpore gives an operator an eighth of the machine's processors, whatever part of them the process has: the
    study's processes get that share of the part, and as many threads of kernels are on offer as it has cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 40)
    question = Question(build="m", process_settings=True)

    def offered(num_cores: int) -> tuple[object, ...]:
        here = Circumstances(
            version="2.10.0", device="cpu", num_cores=num_cores, num_processors=40, process_settings=True
        )
        space = load_space(bundled_space("mindspore"), framework="mindspore", circumstances=here)
        return next((knob.values for knob in space.knobs if knob.name == "kernel_threads"), ())

    for num_cores, threads, values in ((40, None, (None, 1, 2, 4, 8, 16)), (16, "2", (None, 1, 2, 4, 8, 16)),
                                       (4, "1", (None, 1, 2, 4)), (1, "1", (None, 1))):  # fmt: skip
        monkeypatch.setattr("autotune.planning.manifest.num_usable_cores", lambda number=num_cores: number)
        assert variables_of(question, "mindspore", "cpu").get("OMP_NUM_THREADS") == threads
        assert offered(num_cores) == values


MINDSPORES = """
import ctypes, json
import numpy as np
import mindspore as ms

ms.set_context(mode=ms.GRAPH_MODE)

class Net(ms.nn.Cell):
    def construct(self, x):
        return ms.ops.relu(x + 1)

Net()(ms.Tensor(np.ones((2, 2), np.float32))).asnumpy()
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(json.dumps(getenv(b"OMP_NUM_THREADS").decode()))
"""
PROCESSORS = "int get_nprocs(void) { return 40; }"


@pytest.mark.mindspore
@pytest.mark.slow
def test_mindspores_own_rule(tmp_path):
    """What MindSpore sets itself, on a machine of 40 processors of which a process may use one."""
    (tmp_path / "processors.c").write_text(PROCESSORS)
    (tmp_path / "net.py").write_text(MINDSPORES)  # Graph mode reads the source of a Cell.
    library = tmp_path / "processors.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "processors.c"], check=True)
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    one = min(usable_cpus())
    ended = subprocess.run(
        [sys.executable, tmp_path / "net.py"], env=variables | {"LD_PRELOAD": str(library), "GLOG_v": "3"},
        preexec_fn=lambda: os.sched_setaffinity(0, {one}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(ended.stdout.splitlines()[-1]) == str(entry_of("mindspore").threads_of(40)) == "5"
