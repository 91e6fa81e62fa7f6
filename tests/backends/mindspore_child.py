"""Files of tests that are programs, too: what MindSpore's settings are for a process is tried in one of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PYNATIVE = {"execution": "pynative"}
GRAPH = {"execution": "graph", "jit_level": "O0", "enable_graph_kernel": False}
AST = {"execution": "jit", "capture": "ast", "jit_level": "O0", "enable_graph_kernel": False, "fullgraph": False}
WHOLE = AST | {"fullgraph": True}
FUSION = {"enable_graph_kernel": True, "graph_kernel_opt_level": 2}


def printed_by(program: str, folder: Path, *arguments: str, timeout_s: float = 60) -> Any:
    """The line of JSON that the program ends with, run with the folder as its own and for its caches."""
    from autotune.backends.mindspore.backend import MindSporeBackend

    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        **MindSporeBackend().cache_variables(str(folder)),
    }
    # The fusion compiler's own processes outlive a killed parent: they end with its session.
    with subprocess.Popen(
        [sys.executable, program, *arguments], cwd=folder, env=environment, stdout=-1, stderr=-1, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])
