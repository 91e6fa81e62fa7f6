"""What a job can apply, and what can be wrong with it on one rank: the two sides of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

import autotune
from autotune.backends.registry import load_backend
from autotune.integrations.hugging_face import tuned_model
from autotune.measure.measurement import structure_sha256
from tests.stand_ins.exports import export

CONFIG = {"execution": "compile", "backend": "aot_eager"}
OTHER = {**CONFIG, "dynamic": True}
UNKNOWN = {**CONFIG, "backend": "none_such"}
PARTS = ("one", "two", "three")
INPUT = torch.zeros(4, 8)


def net(width: int = 8) -> torch.nn.Module:
    """`width`: other parameters."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.GELU(), torch.nn.Linear(width, 8)).eval()


class Pipe:
    """A pipeline of a job's own."""

    def __init__(self, parts: dict[str, torch.nn.Module]) -> None:
        self.__dict__.update(parts)


def _of_a_model(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    return export(folder / "best.yaml", "torch", config, net(), [INPUT], **changes)


def _of_a_step(folder: Path, config: dict[str, Any]) -> Path:
    return _of_a_model(folder, config, task="train")


def _of_texts(folder: Path, config: dict[str, Any]) -> Path:
    return _of_a_model(folder, config, task="generate", texts={"lengths": [5], "new_tokens": 3, "batch": 1})


def _of_a_pipeline(folder: Path, config: dict[str, Any]) -> Path:
    path, backend = _of_a_model(folder, {**config, "region": ", ".join(PARTS)}), load_backend("torch")
    content = yaml.safe_load(path.read_text())
    structure = structure_sha256(backend.parameters(net()))
    signature = {**content["workload"]["signature"], "structure_sha256": structure}
    content["components"] = [{"path": name, "calls": 1, "share": 0.3, "signature": signature} for name in PARTS]
    path.write_text(yaml.safe_dump(content))
    return path


def _apply(path: str, models: dict[str, Any], policy: dict[str, Any]) -> Any:
    return autotune.load(path).apply(models["one"], **policy)


def _take_step(path: str, models: dict[str, Any], policy: dict[str, Any]) -> Any:
    model = models["one"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return autotune.load(path).training_step(model, lambda model, x: model(x).square().mean(), optimizer, **policy)


def _apply_to_a_pipeline(path: str, models: dict[str, Any], policy: dict[str, Any]) -> Any:
    return autotune.load(path).apply(Pipe(models), **policy)


def _give_a_trainer(path: str, models: dict[str, Any], policy: dict[str, Any]) -> Any:
    plugin = SimpleNamespace(backend=SimpleNamespace(value="NO"))
    accelerator = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin), device_placement=False)
    return tuned_model(accelerator, models["one"], path, **policy)


WRITE: dict[str, Callable[[Path, dict[str, Any]], Path]] = {
    "file": _of_a_model,
    "step": _of_a_step,
    "pipeline": _of_a_pipeline,
    "generation": _of_texts,
    "trainer": _of_a_model,
}
"""Form -> its file, or files, in a folder."""
APPLY: dict[str, Callable[[str, dict[str, Any], dict[str, Any]], Any]] = {
    "file": _apply,
    "step": _take_step,
    "pipeline": _apply_to_a_pipeline,
    "generation": _apply,
    "trainer": _give_a_trainer,
}
"""Form -> what the job holds of a file, applied to its models."""


def state(held: Any) -> str:
    """What everything that the job holds is in, part by part."""
    found = autotune.stats(held)
    parts = [*found.components.values()] or [found]
    states = {part.state or "untuned" for part in parts}
    return " and ".join(sorted(states))


def call(form: str, held: Any) -> None:
    """One call of what the job holds; of a pipeline, of each of its components."""
    with torch.set_grad_enabled(form == "step"):
        for model in [getattr(held, name) for name in PARTS] if form == "pipeline" else [held]:
            model(INPUT)


def files(folder: Path, form: str, sound: dict[str, Any] = CONFIG) -> dict[str, str]:
    """Fault -> the path that a rank with this fault is given; "": that of a sound one."""
    made = {}
    configs = {"": sound, "other file": OTHER, "no such compiler": UNKNOWN}
    for name, config in configs.items():
        (folder / f"{form} {name}").mkdir()
        made[name] = WRITE[form](folder / f"{form} {name}", config)
    (folder / "broken.yaml").write_text("schema: [1")
    made["file missing"] = made["raises"] = folder / "none.yaml"
    made["unreadable"] = folder / "broken.yaml"
    later = folder / "later"
    later.mkdir(exist_ok=True)
    made["later"] = export(later / "later.yaml", "torch", OTHER, net(4), [INPUT])
    return {name: str(path) for name, path in made.items()}


def applied(form: str, fault: str, paths: dict[str, str]) -> Any:
    """What the job holds on a rank with this fault."""
    models = {name: net() for name in PARTS}
    if fault == "part missing":
        del models["two"]
    if fault == "other structure":
        models[PARTS[0]] = net(9)
    policy = {"on_mismatch": "raise"} if fault == "raises" else {}
    return APPLY[form](paths.get(fault, paths[""]), models, policy)
