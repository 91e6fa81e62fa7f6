"""One process of a model beside others of its kind: calls it for a span that all of them are told, and counts.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/instances_job.py vit

It says `ready` once it is warm, reads one line with the begin and the end of the span by the system's monotonic clock,
and prints the number of calls that began and ended within. Of the package only the definition of a model is imported.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.plain import build, call_for

WARMUP_S = 2.0


def main() -> None:
    """Build, warm up, say so, call, count."""
    import torch

    model, inputs = build(sys.argv[1], 0)
    with torch.no_grad():
        call_for(lambda: model(*inputs), WARMUP_S)
        print("ready", flush=True)
        begin, end = map(float, sys.stdin.readline().split())
        num_calls = 0
        while (before := time.monotonic()) < end:
            model(*inputs)
            num_calls += begin <= before and time.monotonic() <= end
    print(num_calls, flush=True)


if __name__ == "__main__":
    main()
