"""A folder that came with a clone holds symbolic links: nothing behind one is read, overwritten, removed or run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune import own_folders
from autotune.bench.local import LocalBench
from autotune.errors import StoreError
from autotune.measure.measurement import Failure, Measurement
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest
from autotune.study.study import Study
from autotune.trial.request import TrialRequest
from autotune.tuning.cache_store import CacheStore
from autotune.tuning.rerun import rerun_trial
from autotune.tuning.session import trial_request
from tests.asking import ask
from tests.conftest import QUICK_BUDGET, Cli, run_here

ABOVE = ["studies", "studies/s"]
FILES = [
    "manifest.json", "study.db", "study.db-wal", "study.db-shm", "study.db-journal", "lock", "reference.npz",
    "reference.partial", "supervisor.log", "shared_study.json", "Net_0123abcd.py", "Net_0123abcd.pt",
    ".manifest.json.01234567.partial", "caches/0001.whole", "trials/0001/request.json", "trials/0001/outcome.json",
    "trials/0001/stdout.txt", "trials/0001/stderr.txt", "trials/0001/profile.json", "trials/0001/trace.json",
    "trials/0001/stage", "trials/0001/first_crash/stderr.txt", "confirmed/0001/inductor/kernel.so",
    "confirm/block-01/untuned/request.json", "artifact/cold/request.json",
]  # fmt: skip
FOLDERS = [
    "caches", "caches/0000", "caches/0001", "caches/kernels", "confirmed", "confirmed/0001", "trials", "trials/0001",
    "trials/0001/scratch", "trials/0001/cache", "trials/0001/tmp", "trials/0001/caches", "trials/0001/first_crash",
    "again", "again/0001", "confirm", "confirm/cache", "confirm/block-01", "noise_floor", "tail", "artifact",
    "artifact/kept",
]  # fmt: skip
PARTS = [*FILES, *FOLDERS]
SECRET = "months of work"
READING = {
    "show": ("show", "s"),
    "explain": ("explain", "s"),
    "report": ("report", "s", "-o", "page.html"),
    "export": ("export", "s", "-o", "best.yaml"),
    "export with its cache": ("export", "s", "-o", "best.yaml", "--with-cache"),
    "compare": ("compare", "s", "0", "1"),
    "resume": ("resume", "s"),
    "run": ("run", "s", "1"),
}


@pytest.fixture
def clone(make_study: Callable[..., Study], measurement: Measurement, tmp_path: Path) -> Path:
    """A folder with a study that has trials, beside a folder that is somebody's."""
    study = make_study()
    for _ in range(2):
        study.tell(ask(study), measurement)
    study.close()
    (tmp_path / "outside" / "0001").mkdir(parents=True)
    for name in ("thesis.txt", "0001/request.json", "0001/thesis.txt"):
        (tmp_path / "outside" / name).write_text(SECRET)
    return tmp_path


@contextmanager
def linked(clone: Path, part: str, target: str) -> Iterator[None]:
    """The part is a link, and what it was is put back in the end."""
    path, aside = clone / part, clone / "aside"
    path.parent.mkdir(parents=True, exist_ok=True)
    was_there = os.path.lexists(path)
    if was_there:
        path.rename(aside)
    path.symlink_to(os.path.relpath(clone / target, path.parent))
    try:
        yield
    finally:
        assert path.is_symlink()
        path.unlink()
        if was_there:
            aside.rename(path)


