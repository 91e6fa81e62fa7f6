"""What a process is started with: which knobs ask for it, what this machine has of it, and what a process lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import InvalidConfigError
from autotune.workload import process_start
from autotune.workload.process_start import (
    ProcessStart,
    available,
    core_sets,
    file_of,
    library_file,
)
from tests.conftest import REPOSITORY


def test_knobs_of_the_start_are_taken_from_the_others() -> None:
    """A variable, a library, the number of cores; null asks for nothing; every other knob stays."""
    knobs = {
        "execution": "compile",
        "threads": None,
        "env.OMP_DYNAMIC": False,
        "env.KMP_BLOCKTIME": None,
        "allocator": "jemalloc",
        "openmp": None,
        "cores": 2,
    }
    start = ProcessStart.taken_from(knobs)
    assert start == ProcessStart({"OMP_DYNAMIC": "false"}, {"allocator": "jemalloc"}, 2)
    assert knobs == {"execution": "compile", "threads": None}
    assert start.texts() == ["OMP_DYNAMIC=false", "jemalloc preloaded", "2 cores"]


def test_what_a_process_can_be_told_later_is_no_start() -> None:
    """`keep` is a setting of glibc's allocator in a running process."""
    knobs = {"allocator": "keep"}
    assert not ProcessStart.taken_from(knobs)
    assert knobs == {"allocator": "keep"}


def test_huge_pages_are_a_variable_of_glibc() -> None:
    """Its name and value stand here, and a knob cannot give them."""
    assert ProcessStart.taken_from({"allocator": "huge_pages"}).variables == {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
    }
    with pytest.raises(InvalidConfigError, match=r"env\.GLIBC_TUNABLES: no config may ask"):
        ProcessStart.taken_from({"env.GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})


@pytest.mark.parametrize("knob", [{"env.LD_PRELOAD": "./evil.so"}, {"env.OMP_PROC_BIND": "$(id)"}, {"env.PATH": "."}])
def test_a_config_asks_for_no_other_variable(knob: dict[str, str]) -> None:
    """Also one that never was in a search space: it may come from a file."""
    with pytest.raises(InvalidConfigError, match="knob env"):
        ProcessStart.taken_from({**knob})


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5])
def test_a_core_set_has_a_size(value: object) -> None:
    """A whole number from 1."""
    with pytest.raises(InvalidConfigError, match="knob cores"):
        ProcessStart.taken_from({"cores": value})  # type: ignore[dict-item]


def test_instances_say_cores_and_threads() -> None:
    """Each process has so many threads as cores, on a set of its own."""
    knobs = {"execution": "eager", "instances": "2x1"}
    start = ProcessStart.taken_from(knobs)
    assert start == ProcessStart({"OMP_NUM_THREADS": "1"}, {}, 1, 2)
    assert knobs == {"execution": "eager"}
    assert start.facts == {"OMP_NUM_THREADS": "1", "cores": 1, "instances": 2}
    assert not ProcessStart.taken_from({"instances": None})


def test_instances_lie_on_sets_of_their_own() -> None:
    """No two have a core in common; where there are too few, a sentence says so."""
    usable = sorted(os.sched_getaffinity(0))
    start = ProcessStart(cores=1, instances=len(usable))
    assert sorted(cpu for number in range(len(usable)) for cpu in start.core_set(number) or ()) == usable
    more = ProcessStart(cores=len(usable), instances=2)
    assert more.core_set(1) is None
    assert more.unavailable() == [f"2 sets of {len(usable)} cores cannot be had here, of {len(usable)}"]


@pytest.mark.parametrize("value", ["2", "1x2", "0x1", "2x0", "2x", "x2", "99999x1", "2x1; id", True, 2])
def test_a_number_of_instances_is_one_of_processes_and_cores(value: object) -> None:
    """Two processes at the least."""
    with pytest.raises(InvalidConfigError, match="knob instances"):
        ProcessStart.taken_from({"instances": value})  # type: ignore[dict-item]


