"""A plain job that draws pictures with a diffusion pipeline, as it is or with an exported file applied; writes the
median seconds of a call, and the pictures.

    python benchmarks/pipelines_job.py tests/stand_ins/pipelines.py:dit --output seen.json
    python benchmarks/pipelines_job.py tests/stand_ins/pipelines.py:dit --settings best.yaml --output seen.json
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

import autotune
from benchmarks.plain import call_for, function_of


def main() -> None:
    """Build, apply the file if there is one, warm up, time, and write what was seen."""
    parser = argparse.ArgumentParser(description="Time one diffusion pipeline, in a plain job.")
    parser.add_argument("pipeline", help="FILE.py:FUNCTION, which returns a pipeline and what it is called with")
    parser.add_argument("--settings", type=Path, help="an exported YAML")
    parser.add_argument("--warmup-s", type=float, default=1.0, help="seconds of calls before (default: %(default)s)")
    parser.add_argument("--sampling-s", type=float, default=4.0, help="seconds of timed calls (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    pipe, inputs = function_of(given.pipeline, given.pipeline)()
    if given.settings is not None:
        pipe = autotune.load(given.settings).apply(pipe, on_mismatch="raise")

    def draw() -> Any:
        return pipe(**inputs, generator=torch.Generator().manual_seed(0), output_type="np").images

    begun = time.perf_counter()
    draw()
    first_call_s = time.perf_counter() - begun
    call_for(draw, given.warmup_s)
    samples_s = call_for(draw, given.sampling_s)
    seen = {"median_s": statistics.median(samples_s), "first_call_s": first_call_s, "pictures": draw().tolist()}
    given.output.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