def outside(clone: Path) -> dict[str, object]:
    """What is in the folder that is somebody else's."""
    found = sorted((clone / "outside").rglob("*"))
    return {str(path): (path.is_dir() or path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def links(parts: list[str]) -> Iterator[tuple[str, str]]:
    """Each part with what it leads to: its own kind, the other one, and nothing."""
    for number, part in enumerate(parts):
        own = "outside/thesis.txt" if part in FILES else "outside"
        yield part, own
        yield part, ("outside/nothing", "outside/0001", "outside/thesis.txt")[number % 3]


def refused(clone: Path, part: str, *arguments: str) -> None:
    """One sentence that names the link, and nothing else happens."""
    before = outside(clone)
    result = run_here(clone, *arguments)
    assert result.returncode == 2, (part, result)
    assert f"{part} is a symbolic link" in result.stderr, (part, result)
    assert "Traceback" not in result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert outside(clone) == before, part


SOME = ["manifest.json", "study.db-wal", "lock", "caches/0000", "trials/0001/outcome.json", "confirmed/0001"]


@pytest.mark.fast_cases("some")
@pytest.mark.parametrize("parts", [SOME, PARTS], ids=["some", "all"])
@pytest.mark.parametrize("reading", READING)
def test_each_command_refuses_a_link_at_each_part(clone: Path, reading: str, parts: list[str]) -> None:
    """Whatever the link leads to: a file, a folder, nothing."""
    for part, target in links([f"studies/s/{part}" for part in parts]):
        with linked(clone, part, target):
            refused(clone, part, *READING[reading])
    shutil.move(clone / "studies" / "s", clone / "outside" / "s")
    (clone / "studies" / "s").symlink_to("../outside/s")
    refused(clone, "studies/s", *READING[reading])


@pytest.mark.parametrize("command", [*READING.values(), ("studies",), ("studies", "rm", "s", "--yes")])
def test_no_command_looks_behind_linked_studies(clone: Path, command: tuple[str, ...]) -> None:
    """The folder of all studies may be a link as well, since `git` keeps those; one that is named from the root is the
    user's own choice."""
    (clone / "studies").rename(clone / "outside" / "studies")
    (clone / "studies").symlink_to("outside/studies")
    refused(clone, "studies", *command)
    assert run_here(clone, "show", "s", "--studies-dir", str(clone / "studies")).returncode != 2


@pytest.mark.parametrize("has_manifest", [True, False])
def test_tune_refuses_a_link_at_each_part(
    clone: Path, make_manifest: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch, has_manifest: bool
) -> None:
    """Of a study that is there, and of one that is to be made in the folder."""
    monkeypatch.chdir(clone)
    if not has_manifest:
        shutil.rmtree("studies/s")
    for part, target in links([*ABOVE, *(f"studies/s/{part}" for part in PARTS)]):
        with linked(clone, part, target):
            before = outside(clone)
            with pytest.raises(StoreError, match=f"{part} is a symbolic link"):
                FolderStudies(Path("studies")).open_or_create(make_manifest())
            assert outside(clone) == before


def test_a_run_refuses_a_link_too(clone: Path, tune_fake: Cli) -> None:
    """Before a process is started, for the study that it makes and for those that it learns from."""
    (clone / "studies" / "s").rename(clone / "studies" / "other")
    part = "studies/s/caches/0001"
    with linked(clone, part, "outside"):
        result = tune_fake("--trials", "2")
        assert (result.returncode, f"{part} is a symbolic link" in result.stderr) == (2, True), result.stderr
        assert not (clone / "studies" / "s" / "trials").exists()
    part = "studies/other/trials/0001"
    with linked(clone, part, "outside"):
        result = tune_fake("--trials", "2", "--prior", "other")
        assert (result.returncode, f"{part} is a symbolic link" in result.stderr) == (2, True), result.stderr


@pytest.mark.fast_cases(*SOME)
@pytest.mark.parametrize("part", PARTS)
def test_a_removal_leaves_links_and_what_they_lead_to(clone: Path, part: str) -> None:
    """`studies rm` says what stays; the list shows such a study as broken, and pruning passes it over."""
    name = f"studies/s/{part}"
    path = clone / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(clone / "outside", path.parent))
    before = outside(clone)
    if part != "manifest.json":
        assert f"{name} is a symbolic link" in run_here(clone, "studies", "--json").stdout
    result = run_here(clone, "studies", "rm", "s", "--yes")
    if part == "lock":
        assert f"{name} is a symbolic link" in result.stderr
    else:
        stays = f"; not removed: {part.partition('/')[0]}" if path.is_symlink() else ""
        assert result.stdout == f"removed s{stays}\n", result.stderr
    assert outside(clone) == before
    assert path.is_symlink() or "0001/" in part  # In a tree of a compiler's or of a crash it is removed itself.


@pytest.mark.parametrize("part", ["studies", "studies/s"])
def test_nothing_is_removed_behind_a_linked_folder(clone: Path, part: str) -> None:
    """Neither a study nor all of them."""
    (clone / part).rename(clone / "outside" / "moved")
    (clone / part).symlink_to(os.path.relpath(clone / "outside" / "moved", (clone / part).parent))
    before = [path.name for path in (clone / "outside").rglob("*")]
    result = run_here(clone, "studies", "rm", "s", "--yes")
    assert (result.returncode, f"{part} is a symbolic link" in result.stderr) == (2, True)
    assert [path.name for path in (clone / "outside").rglob("*")] == before


@pytest.mark.parametrize("name", ["lock", "study.db"])
def test_a_file_with_a_second_name_is_not_written(clone: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hard link, as an archive may hold it: the lock would be emptied, and the database changed, under both names."""
    monkeypatch.chdir(clone)
    path, other = Path("studies/s", name), Path("outside", name)
    path.touch()
    os.link(path, other)
    before = other.read_bytes()
    study = FolderStudies(Path("studies")).open("s")
    with pytest.raises(StoreError, match=f"{name} has a second name elsewhere"), study.writing():
        pass
    assert other.read_bytes() == before


def test_a_recorded_request_decides_nothing(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is run again is asked for by the study: a request in its folder may name others, to empty and to
    load code from."""
    asked: list[TrialRequest] = []
    monkeypatch.chdir(clone)
    monkeypatch.setattr(LocalBench, "run", lambda _, folder, request, **__: asked.append(request) or Failure(**FAILED))
    study = FolderStudies(Path("studies")).open("s")
    folder = study.trial_folder(1)
    (victim := clone / "outside").mkdir(exist_ok=True)
    request = trial_request(study, 1, study.record(1).config, folder, QUICK_BUDGET)
    evil = request.with_kernels(victim, 1).keeping_cache_in(victim).with_toolchain(victim).cached_in(victim, cold=True)
    folder.write_request(evil)
    rerun_trial(study, 1)
    assert str(victim) not in asked[0].model_dump_json()


FAILED: dict[str, Any] = {"reason": "setup", "stage": "start", "error": "not run"}


def test_kernels_lie_in_a_folder_of_this_run(tmp_path: Path) -> None:
    """Its name cannot be foreseen and nobody else may write there; one that is found is removed."""
    (tmp_path / "caches" / "kernels").mkdir(parents=True)
    (tmp_path / "caches" / "kernels" / "known.so").write_text("somebody's")
    names = set()
    for _ in range(2):
        shelf = CacheStore(tmp_path / "caches")
        with shelf.open():
            assert shelf.kernels is not None
            assert shelf.kernels.stat().st_mode & 0o777 == 0o700
            assert [path.name for path in (tmp_path / "caches").iterdir()] == [shelf.kernels.name]
            names.add(shelf.kernels.name)
        assert shelf.kernels is None
    assert len(names) == 2
    assert not (tmp_path / "caches").exists()


class TestOwnFolders:
    """Nothing is made, removed, moved, linked or copied by way of a link."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """A folder with a link to another one, in which there are a file and a folder."""
        (tmp_path / "outside" / "inner").mkdir(parents=True)
        (tmp_path / "outside" / "inner" / "thesis.txt").write_text(SECRET)
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "link").symlink_to(tmp_path / "outside")
        (tmp_path / "home" / "own").write_text("own")
        return tmp_path / "home"

    @pytest.mark.parametrize(
        "does",
        [
            lambda home: own_folders.make(home / "link" / "new"),
            lambda home: own_folders.make(home / "link"),
            lambda home: own_folders.make_new(home / "link", "new"),
            lambda home: own_folders.make_empty(home / "link" / "inner"),
            lambda home: own_folders.make_empty(home / "link"),
            lambda home: own_folders.remove(home / "link" / "inner"),
            lambda home: own_folders.remove(home / "link" / "inner" / "thesis.txt"),
            lambda home: own_folders.names_in(home / "link"),
            lambda home: own_folders.move(home / "own", home / "link" / "own"),
            lambda home: own_folders.move(home / "link" / "inner", home / "inner"),
            lambda home: own_folders.link(home / "own", home / "link" / "own"),
            lambda home: own_folders.link(home / "link" / "inner" / "thesis.txt", home / "thesis.txt"),
            lambda home: own_folders.copy(home / "link" / "inner", home / "copied"),
            lambda home: own_folders.copy(home / "link", home / "copied"),
        ],
    )
    def test_a_link_on_the_way_is_named(self, home: Path, does: Callable[[Path], object]) -> None:
        """And nothing has happened, here or there."""
        before = sorted(home.parent.rglob("*"))
        with pytest.raises(StoreError, match="home/link is a symbolic link"):
            does(home)
        assert sorted(home.parent.rglob("*")) == before

    def test_a_link_at_the_end_stays(self, home: Path) -> None:
        """Whoever put it there keeps it; a copy is made without it."""
        own_folders.remove(home / "link")
        assert (home / "link").is_symlink()
        own_folders.copy(home, home.parent / "copied")
        assert [path.name for path in (home.parent / "copied").iterdir()] == ["own"]

    def test_what_is_in_the_way_is_emptied(self, home: Path) -> None:
        """A folder with what is in it, where none of it is a link that leads elsewhere."""
        (home / "full" / "inner").mkdir(parents=True)
        (home / "full" / "link").symlink_to(home.parent / "outside")
        own_folders.make_empty(home / "full")
        assert list((home / "full").iterdir()) == []
        assert (home.parent / "outside" / "inner" / "thesis.txt").exists()
