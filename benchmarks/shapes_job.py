"""A plain script with a stream of shapes: prints how many graphs it compiled under an exported file.

python benchmarks/shapes_job.py BEST.YAML MODULE:FUNCTION
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.job.stats import Stats
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.workload import STREAM_CALLS


def be_a_job(path: str, place: str) -> int:
    """The lines of a plain script: a model, its stream of calls, and the file that was exported."""
    import torch

    import autotune

    tuned = load_tuned(path)
    assert tuned.shapes is not None
    traffic, (module, _, name) = tuned.shapes.traffic, place.partition(":")
    build = getattr(importlib.import_module(module), name)
    built = build(**{**tuned.workload.arguments, **traffic.largest})
    model, inputs = (built["model"], built["inputs"]) if isinstance(built, dict) else built[:2]
    model = autotune.load(path).apply(model, on_mismatch="raise")
    with torch.no_grad():
        for load in traffic.stream(STREAM_CALLS, tuned.workload.seed):
            call = list(inputs)
            for each in tuned.shapes.inputs:
                size = traffic.loads[load].sizes[each.dimension]
                call[each.leaf] = call[each.leaf].narrow(each.axis, 0, size).contiguous()
            model(*call)
    stats = autotune.stats(model)
    assert isinstance(stats, Stats)
    return stats.num_compiles or 0


if __name__ == "__main__":
    print(be_a_job(*sys.argv[1:]))
