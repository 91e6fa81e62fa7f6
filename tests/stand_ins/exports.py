"""Exports as a user has them: the recorded one, as if it had been measured here, on a model of a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune import environment
from autotune.backends.registry import entry_of, framework_version, load_backend
from autotune.measure.measurement import structure_sha256

RECORDED = Path(__file__).resolve().parent.parent / "best.yaml"
DEVICES = {"torch": "cpu", "mindspore": "CPU", "fake": "fake"}


def export(
    path: Path,
    framework: str,
    config: dict[str, Any],
    model: Any,
    inputs: Sequence[Any],
    *,
    structure: str | None = None,
    **changes: Any,
) -> Path:
    """The path of an export of this config for a model, or the `structure` of one, with these inputs.

    `task`, `tolerance`, `method` and `compile_cold_s` are put in their places, all else is the file's. Its latency
    is so long that no machine that runs the tests is slower.
    """
    content, backend = yaml.safe_load(RECORDED.read_text()), load_backend(framework)
    here = environment.describe(device=DEVICES[framework], variables={}).model_dump(mode="json")
    content["environment"] = {**here, "framework_version": framework_version(framework)}
    for name, value in {"task": "infer", "tolerance": None}.items():
        content["workload"][name] = changes.pop(name, value)
    content["workload"]["signature"].update(
        method=changes.pop("method", None),
        structure_sha256=structure or structure_sha256(backend.parameters(model)),
        inputs=[each if isinstance(each, dict) else backend.spec(each).model_dump(mode="json") for each in inputs],
    )
    content["evidence"]["best"].update(
        latency_s={"p50": 10.0, "p90": 10.0, "p99": 10.0}, compile_cold_s=changes.pop("compile_cold_s", 10.0)
    )
    content.update(framework=framework, verdict="faster", config=config, untuned=dict(entry_of(framework).untuned))
    path.write_text(yaml.safe_dump(content | changes))
    return path
