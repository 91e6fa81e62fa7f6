"""Tests. Whoever imports from here finds the package that adds the fake framework; so do the processes it starts."""

import os
import sys
from pathlib import Path

FAKE_BACKEND = str(Path(__file__).resolve().parent / "fake_backend")
"""The folder of that package, as pip would leave it on disk."""

if FAKE_BACKEND not in sys.path:
    sys.path.append(FAKE_BACKEND)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [FAKE_BACKEND, os.environ.get("PYTHONPATH")]))
