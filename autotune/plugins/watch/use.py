"""`autotune.watch`: calls of a `with` block in a notebook or script, as `watch` sees those of a job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath

from autotune.errors import InputError
from autotune.plugins.watch import injected
from autotune.plugins.watch.document import made
from autotune.plugins.watch.recorder import Wanted

_LOG = logging.getLogger("autotune")


@contextmanager
def watch(folder: str | PathLike[str], *, calls: int | None = None, most_gib: int = 4) -> Iterator[bool]:
    """Watch the calls of models in a `with` block, and write them into a folder for `tune FOLDER`.

    The calls are made as ever. `calls`: so many of a model are watched; None: all. `most_gib`: GiB of disk that the
    folder may take. Processes that are forked in the block are watched, too. In a job that was started to be watched or
    tuned the block gives False, and costs one warning. Raises InputError for a block within another one and a
    folder that cannot be written, and StoreError for one that is a link.
    """
    place = made(fspath(folder))
    stop = injected.watch(vars(Wanted(str(place), None, calls, most_gib << 30)))
    if stop is None:
        if not injected.is_from_outside():
            raise InputError("calls are watched already", tip="leave the other block first")
        _LOG.warning("autotune: %s is not written: the whole job was started to be watched or tuned", place)
    try:
        yield stop is not None
    finally:
        if stop is not None:
            stop()
