"""What a child is asked before a study is made: it runs as a trial does, and its answer is had or is an error."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pytest

from autotune.backends.contracts.runtime import DeviceReport
from autotune.bench.probe import find_devices, read_declaration
from autotune.errors import InputError, MissingDeviceError, SetupError
from autotune.planning import manifest
from autotune.planning.models import make_workload
from autotune.question.question import Question
from autotune.space.declared import Declaration
from autotune.trial.deadline import Deadline
from autotune.trial.request import Limits
from tests import FAKE_BACKEND

VARIANTS = {"wait": {"usual": None, "other": "builtins:print"}}
MODEL = """
import os
import signal
import subprocess
import threading
import time
import numpy as np


def plain(model):
    return {"model": lambda x: x, "inputs": np.ones((4, 8)), "variants": {"wait": {"usual": None, "other": print}}}


def leave(folder, **how):
    left = subprocess.Popen(["sleep", "400"], **how)
    with open(folder + "/left", "w") as file:
        file.write(str(left.pid))


def leaves(folder):
    leave(folder)
    return plain(None)


def leaves_a_service(folder):
    leave(folder, start_new_session=True, env={})
    return plain(None)


def leaves_a_grandchild(folder):
    if os.fork() == 0:
        os.setsid()
        leave(folder)
        os._exit(0)
    os.wait()
    return plain(None)


def leaves_a_thread(folder):
    threading.Thread(target=time.sleep, args=(400,)).start()
    return plain(None)


def is_silenced(folder):
    os.close(1)
    os.close(2)
    return plain(None)


def takes_for_ever(folder):
    leave(folder, start_new_session=True)
    time.sleep(400)


