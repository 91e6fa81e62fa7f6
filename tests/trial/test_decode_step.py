"""A decode step in MindSpore that keeps its cache in Parameters: tuned with a reset, and called by a job's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError
from autotune.planning.manifest import make_manifest
from autotune.question.question import Question
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.subjects import build_subject
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY
from tests.stand_ins.exports import export

SIZES = {"room": 24, "prompt": 8, "dim": 32, "heads": 2, "vocab": 50}
CONFIGS: list[dict[str, Any]] = [{"execution": "jit"}, {"execution": "graph"}]


def built() -> dict[str, Any]:
    from examples.models.decode_step import decode_step

    return decode_step(**SIZES)


def task(step_of: Any = None) -> tuple[OneShape, Any]:
    """The calls of a trial in this process, and the untuned step or what `step_of` makes of the model."""
    backend = load_backend("mindspore")
    backend.prepare("cpu", 0)
    workload = Workload(
        model=f"{REPOSITORY}/examples/models/decode_step.py:decode_step",
        reference="examples.models.decode_step:decode_step",
        arguments=SIZES,
        framework="mindspore",
        device="cpu",
        search_path=str(REPOSITORY),
    )
    calls = OneShape(workload, build_subject(workload, backend), backend)
    model = calls._subject.model
    return calls, model if step_of is None else step_of(calls, model)


@pytest.fixture(scope="module")
def reference() -> Any:
    pytest.importorskip("mindspore")
    calls, step = task()
    seen = calls.observe(step, reference_tolerance=1e-3)
    calls.gate.refuse_unusable(seen, 1e-3)
    return seen


@pytest.mark.mindspore
@pytest.mark.fast_cases("{'execution': 'graph'}")
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_graph_hands_its_cache_on(reference: Any, config: dict[str, Any]) -> None:
    """Three steps in a row are compared."""
    calls, step = task(lambda calls, _: calls.compile(Config(config), UndoLog()))
    assert max(calls.gate.errors(reference, calls.observe(step), 1e-3)) < 1e-5


@pytest.mark.mindspore
def test_a_step_that_loses_some_of_it_is_wrong(reference: Any) -> None:
    """Its first call is right."""

    def forgetful(_: Any, model: Any) -> Any:
        from mindspore import Tensor, ops

        state = dict(model.parameters_and_names())["blocks.1.attention.keys"]

        def step(ids: Any) -> Any:
            before = Tensor(state.asnumpy())
            logits = model(ids)
            ops.assign(state, before)
            return logits

        return step

    calls, step = task(forgetful)
    with pytest.raises(WrongResultError, match="in call 2 after a reset"):
        calls.gate.errors(reference, calls.observe(step), 1e-3)


@pytest.mark.slow
@pytest.mark.mindspore
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_job_generates_by_it(config: dict[str, Any], tmp_path: Path) -> None:
    """The tokens are the untuned model's, for two prompts one after the other."""
    pytest.importorskip("mindspore")
    load_backend("mindspore").prepare("cpu", 0)
    given, plain = built(), built()["model"]
    path = export(tmp_path / "best.yaml", "mindspore", config, given["model"], given["inputs"])
    step = autotune.load(path).apply(given["model"])
    for seed in (1, 2):
        expected = generated(plain, plain, seed)
        assert generated(given["model"], step, seed) == expected
        assert len(set(expected)) > 1
    stats = autotune.stats(step)
    assert stats.state != "untuned"
    assert stats.events == ()


def generated(model: Any, step: Any, seed: int, new_tokens: int = 8) -> list[int]:
    """Greedy tokens after a prompt of eight."""
    from mindspore import Tensor

    tokens = np.random.default_rng(seed).integers(0, SIZES["vocab"], (1, 8))
    model.fill(Tensor(tokens[:, :-1].astype(np.int64)))
    found, ids = [], Tensor(tokens[:, -1:].astype(np.int64))
    for _ in range(new_tokens):
        ids = step(ids).argmax(-1).astype(ids.dtype)
        found.append(int(ids.asnumpy()[0, 0]))
    return found


def test_the_task_says_what_is_possible_instead() -> None:
    asked = {"build": "vit", "framework": "mindspore", "task": "generate", "device": "cpu"}
    with pytest.raises(InputError, match="text generation is tuned in PyTorch only") as caught:
        make_manifest(Question.of(asked))
    assert "examples/models/decode_step.py" in str(caught.value.tip)
