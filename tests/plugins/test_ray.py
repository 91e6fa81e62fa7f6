"""Workers as Ray actors: a cluster of one machine, fake trials, and what kill -9 leaves."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

from autotune.measure.measurement import Measurement  # noqa: E402
from autotune.measure.statistics import Verdict  # noqa: E402
from autotune.plugins.ray import on_ray  # noqa: E402
from autotune.plugins.ray.bench import RayBench  # noqa: E402
from autotune.plugins.ray.cluster import SLOTS, RayCluster  # noqa: E402
from autotune.plugins.ray.messages import WorkerSettings  # noqa: E402
from autotune.plugins.ray.worker_caches import code_sha256  # noqa: E402
from autotune.study.budget import BlockPlan  # noqa: E402
from autotune.study.folder import FolderStudies  # noqa: E402
from autotune.trial.processes import MARK_VARIABLE  # noqa: E402
from autotune.trial.request import Limits  # noqa: E402
from autotune.tuning.loop import Tuner  # noqa: E402
from tests.conftest import QUICK_BUDGET, cli_command, cli_environment  # noqa: E402

SETTINGS = WorkerSettings(("fake",), "cpu", {}, {"fake": "0"}, code_sha256())
SEARCH = QUICK_BUDGET.model_copy(update={"stop_early": False})
QUIET = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
FEW_BYTES = 80 * 2**20
OWN_VARIABLE = "TEST_RAY_FOLDER"


@pytest.fixture(autouse=True)
def _marked(monkeypatch, tmp_path):
    """What a test starts has its folder in the environment, on all nodes: other runs of this machine are none of it."""
    monkeypatch.setenv(OWN_VARIABLE, str(tmp_path))


def patiently(start):
    """What `start` returns. Ray gives each node 30 s to come up, which may be too little on a busy machine."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:
            failed = error
            ray.shutdown()
            for each in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    each.kill()
    raise failed


@pytest.fixture
def local_cluster(monkeypatch):
    """One node that holds two workers."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    node = {"num_cpus": 2, "resources": {SLOTS: 2}, "object_store_memory": FEW_BYTES}
    patiently(lambda: ray.init(address="local", **node, **QUIET))
    yield
    ray.shutdown()


def cluster_of(num_nodes):
    """A cluster on this machine, with a worker for each node, and this process connected to it."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "resources": {SLOTS: 1}, "object_store_memory": FEW_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=dict(node))
    for _ in range(num_nodes - 1):
        cluster.add_node(wait=False, **node)
    cluster.wait_for_nodes(timeout=120)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    return cluster


@pytest.fixture
def three_nodes():
    cluster = patiently(lambda: cluster_of(3))
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def two_nodes():
    cluster = patiently(lambda: cluster_of(2))
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def tune(study, budget=SEARCH, on_change=lambda _: None):
    """Tune on the cluster that is connected; `on_change` is told the trials' side of it, once it is there."""
    with RayBench(RayCluster("ray"), SETTINGS) as devices:
        on_change(devices)
        return Tuner(study, budget, devices).run(), devices


def trials_that_run() -> list[psutil.Process]:
    """Processes of this test's trials, on whatever node."""
    found = []
    for each in psutil.process_iter():
        try:
            variables = each.environ()
            is_own = MARK_VARIABLE in variables and variables.get(OWN_VARIABLE) == os.environ[OWN_VARIABLE]
            if is_own and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.Error:
            pass
    return found


def wait_until(is_so, seconds=180):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def kill_at_its_trial(study, number, kill):
    """Call `kill` as soon as the study has recorded so many trials."""

    def watch():
        while len(list((study.folder / "trials").glob("*/outcome.json"))) < number:
            time.sleep(0.02)
        kill()

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.slow
@pytest.mark.usefixtures("local_cluster")
def test_a_killed_actor_costs_no_trial(make_study):
    """Two actors, one of which is killed with -9: the study is complete, and nothing is left running."""
    study = make_study()

    def kill(devices):
        pid = ray.get(devices.workers.members[1].link.actor.pid.remote())
        kill_at_its_trial(study, 2, lambda: os.kill(pid, signal.SIGKILL))

    budget = SEARCH.model_copy(update={"num_trials": 4})
    confirmation, devices = tune(study, budget, on_change=kill)
    assert confirmation is not None
    assert study.num_recorded() == 4
    assert {each.measurement.worker.host for each in study.records() if isinstance(each.outcome, Measurement)}
    assert devices.workers.members[1].num_lost == 1
    wait_until(lambda: not trials_that_run())


@pytest.mark.slow
def test_three_nodes_give_the_verdict_of_one_machine(three_nodes, make_study):
    """The nodes share 24 trials, each with figures of its own; the answer is the same config.

    Trials of the fake framework are short: a node that is slow to start may find nothing left to do.
    """
    budget = SEARCH.model_copy(update={"num_trials": 24})
    study = make_study()
    confirmation, _ = tune(study, budget)
    records = [each for each in study.records() if each.counts]
    assert confirmation.verdict is Verdict.FASTER
    assert study.record(confirmation.candidate).config["latency_ms"] == 2
    assert len({each.config for each in records}) == len(records)
    workers = {each.outcome.worker.name for each in records if isinstance(each.outcome, Measurement)}
    assert len(workers) in {2, 3}
    wait_until(lambda: not trials_that_run())


