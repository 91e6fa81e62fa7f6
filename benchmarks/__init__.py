"""Benchmarks of the tool itself: each is a command, `python benchmarks/NAME.py` (see README.md)."""

import os
import sys
from pathlib import Path

FAKE_BACKEND = Path(__file__).resolve().parent.parent / "tests" / "fake_backend"
"""Folder of the package that adds the framework `fake`, whose compilers only sleep."""

if str(FAKE_BACKEND) not in sys.path:
    sys.path.append(str(FAKE_BACKEND))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FAKE_BACKEND), os.environ.get("PYTHONPATH")]))
