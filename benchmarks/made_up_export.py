"""The content of an exported YAML as a study of a torch model on this machine would have written it."""

from __future__ import annotations

from typing import Any

import yaml

from autotune import environment
from benchmarks.evidence import REPOSITORY

CONFIG = {
    "execution": "compile", "backend": "inductor", "mode": "default", "dynamic": None, "fullgraph": False,
    "region": "whole",
}  # fmt: skip


def made_up_export(model: Any, x: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The tests' export, made to fit the model and its input; what its evidence says is still the tests'."""
    from autotune.backends.registry import framework_version
    from autotune.backends.torch.backend import TorchBackend
    from autotune.measure.measurement import structure_sha256

    content: dict[str, Any] = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", verdict="faster", config=config, untuned={"execution": "eager"})
    here = environment.describe(device="cpu", variables={}).model_dump(mode="json")
    content["environment"] = {**here, "framework_version": framework_version("torch")}
    structure = structure_sha256(TorchBackend().parameters(model))
    inputs = [{"shape": list(x.shape), "dtype": "float32"}]
    content["workload"]["signature"].update(structure_sha256=structure, inputs=inputs)
    return content
