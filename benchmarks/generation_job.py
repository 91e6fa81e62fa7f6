"""A plain job that generates text, in one of four ways; writes its tokens a second.

    python benchmarks/generation_job.py hf:llama untuned --argument num_hidden_layers=2 --output seen.json
    python benchmarks/generation_job.py hf:llama tuned --settings best.yaml --output seen.json

`untuned`: the model as it is. `forward`: `torch.compile(model.forward)`, what most people write. `transformers`:
Hugging Face's static cache, with its own compiling of the decode step. `tuned`: an exported file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import yaml

import autotune
from autotune.plugins.hubs.torch.hugging_face_generation import build

WAYS = ("untuned", "forward", "transformers", "tuned")


def main() -> None:
    """Generate, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--argument", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    arguments = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in given.argument)}
    made = build(given.model.removeprefix("hf:"), **arguments)
    model, stream = changed(made["model"], given.way, given.settings), made["generate"]
    torch.manual_seed(0)
    prompts = [torch.randint(3, 500, (stream["batch"], length)) for length in stream["prompts"]]
    with torch.no_grad():
        first_s, _ = timed_pass(model, prompts, stream["new_tokens"])
        timed_pass(model, prompts, stream["new_tokens"])
        before = num_graphs()
        passes = [timed_pass(model, prompts, stream["new_tokens"]) for _ in range(given.passes)]
    num_tokens = len(prompts) * stream["new_tokens"] * stream["batch"]
    seen = {
        "tokens_per_second": num_tokens / statistics.median(seconds for seconds, _ in passes),
        "first_pass_s": first_s,
        "graphs": before,
        "recompiles": num_graphs() - before,
        "tokens": passes[-1][1],
    }
    given.output.write_text(json.dumps(seen))


def changed(model: Any, way: str, settings: Path | None) -> Any:
    """The model in one of the ways."""
    if way == "forward":
        model.forward = torch.compile(model.forward)
    elif way == "transformers":
        from transformers import CompileConfig

        how = CompileConfig(mode="default")
        vars(how)["_compile_all_devices"] = True
        model.generation_config.cache_implementation = "static"
        model.generation_config.compile_config = how
    elif way == "tuned":
        assert settings is not None
        return autotune.load(settings).apply(model)
    return model


def timed_pass(model: Any, prompts: list[torch.Tensor], new_tokens: int) -> tuple[float, list[Any]]:
    """Seconds and the tokens."""
    begun = time.perf_counter()
    texts = [
        model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        for tokens in prompts
    ]
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun, [text[:, -new_tokens:].tolist() for text in texts]


def num_graphs() -> int:
    """Graphs that dynamo has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    main()
