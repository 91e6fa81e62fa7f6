"""What compilers leave behind: temporary files go with their trial, and what trials share is made once and whole."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.backends.registry import BACKENDS
from autotune.bench.local import LocalBench, _Process
from autotune.measure.measurement import Measurement, Reason
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.trial.toolchain import install_toolchain, is_complete
from autotune_fake import ENTRY
from tests.conftest import PARENT, REPOSITORY, own_children

MAKER = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
with open({count!r}, "a") as count:
    count.write("made ")
{then}
home = folder / "made" / "temporary" / "headers"
home.mkdir(parents=True)
(home / "a.h.gch").write_bytes({header!r})
(folder / "made" / "cache" / "probes").mkdir(parents=True)
(folder / "made" / "cache" / "probes" / "avx2").touch()
"""

SEES = """
import os, tempfile
import numpy as np

def tiny():
    with open({seen!r}, "w") as seen:
        seen.write(tempfile.gettempdir())
    tempfile.mkdtemp()
    def model(x):
        headers = os.path.join(tempfile.gettempdir(), "headers", "a.h.gch")
        with open({seen!r} + ".call", "w") as file:
            file.write(repr((os.path.exists(headers), os.path.exists(os.environ["FAKE_CACHE"] + "/probes/avx2"))))
        return x
    return model, np.ones((2, 2))
"""

TUNED = {"execution": "compile", "behaviour": "right"}


@pytest.fixture
def system_temporary(tmp_path, monkeypatch) -> Path:
    """What stands for the system's temporary folder."""
    folder = tmp_path / "system"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def seen(tmp_path, model_file) -> Path:
    """Where the model says what its temporary folder was."""
    path = tmp_path / "seen.txt"
    model_file.write_text(SEES.format(seen=str(path)))
    return path


@pytest.fixture
def run(tmp_path, make_request):
    """Trials of the fake framework after the untuned model's, in one runner."""

    def run(*requests, fresh=False, folder=None, variables=None):
        variables = variables or {}
        with LocalBench(variables, preload=True, log=tmp_path / "log") as runner:
            runner.run(TrialFolder(tmp_path / "untuned"), make_request(variables=variables))
            return [runner.run(TrialFolder(folder or tmp_path / "t"), each, fresh=fresh) for each in requests]

    return run


@pytest.fixture
def maker(tmp_path, monkeypatch):
    """Give the fake framework a program that makes a toolchain; returns how often it ran."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    count = tmp_path / "count.txt"

    def use(then: str = "", header: bytes = b"gpch+014 and the rest"):
        (tmp_path / "maker.py").write_text(MAKER.format(count=str(count), then=then, header=header))
        entry = dataclasses.replace(ENTRY, toolchain=str(tmp_path / "maker"))
        monkeypatch.setitem(BACKENDS, "fake", entry)
        return lambda: len(count.read_text().split()) if count.exists() else 0

    return use


def _is_stopped(program: str) -> bool:
    """There is such a process, and it stands still once its pause is over the pipe."""
    time.sleep(0.3)
    found = [each for each in own_children() if any(program in part for part in each.cmdline())]
    return bool(found) and all(each.status() == psutil.STATUS_STOPPED for each in found)


class TestTemporaryFiles:
    """A trial's temporary files are its own, and go with it."""

    @pytest.mark.fast_cases("crash-forked", "hang-forked")
    @pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
    @pytest.mark.parametrize("behaviour", ["right", "crash", "hang"])
    def test_nothing_is_left_however_a_trial_ends(
        self, system_temporary, tmp_path, run, make_request, seen, behaviour, fresh
    ):
        """The model's own temporary files too, in a trial that ends well, crashes or is killed."""
        request = make_request({"execution": "compile", "behaviour": behaviour}, limits=Limits(compile=1))
        run(request, fresh=fresh)
        used = Path(seen.read_text())
        assert used != system_temporary
        assert not used.exists()
        assert not list(system_temporary.iterdir())
        assert not list(tmp_path.rglob("tmp"))

    def test_its_path_is_short_enough_for_a_socket(self, system_temporary, tmp_path, run, make_request, seen):
        """A deep study's trials have theirs in the system's folder; it is removed all the same."""
        deep = tmp_path / ("d" * 100)
        run(make_request(TUNED), folder=deep)
        assert Path(seen.read_text()).parent == system_temporary
        assert not list(system_temporary.iterdir())
        assert TrialFolder(Path("/s/trials/0001")).temporary == Path("/s/trials/0001/tmp")

    def test_the_user_may_say_where(self, tmp_path, run, make_request, seen):
        """`--env TMPDIR=...` stands: a model may keep files of its own there from trial to trial."""
        mine = tmp_path / "mine"
        mine.mkdir()
        variables = {"TMPDIR": str(mine)}
        run(make_request(TUNED, variables=variables), variables=variables)
        assert Path(seen.read_text()) == mine
        assert len(list(mine.iterdir())) == 2, "one of the untuned model, one of the trial"

    def test_nothing_is_left_by_a_killed_parent(self, system_temporary, tmp_path, make_request, seen):
        """`kill -9` in the middle of a compile: the supervisor removes the folder, since nobody else can."""
        folder = tmp_path / ("d" * 100)
        folder.mkdir()
        (folder / "request.json").write_text(make_request({"behaviour": "hang"}).model_dump_json(by_alias=True))
        parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], cwd=REPOSITORY, stdout=subprocess.PIPE)
        assert parent.stdout.readline() == b"compile\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert Path(seen.read_text()).exists()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
        assert not list(system_temporary.iterdir())


