"""The tutorial is executed: its files are written and its commands run, in the order of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import QUICK_BUDGET, REPOSITORY

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://example.org/x", when: {execution: compile}, values: [aot_eager], default: aot_eager}
"""
COMMANDS = {"autotune": [sys.executable, "-m", "autotune"], "python": [sys.executable]}


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_runs(tmp_path):
    """Every file, every command and the job. Only the search is smaller: two configs, and a quick budget."""
    pytest.importorskip("matplotlib", reason="the extra `dev` brings the report's figures")
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "quick.yaml").write_text(QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
    ran = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, "a file of the tutorial begins with its name"
            (tmp_path / name[1]).write_text(text)
            continue
        for line in re.findall(r"^\$ (.+)$", text, re.MULTILINE):
            program, *words = shlex.split(line, comments=True)
            if program not in COMMANDS or words[0] == "-m":
                continue  # The installation, which test_wheel.py tries.
            smaller = ["--space", "space.yaml", "--budget", "quick.yaml"] if words[0] == "tune" else []
            done = subprocess.run(
                [*COMMANDS[program], *words, *smaller],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            ran.append((words[0], done.stdout))
    assert [name for name, _ in ran] == ["doctor", "tune", "tune", "show", "explain", "export", "job.py"]
    assert re.match(r"Net (un)?tuned, 0 fallbacks\n", ran[-1][1])
    assert (tmp_path / "report.html").stat().st_size > 10_000
