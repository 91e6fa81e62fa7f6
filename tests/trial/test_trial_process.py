"""A trial in a real child process: every way it can end comes back as a value, and nothing is left running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from autotune.bench.local import LocalBench
from autotune.measure.measurement import Measurement, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import MARK_VARIABLE, module_command, repeat_command
from autotune.trial.request import Limits
from autotune.workload.process_start import library_file
from tests import FAKE_BACKEND
from tests.conftest import PARENT, QUICK_BUDGET, REPOSITORY, own_children

ENDINGS = [
    ("wrong", Reason.WRONG_RESULT, Stage.CHECK, "relative error"),
    ("nan", Reason.WRONG_RESULT, Stage.CHECK, "elements are NaN"),
    ("compile_error", Reason.COMPILE_ERROR, Stage.COMPILE, "does not know this operator"),
    ("crash", Reason.CRASH, Stage.COMPILE, "SIGSEGV; last line of stderr: about to crash"),
    ("silence", Reason.CRASH, Stage.COMPILE, "exit status 3"),
    ("no-such", Reason.INVALID, Stage.COMPILE, "no-such"),
]


def test_every_ending_becomes_a_failure(tmp_path, make_request):
    """A failure names its reason, its stage and the child's own error, however the child was started; and the same
    supervisor runs the next trial."""
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "0"), make_request())
        for behaviour, reason, stage, words in ENDINGS:
            request = make_request({"execution": "compile", "behaviour": behaviour})
            for fresh in (False, True) if behaviour == "crash" else (False,):
                outcome = runner.run(TrialFolder(tmp_path / f"{behaviour}-{fresh}"), request, fresh=fresh)
                assert (outcome.reason, outcome.stage) == (reason, stage)
                assert words in outcome.error
                assert Path(outcome.evidence).exists()
        outcome = runner.run(TrialFolder(tmp_path / "last"), make_request({"behaviour": "right"}))
    assert isinstance(outcome, Measurement)


@pytest.mark.usefixtures("new_python")
def test_a_right_trial_brings_back_a_measurement(run_trial):
    """All samples, compile seconds, memory, error and environment of the child are there, in base units."""
    outcome = run_trial({"execution": "compile", "behaviour": "right", "latency_ms": 3, "compile_ms": 200})
    assert isinstance(outcome, Measurement)
    assert min(outcome.samples.latency_s) >= 0.003  # A sleep never ends early, so this is no bound on speed.
    assert outcome.first_call_s >= 0.203
    assert outcome.compile_s == pytest.approx(outcome.first_call_s - outcome.latency.p50)
    assert outcome.relative_error == 0
    assert outcome.peak_memory_bytes > 0
    assert outcome.signature.items_per_call == 4
    assert outcome.throughput == pytest.approx(4 / outcome.latency.p50)
    assert outcome.diagnosis.compiled
    assert outcome.environment.device == "fake"


@pytest.mark.fast_cases("forked")
@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
def test_a_hang_is_killed_at_its_stage_limit_with_all_its_processes(run_trial, tmp_path, fresh):
    """A compile that takes too long is a `timeout`; its helper processes, in sessions of their own, die too."""
    limits = Limits(compile=0.5)
    outcome = run_trial({"execution": "compile", "behaviour": "hang"}, fresh=fresh, limits=limits)
    assert (outcome.reason, outcome.stage) == (Reason.TIMEOUT, Stage.COMPILE)
    assert "compile" in outcome.error
    assert not _sleeping_helpers(tmp_path)


def test_the_total_limit_holds_over_all_stages(run_trial):
    """`--trial-timeout` ends a trial whose stages keep to their own limits."""
    outcome = run_trial({"execution": "compile", "behaviour": "hang"}, limits=Limits(compile=100, total=1.5))
    assert outcome.reason is Reason.TIMEOUT


@pytest.mark.usefixtures("new_python")
def test_a_lost_supervisor_is_no_fault_of_a_config_and_is_replaced(tmp_path, make_request):
    """If the supervisor itself is killed, that trial blames no config, and the next one runs."""
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "0"), make_request())

        def kill_supervisor(stage: Stage) -> None:
            if stage is Stage.COMPILE:
                (supervisor,) = own_children(recursive=False)
                supervisor.kill()

        lost = runner.run(TrialFolder(tmp_path / "1"), make_request({"behaviour": "hang"}), on_stage=kill_supervisor)
        outcome = runner.run(TrialFolder(tmp_path / "2"), make_request({"behaviour": "right"}))
    assert lost.reason is Reason.SETUP
    assert isinstance(outcome, Measurement)
    assert not _sleeping_helpers(tmp_path), "found by the mark in their environment, supervisor or not"


@pytest.mark.parametrize("variables", [{"LC_CTYPE": "C"}, {"PYTHONPATH": f"/somewhere:{FAKE_BACKEND}"}])
@pytest.mark.slow
def test_variables_that_python_changes_itself_do_no_harm(tmp_path, make_request, variables):
    """A worker starts anew once at the most, and always imports this very package."""
    with LocalBench(variables, preload=True, log=tmp_path / "log") as runner:
        for fresh in (False, True):
            outcome = runner.run(TrialFolder(tmp_path / "0"), make_request(variables=variables), fresh=fresh)
            assert isinstance(outcome, Measurement)
    folder = TrialFolder(tmp_path / "by hand")
    folder.write_request(make_request(variables=variables))
    subprocess.run(
        repeat_command(folder, folder.read_request()), shell=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    assert isinstance(folder.read_outcome(), Measurement)


def test_declared_variables_stand_in_the_child_and_are_recorded(tmp_path, make_request, model_file):
    """`--env` reaches the child before its Python starts, and the measurement says so."""
    model_file.write_text(
        "import os, numpy as np\ndef tiny():\n    assert os.environ['DECLARED'] == 'yes'\n"
        "    return (lambda x: x), np.ones((2, 2))\n"
    )
    variables = {"DECLARED": "yes"}
    with LocalBench(variables, preload=True, log=tmp_path / "log") as runner:
        outcome = runner.run(TrialFolder(tmp_path / "0"), make_request(variables=variables))
    assert outcome.environment.variables == variables


def test_variables_of_a_config_stand_in_the_child(tmp_path, make_request, model_file):
    """A knob `env.NAME` starts the trial's Python anew with the variable, also in a fork and in a process that waits
    for its turns; another config of the study does not have it."""
    model_file.write_text(
        "import os, numpy as np\ndef tiny():\n    found = os.environ.get('GOMP_SPINCOUNT', 'none')\n"
        f"    open(os.path.join({str(tmp_path)!r}, found), 'w').close()\n    return (lambda x: x), np.ones((2, 2))\n"
    )
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "untuned"), make_request())
        (tmp_path / "none").unlink()
        config = {"behaviour": "right", "env.GOMP_SPINCOUNT": 7}
        assert isinstance(runner.run(TrialFolder(tmp_path / "0"), make_request(config)), Measurement)
        assert (tmp_path / "7").exists()
        assert not (tmp_path / "none").exists()
        held = runner.hold(TrialFolder(tmp_path / "1"), make_request(config))
        held.turn()
        assert isinstance(held.finish(), Measurement)
        runner.run(TrialFolder(tmp_path / "2"), make_request({"behaviour": "right"}))
    assert (tmp_path / "none").exists()


def test_a_trial_has_the_libraries_and_cores_of_its_config(tmp_path, make_request, model_file, jemalloc):
    """It starts its Python anew, also in a fork and in a process that waits for its turns; other configs have neither.
    What it was is on record."""
    model_file.write_text(
        "import os, numpy as np\ndef tiny():\n    maps = open('/proc/self/maps').read()\n"
        "    found = f\"{'jemalloc' in maps}-{len(os.sched_getaffinity(0))}\"\n"
        f"    open(os.path.join({str(tmp_path)!r}, found), 'w').close()\n    return (lambda x: x), np.ones((2, 2))\n"
    )
    plain = f"False-{len(os.sched_getaffinity(0))}"
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "untuned"), make_request())
        (tmp_path / plain).unlink()
        config = {"behaviour": "right", "allocator": "jemalloc", "cores": 1}
        found = runner.run(TrialFolder(tmp_path / "0"), make_request(config))
        assert isinstance(found, Measurement)
        assert (found.environment.num_cores, found.environment.inherited["LD_PRELOAD"]) == (1, str(jemalloc))
        assert (tmp_path / "True-1").exists()
        held = runner.hold(TrialFolder(tmp_path / "1"), make_request(config))
        held.turn()
        assert isinstance(held.finish(), Measurement)
        assert not (tmp_path / plain).exists()
        runner.run(TrialFolder(tmp_path / "2"), make_request({"behaviour": "right"}))
    assert (tmp_path / plain).exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"openmp": "iomp"}, "started no process with iomp preloaded"),
        ({"cores": 4096}, "started no process with cores: 4096"),
        ({"env.LD_PRELOAD": "x.so"}, "no config may ask for this variable"),
    ],
    ids=str,
)
def test_a_start_that_cannot_be_had(tmp_path, make_request, config, words):
    """The trial fails with a sentence, and is not measured without it."""
    if library_file("openmp", "iomp") is not None and "openmp" in config:
        pytest.skip("it is installed")
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "untuned"), make_request())
        outcome = runner.run(TrialFolder(tmp_path / "0"), make_request({"behaviour": "right", **config}))
    assert (outcome.reason, words in outcome.error) == (Reason.INVALID, True), outcome.error


def test_the_plain_command_repeats_the_trial(tmp_path, make_request):
    """What `repeat_command` prints runs in a shell and leaves the same kind of outcome."""
    folder = TrialFolder(tmp_path / "by hand")
    folder.write_request(make_request(variables={"DECLARED": "a b"}))
    command = repeat_command(folder, folder.read_request())
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert isinstance(folder.read_outcome(), Measurement)


def test_a_worker_without_a_request_says_so(tmp_path):
    """A folder without request.json is a sentence and exit status 2."""
    child = subprocess.run(
        module_command("trial.worker.main", str(tmp_path)), cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert child.returncode == 2
    assert "request.json" in child.stderr
    assert "Traceback" not in child.stderr


MODEL_MISTAKES = [
    ("def tiny():\n    raise KeyError('weights')\n", "KeyError: 'weights'"),
    ("import no_such_package\n", "No module named 'no_such_package'"),
    ("import os\ndef tiny():\n    os._exit(7)\n", "exit status 7"),
    ("import numpy as np\ndef tiny():\n    return (lambda x: x), 'text'\n", "no tensor among its inputs"),
    ("import numpy as np\ndef tiny():\n    return (lambda x: 'text'), np.ones(3)\n", "holds no tensor to compare"),
    ("import numpy as np\ndef tiny():\n    return 'model', np.ones(3)\n", "cannot be called"),
]


def test_a_mistake_in_the_model_file_blames_no_config(tmp_path, make_request, model_file):
    """A model file that does not import, raises or returns the wrong thing is no config's fault."""
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        for number, (content, words) in enumerate(MODEL_MISTAKES):
            model_file.write_text(content)
            outcome = runner.run(TrialFolder(tmp_path / str(number)), make_request())
            assert outcome.reason is Reason.SETUP
            assert words in outcome.error


