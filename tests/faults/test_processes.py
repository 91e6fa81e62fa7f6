"""Faults of processes: each ends in one clear sentence, with no process left and no finished trial lost.

The first table is of trials, each a real process of the fake framework; the second of what happens to the tool itself.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from autotune.backends.registry import BACKENDS
from autotune.bench import supervisor_process
from autotune.bench.bounded_log import MAX_BYTES
from autotune.bench.local import LocalBench
from autotune.errors import StoreError
from autotune.measure.measurement import Measurement, Reason, Stage
from autotune.study.folder import FolderStudies
from autotune.study.sqlite import exclusive
from autotune.trial import processes
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import MARK_VARIABLE
from autotune.trial.request import Limits
from autotune_fake import ENTRY
from tests.asking import ask
from tests.conftest import MODEL_FILE, QUICK_BUDGET, REPOSITORY, SPACE_FILE, cli_command, cli_environment, run_here

MODEL = """
import os, signal, subprocess, sys, time
import numpy as np

def stage():
    with open("../stage") as file:
        return file.read()

def tiny():
    def model(x):
        if os.getcwd().endswith("/faulty/scratch"):
            {fault}
        return x + 0
    return model, np.ones((2, 2))
"""

HELPER = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"

TRIALS = {
    "segmentation fault": ("os.kill(os.getpid(), signal.SIGSEGV)", Reason.CRASH, Stage.COMPILE, "killed by SIGSEGV"),
    "real-time signal": ("os.kill(os.getpid(), 40)", Reason.CRASH, Stage.COMPILE, "killed by signal 40"),
    "abort": ("os.abort()", Reason.CRASH, Stage.COMPILE, "killed by SIGABRT"),
    "out of memory": ("raise MemoryError('48 GiB')", Reason.OUT_OF_MEMORY, Stage.COMPILE, "MemoryError: 48 GiB"),
    "killed from outside": ("os.kill(os.getpid(), 9)", Reason.CRASH, Stage.COMPILE, "killed by SIGKILL"),
    "hang in compile": ("time.sleep(600)", Reason.TIMEOUT, Stage.COMPILE, "longer than its limit in stage compile"),
    "hang in run": (
        "stage() == 'run' and time.sleep(600)", Reason.TIMEOUT, Stage.RUN, "longer than its limit in stage run",
    ),
    "deaf to signals": (
        "[signal.signal(each, signal.SIG_IGN) for each in (2, 15)] and time.sleep(600)",
        Reason.TIMEOUT, Stage.COMPILE, "longer than its limit in stage compile",
    ),
    "endless output": (
        "[(print('x' * 99_999), time.sleep(0.01)) for _ in range(10**9)]",
        Reason.TIMEOUT, Stage.COMPILE, "longer than its limit in stage compile",
    ),
    "torn outcome": (
        "open('../outcome.json', 'w').write('{{\"samples\": '), os._exit(0)",
        Reason.CRASH, Stage.COMPILE, "exit status 0 and no outcome",
    ),
    "exit without a result": ("os._exit(0)", Reason.CRASH, Stage.COMPILE, "exit status 0 and no outcome"),
    "exit of Python": ("sys.exit('enough')", Reason.COMPILE_ERROR, Stage.COMPILE, "SystemExit: enough"),
    "wrong result": ("return x + 1", Reason.WRONG_RESULT, Stage.CHECK, "relative error"),
    "NaN": ("return x * np.nan", Reason.WRONG_RESULT, Stage.CHECK, "elements are NaN"),
    "another shape": ("return x[:1]", Reason.WRONG_RESULT, Stage.CHECK, "shape"),
    "grandchildren": (f"{HELPER}; os._exit(1)", Reason.CRASH, Stage.COMPILE, "exit status 1 and no outcome"),
    "no further process": (
        "raise RuntimeError('compile failed') from BlockingIOError(11, 'Resource temporarily unavailable')",
        Reason.SETUP, Stage.COMPILE, "compile failed",
    ),
    "a file of no more than so many bytes": (
        "raise RuntimeError('compile failed') from OSError(27, 'File too large')",
        Reason.SETUP, Stage.COMPILE, "compile failed",
    ),
    "a compiler without room": (
        "raise RuntimeError('g++: fatal error: No space left on device')", Reason.SETUP, Stage.COMPILE, "fatal error",
    ),
    "no further thread": (
        "raise RuntimeError(\"can't start new thread\")", Reason.SETUP, Stage.COMPILE, "can't start new thread",
    ),
}  # fmt: skip
"""What the model does in the trial; reason, stage and words of the failure."""

TUNED = {"execution": "compile", "behaviour": "right"}
LIMITS = Limits(compile=20, check=20, run=20)


@pytest.fixture(scope="module")
def one_runner(tmp_path_factory):
    """One supervisor for all: a fault of one trial must not touch the next."""
    with LocalBench({}, preload=True, log=tmp_path_factory.mktemp("log") / "log") as shared:
        yield shared


@pytest.fixture(autouse=True)
def _no_trial_is_left_running(tmp_path):
    """No process of a trial of this test, wherever it hangs in the tree. In place of the general check: the shared
    supervisor lives on."""
    yield
    left = _of_trials(tmp_path)
    for each in left:
        each.kill()
    assert not left


@pytest.fixture
def _nothing_is_left_running():
    pass


class TestTrials:
    """A trial's end, whatever it is, comes back as a value that says what happened."""

    @pytest.mark.parametrize("name", TRIALS)
    def test_a_fault_is_one_sentence(self, one_runner, tmp_path, make_request, model_file, name):
        """Its reason, its stage and one line of words; the next trial runs."""
        fault, reason, stage, words = TRIALS[name]
        model_file.write_text(MODEL.format(fault=fault))
        one_runner.run(TrialFolder(tmp_path / "untuned"), make_request())
        # Short only for the stage that is to hang: a busy machine may take a second for any other.
        limits = Limits(**{stage.value: 1.0}) if reason is Reason.TIMEOUT else LIMITS
        outcome = one_runner.run(TrialFolder(tmp_path / "faulty"), make_request(TUNED, limits=limits))
        assert (outcome.reason, outcome.stage) == (reason, stage)
        assert words in outcome.error
        assert "\n" not in outcome.error
        assert not _of_trials(tmp_path)
        after = one_runner.run(TrialFolder(tmp_path / "next"), make_request(TUNED))
        assert isinstance(after, Measurement)

    @pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
    def test_endless_output_is_bounded(self, one_runner, tmp_path, make_request, model_file, fresh):
        """Of both streams, of a helper too: the first and the last of it are there, the trial ends as it would."""
        loud = (
            "subprocess.run([sys.executable, '-c', \"import os; print('first', flush=True); "
            "[os.write(number, b'x' * 65536) for number in (1, 2) for _ in range(128)]; print('last')\"])"
        )
        model_file.write_text(MODEL.format(fault=f"stage() == 'compile' and {loud}"))
        one_runner.run(TrialFolder(tmp_path / "untuned"), make_request())
        outcome = one_runner.run(TrialFolder(tmp_path / "faulty"), make_request(TUNED), fresh=fresh)
        assert isinstance(outcome, Measurement)
        for name in ("stdout.txt", "stderr.txt"):
            said = (tmp_path / "faulty" / name).read_bytes()
            assert len(said) <= MAX_BYTES
            assert b"bytes of output are left out here]" in said
        said = (tmp_path / "faulty" / "stdout.txt").read_bytes()
        assert said.startswith(b"first\n")
        assert said.endswith(b"last\n")

    def test_helpers_of_a_trial_that_ends_well(self, one_runner, tmp_path, make_request, model_file):
        """A compiler's worker pool is ended with the trial that started it, right or wrong."""
        model_file.write_text(MODEL.format(fault=HELPER))
        one_runner.run(TrialFolder(tmp_path / "untuned"), make_request())
        outcome = one_runner.run(TrialFolder(tmp_path / "faulty"), make_request(TUNED))
        assert isinstance(outcome, Measurement)


