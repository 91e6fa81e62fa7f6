"""One model of the zoo in a plain job, untuned or with an exported file applied; writes the median seconds of a call.

    python benchmarks/zoo_job.py hf:bert --argument seq=64 --output seen.json
    python benchmarks/zoo_job.py benchmarks/models/zoo/peft_models.py:lora --task train --settings best.yaml ...

Of the tool it uses what a job uses: `autotune.load`, and what makes the models that `hf:` and `timm:` name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.plain import call_for, function_of, sizes_of

HUBS = {"hf": "autotune.plugins.hubs.torch.hugging_face", "timm": "autotune.plugins.hubs.torch.timm_models"}
Call = Callable[[], object]


def built(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The model with its inputs, and loss and optimizer where it is trained."""
    scheme, _, name = model.partition(":")
    made = (
        importlib.import_module(HUBS[scheme]).build(name, **arguments)
        if scheme in HUBS
        else function_of(model, model)(**arguments)
    )
    return made if isinstance(made, dict) else {"model": made[0], "inputs": made[1]}


def with_inputs(called: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    """The call with its inputs: keyword arguments, positional ones, or one."""
    if isinstance(inputs, dict):
        return lambda: called(**inputs)
    positional = inputs if isinstance(inputs, tuple) else (inputs,)
    return lambda: called(*positional)


def inference(parts: dict[str, Any], framework: str, settings: str | None) -> Call:
    """A call of the model as it is, or with the file applied to it."""
    import autotune

    model = parts["model"] if settings is None else autotune.load(settings).apply(parts["model"], on_mismatch="raise")
    call = with_inputs(model, parts["inputs"])
    return call if framework == "torch" else lambda: arrays(call())


def arrays(outputs: Any) -> Any:
    """Outputs of MindSpore as NumPy's: there when they are, while a call returns before it is done."""
    if isinstance(outputs, dict):
        return [arrays(value) for value in outputs.values()]
    if isinstance(outputs, (tuple, list)):
        return [arrays(value) for value in outputs]
    return outputs.asnumpy()


def training(parts: dict[str, Any], settings: str | None) -> Call:
    """A step from the batch to the changed weights."""
    import autotune

    model, loss, optimizer = parts["model"].train(), parts["loss"], parts["optimizer"]
    if settings is not None:
        return with_inputs(
            autotune.load(settings).training_step(model, loss, optimizer, on_mismatch="raise"), parts["inputs"]
        )
    forward = with_inputs(lambda *inputs, **named: loss(model, *inputs, **named), parts["inputs"])

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().backward()
        optimizer.step()

    return step


def main() -> None:
    """Build, apply the file if there is one, warm up, time, and write what was seen."""
    parser = argparse.ArgumentParser(description="Time one model of the zoo, in a plain job.")
    parser.add_argument("model", help="as `tune --model` takes it")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=VALUE", help="for the model's function"
    )
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--task", default="infer")
    parser.add_argument("--settings", help="an exported YAML")
    parser.add_argument("--warmup-s", type=float, default=2.0, help="seconds of calls before (default: %(default)s)")
    parser.add_argument("--sampling-s", type=float, default=4.0, help="seconds of timed calls (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()

    parts = built(given.model, sizes_of(given.argument))
    without_gradients: Any = nullcontext()
    if given.framework == "torch" and given.task == "infer":
        import torch

        without_gradients = torch.no_grad()
    with without_gradients:
        call = (
            training(parts, given.settings)
            if given.task == "train"
            else inference(parts, given.framework, given.settings)
        )
        start = time.perf_counter()
        call()
        first_call_s = time.perf_counter() - start
        call_for(call, given.warmup_s)
        samples_s = call_for(call, given.sampling_s)
    seen = {"median_s": statistics.median(samples_s), "num_calls": len(samples_s), "first_call_s": first_call_s}
    given.output.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
