"""The examples are real jobs: each runs as its own process, with the file of a tuned config and without one."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import environment
from autotune.backends.registry import framework_version, load_backend
from autotune.planning.models import make_workload
from autotune.trial.worker.subjects import build_subject
from tests.conftest import REPOSITORY

os.environ.setdefault("GLOG_v", "3")  # MindSpore reads its log level once, when it is imported

EXAMPLES = REPOSITORY / "examples"
CONFIGS: dict[str, dict[str, Any]] = {
    "torch": {"execution": "compile", "backend": "aot_eager", "dynamic": None, "fullgraph": False},
    "mindspore": {"execution": "jit", "capture": "ast", "jit_level": "O0", "fullgraph": True},
}
UNTUNED = {"torch": {"execution": "eager"}, "mindspore": {"execution": "pynative"}}
NEEDS = {
    "torch_training": ("torch",),
    "hf_trainer": ("torch", "transformers", "accelerate"),
    "lightning_training": ("torch", "pytorch_lightning"),
    "mindspore_training": ("mindspore",),
    "serving": ("torch", "fastapi", "uvicorn"),
    "quantized": ("torch", "torchao"),
}
"""Example -> what it imports; its framework first."""

# Runs the example given as the first argument, then says what the framework compiled, by its own books.
RUN = {
    "torch": """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
from torch._dynamo.utils import counters
print("graphs:", counters["stats"]["unique_graphs"])
""",
    "mindspore": """
import runpy, sys
import mindspore as ms
jit, given = ms.jit, []
ms.jit = lambda *arguments, **options: given.append(options) or jit(*arguments, **options)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("graphs:", len(given))
""",
}


def example(name: str) -> Any:
    """A parameter of a test, skipped where something that the example imports is not installed."""
    missing = [each for each in NEEDS[name] if importlib.util.find_spec(each) is None]
    marks = [getattr(pytest.mark, NEEDS[name][0]), pytest.mark.skipif(bool(missing), reason=f"without {missing}")]
    return pytest.param(name, marks=marks)


TRAINED = [name for name in NEEDS if name not in ("serving", "quantized")]
TRAINING = [example(name) for name in TRAINED]
SERVING = [example("serving")]


def write_tuned(name: str, path: Path, **arguments: Any) -> Path:
    """The file that a study of the example's own model would export here, with a config that compiles quickly."""
    framework = NEEDS[name][0]
    backend = load_backend(framework)
    backend.prepare("cpu", 0)
    task = "train" if name in TRAINED else "infer"
    workload = make_workload(f"{EXAMPLES / name}.py:build", arguments, framework, "cpu", 0, task=task)
    subject = build_subject(workload, backend)
    start = time.perf_counter()
    subject.inputs[0].call(subject.model if task == "infer" else functools.partial(subject.work.loss, subject.model))
    first_call_s = time.perf_counter() - start
    here = environment.describe(device=backend.device_name(), variables={}).model_dump()
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(
        framework=framework,
        config=CONFIGS[framework] | ({"scope": "model"} if task == "train" else {}),
        untuned=UNTUNED[framework],
    )
    content["environment"] = {**here, "framework_version": framework_version(framework)}
    content["workload"].update(task=task, model=workload.model, signature=subject.signature.model_dump(mode="json"))
    content["evidence"]["best"]["latency_s"] = dict.fromkeys(("p50", "p90", "p99"), first_call_s)
    path.write_text(yaml.safe_dump(content))
    return path


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", RUN[NEEDS[name][0]], str(EXAMPLES / f"{name}.py"), *arguments]


def surroundings() -> dict[str, str]:
    # As a user of a checkout has them, from any folder; one thread is enough for models of this size.
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOG_v": "3"}


def run(name: str, folder: Path, tuned: str, flag: str = "--tuned") -> str:
    """What an example says in `folder`, standard error with it."""
    child = subprocess.run(
        command(name, flag, tuned), cwd=folder, env=surroundings(), capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return child.stdout + child.stderr


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])


