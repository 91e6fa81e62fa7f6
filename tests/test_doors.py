"""Doors: what packages add by name, how it is found, and what is said of an entry that cannot be used."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata

import pytest

import autotune
from autotune import doors
from autotune.backends.engine import ENGINES
from autotune.bench.elsewhere import BENCHES, elsewhere
from autotune.cli.app import COMMANDS
from autotune.doors import Door
from autotune.errors import InputError
from autotune.study.storages import STORAGES
from tests.import_graph import REPOSITORY

NUMBERS = Door("tests.numbers", "number", int)


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Entry points that packages are said to have: name and value."""
    given: list[tuple[str, str]] = []
    found = metadata.entry_points

    def entry_points(group: str) -> list[metadata.EntryPoint] | metadata.EntryPoints:
        made = [metadata.EntryPoint(name, value, group) for name, value in given]
        return made if group == NUMBERS.group else found(group=group)

    monkeypatch.setattr(doors.metadata, "entry_points", entry_points)
    doors.forget()
    yield given
    doors.forget()


@pytest.fixture
def no_entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment in which no package declares anything."""
    monkeypatch.setattr(doors.metadata, "entry_points", lambda group: [])
    doors.forget()
    yield
    doors.forget()


def test_an_entry_is_found_by_its_name(points):
    """Others are not loaded for it."""
    points += [("three", "math:pi.__class__.__trunc__"), ("argv", "sys:maxsize"), ("broken", "no_such_module:X")]
    assert NUMBERS.names() == ("three", "argv", "broken")
    assert NUMBERS.find("argv") == 2**63 - 1
    assert NUMBERS.find("four") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("n", "no_such_module:X")], "the number 'n' of no_such_module:X cannot be loaded: .*no_such_module"),
        ([("n", "sys:no_such_name")], "the number 'n' of sys:no_such_name cannot be loaded: .*no_such_name"),
        ([("n", "math:pi")], "the number 'n' of math:pi: math:pi is no int"),
        ([("n", "sys:maxsize"), ("n", "sys:hexversion")], "the number 'n' is of two packages: sys:hexversion and sys"),
    ],
)
def test_an_entry_that_cannot_be_used(points, given, words):
    """One sentence, and only for who asks for it."""
    points += [*given, ("fine", "sys:maxsize")]
    with pytest.raises(InputError, match=words):
        NUMBERS.find("n")
    assert NUMBERS.names() == ("n", "fine")
    assert NUMBERS.find("fine") is not None


def test_a_checkout_that_was_not_installed(no_entries):
    """Its own entries are missing: the tip says what to do, and not which strange names there are."""
    with pytest.raises(InputError, match="'ray': unknown") as caught:
        elsewhere("ray")
    assert "make setup" in str(caught.value.tip)


def test_an_unknown_place_for_trials():
    """The tip names what is there."""
    with pytest.raises(InputError, match="'slurm://here': unknown") as caught:
        elsewhere("slurm://here")
    assert re.fullmatch("choose one of: .*ray.*", str(caught.value.tip))


@pytest.mark.parametrize(
    "door", [BENCHES, ENGINES, STORAGES, COMMANDS, Door("autotune.uses", "use", object)], ids=lambda door: door.noun
)
def test_what_this_package_declares_can_be_used(door):
    """Each entry of `pyproject.toml` is installed and is of the door's kind; its module imports no package that a user
    may not have. `make setup` installs an entry that is new."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"][door.group]
    assert declared
    assert all(door.find(name) is not None for name in declared)


STRANGE = """
def ENTRY(times: int = 1) -> int:
    print("strange " * times)
    return 3
"""


def test_a_package_adds_a_command_and_a_function(install_backend, cli):
    """`autotune NAME` and `autotune.NAME`; a name that nobody has is what it was."""
    install_backend("strange", "strange_commands", STRANGE, COMMANDS.group)
    done = cli("strange", "--times", "2")
    assert (done.stdout, done.returncode) == ("strange strange \n", 3)
    install_backend("strange_use", "strange_uses", STRANGE, "autotune.uses")
    assert autotune.strange_use() == 3
    with pytest.raises(AttributeError):
        _ = autotune.no_such_name