class TestLibraries:
    """Looked for by name in the folders of this machine, and loaded before what is there."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "libiomp5.so").touch()
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:relative")
        return tmp_path

    def test_the_loaders_folders_come_first(self, folder: Path) -> None:
        """As in any program."""
        assert library_file("openmp", "iomp") == folder / "libiomp5.so"
        assert "iomp" in available()

    def test_it_comes_before_what_is_preloaded(self, folder: Path) -> None:
        """And is not asked for twice."""
        start, path = ProcessStart(libraries={"openmp": "iomp"}), str(folder / "libiomp5.so")
        assert start.environment({}) == {"LD_PRELOAD": path}
        assert start.environment({"LD_PRELOAD": "/a.so /b.so"}) == {"LD_PRELOAD": f"{path}:/a.so /b.so"}
        assert start.environment({"LD_PRELOAD": f"/a.so:{path}"}) == {}

    def test_a_path_that_the_loader_would_split_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It takes a list of paths, told apart by spaces and colons."""
        (tmp_path / "a b").mkdir()
        (tmp_path / "a b" / "libiomp5.so").touch()
        monkeypatch.setattr(process_start, "_folders", lambda: iter([tmp_path / "a b"]))
        assert library_file("openmp", "iomp") is None

    def test_one_that_is_not_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sentence names the files that were looked for."""
        monkeypatch.setattr(process_start, "_folders", lambda: iter([]))
        start = ProcessStart(libraries={"allocator": "tcmalloc"})
        assert "tcmalloc" not in available()
        assert start.environment({}) == {}
        (said,) = start.unavailable()
        assert said.startswith("tcmalloc is not installed here: none of libtcmalloc_minimal.so.4")


class TestThisProcess:
    """What it was started with, by what it really has."""

    def test_lacks_what_was_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each with what is here instead."""
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
        start = ProcessStart({"OMP_WAIT_POLICY": "passive"}, {"allocator": "tcmalloc"}, 10_000)
        assert start.lacking() == [
            "OMP_WAIT_POLICY=passive (here it is active)",
            f"tcmalloc preloaded (here {Path(file_of('malloc_usable_size') or '').name} is)",
            f"cores: 10000 (here {len(os.sched_getaffinity(0))})",
        ]
        monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
        assert not ProcessStart({"OMP_WAIT_POLICY": "passive"}, cores=len(os.sched_getaffinity(0))).lacking()

    def test_a_library_counts_that_serves_it(self, jemalloc: Path, tmp_path: Path) -> None:
        """Not one that is only named: the loader leaves out what it cannot load, and goes on."""
        code = (
            "import sys\n"
            f"sys.path.insert(0, {str(REPOSITORY)!r})\n"
            "from autotune.workload.process_start import ProcessStart\n"
            "print(len(ProcessStart(libraries={'allocator': 'jemalloc'}).lacking()))\n"
        )
        broken = tmp_path / jemalloc.name
        broken.write_text("no library")
        for preloaded, expected in (("", "1"), (str(broken), "1"), (str(jemalloc), "0")):
            child = subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "LD_PRELOAD": preloaded},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert child.stdout.strip() == expected


class TestCoreSets:
    """Disjoint sets of one size."""

    def test_are_as_many_as_are_asked_for(self) -> None:
        """Neighbours first; none where there are too few cores for all."""
        usable = frozenset({3, 1, 5, 7, 9})
        assert core_sets(2, usable) == [frozenset({1, 3})]
        assert core_sets(2, usable, 2) == [frozenset({1, 3}), frozenset({5, 7})]
        assert core_sets(2, usable, 3) == []
        assert core_sets(3, frozenset({0, 1})) == []

    @pytest.mark.parametrize(
        ("size", "num", "expected"),
        [
            (2, 1, [{0, 2}]),
            (2, 2, [{0, 2}, {1, 3}]),
            (1, 4, [{0}, {2}, {1}, {3}]),
            (2, 4, [{0, 4}, {2, 6}, {1, 5}, {3, 7}]),
            (4, 2, [{0, 2, 4, 6}, {1, 3, 5, 7}]),
        ],
    )
    def test_share_no_core_that_they_need_not_share(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, num: int, expected: list[set[int]]
    ) -> None:
        """The first thread of each core is taken before the second one, and what is taken stays together by cores and
        memory nodes, however they are numbered."""
        # Two nodes, whose processors are numbered in turns, of two cores with two threads each.
        for cpu in range(8):
            folder = tmp_path / f"cpu{cpu}"
            (folder / "topology").mkdir(parents=True)
            (folder / "topology" / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
            (folder / f"node{cpu % 2}").mkdir()
        monkeypatch.setattr(process_start, "_CPUS", tmp_path)
        assert core_sets(size, frozenset(range(8)), num) == [frozenset(each) for each in expected]

    def test_a_range_as_the_kernel_writes_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neighbours are a range there."""
        for cpu in range(4):
            (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
            (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(
                f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
            )
        monkeypatch.setattr(process_start, "_CPUS", tmp_path)
        assert core_sets(2, frozenset(range(4)))[0] == frozenset({0, 2})