def test_state_that_changes_from_call_to_call_is_seen(tmp_path, make_request, model_file):
    """The example inputs are checked again at the end: an output right at first and stale later is wrong."""
    model_file.write_text(
        "import numpy as np\ndef tiny():\n    calls = []\n    def model(x):\n        calls.append(1)\n"
        "        return x + (len(calls) > 2) * (not os.path.exists(flag))\n"
        "    import os\n    flag = os.environ.get('FLAG', '')\n    globals()['os'] = os\n    globals()['flag'] = flag\n"
        "    return model, np.ones((2, 2))\n"
    )
    flag = tmp_path / "flag"
    flag.touch()
    with LocalBench({"FLAG": str(flag)}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "0"), make_request())
        flag.unlink()
        outcome = runner.run(TrialFolder(tmp_path / "1"), make_request({"execution": "compile"}))
    assert outcome.reason is Reason.WRONG_RESULT
    assert "input 3 of 3" in outcome.error


def test_nothing_outlives_a_killed_parent(tmp_path, make_request):
    """When the tool is killed by -9 in the middle of a compile, supervisor, trial and helpers are gone."""
    make_request_file = tmp_path / "request.json"
    make_request_file.write_text(
        make_request({"behaviour": "hang"}, limits=QUICK_BUDGET.limits).model_dump_json(by_alias=True)
    )
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"compile\n"
    family = psutil.Process(parent.pid).children(recursive=True)
    assert len(family) >= 2
    helpers = _wait_for(lambda: _sleeping_helpers(tmp_path))
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([*family, *helpers], timeout=20)
    assert not alive
    assert not _sleeping_helpers(tmp_path)


def _sleeping_helpers(folder: Path) -> list[psutil.Process]:
    """Of the trials below that folder: tests in other processes have some too."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            is_helper = "import time; time.sleep(600)" in each.cmdline() and each.status() != psutil.STATUS_ZOMBIE
            if is_helper and str(folder) in each.environ().get(MARK_VARIABLE, ""):
                found.append(each)
    return found


def _wait_for(condition, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return found
