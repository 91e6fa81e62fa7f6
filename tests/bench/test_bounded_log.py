"""What a process prints is kept up to a bound: the first of it, the last of it, and how much is between."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from autotune.bench.bounded_log import HEAD_BYTES, MAX_BYTES, TAIL_BYTES, BoundedLog
from autotune.errors import SetupError


def numbered(num_bytes: int) -> bytes:
    """Lines of 16 bytes, each with its number, so that a piece says where it is from."""
    return b"".join(b"%015d\n" % number for number in range(num_bytes // 16))


def logged(path: Path, content: bytes) -> bytes:
    """What the file holds at the end; it is never larger than it may be."""
    log = BoundedLog(path)
    for start in range(0, len(content), 40_000):
        os.write(log.end, content[start : start + 40_000])
        assert log.forward()
        assert path.stat().st_size <= MAX_BYTES
    os.close(log.end)
    log.close()
    return path.read_bytes()


@pytest.mark.parametrize("num_bytes", [0, 16, HEAD_BYTES, MAX_BYTES - 2**17])
def test_little_output_is_kept_as_it_is(tmp_path: Path, num_bytes: int) -> None:
    """Up to most of the bound, byte for byte."""
    content = numbered(num_bytes)
    assert logged(tmp_path / "stdout.txt", content) == content


@pytest.mark.parametrize("num_bytes", [MAX_BYTES, 2 * MAX_BYTES, 20 * MAX_BYTES])
def test_much_output_loses_its_middle(tmp_path: Path, num_bytes: int) -> None:
    """The head and the tail stand as they were printed, and the line between them counts what is not there."""
    content = numbered(num_bytes)
    kept = logged(tmp_path / "stdout.txt", content)
    found = re.search(rb"\n\[autotune: ([0-9,]+) bytes of output are left out here\]\n", kept)
    assert found
    head, tail = kept[: found.start()], kept[found.end() :]
    assert head == content[:HEAD_BYTES]
    assert len(tail) >= TAIL_BYTES
    assert content.endswith(tail)
    assert int(found[1].replace(b",", b"")) == len(content) - len(head) - len(tail)


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    """What lies at the log's name is replaced, and not what it leads to."""
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "stdout.txt").symlink_to(tmp_path / "thesis.txt")
    assert logged(tmp_path / "stdout.txt", b"printed") == b"printed"
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    """One sentence with its name."""
    (tmp_path / "stdout.txt").mkdir()
    with pytest.raises(SetupError, match=r"cannot write .*stdout\.txt"):
        BoundedLog(tmp_path / "stdout.txt")
