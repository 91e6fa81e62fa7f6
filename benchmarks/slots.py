"""A study of the fake framework whose compilers only sleep: what `--jobs` gives where there are cores enough."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from autotune.bench.runner import Runner
from autotune.measure.sampling import SamplingPlan
from autotune.space.space import Knob, SearchSpace
from autotune.study.budget import BlockPlan, Budget
from autotune.study.folder import FolderStudies
from autotune.tuning.loop import Tuner
from autotune.workload.workload import Workload
from benchmarks.simulated import manifest_of

MODEL = "import numpy as np\n\n\ndef tiny():\n    return (lambda x: x + 1), np.ones((4, 8))\n"
_SAMPLING = SamplingPlan(max_warmup_s=0.2, min_samples=5, max_samples=20, min_sampling_s=0.02, max_sampling_s=0.2)
_FLOOR = BlockPlan(num_rounds=3, first_look=2, num_looks=1)
_CONFIRMATION = BlockPlan(num_rounds=3, first_look=4, num_looks=1)


def confirmed_s(num_slots: int, num_trials: int, compile_s: float) -> float:
    """Wall seconds to the verdict of a study of so many configs, with so many compiled at a time."""
    os.environ.pop("FAKE_CLOCK", None)  # Compilers shall sleep.
    budget = Budget(
        num_trials=1 + num_trials, stop_early=False, num_jobs=num_slots, sampling=_SAMPLING, noise_floor=_FLOOR,
        confirmation=_CONFIRMATION, trials_per_sentinel=1000,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "tiny_model.py")
        model.write_text(MODEL, encoding="utf-8")
        reference = f"{model}:tiny"
        workload = Workload(model=reference, reference=reference, framework="fake", device="cpu", search_path=folder)
        manifest = manifest_of(_space(num_trials, compile_s), seed=0).model_copy(update={"workload": workload})
        study = FolderStudies(Path(folder, "studies")).create(manifest)
        begun = time.perf_counter()
        try:
            with Runner("fake", {}, preload=True, log=Path(folder, "log")) as runner:
                Tuner(study, budget, runner, prepared_trials=runner).run()
        finally:
            study.close()
        return time.perf_counter() - begun


def _space(num_trials: int, compile_s: float) -> SearchSpace:
    """As many compiled configs as there are trials, and the untuned model. One is faster than all others."""
    when: dict[str, str] = {"execution": "compile"}
    compile_ms = int(1000 * compile_s)
    knobs = (
        Knob(name="execution", doc="", values=("eager", "compile"), when={}, default="compile", untuned="eager"),
        Knob(name="compile_ms", doc="", values=(compile_ms,), when=when, default=compile_ms, untuned=None),
        Knob(name="number", doc="", values=tuple(range(num_trials)), when=when, default=0, untuned=None),
    )
    return SearchSpace(framework="fake", knobs=knobs, forbid=())
