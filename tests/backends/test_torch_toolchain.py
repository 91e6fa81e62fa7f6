"""A trial finds the precompiled headers and the probes that inductor would make, and leaves none of its own."""

from __future__ import annotations

import json

import pytest

from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Measurement
from autotune.measure.sampling import SamplingPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Workload

torch = pytest.importorskip("torch")

MODEL = """
import json, os, pathlib, tempfile
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        x = torch.relu(x) + 1
        look()
        return x

@torch._dynamo.disable
def look():
    found = {{}}
    for kind, home in (("headers", tempfile.gettempdir()), ("probes", os.environ["TORCHINDUCTOR_CACHE_DIR"])):
        for path in pathlib.Path(home).rglob("*.gch" if kind == "headers" else "*.cpp"):
            if kind == "headers" or "chk_kernel" in path.read_text():
                found[str(path)] = [kind, path.is_symlink(), path.with_suffix(".so").stat().st_mtime
                                    if kind == "probes" else 0]
    pathlib.Path({seen!r}).write_text(json.dumps([os.getpid(), found]))

def model():
    return Model().eval(), torch.randn(64, 64)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cpp_wrapper", [False, True], ids=["in_python", "in_cpp"])
def test_headers_and_probes_are_handed_to_a_trial(tmp_path, monkeypatch, cpp_wrapper):
    """Inductor finds both headers whole, whether it wraps in Python or C++, builds no further one, and probes
    nothing: what a config costs to compile does not depend on which config came first on this machine."""
    system, seen, model = tmp_path / "system", tmp_path / "seen.json", tmp_path / "model.py"
    system.mkdir()
    monkeypatch.setenv("TMPDIR", str(system))
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    model.write_text(MODEL.format(seen=str(seen)))
    workload = Workload(
        model=f"{model}:model", reference=f"{model}:model", framework="torch", device="cpu", search_path=str(tmp_path)
    )
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
        for settings in ({"execution": "eager"}, {"execution": "compile", "cpp_wrapper": cpp_wrapper}):
            is_untuned = settings["execution"] == "eager"
            folder = TrialFolder(tmp_path / settings["execution"])
            request = TrialRequest(
                number=0, workload=workload, config=Config(settings), untuned=is_untuned,
                tolerance=1e-3, reference=str(tmp_path / "reference.npz"), cache=str(tmp_path / "cache"), cold=True,
                sampling=SamplingPlan(max_warmup_s=0.2, min_samples=3, max_samples=3), limits=Limits(),
            )  # fmt: skip
            outcome = runner.run(folder, request)
            assert isinstance(outcome, Measurement), outcome
    found = json.loads(seen.read_text())[1].values()
    assert [is_link for kind, is_link, _ in found if kind == "headers"] == [True, True]
    probed = [made for kind, _, made in found if kind == "probes"]
    assert probed
    assert max(probed) < folder.path.joinpath("request.json").stat().st_mtime
    assert not list(system.iterdir())
