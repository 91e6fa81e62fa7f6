"""A tuned model that no call comes through."""

from __future__ import annotations

import os

import pytest

from autotune.job import stats


@pytest.fixture(autouse=True)
def _nothing_applied():
    stats._uncalled.clear()
    yield
    stats._uncalled.clear()


def told(caplog):
    stats._tell_of_uncalled()
    return [each for each in caplog.messages if "no call came" in each]


def test_is_told_of_when_the_process_ends(caplog):
    """Once for each file, by its name."""
    for path in ("one.yaml", "other.yaml", "one.yaml"):
        stats.expect_calls(path)
    assert [each.split()[1] for each in told(caplog)] == ["one.yaml:", "other.yaml:"]


def test_a_call_is_enough(caplog):
    """Of any model that was given the file's config."""
    stats.expect_calls("one.yaml")
    stats.expect_calls("one.yaml")()
    assert not told(caplog)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX systems")
def test_children_may_have_called(caplog):
    """A server that applies before it forks its workers calls nothing itself."""
    stats.expect_calls("one.yaml")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert not told(caplog)