def learned(said: str) -> bool:
    """The loss at the end is well below the one at the beginning."""
    return number(r"loss .* -> ([\d.]+)", said) < 0.7 * number(r"loss ([\d.]+) ->", said)


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.slow
def test_training_with_a_tuned_model(tmp_path, name):
    """The two lines compile the model, and it learns."""
    said = run(name, tmp_path, str(write_tuned(name, tmp_path / "best.yaml")))
    assert number(r"graphs: (\d+)", said) > 0
    assert learned(said)
    assert "untuned" not in said


def built(name: str) -> tuple[Any, Any]:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parts = module.build()
    if not isinstance(parts, dict):
        return parts
    return parts["model"], parts["inputs"] if isinstance(parts["inputs"], dict) else (parts["inputs"],)


# Quantised layers


@pytest.mark.parametrize("value", ["int8_weights", "int8_both"])
@pytest.mark.parametrize("name", [example("quantized")])
@pytest.mark.slow
def test_a_quantised_variant(tmp_path, name, value):
    """What runs on a CPU runs in a job, and differs from the plain model by no more than the tolerance that the example
    names: the same comparison as in a study."""
    tuned = write_tuned(name, tmp_path / "best.yaml")
    content = yaml.safe_load(tuned.read_text())
    content["config"]["variant.linear"] = value
    tuned.write_text(yaml.safe_dump({**content, "variants": {"linear": f"quantized:{value}"}}))
    said = run(name, tmp_path, str(tuned))
    assert "untuned" not in said
    tolerance = number(r"--tolerance (\S+)", (EXAMPLES / f"{name}.py").read_text())
    assert 0 < number(r"largest difference: (\S+)", said) < tolerance


# The server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start an example on a port that is free, and return its address once it answers."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> str:
        log = tmp_path / "server.log"
        with log.open("wb") as out:
            child = subprocess.Popen(
                command(name, "--port", "0", *arguments), cwd=tmp_path, env=surroundings(), stdout=out, stderr=out
            )
        started.append(child)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            found = re.search(r"running on (http://[\d.:]+)", log.read_text())
            if found:
                return found[1]
            assert child.poll() is None, log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no answer: {log.read_text()}")

    yield start
    for child in started:
        child.terminate()
        child.wait(timeout=60)


def post(address: str, body: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{address}/predict", data=body.encode(), headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("name", SERVING)
@pytest.mark.slow
def test_serving_a_tuned_model(server, tmp_path, name):
    """Requests of any number of points, from the server's own threads, get the plain model's answers."""
    import torch

    address = server(name, "--tuned", str(write_tuned(name, tmp_path / "best.yaml")))
    compiled = (tmp_path / "server.log").read_text()
    model, (points,) = built(name)
    with torch.no_grad():
        expected = model(points)
    for count in (1, 3, len(points)):
        status, answer = post(address, f'{{"points": {points[:count].tolist()}}}')
        assert status == 200
        torch.testing.assert_close(torch.tensor(yaml.safe_load(answer)), expected[:count], rtol=1e-4, atol=1e-5)
    assert post(address, '{"points": [[1, 2]]}')[0] == 422
    assert "untuned" not in compiled


@pytest.mark.parametrize("name", SERVING)
def test_serving_before_anything_was_tuned(server, tmp_path, name):
    """Without the file the server starts and answers, and its log says that nothing is tuned."""
    address = server(name, "--tuned", "nowhere.yaml")
    status, answer = post(address, '{"points": [[0, 0, 0, 0], [1, 1, 1, 1]]}')
    assert status == 200
    assert [round(sum(row), 5) for row in yaml.safe_load(answer)] == [1.0, 1.0]
    assert "nowhere.yaml" in (tmp_path / "server.log").read_text()


def test_every_example_is_run_and_listed():
    """No example without a test, and none that the table in examples/README.md forgets."""
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    assert files == set(NEEDS)
    listed = set(re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text()))
    assert listed == files
