"""The artifact of a config, made by the product's own processes, and an export that ships it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from autotune.answer.export import prewarm
from autotune.backends.registry import entry_of
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.measure.sampling import SamplingPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.request import ShippedCache, TrialRequest
from autotune.tuned.tuned_config import Artifact
from autotune.workload.workload import Workload


class Made(NamedTuple):
    folder: Path
    request: TrialRequest
    artifact: Artifact

    def shipped(self, **changes: Any) -> TrialRequest:
        """A request for a trial that starts from the artifact."""
        shipped = ShippedCache(artifact=self.artifact, home=str(self.folder))
        return self.request.model_copy(update={"shipped": shipped, **changes})


def made(folder: Path, source: str, framework: str, config: dict[str, Any]) -> Made:
    """For the model `small` of this source, which is `model.py` in the folder."""
    (folder / "model.py").write_text(source)
    reference = f"{folder / 'model.py'}:small"
    workload = Workload(
        model=reference, reference=reference, framework=framework, device="cpu", search_path=str(folder)
    )
    request = TrialRequest(
        number=0, workload=workload, config=Config(config), untuned=False, tolerance=None,
        reference=str(folder / "reference.npz"), cache=str(folder / "cache"), cold=True,
        sampling=SamplingPlan(min_samples=5, max_samples=5, max_warmup_s=0.5),
    )  # fmt: skip
    with bench(folder) as runner:
        run_untuned(runner, folder, request)
        return Made(folder, request, prewarm(request, folder / "prewarm", folder / "best.cache", runner))


@contextmanager
def bench(folder: Path) -> Iterator[LocalBench]:
    with LocalBench({}, preload=False, log=folder / "log") as runner:
        yield runner


def run_untuned(runner: LocalBench, folder: Path, request: TrialRequest) -> None:
    """It leaves its reference. PyNative's first operator may crash on a CPU."""
    config = Config(entry_of(request.workload.framework).untuned)
    untuned = request.model_copy(update={"config": config, "untuned": True})
    assert any(isinstance(runner.run(TrialFolder(folder / "untuned"), untuned), Measurement) for _ in range(4))
