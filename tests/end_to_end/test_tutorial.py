"""The tutorials are executed: their files are written and their commands run, in the order of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from tests.conftest import QUICK_BUDGET, REPOSITORY, TORCH_SPACE

SPACE_MINDSPORE = """
schema: 1
framework: mindspore
knobs:
  execution: {doc: "https://example.org/x", values: [jit, graph, pynative], untuned: pynative, default: jit}
"""
COMMANDS = {"autotune": [sys.executable, "-m", "autotune"], "python": [sys.executable]}


def run_page(name: str, space: str, folder: Path) -> list[tuple[str, str]]:
    """First word and output of every command of a page, but for the installation, which test_wheel.py tries. Only the
    search is smaller: a space of few configs, and a quick budget."""
    (folder / "space.yaml").write_text(space)
    (folder / "quick.yaml").write_text(QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
    page = (REPOSITORY / name).read_text(encoding="utf-8")
    ran = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if language == "python":
            file = re.match(r"# (\w+\.py)\n", text)
            assert file, "a file of the tutorial begins with its name"
            (folder / file[1]).write_text(text)
            continue
        for line in re.findall(r"^\$ (.+)$", text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            variables = list(takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
            program, *words = words[len(variables) :]
            if program not in COMMANDS or words[0] == "-m":
                continue
            smaller = ["--space", "space.yaml", "--budget", "quick.yaml"] if words[0] == "tune" else []
            done = subprocess.run(
                [*COMMANDS[program], *words, *smaller],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **dict(each.split("=", 1) for each in variables)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            ran.append((words[0], done.stdout))
    return ran


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_runs(tmp_path):
    """Every file, every command and the job."""
    pytest.importorskip("matplotlib", reason="the extra `dev` brings the report's figures")
    ran = run_page("docs/tutorial.md", TORCH_SPACE, tmp_path)
    assert [name for name, _ in ran] == ["doctor", "tune", "tune", "show", "explain", "export", "job.py"]
    assert re.match(r"Net (un)?tuned, 0 fallbacks\n", ran[-1][1])
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.mindspore
def test_the_chinese_tutorial_runs(tmp_path):
    """The same in MindSpore."""
    pytest.importorskip("mindspore")
    ran = run_page("docs/tutorial_cn.md", SPACE_MINDSPORE, tmp_path)
    assert [name for name, _ in ran] == ["doctor", "tune", "tune", "show", "explain", "export", "job.py"]
    assert re.match(r"Net (un)?tuned\W+\w+ 0 \w\n", ran[-1][1])


@pytest.mark.slow
@pytest.mark.mindspore
def test_the_model_of_the_chinese_first_page_is_one(tmp_path):
    """In a process of its own, since MindSpore stays in the one that imports it."""
    pytest.importorskip("mindspore")
    text = (REPOSITORY / "README_CN.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"^```python\n(# my_net_cn\.py\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_net_cn.py").write_text(file)
    script = "import my_net_cn; net, x = my_net_cn.build(); print(net(x).shape)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "(32, 10)" in done.stdout
