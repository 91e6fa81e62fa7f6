"""What evidence scripts share: cases are run once each, records are kept, and a section replaces its own text alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks import evidence
from benchmarks.evidence import Benchmark


@dataclass(frozen=True)
class Square:
    """A record."""

    number: int
    square: int


@dataclass(frozen=True)
class Case:
    """A number to be squared."""

    number: int

    @property
    def name(self) -> str:
        return f"case {self.number}"


class Squares:
    """A benchmark that counts what it ran, and fails at one number for as long as `broken` says."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.broken: int | None = None
        self.holds: Callable[[Square], bool] | None = None

    def run(self, case: Case) -> Square:
        if case.number == self.broken:
            raise RuntimeError("broken")
        self.ran.append(case.number)
        return Square(case.number, case.number**2)

    @property
    def benchmark(self) -> Benchmark[Case, Square]:
        return Benchmark(
            "squares",
            "Squares",
            "How large are squares?",
            Square,
            lambda given: [Case(1)] if given.quick else [Case(1), Case(2), Case(3)],
            self.run,
            lambda records: [evidence.Goal("all are small", "largest", met=records[-1].square < 10)],
            lambda records: (
                "About.\n\n" + evidence.table(["n", "n^2"], [[str(r.number), str(r.square)] for r in records])
            ),
            holds=self.holds,
        )


@pytest.fixture
def squares() -> Squares:
    return Squares()


@pytest.fixture
def command(tmp_path, monkeypatch, squares):
    """Runs the benchmark with flags, its files in a folder of the test; gives the text of the docs, if any."""
    docs = tmp_path / "benchmarks.md"
    monkeypatch.setattr(evidence, "DOCS", docs)
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)

    def run(*flags: str) -> str:
        squares.benchmark.main(flags)
        return docs.read_text() if docs.exists() else ""

    return run


@pytest.fixture(autouse=True)
def _quick_conditions(monkeypatch):
    """The machine is described once: git takes a while."""
    conditions = evidence.Conditions.now()
    monkeypatch.setattr(evidence.Conditions, "now", classmethod(lambda cls: conditions))


# Running


def test_a_section_says_goals_conditions_and_numbers(tmp_path, command):
    """What a reader needs to believe a figure stands in the section, and the records beside it as JSON."""
    (tmp_path / "benchmarks.md").write_text("# Head\n")
    text = command()
    assert text.startswith("# Head\n")
    assert "About.\n\n* **Met**: all are small. Found: largest.\n\n| n | n^2 |" in text
    assert f"commit {evidence.Conditions.now().commit}: `python" in text
    kept = json.loads((tmp_path / "squares.json").read_text())
    assert kept["records"]["case 3"] == {"number": 3, "square": 9}
    assert kept["goals"][0]["met"] is True
    assert kept["conditions"]["packages"]["numpy"] == np.__version__


def test_a_long_run_goes_on_where_it_broke_off(tmp_path, command, squares):
    """Records that hold are not taken again unless that is asked for, others are, and a smoke run is of its own."""
    squares.holds, squares.broken = lambda record: record.number != 2, 3
    with pytest.raises(RuntimeError, match="broken"):
        command()
    assert [*json.loads((tmp_path / "squares.json").read_text())["records"]] == ["case 1", "case 2"]
    squares.broken = None
    assert "| 3 | 9 |" in command()
    assert squares.ran == [1, 2, 2, 3]
    command("--quick")
    assert squares.ran[4:] == [1]
    command("--again")
    assert squares.ran[5:] == [1, 2, 3]


def test_a_smoke_run_writes_nothing(tmp_path, command, squares, capsys):
    """Its figures are shown, and are no evidence."""
    assert command("--quick") == ""
    assert os.listdir(tmp_path) == []
    assert squares.ran == [1]
    assert "| 1 | 1 |" in capsys.readouterr().out


def test_an_interrupted_write_leaves_the_old_section(tmp_path, command, monkeypatch):
    """Files are replaced whole: a reader never meets half of one."""
    before = command()

    def fail_at_the_docs(partial, target):
        if target.name == "benchmarks.md":
            raise OSError("no space left")
        os.replace(partial, target)

    monkeypatch.setattr(Path, "replace", fail_at_the_docs)
    with pytest.raises(OSError, match="no space left"):
        command()
    assert (tmp_path / "benchmarks.md").read_text() == before
    assert sorted(os.listdir(tmp_path)) == ["benchmarks.md", "squares.json"]


# Sections


def test_a_section_replaces_its_own_and_nothing_else():
    """Text before, between and after sections stays as it is."""
    one, two = "<!-- one: begin -->\nold\n<!-- one: end -->\n", "<!-- two: begin -->\n2\n<!-- two: end -->\n"
    text = f"# Head\n\n{one}between\n{two}foot\n"
    assert evidence.with_section(text, "one", "new\n") == text.replace("old", "new")
    assert evidence.with_section(text, "two", "new\n") == text.replace("\n2\n", "\nnew\n")


def test_a_missing_section_is_added_at_the_end():
    """Also to a file that is empty."""
    framed = "<!-- one: begin -->\nnew\n<!-- one: end -->\n"
    assert evidence.with_section("# Head\n", "one", "new\n") == f"# Head\n\n{framed}"
    assert evidence.with_section("", "one", "new\n") == framed


@pytest.mark.parametrize(
    "text",
    ["<!-- one: begin -->\n", "<!-- one: end -->\n", "<!-- one: end -->\n<!-- one: begin -->\n"],
    ids=["begin", "end", "swapped"],
)
def test_a_lone_marker_is_refused(text):
    """What stands between is not known, so nothing is overwritten."""
    with pytest.raises(ValueError, match="section 'one'"):
        evidence.with_section(text, "one", "new\n")