@pytest.mark.slow
def test_a_killed_node_costs_no_trial(three_nodes, make_study):
    """The other two nodes go on; the trial that ran there is lost and its config tried again."""
    budget = SEARCH.model_copy(update={"num_trials": 12})
    study = make_study()
    node = three_nodes.list_all_nodes()[-1]
    kill_at_its_trial(study, 3, lambda: three_nodes.remove_node(node, allow_graceful=False))
    confirmation, devices = tune(study, budget)
    assert confirmation.verdict is Verdict.FASTER
    assert study.num_recorded() == len(study.records()) - len([e for e in study.records() if e.state == "lost"])
    assert sum(not each.is_in for each in devices.workers.members) <= 1
    wait_until(lambda: not trials_that_run())


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_and_resume_goes_on(model_file, space_file, tmp_path):
    """kill -9 of `tune --on ray` ends its cluster with all trials; `resume` completes the study."""
    folder = Path("/tmp", f"ray-{os.getpid()}")  # Sockets lie in it, whose paths must be short.
    environment = cli_environment() | {"RAY_TMPDIR": str(folder)}
    environment.pop("RAY_ADDRESS", None)
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    budget = tmp_path / "budget.yaml"
    budget.write_text(SEARCH.model_dump_json())
    command = cli_command(
        "tune", "--on", "ray", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu",
        "--space", str(space_file), "--study", "s", "--budget", str(budget),
    )  # fmt: skip
    driver = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=(tmp_path / "stderr").open("w"))
    wait_until(lambda: len(list(tmp_path.glob("studies/s/trials/*/outcome.json"))) >= 2)
    driver.kill()
    driver.wait()

    def of_this_cluster():
        return [
            each.pid for each in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(each.info["cmdline"] or [])
        ]

    wait_until(lambda: not of_this_cluster() and not trials_that_run())
    done = subprocess.run(
        cli_command("resume", "s", "--on", "ray"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    study = FolderStudies(tmp_path / "studies").open("s")
    assert study.num_recorded() == SEARCH.num_trials
    assert study.confirmation.verdict is Verdict.FASTER
    wait_until(lambda: not of_this_cluster())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def client_address():
    """A cluster of one node that holds two workers, in processes of its own, and where Ray Client reaches it."""
    pytest.importorskip("grpc", reason="Ray Client is not installed: pip install '.[ray]'")
    folder, port = Path("/tmp", f"ray-client-{os.getpid()}"), free_port()
    command = [
        Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={free_port()}",
        f"--ray-client-server-port={port}", f"--temp-dir={folder}", "--num-cpus=2", f"--resources={{\"{SLOTS}\": 2}}",
        f"--object-store-memory={FEW_BYTES}", "--include-dashboard=false", "--disable-usage-stats",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["RAY_AUTH_MODE"] = "disabled"  # Else both sides need the token of one home folder.
    head = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)

    def listens():
        assert head.poll() is None, "the head ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    wait_until(listens)
    yield f"ray://127.0.0.1:{port}"
    head.terminate()
    head.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_cluster_is_reached_by_ray_client(client_address, model_file, space_file, budget_file, tmp_path):
    """`--on ray://HOST:PORT`: the driver is no node of the cluster; the verdict is that of one machine."""
    environment = cli_environment() | {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        cli_command(
            "tune", "--on", client_address, "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu",
            "--space", str(space_file), "--study", "s", "--budget", str(budget_file),
        ),
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    study = FolderStudies(tmp_path / "studies").open("s")
    measured = [each.outcome for each in study.records() if isinstance(each.outcome, Measurement)]
    assert len({each.worker.name for each in measured}) == 2
    assert study.confirmation.verdict is Verdict.FASTER
    wait_until(lambda: not trials_that_run())


@pytest.mark.slow
@pytest.mark.usefixtures("three_nodes")
def test_doctor_lists_the_devices_of_the_cluster(monkeypatch):
    """One finding for each worker, with versions; equal workers do not differ."""
    from autotune import doctor

    monkeypatch.setattr(on_ray, "_versions_here", lambda: {"fake": "0"})
    findings = doctor.examine(Path(), "ray")
    assert len(findings) == 3
    assert all(each.ok and "fake 0" in each.found and "differs" not in each.found for each in findings)


TORCH_MODEL = """
import torch


def tiny():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval(), torch.ones(4, 64)
"""
TORCH_SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://example.org/x", when: {execution: compile}, values: [inductor, aot_eager], default: inductor}
  fullgraph: {doc: "https://example.org/x", when: {execution: compile}, values: [false, true], default: false}
"""


@pytest.mark.slow
@pytest.mark.torch
def test_real_models_are_compiled_on_two_nodes(two_nodes, tmp_path):
    """`tune --on ray` on a running cluster: both nodes compile, and the answer is confirmed and exported."""
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(TORCH_MODEL)
    (tmp_path / "space.yaml").write_text(TORCH_SPACE)
    plan = {"first_look": 2, "num_looks": 1, "num_rounds": 3}
    changes = {"num_trials": 5, "confirmation": BlockPlan(**plan), "limits": Limits()}  # All configs of the space.
    budget = SEARCH.model_copy(update=changes)
    (tmp_path / "budget.yaml").write_text(budget.model_dump_json())
    environment = cli_environment() | {"RAY_ADDRESS": two_nodes.address}
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")

    def run(*arguments):
        return subprocess.run(
            cli_command(*arguments), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = run(
        "tune", "--on", "ray", "--model", "model.py:tiny", "--framework", "torch", "--device", "cpu",
        "--space", "space.yaml", "--study", "s", "--budget", "budget.yaml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    study = FolderStudies(tmp_path / "studies").open("s")
    measured = [each for each in study.records() if isinstance(each.outcome, Measurement)]
    assert len(measured) == 5, [each.outcome for each in study.records()]
    assert len({each.measurement.worker.name for each in measured}) == 2
    assert {each.measurement.diagnosis.compiled for each in measured} == {False, True}
    assert study.confirmation is not None
    assert run("export", "s", "-o", "best.yaml").returncode == 0
