"""The main job on real models through real compilers: tune, export, and a fresh job that loads the answer.

A PyTorch model's way from `tune` to a job is that of the tutorial (`test_tutorial.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from autotune.environment import installed_packages
from tests.conftest import QUICK_BUDGET, REPOSITORY

BUDGET = "confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}"


def studied(cli, tmp_path, *arguments, budget=BUDGET):
    """Tune with a short list of trials and return the document; a verdict of any kind will do."""
    path = tmp_path / "budget.yaml"
    path.write_text(budget)
    quickly = ("--budget", str(path))
    result = cli("tune", "--device", "cpu", "--study", "s", "--json", *quickly, *arguments, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def job(script, path, **variables):
    """A fresh process, as a training or serving job would be."""
    for _ in range(4):
        child = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            # Not in the repository: frameworks drop files where they stand.
            cwd=path.parent, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if child.returncode != -signal.SIGSEGV:  # MindSpore's PyNative dies by itself now and then (see contest.py).
            break
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


FULLGRAPH_SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://example.org/x", when: {execution: compile}, values: [aot_eager], default: aot_eager}
  fullgraph: {doc: "https://example.org/x", when: {execution: compile}, values: [false, true], default: false}
"""


@pytest.mark.torch
@pytest.mark.slow
def test_planner_on_torch(cli, no_toolchain, tmp_path):
    """Graph breaks come with reason and line, `fullgraph` fails as a compile error, and the study finishes."""
    pytest.importorskip("torch")
    space = tmp_path / "fullgraph.yaml"
    space.write_text(FULLGRAPH_SPACE)
    arguments = (
        "--framework",
        "torch",
        "--model",
        f"{REPOSITORY}/examples/models/planner.py:planner",
        "--space",
        str(space),
        "--trials",
        "3",
    )
    document = studied(cli, tmp_path, *arguments)
    assert document["verdict"] in ("faster", "tie", "keep_untuned", "undecided")
    assert document["second_baseline"]["settings"] == {"allocator": "keep"}
    assert all(block["second"] > 0 for block in document["blocks"])
    compiled = [t for t in document["trials"] if t["config"]["execution"] == "compile"]
    whole = [t for t in compiled if t["config"]["fullgraph"]]
    broken = [t for t in compiled if not t["config"]["fullgraph"]]
    assert whole
    assert {t["outcome"]["reason"] for t in whole} == {"compile_error"}
    assert broken
    for trial in broken:
        breaks = trial["outcome"]["diagnosis"]["graph_breaks"]
        assert len(breaks) >= 3
        assert all(each["reason"] and "planner.py:" in each["location"] for each in breaks)


TANH = REPOSITORY / "examples" / "models" / "tanh_matmul"
"""With the framework's name behind it: a module."""
MINDSPORE_JOB = """
import json, sys, mindspore, autotune
from examples.models.tanh_matmul_mindspore import tanh_matmul
model, inputs = tanh_matmul(size=64, repeats=10)
expected = model(*inputs).asnumpy()
tuned = autotune.load(sys.argv[1])
got = tuned.apply(tanh_matmul(size=64, repeats=10)[0])(*inputs).asnumpy()
print(json.dumps({"error": float(abs(expected - got).max()), "config": tuned.answer.config.root}))
"""


SMALL_SPACES = {
    "torch": """
  execution: {doc: "https://e.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://e.org/x", when: {execution: compile}, values: [inductor], default: inductor}
""",
    "mindspore": """
  execution: {doc: "https://e.org/x", values: [jit, pynative], untuned: pynative, default: jit}
  capture: {doc: "https://e.org/x", when: {execution: jit}, values: [ast], default: ast}
""",
}


@pytest.mark.torch
@pytest.mark.mindspore
@pytest.mark.slow
def test_two_frameworks_end_in_a_job(cli, tmp_path):
    """Both answers are measured side by side, and that of torch holds in a job.

    On a few busy cores PyNative's threads wait for each other by the scheduler's ticks, so which one is faster is not
    for a test to say.
    """
    if not {"torch", "mindspore"} <= installed_packages().keys():
        pytest.skip("torch or mindspore is not installed")
    budget = QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"})
    for framework, knobs in SMALL_SPACES.items():
        path = tmp_path / f"{framework}.yaml"
        path.write_text(f"schema: 1\nframework: {framework}\nknobs:{knobs}")
        asked = ["--framework", framework, "--space", str(path), "--study", framework, "--trials", "2"]
        asked += ["--model", f"{TANH}_{framework}.py:tanh_matmul", "--model-arg", "size=64"]
        asked += ["--model-arg", "repeats=10"]
        study = studied(cli, tmp_path, *asked, budget=budget)
        assert [trial["state"] for trial in study["trials"]] == ["measured"] * 2
        assert cli("export", framework, "-o", f"{framework}_best.yaml").returncode == 0
    files = ("mindspore_best.yaml", "torch_best.yaml")
    compared = cli("compare", *files, "--budget", str(tmp_path / "budget.yaml"), "--json", timeout=600)
    assert json.loads(compared.stdout)["failed"] is None, compared.stderr
    said = job(TANH_JOB, tmp_path / "torch_best.yaml")
    assert said["error"] < 1e-3
    assert said["framework"] == "torch"


TANH_JOB = """
import json, sys, torch, autotune
from examples.models.tanh_matmul_torch import tanh_matmul
model, inputs = tanh_matmul(size=64, repeats=10)
tuned = autotune.load(sys.argv[1])
with torch.no_grad():
    error = float((tuned.apply(model)(*inputs) - model(*inputs)).abs().max())
print(json.dumps({"error": error, "framework": tuned.answer.framework}))
"""


@pytest.mark.mindspore
@pytest.mark.slow
def test_a_mindspore_study_ends_in_a_job(cli, tmp_path):
    """PyNative and compiled configs are measured side by side, and the exported answer holds in a fresh job."""
    if "mindspore" not in installed_packages():
        pytest.skip("mindspore is not installed")
    model = f"{TANH}_mindspore.py:tanh_matmul"
    arguments = ("--model", model, "--model-arg", "size=64", "--model-arg", "repeats=10", "--trials", "4")
    document = studied(cli, tmp_path, "--framework", "mindspore", *arguments)
    states = [t["state"] for t in document["trials"]]
    assert states[:2] == ["measured", "measured"]
    untuned, default = document["trials"][:2]
    assert untuned["config"]["execution"] == "pynative"
    assert untuned["outcome"]["diagnosis"]["compiled"] is False
    assert default["outcome"]["diagnosis"]["compiled"] is True
    assert cli("export", "s", "-o", "best.yaml").returncode == 0
    said = job(MINDSPORE_JOB, tmp_path / "best.yaml", GLOG_v="3")
    assert said["error"] < 1e-3
    assert said["config"] == document["best"]["config"]
