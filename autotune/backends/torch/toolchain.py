"""Makes inductor's toolchain for CPUs (see `toolchain`): the probes of instruction sets with their answers, and the
precompiled headers.

A program: `torch_toolchain.py FOLDER`. It lets inductor compile two functions, of which one has a C++ wrapper, since
each way has a header of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from autotune.backends.registry import MADE


def main(folder: Path) -> None:
    """Leave the toolchain in the folder."""
    made = folder / MADE
    temporary = made / "temporary"
    temporary.mkdir(parents=True)
    # Before the import, which looks at both; and without worker processes.
    os.environ.update(TMPDIR=str(temporary), TORCHINDUCTOR_COMPILE_THREADS="1")
    tempfile.tempdir = None
    import torch

    from autotune.backends.torch import isa_probes
    from autotune.backends.torch.backend import TorchBackend

    backend = TorchBackend()
    os.environ.update(backend.cache_variables(str(made / "cache")))
    isa_probes.ask(made)
    # This process knows what the probes said; what it compiles from now on is of no use to a trial.
    os.environ.update(backend.cache_variables(str(folder / "cache")))
    with torch.no_grad():
        for cpp_wrapper in (False, True):
            torch.compile(_function, options={"cpp_wrapper": cpp_wrapper})(torch.zeros(8, 8))
    _keep_headers(temporary)


def _function(x):  # type: ignore[no-untyped-def]
    return x.relu() + 1


def _keep_headers(temporary: Path) -> None:
    for path in list(temporary.rglob("*")):
        if path.is_file() and path.suffix not in (".h", ".gch"):
            path.unlink()
    for locks in list(temporary.rglob("locks")):
        shutil.rmtree(locks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
