"""A program of a test's in a Python of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import FAKE_BACKEND

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def said_by(folder: Path, source: str, *arguments: object, **variables: str) -> Any:
    """What a program prints as its last line, which is JSON.

    It is a file, since MindSpore parses source files. If it dies it is started again, three times at most: PyNative's
    first operator may crash on a CPU.
    """
    (folder / "job.py").write_text(source)
    command = [sys.executable, str(folder / "job.py"), *map(str, arguments)]
    path = os.pathsep.join([str(REPOSITORY), FAKE_BACKEND])
    environment = {**os.environ, "PYTHONPATH": path, "GLOG_v": "4", **variables}
    for _ in range(4):
        child = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if child.returncode >= 0:
            break
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1])
