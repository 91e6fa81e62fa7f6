"""`BoundedLog`: what a process prints, in a file that keeps the first and the last of it and says how much is left out.

The process writes into a pipe, so that nothing it prints, however fast and long, fills the disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from autotune.errors import SetupError

HEAD_BYTES = TAIL_BYTES = 2**18
MAX_BYTES = 2**20
"""Size of the file. When there is more, the middle of it goes, down to head and tail."""
_CHUNK = 2**16
_MOST_AT_END = 2**6
"""Chunks that are read of a process that cannot be killed and goes on printing."""


class BoundedLog:
    """A new file at `path` and the pipe whose content comes into it. Raises SetupError."""

    def __init__(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)  # It may be a link.
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SetupError(f"cannot write {path}: {error.strerror}") from None
        self.pipe, self.end = os.pipe()
        """To be read here, and to be written by the process."""
        os.set_blocking(self.pipe, False)
        self._size = 0
        self._kept = HEAD_BYTES
        """Bytes at the file's beginning that stay: the head, and the line that says what is left out."""
        self._num_left_out = 0

    @property
    def descriptors(self) -> tuple[int, int]:
        """What a process that is forked from this one must close."""
        return self.pipe, self._file

    def forward(self) -> bool:
        """Write what has come, at most a chunk. False if nothing more can come."""
        content = os.read(self.pipe, _CHUNK)
        with suppress(OSError):  # A full disk costs a trial its log, not its result.
            self._size += os.pwrite(self._file, content, self._size)
            if self._size > MAX_BYTES - _CHUNK:
                self._leave_out_the_middle()
        return content != b""

    def close(self) -> None:
        """Write what is left in the pipe of a process that has ended."""
        with suppress(BlockingIOError):
            for _ in range(_MOST_AT_END):
                if not self.forward():
                    break
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _leave_out_the_middle(self) -> None:
        tail = os.pread(self._file, TAIL_BYTES, self._size - TAIL_BYTES)
        self._num_left_out += self._size - len(tail) - self._kept
        note = f"\n[autotune: {self._num_left_out:,} bytes of output are left out here]\n".encode()
        os.ftruncate(self._file, HEAD_BYTES)
        self._kept = HEAD_BYTES + os.pwrite(self._file, note, HEAD_BYTES)
        self._size = self._kept + os.pwrite(self._file, tail, self._kept)
