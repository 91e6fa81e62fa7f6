"""On a device what needs none begins before the driver: the fork server of blocks, and the compiler's own processes.
What a model declares comes from the process of its trials."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace

import pytest

from autotune.backends.registry import BACKENDS
from autotune.bench import supervisor_process
from autotune.bench.local import LocalBench
from autotune.bench.messages import FORK_SERVER, PROBE, TRIAL, Start
from autotune.bench.probe import read_declaration
from autotune.bench.supervisor_process import SupervisorProcess, kept_supervisors
from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.trial.folder import TrialFolder
from autotune.trial.worker import measure
from autotune.trial.worker.stages import StageReporter
from autotune.workload.workload import Device
from autotune_fake import ENTRY
from tests import FAKE_BACKEND


@pytest.fixture
def starts(monkeypatch):
    """What a supervisor is told to start: the program, how it waits, and what it is a fork of."""
    told = []
    send = SupervisorProcess.send

    def noting(self, order):
        if isinstance(order, Start):
            told.append(order)
        send(self, order)

    monkeypatch.setattr(SupervisorProcess, "send", noting)
    return told


@pytest.fixture
def ahead_of_fake(monkeypatch, tmp_path):
    """The fake framework has a compiler that a supervisor on a CPU imports. Returns the variables of its processes."""
    (tmp_path / "ahead_of_fake.py").write_text(
        "from types import SimpleNamespace\n"
        "def import_ahead(modules=()):\n"
        "    return SimpleNamespace(seconds=0.0, resident_bytes=0, model_bytes=0, adopt=lambda cache: None)\n"
    )
    monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, imports_ahead="ahead_of_fake"))
    return {"PYTHONPATH": f"{tmp_path}:{FAKE_BACKEND}"}


@pytest.mark.parametrize(
    ("device", "order"),
    [("gpu", [(FORK_SERVER, "gated"), (TRIAL, "gated")]), ("cpu", [(TRIAL, "free")])],
)
def test_the_server_of_blocks_begins_before_the_untuned_model(
    tmp_path, starts, ahead_of_fake, make_request, device: Device, order
):
    """It imports while that one opens the driver, and stands still while samples are taken. On a CPU it begins with the
    first config that compiles."""
    request = make_request()
    request = request.model_copy(update={"workload": request.workload.model_copy(update={"device": device})})
    with LocalBench(ahead_of_fake, preload=True, log=tmp_path / "log") as bench:
        bench.prepare(request.workload)
        bench.run(TrialFolder(tmp_path / "untuned"), request)
        assert [(start.program, start.waits) for start in starts] == order
        if device != "cpu":
            server, _ = starts
            bench.new_block()
            bench.start(TrialFolder(tmp_path / "live"), request, "live").warm()
            assert starts[-1].fork_of == server.job


@pytest.mark.parametrize("preload", [ENTRY.preload, "no_such_module"])
def test_a_declaration_comes_from_the_process_of_the_trials(tmp_path, monkeypatch, starts, make_request, preload):
    """One supervisor imports for both, and goes on in the log of the study. What it cannot import each imports for
    itself, in a Python of its own. Others than the study's are not taken over, and nothing is left behind."""
    monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, forks_on=("cpu", "gpu"), preload=preload))
    monkeypatch.setenv("FAKE_ACCELERATOR", "1")
    begun = []
    popen = supervisor_process._popen
    monkeypatch.setattr(supervisor_process, "_popen", lambda *given: begun.append(given[1]) or popen(*given))
    request = make_request()
    request = request.model_copy(update={"workload": request.workload.model_copy(update={"device": "gpu"})})
    log = tmp_path / "log"
    with kept_supervisors():
        declared = read_declaration(request.workload, {})
        with LocalBench({}, preload=True, log=log) as bench:
            assert isinstance(bench.run(TrialFolder(tmp_path / "untuned"), request), Measurement)
        assert len(begun) == 1
    assert [(start.program, start.fresh) for start in starts] == [(PROBE, False), (TRIAL, False)]
    assert ("trials import no_such_module each for itself" in log.read_text()) is (preload != ENTRY.preload)
    if preload == ENTRY.preload:
        with kept_supervisors():
            assert read_declaration(request.workload, {}) == declared
            with LocalBench({"OTHER": "1"}, preload=True, log=tmp_path / "other") as bench:
                assert isinstance(bench.run(TrialFolder(tmp_path / "untuned"), request), Measurement)
        assert len(begun) == 3


@pytest.mark.parametrize(
    ("wanted", "compiled_before", "order"),
    [(True, None, ["compilers", "driver"]), (False, None, ["driver"]), (True, "a trial", ["driver"])],
)
def test_compilers_begin_before_the_driver(make_request, tmp_path, wanted, compiled_before, order):
    """Where compile times are not compared, and kernels are compiled; what it spares is asked when the compile
    begins."""
    did = []

    class EndedError(Exception):
        """The test has seen it."""

    def prepare(*_):
        did.append("driver")
        raise EndedError

    backend = SimpleNamespace(
        clock=time.monotonic, prepare=prepare, begin_compilers=lambda *_: did.append("compilers") or (lambda: 2.0)
    )
    request = make_request({"execution": "compile"}).model_copy(
        update={"compilers_ahead": wanted, "compiled_before": compiled_before}
    )
    progress = StageReporter(TrialFolder(tmp_path))
    with pytest.raises(EndedError):
        measure.measure(request, progress, measure.Supervision(None, None, None), backend)
    assert did == order


def test_the_pool_of_inductor_is_begun():
    """A config that inductor does not compile begins none; one that it does is spared at most the time until the pool
    has imported torch."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._inductor.async_compile")
    from torch._inductor import async_compile, config

    from autotune.backends.torch.compile_cache import begin_compilers

    assert torch.cuda.is_available() is False
    for settings in ({"execution": "eager"}, {"execution": "compile", "backend": "aot_eager"}):
        assert begin_compilers(Config(settings), time.monotonic) is None
    begun = time.monotonic()
    try:
        with config.patch(compile_threads=2):
            spared_s = begin_compilers(Config({"execution": "compile"}), time.monotonic)
            assert async_compile.AsyncCompile._ready_future.result(timeout=300) == "ready"
        most_s = time.monotonic() - begun
        assert 0 < spared_s() == spared_s() <= most_s
    finally:
        async_compile.shutdown_compile_workers()