def crashes(folder):
    leave(folder, start_new_session=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def vanishes(folder):
    os._exit(0)


def raises(folder):
    leave(folder, start_new_session=True)
    raise MemoryError("no room for the weights")
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder for temporary files, with a model's file beside it."""
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ask(home):
    """The declaration of one of the file's functions."""

    def ask(function, limits=Limits):
        workload = make_workload(f"net.py:{function}", {"folder": str(home)}, "fake", "cpu", 0)
        return read_declaration(workload, {}, limits)

    return ask


def what_is_left(home):
    """The process that the model's function started; None once it is gone."""
    file = home / "left"
    pid = int(file.read_text()) if file.exists() else 0
    return pid if psutil.pid_exists(pid) and psutil.Process(pid).name() == "sleep" else None


@pytest.mark.fast_cases("leaves_a_service", "leaves_a_thread")
@pytest.mark.parametrize("function", ["leaves", "leaves_a_service", "leaves_a_grandchild", "leaves_a_thread"])
def test_nothing_that_the_file_leaves_is_waited_for(home, ask, function):
    """What was declared is had, the process is ended, and nothing stays on disk."""
    assert ask(function).variants == VARIANTS
    assert what_is_left(home) is None
    assert list((home / "temporary").iterdir()) == []


def test_the_answer_does_not_depend_on_what_is_printed(ask):
    """A file may close both of its streams."""
    assert ask("is_silenced").variants == VARIANTS


@pytest.mark.parametrize(
    ("function", "how"),
    [
        ("crashes", "killed by SIGSEGV"),
        ("vanishes", "ended with exit status 0 and no outcome"),
        ("raises", r"MemoryError: no room for the weights \[net\.py, line \d+\]"),
    ],
)
def test_without_an_answer_there_is_a_sentence(home, ask, function, how):
    """Never a declaration of nothing: knobs of the author's would be dropped. The log is kept, no process is."""
    with pytest.raises(SetupError, match=rf"net\.py:{function} could not be built: {how}") as refused:
        ask(function)
    assert Path(refused.value.tip.rpartition("full log: ")[2]).exists()
    assert "let it take longer" not in refused.value.tip
    assert what_is_left(home) is None


@pytest.mark.parametrize(("limit", "seconds"), [("build", 0.5), ("total", 1.5)])
def test_it_takes_no_longer_than_a_trial_may(home, ask, limit, seconds):
    """It is stopped at the limit of its stage or of all of it, with all that it has started."""
    with pytest.raises(SetupError, match=rf"stopped after the {seconds} s that it may take") as refused:
        ask("takes_for_ever", lambda: Limits(**{limit: seconds}))
    assert refused.value.tip.startswith("let it take longer")
    assert what_is_left(home) is None


def test_the_time_that_is_left_is_looked_at_when_it_starts(ask):
    """A run whose time is up gives it none, and says that it was the time, not the model."""
    deadline = Deadline(ends=10.0, clock=lambda: 20.0)
    with pytest.raises(InputError, match=r"the time of the run was over before the model was built") as refused:
        ask("leaves", partial(deadline.cap, Limits()))
    assert refused.value.tip.startswith("give more with budget, e.g. budget='10m'")


def test_a_run_with_a_time_gives_the_probe_what_is_left(cli, home, space_file, monkeypatch):
    """Of the command as of the limits in its budget file."""
    seen = []

    def read(workload, variables, limits):
        seen.append(limits())
        return Declaration()

    monkeypatch.setattr(manifest, "read_declaration", read)
    (home / "budget.yaml").write_text("wall_s: 50\nlimits: {build: 7}\n")
    done = cli(
        "tune", "--model", "net.py:leaves", "--framework", "fake", "--device", "cpu", "--space", str(space_file),
        "--budget", "budget.yaml", "--dry-run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (limits,) = seen
    assert limits.build == 7
    assert 0 < limits.total < 50


@pytest.mark.parametrize(("builds", "num_looks"), [(True, 0), (False, 1)])
def test_a_device_that_is_named_is_looked_for_once(home, space_file, monkeypatch, builds, num_looks):
    """Where the model was built on it, it is there: nobody looks. Where that failed, what there is says it best."""

    def read(workload, *_):
        if not builds:
            raise InputError("no such device")
        return Declaration()

    looked = []

    def find(framework, _):
        looked.append(framework)
        return DeviceReport(version="0", devices={"cpu": "fake"}, compilers={})

    monkeypatch.setattr(manifest, "read_declaration", read)
    monkeypatch.setattr("autotune.planning.targets.find_devices", find)
    asked = Question(build="net.py:leaves", framework="fake", device="gpu", space=str(space_file))
    with nullcontext() if builds else pytest.raises(MissingDeviceError, match="finds only cpu"):
        assert manifest.make_manifest(asked).workload.device == "gpu"
    assert len(looked) == num_looks


def test_what_is_wrong_with_what_was_given_stays_an_input_error(home, ask):
    """A misspelt argument is the user's, with the names that there are."""
    with pytest.raises(InputError, match=r"net\.py:leaves has no such argument") as refused:
        read_declaration(make_workload("net.py:leaves", {"fodler": "x"}, "fake", "cpu", 0), {})
    assert "folder" in refused.value.tip
    assert list((home / "temporary").iterdir()) == []


def test_devices_are_asked_within_the_same_limits(home):
    """A framework is not said to be broken where the time of the run was over before it could answer."""
    assert find_devices("fake").devices
    with pytest.raises(InputError, match="the time of the run was over before the devices were found"):
        find_devices("fake", lambda: Limits(total=0.01))


IMPORTS = """
import library_a


def small():
    import os
    import library_c.part
    os.environ["SAID_BY_THE_MODEL"] = "1"
    import library_d
    import numpy as np
    return (lambda x: x), np.ones((4, 8))
"""


def test_what_building_the_model_imports_is_told(tmp_path, monkeypatch):
    """Modules of installed packages, without those that these import, and without what is imported in an environment
    that the model has changed; the user's own files are his own."""
    site = tmp_path / "site-packages"
    (site / "library_c").mkdir(parents=True)
    for name, content in {
        "library_a.py": "import library_b", "library_b.py": "", "library_c/__init__.py": "", "library_d.py": "",
        "library_c/part.py": "import library_e", "library_e.py": "",
    }.items():  # fmt: skip
        (site / name).write_text(content)
    (tmp_path / "own.py").write_text(IMPORTS)
    (tmp_path / "model.py").write_text("from own import small")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{FAKE_BACKEND}")
    workload = make_workload("model.py:small", {}, "fake", "cpu", 0)
    assert read_declaration(workload, {}).imported == ("library_a", "library_c", "library_c.part")
