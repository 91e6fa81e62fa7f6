"""A job on a device: `apply` on a live model, with outputs that the job keeps while it goes on calling.

    python benchmarks/on_device/job.py gpu '{"execution": "compile", "mode": "reduce-overhead"}'

Prints one line of JSON: the largest relative error of the kept outputs, and in which state the loaded model is. What a
CUDA graph's replay writes into the memory of an earlier output is seen here and nowhere else: a trial drops outputs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import yaml

import autotune
from autotune.config import Scalar
from autotune.workload.workload import Device
from benchmarks.made_up_export import made_up_export
from benchmarks.models.on_device_torch import probe

DEVICES: dict[Device, str] = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}
NUM_KEPT = 4


def run(device: Device, config: dict[str, Any]) -> dict[str, Any]:
    """Outputs for several inputs, all kept until the last one is there."""
    if device == "ascend":
        __import__("torch_npu")
    place = torch.device(DEVICES[device])
    built = probe()
    model, example = built["model"].to(place), built["inputs"][0].to(place)
    inputs = [example * (1 + number) for number in range(NUM_KEPT)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        wanted = [model(each).clone() for each in inputs]
        loaded = _answer(model, example, device, config, Path(folder)).apply(model, on_mismatch="raise")
        loaded(example)
        kept = [loaded(each) for each in inputs * 2]
        errors = [_error(w, y) for w, y in zip(wanted * 2, kept, strict=True)]
        stats = autotune.stats(loaded)
    return {"error": max(errors), "state": None if stats is None else stats.state}


def _answer(model: Any, x: Any, device: Device, config: Mapping[str, Scalar], folder: Path) -> Any:
    content = made_up_export(model, x, dict(config))
    content["workload"]["device"] = device
    if device != "cpu":
        content["environment"]["device"] = str(torch.get_device_module(DEVICES[device]).get_device_name())
    # The guard of a slow call compares with these.
    content["evidence"]["best"]["latency_s"] = {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    return autotune.load(folder / "best.yaml")


def _error(wanted: Any, got: Any) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], json.loads(sys.argv[2]))), flush=True)  # type: ignore[arg-type]
