"""Folders in the system's folder for temporary files: they do not outlive a maker that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.api.scratch import scratch
from autotune.bench.local import LocalBench
from autotune.own_folders import TemporaryFolder
from autotune.trial.folder import REQUEST_FILE, TrialFolder
from autotune.trial.processes import package_path

MAKER = """
import sys, time
from autotune.own_folders import TemporaryFolder
made = TemporaryFolder("test")
(made.path / "deep").mkdir()
(made.path / "deep" / "file").write_text("something")
print(made.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def _make_another() -> None:
    TemporaryFolder("other").remove()


@pytest.mark.parametrize("end", [_make_another, LocalBench({}, log=None).close])
def test_what_a_killed_maker_left_is_removed_by_the_next(home, end):
    """And at the end of a run, which kills what it has started. The folder of one that lives stays, with all that is in
    it."""
    variables = {**os.environ, "TMPDIR": str(home), "PYTHONPATH": package_path()}
    with subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, env=variables) as maker:
        left = Path(maker.stdout.readline().strip())
        TemporaryFolder("test").remove()
        assert (left / "deep" / "file").exists()
        maker.send_signal(signal.SIGKILL)
    assert left.exists()
    end()
    assert not list(home.iterdir())


def test_what_is_kept_or_no_folder_of_ours_stays(home, tmp_path_factory):
    """Evidence; a link under such a name, and what is behind it; a lock that is a link or a pipe; one without any."""
    kept = TemporaryFolder("test")
    kept.keep()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "lock").touch()
    (home / "autotune-link").symlink_to(elsewhere)
    for name in ("autotune-linked-lock", "autotune-pipe", "autotune-no-lock", "mine"):
        (home / name).mkdir()
    (home / "autotune-linked-lock" / "lock").symlink_to(elsewhere / "lock")
    os.mkfifo(home / "autotune-pipe" / "lock")
    (home / "mine" / "lock").touch()
    (home / "autotune-file").touch()
    before = sorted(home.iterdir())
    TemporaryFolder("test").remove()
    assert sorted(home.iterdir()) == before
    assert (elsewhere / "lock").exists()


def test_a_folder_that_holds_a_link_is_removed_without_what_is_behind_it(home, tmp_path_factory):
    """As everywhere."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    abandoned = TemporaryFolder("test")
    (abandoned.path / "link").symlink_to(elsewhere)
    os.close(abandoned._lock)
    TemporaryFolder("test").remove()
    assert not abandoned.path.exists()
    assert (elsewhere / "file").exists()


def test_what_instances_leave_is_no_evidence(home, measurement):
    """A trial of several processes has one outcome, and where that is right nothing is kept."""
    with scratch() as folder:
        trial = TrialFolder(folder / "first")
        for each in (trial.path, trial.path / "instance-1"):
            each.mkdir()
            (each / REQUEST_FILE).touch()
        trial.write_outcome(measurement)
    assert list(home.iterdir()) == []