class TestMachine:
    """A machine that gives no process, or does not let one go, is said and never waited for without end."""

    def test_no_room_for_a_moment(self, tmp_path, make_request, monkeypatch):
        """It waits and starts then."""
        refusals = iter([errno.EAGAIN, errno.ENOMEM])
        monkeypatch.setattr(processes, "_PAUSE_S", 0.01)
        real = subprocess.Popen

        def popen(*args, **kwargs):
            for number in refusals:
                raise OSError(number, os.strerror(number))
            return real(*args, **kwargs)

        monkeypatch.setattr(supervisor_process.subprocess, "Popen", popen)
        with LocalBench({}, preload=True, log=tmp_path / "log") as trials:
            assert isinstance(trials.run(TrialFolder(tmp_path / "0"), make_request()), Measurement)

    def test_no_room_at_all(self, tmp_path, make_request, monkeypatch):
        """One sentence, and no config is to blame."""
        monkeypatch.setattr(processes, "RETRY_FOR_S", 0.05)
        monkeypatch.setattr(processes, "_PAUSE_S", 0.01)

        def popen(*args, **kwargs):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        monkeypatch.setattr(supervisor_process.subprocess, "Popen", popen)
        with LocalBench({}, preload=True, log=tmp_path / "log") as trials:
            outcome = trials.run(TrialFolder(tmp_path / "0"), make_request())
        assert outcome.reason is Reason.SETUP
        assert outcome.error == "this machine can start no further process: Resource temporarily unavailable"

    @pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
    def test_no_room_for_a_trial(self, tmp_path, make_request, monkeypatch, fresh):
        """The supervisor could be started and no trial: the same sentence, and the supervisor serves on."""
        monkeypatch.setattr(supervisor_process, "module_command", lambda *_, **__: [sys.executable, "-c", _NO_FORK])
        with LocalBench({}, preload=True, log=tmp_path / "log") as trials:
            for number in range(2):
                outcome = trials.run(TrialFolder(tmp_path / f"{number}"), make_request(), fresh=fresh)
                assert outcome.reason is Reason.SETUP
                assert outcome.error == "this machine can start no further process: Resource temporarily unavailable"

    def test_an_import_that_hangs(self, tmp_path, make_request, monkeypatch):
        """A framework on a network disk that does not answer: the limit of the stage `start` holds."""
        (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
        monkeypatch.setitem(BACKENDS, "fake", dataclasses.replace(ENTRY, preload="hangs"))
        with LocalBench({"PYTHONPATH": str(tmp_path)}, preload=True, log=tmp_path / "log") as trials:
            outcome = trials.run(TrialFolder(tmp_path / "0"), make_request(limits=Limits(start=1)))
            assert (outcome.reason, outcome.stage) == (Reason.SETUP, Stage.START)
            assert "importing hangs took longer than 1 s" in outcome.error
            assert not _named("hangs")

    def test_a_supervisor_that_does_not_listen(self, tmp_path, make_request, monkeypatch):
        """Stopped, or in a system call without end: it is killed, and the tool ends."""
        monkeypatch.setattr(supervisor_process, "_ENDS_WITHIN_S", 0.3)
        with LocalBench({}, preload=True, log=tmp_path / "log") as trials:
            trials.run(TrialFolder(tmp_path / "0"), make_request())
            os.kill(trials._of_framework("fake").supervisor.pid, signal.SIGSTOP)

    def test_a_process_that_cannot_be_killed(self):
        """State D: named, left, and no longer waited for."""
        said = subprocess.run(
            [sys.executable, "-c", _UNKILLABLE], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert said.stdout == "returned\n", said.stderr
        assert "cannot be killed, and left: process" in said.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study of four trials, confirmed. Its model hangs in the folder that the file `flag` names."""
    home = tmp_path_factory.mktemp("finished")
    hangs = (
        f"def hang():\n    import os, time\n    flag = {str(home / 'flag')!r}\n"
        "    if os.path.exists(flag) and open(flag).read() in os.getcwd():\n"
        f"        open({str(home / 'hangs')!r}, 'w').close()\n        time.sleep(600)\n"
    )
    (home / "model.py").write_text(hangs + MODEL_FILE.replace("    weight =", "    hang()\n    weight ="))
    (home / "space.yaml").write_text(SPACE_FILE)
    (home / "budget.yaml").write_text(QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
    tuned = run_here(
        home, "tune", "--model", f"{home}/model.py:tiny", "--framework", "fake", "--device", "cpu", "--space",
        str(home / "space.yaml"), "--study", "s", "--budget", str(home / "budget.yaml"), "--trials", "4",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    return home


@pytest.fixture
def busy(finished, tmp_path):
    """Start a command that hangs where it is told to; returns it and all its processes."""
    started = []

    def start(phase: str, *command: str):
        shutil.copytree(finished / "studies", tmp_path / "studies")
        (finished / "hangs").unlink(missing_ok=True)
        (finished / "flag").write_text(phase)
        process = subprocess.Popen(
            cli_command(*command), cwd=tmp_path, env=cli_environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        end = time.monotonic() + 120
        while not (finished / "hangs").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()
        return process, psutil.Process(process.pid).children(recursive=True)

    yield start
    (finished / "flag").unlink(missing_ok=True)
    for each in started:
        each.kill()
        each.wait()


PHASES = {
    "trial": ("/trials/", ["resume", "s", "--trials", "6"]),
    # One of the further trials is so much faster that it gets a block at once.
    "confirmation": ("/confirm/", ["resume", "s", "--trials", "14"]),
    "export": ("/artifact", ["export", "s", "--with-cache", "-o", "best.yaml"]),
}


class TestParent:
    """However the tool itself ends: no process is left, what was finished stays, and a new start goes on."""

    @pytest.mark.fast_cases("trial-SIGINT")
    @pytest.mark.parametrize(
        ("phase", "number"),
        [
            *(("trial", number) for number in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")),
            *(("confirmation", number) for number in ("SIGTERM", "SIGKILL")),
            *(("export", number) for number in ("SIGINT", "SIGTERM", "SIGKILL")),
        ],
    )
    def test_a_signal(self, busy, finished, tmp_path, phase, number):
        """A polite one: exit status 130 and a sentence, no trial left running. `kill -9`: nothing lives on."""
        where, command = PHASES[phase]
        before = _finished(finished)
        process, family = busy(where, *command)
        process.send_signal(getattr(signal, number))
        _, stderr = process.communicate(timeout=60)
        assert not psutil.wait_procs(family, timeout=30)[1]
        if number == "SIGKILL":
            assert process.returncode == -9
        else:
            assert process.returncode == 130
            assert "interrupted" in stderr
            assert "Traceback" not in stderr
        after = _finished(tmp_path)
        assert {each: after[each] for each in before} == before

    @pytest.mark.slow
    def test_two_parents(self, busy, tmp_path):
        """A second `resume`, and `run`, while one is at work: a sentence with its number; the first one goes on."""
        where, command = PHASES["trial"]
        process, family = busy(where, *command)
        for second in (command, ["run", "s", "0"]):
            refused = subprocess.run(
                cli_command(*second), cwd=tmp_path, env=cli_environment(), capture_output=True, text=True, check=False
            )
            assert refused.returncode == 2
            assert f"is being tuned by another process (pid {process.pid})" in refused.stderr
            assert "Traceback" not in refused.stderr
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert not psutil.wait_procs(family, timeout=30)[1]

    def test_creators_of_one_name(self, tmp_path, make_manifest):
        """While one makes the study, the others say so in one sentence with its number; afterwards it is there."""
        folder = tmp_path / "studies" / "s"
        folder.mkdir(parents=True)
        with exclusive(folder / "lock"):
            for _ in range(2):
                with pytest.raises(
                    StoreError, match=rf"s is being made by another `tune` \(pid {os.getpid()}\)"
                ) as said:
                    FolderStudies(tmp_path / "studies").open_or_create(make_manifest("s"))
                assert "wait for it" in said.value.tip
        FolderStudies(tmp_path / "studies").open_or_create(make_manifest("s")).close()
        with pytest.raises(StoreError, match="was just made by another `tune`"):
            FolderStudies(tmp_path / "studies").create(make_manifest("s"))

    def test_creators_at_the_very_same_moment(self, tmp_path, make_manifest):
        """Of three processes at least one makes it, and whoever does not has one sentence; the study is whole."""
        manifest = make_manifest("s").model_dump_json(by_alias=True)
        started = [
            subprocess.Popen(
                [sys.executable, "-c", _CREATE, str(tmp_path / "studies"), manifest], cwd=REPOSITORY,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(3)
        ]  # fmt: skip
        assert [each.stdout.readline() for each in started] == ["ready\n"] * 3
        for each in started:
            each.stdin.close()
        said = [each.stdout.read() + each.stderr.read() for each in started]
        for each in started:
            each.wait()
            each.stdout.close()
            each.stderr.close()
        assert "made\n" in said
        for text in said:
            assert text == "made\n" or "by another `tune`" in text, said
            assert text.count("\n") == 1
        assert FolderStudies(tmp_path / "studies").open("s").records() == []

    @pytest.mark.fast_cases("tables")
    @pytest.mark.parametrize("stage", ["connect", "tables", "study", "manifest"])
    def test_a_creation_that_is_killed(self, tmp_path, make_manifest, stage):
        """`kill -9` while the database or the manifest is made: the next `tune` makes the study, and nothing of the
        user's in the folder is touched."""
        folder = tmp_path / "studies" / "s"
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")
        manifest = make_manifest("s").model_dump_json(by_alias=True)
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED[stage] + _CREATE, str(tmp_path / "studies"), manifest], cwd=REPOSITORY,
            input="", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert killed.returncode == -9, killed.stderr
        assert not (folder / "manifest.json").exists()
        study = FolderStudies(tmp_path / "studies").open_or_create(make_manifest("s"))
        assert study.records() == []
        study.close()
        assert (folder / "notes.txt").read_text() == "mine"
        assert not list(folder.glob(".*partial"))

    def test_a_removal_that_is_killed(self, make_study, make_manifest, tmp_path):
        """A manifest whose database and runs are gone already: the next `tune` begins anew."""
        study = make_study()
        study.close()
        (study.folder / "study.db").unlink()
        (study.folder / "trials").rmdir()
        assert FolderStudies(tmp_path / "studies").open_or_create(make_manifest("s")).records() == []

    def test_a_database_with_trials_is_no_unfinished_one(self, make_study, make_manifest, tmp_path, measurement):
        """Nor is one of somebody else, or a link: without their manifest they stay as they are, with a sentence."""
        study = make_study()
        study.tell(ask(study), measurement)
        study.close()
        (study.folder / "manifest.json").unlink()
        database = study.folder / "study.db"
        kept = database.read_bytes()
        with closing(sqlite3.connect(tmp_path / "songs.db")) as connection:
            connection.execute("CREATE TABLE songs (name TEXT)")
            connection.commit()
        (tmp_path / "empty.db").touch()
        others = (database, tmp_path / "songs.db", tmp_path / "empty.db")
        for number, place in enumerate(others):
            folder = tmp_path / f"studies{number}" / "s"
            folder.mkdir(parents=True)
            if place.name == "empty.db":
                (folder / "study.db").symlink_to(place)
            else:
                shutil.copyfile(place, folder / "study.db")
            with pytest.raises(StoreError, match=r"study\.db (without a manifest|is a symbolic link)"):
                FolderStudies(folder.parent).open_or_create(make_manifest("s"))
            assert (folder / "study.db").read_bytes() == place.read_bytes()
        assert database.read_bytes() == kept

    def test_a_study_that_is_alone_frees_its_lock(self, make_study):
        """`run STUDY N` holds what `tune` holds, and no longer than it works."""
        study = make_study()
        with study.exclusive(), pytest.raises(StoreError, match="being tuned"), exclusive(study.folder / "lock"):
            pass
        with study.writing():
            pass


def _finished(home: Path) -> dict[int, object]:
    """Outcomes of the study's finished trials, by number."""
    study = FolderStudies(home / "studies").open("s")
    found = {each.number: each.outcome for each in study.records() if each.outcome is not None}
    study.close()
    return found


def _of_trials(home: Path) -> list[psutil.Process]:
    """Processes of trials whose folder lies in this one; others on this machine are somebody else's."""
    found = []
    for each in psutil.process_iter():
        try:
            marked = each.environ().get(MARK_VARIABLE, "")
            if marked.startswith(f"{home.resolve()}/") and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except (psutil.Error, OSError):
            continue
    return found


def _named(module: str) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [each for each in processes if (each.info["cmdline"] or [""])[-1] == module]


_CREATE = """
import sys
from pathlib import Path
from autotune.errors import StoreError
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest
manifest = Manifest.model_validate_json(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
try:
    FolderStudies(Path(sys.argv[1])).create(manifest)
    print("made")
except StoreError as error:
    print(error)
"""

_KILL = "import os, signal\nkill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
_KILLED = {
    "connect": _KILL + "import autotune.study.sqlite as sqlite\nsqlite._use_wal = kill\n",
    "tables": _KILL + "import sqlalchemy\n@sqlalchemy.event.listens_for(sqlalchemy.Table, 'after_create')\n"
    "def after(table, *_, **__):\n    if table.name == 'trials':\n        kill()\n",
    "study": _KILL + "import optuna\noptuna.create_study = kill\n",
    "manifest": _KILL + "import autotune.files, os\nos.fsync = kill\n",
}
"""Program before `_CREATE` -> where it is killed."""

_NO_FORK = """
import os, subprocess
def refuse(*args, **kwargs):
    raise BlockingIOError(11, os.strerror(11))
os.fork = subprocess.Popen = refuse
from autotune.trial import processes
from autotune.bench import supervisor
processes.RETRY_FOR_S, processes._PAUSE_S = 0.05, 0.01
supervisor.main(["numpy"])
"""

_UNKILLABLE = """
import psutil, subprocess, sys
from autotune.bench import reaper
reaper._REAPED_WITHIN_S = 0.2
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
kill, psutil.Process.kill = psutil.Process.kill, lambda self: None
reaper.kill_descendants()
reaper.kill_descendants()
print("returned")
child.kill()
child.wait()
"""