class TestToolchain:
    """What every compile needs is made once, outside of any limit, whole, and handed to each trial."""

    def test_it_is_made_once_and_handed_to_each_trial(self, run, maker, make_request, seen):
        """Trials of later runs find the same one: their figures do not depend on which came first."""
        num_made = maker()
        for _ in range(2):
            outcomes = run(make_request(TUNED), make_request(TUNED))
            assert all(isinstance(each, Measurement) for each in outcomes)
            assert seen.with_name("seen.txt.call").read_text() == "(True, True)"
        assert num_made() == 1

    def test_a_processor_of_the_same_name_with_other_instructions_has_its_own(
        self, run, maker, make_request, monkeypatch
    ):
        """A home folder may be shared: a header of the other machine would be refused by the compiler, each time."""
        num_made = maker()
        for flags in ("avx2", "avx2 avx512f"):
            monkeypatch.setattr("autotune.environment.cpu_flags_sha256", lambda flags=flags: flags)
            run(make_request(TUNED))
        assert num_made() == 2

    def test_no_limit_of_a_trial_holds_for_it(self, run, maker, make_request):
        """However long it takes, no config is blamed."""
        num_made = maker(then="time.sleep(1.5)")
        (outcome,) = run(make_request(TUNED, limits=Limits(total=1.2)))
        assert isinstance(outcome, Measurement)
        assert num_made() == 1

    def test_it_is_made_beside_the_untuned_model(self, maker, make_request, seen, tmp_path, monkeypatch):
        """Which is timed while it stands still. The first config that compiles does not wait for the rest; one beside
        it does."""
        num_made = maker(then="time.sleep(2.0)")
        request = make_request()
        with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
            runner.prepare(request.workload)
            runner.prepare(request.workload)
            waits = []
            begun = _Process._begin
            monkeypatch.setattr(_Process, "_begin", lambda self: waits.append(_is_stopped("maker.py")) or begun(self))
            assert isinstance(runner.run(TrialFolder(tmp_path / "untuned"), request), Measurement)
            first = runner.start(TrialFolder(tmp_path / "first"), make_request(TUNED), "gated")
            assert list((tmp_path / "xdg").rglob("*.making")), "it is not waited for"
            request = make_request(TUNED, cache=str(tmp_path / "other"))
            assert isinstance(runner.run(TrialFolder(tmp_path / "t"), request), Measurement)
            called = seen.with_name("seen.txt.call").read_text()
            assert isinstance(first.finish(), Measurement)
        assert waits[0], "it is gated, and the maker stands still when it is timed"
        assert num_made() == 1
        assert called == "(True, True)"

    def test_one_that_is_not_needed_any_more_leaves_nothing(self, maker, make_request, tmp_path):
        """The run ends while it is made."""
        maker(then="time.sleep(600)")
        with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
            runner.prepare(make_request().workload)
            assert list((tmp_path / "xdg").rglob("*.making"))
        assert not list((tmp_path / "xdg").rglob("*.making"))

    def test_environments_with_one_framework_share_it(self, run, maker, make_request, monkeypatch):
        """What its headers and Python's are, is what decides: an environment may lie over another."""
        num_made = maker()
        run(make_request(TUNED))
        monkeypatch.setattr("sys.prefix", "/another")
        run(make_request(TUNED))
        assert num_made() == 1
        monkeypatch.setattr("sysconfig.get_path", lambda name: f"/another/{name}")
        run(make_request(TUNED))
        assert num_made() == 2

    def test_the_untuned_model_needs_none(self, run, maker, make_request):
        """A run that compiles nothing does not wait for a compiler."""
        num_made = maker()
        run(make_request({"execution": "eager"}))
        assert num_made() == 0

    def test_without_one_trials_run_all_the_same(self, run, maker, make_request, tmp_path):
        """A machine without a C++ compiler, say: the compiler of each trial then makes, or says, what it must."""
        num_made = maker(then="sys.exit(1)")
        (outcome, _) = run(make_request(TUNED), make_request(TUNED))
        assert isinstance(outcome, Measurement)
        assert num_made() == 1, "not tried again before each trial"
        assert not list((tmp_path / "xdg").rglob("*.making"))

    @pytest.mark.parametrize("damage", [b"gpcWrite", None], ids=["half written", "gone"])
    def test_a_damaged_one_is_made_anew(self, run, maker, make_request, tmp_path, damage):
        """A compiler takes no half-written header, says nothing, and is six times as slow."""
        num_made = maker()
        run(make_request(TUNED))
        (header,) = (tmp_path / "xdg").rglob("*.gch")
        if damage is None:
            (header.parents[2] / "cache" / "probes" / "avx2").unlink()
            (header.parents[2] / "cache" / "probes").rmdir()
            (header.parents[2] / "cache").rmdir()
        else:
            header.write_bytes(damage)
        run(make_request(TUNED))
        assert num_made() == 2
        assert is_complete(header.parents[2])

    def test_one_that_cannot_be_had_is_no_failure(self, run, maker, make_request, seen, tmp_path):
        """A torn header is none, and a home may be read-only. A config that hangs is blamed all the same."""
        maker(header=b"gpcWrite")
        (outcome,) = run(make_request(TUNED))
        assert isinstance(outcome, Measurement)
        assert seen.with_name("seen.txt.call").read_text() == "(False, False)"
        shutil.rmtree(tmp_path / "xdg", ignore_errors=True)
        (tmp_path / "xdg").write_text("a file where the folder would be")
        outcome, hung = run(make_request(TUNED), make_request({"behaviour": "hang"}, limits=Limits(compile=1)))
        assert isinstance(outcome, Measurement)
        assert hung.reason is Reason.TIMEOUT

    def test_a_trial_keeps_what_is_removed_meanwhile(self, tmp_path):
        """More environments than are kept may tune side by side, and a compiler looks for its header once."""
        header = tmp_path / "made" / "temporary" / "headers" / "a.h"
        for folder in (tmp_path / "made" / "cache", tmp_path / "temporary", header.parent):
            folder.mkdir(parents=True)
        header.write_text("#include <a>")
        install_toolchain(tmp_path / "made", tmp_path / "cache", tmp_path / "temporary")
        shutil.rmtree(tmp_path / "made")
        assert (tmp_path / "temporary" / "headers" / "a.h").read_text() == "#include <a>"

    def test_a_trial_repeated_by_hand_does_without_one_that_is_gone(self, tmp_path):
        """A request names a folder; it may have been removed, or be another machine's."""
        (tmp_path / "temporary").mkdir()
        install_toolchain(tmp_path / "gone", tmp_path / "cache", tmp_path / "temporary")
        assert not (tmp_path / "cache").exists()
