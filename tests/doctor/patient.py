"""A child that runs patterns and says what the framework said: `patient.py torch`, `patient.py mindspore CAPTURE`.

One process for all patterns of a framework: importing it is what takes time. Prints one JSON document at the end.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from autotune.backends.outputs import output_arrays
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config


def torch_cases():
    from tests.doctor.torch_patterns import PATTERNS, pattern

    backend = load_backend("torch")
    config = Config({"execution": "compile", "backend": "eager"})
    for name in PATTERNS:
        for cured in (False, True):
            backend.prepare("cpu", seed=0)
            model, first, more = pattern(name, cured)
            refusal = None
            with backend.inference():
                step = backend.compile(model, config, UndoLog())
                try:
                    outputs = [output_arrays(backend, step(each)) for each in (first, *more)]
                except Exception:
                    refusal = traceback.format_exc()
                    outputs = [output_arrays(backend, model(each)) for each in (first, *more)]
            said = backend.diagnose(model, config).model_dump(mode="json")
            yield name, cured, {"said": said, "refusal": refusal, "outputs": outputs}


def mindspore_cases():
    from tests.doctor.mindspore_patterns import PATTERNS, pattern

    backend = load_backend("mindspore")
    backend.prepare("cpu", seed=0)
    config = Config({"execution": "jit"})
    num_graphs = 0  # Of the process so far: that is what is told.
    for name in PATTERNS:
        for cured in (False, True):
            # Its stderr is one for all patterns: marked, to be told apart.
            sys.stderr.write(f"\n=== {name} {cured}\n")
            sys.stderr.flush()
            model, inputs = pattern(name, cured)
            step = backend.compile(model, config, UndoLog())
            try:
                outputs = [output_arrays(backend, step(each)) for each in inputs]
            except Exception:
                traceback.print_exc()
            num_before, num_graphs = num_graphs, backend.diagnose(model, config).num_graphs
            if not cured:
                # It may be refused: PyNative knows what is meant.
                outputs = [output_arrays(backend, pattern(name, cured)[0](each)) for each in inputs]
            yield name, cured, {"outputs": outputs, "num_graphs": num_graphs - num_before}


def main(framework: str) -> None:
    cases = torch_cases() if framework == "torch" else mindspore_cases()
    told = {}
    for name, cured, case in cases:
        case["outputs"] = [[array.tolist() for array in arrays] for arrays in case["outputs"]]
        told[f"{name} {'cured' if cured else 'broken'}"] = case
    Path(os.environ["TOLD"]).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # As a trial's worker does: MindSpore may hang at an orderly end.
