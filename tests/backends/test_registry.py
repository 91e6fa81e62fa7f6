"""Frameworks that packages add by entry points, and backends that offer no more than the core."""

from __future__ import annotations

import json

import pytest

from autotune import doors
from autotune.backends.capabilities import require
from autotune.backends.registry import BACKENDS, entry_of, framework_names, framework_of, load_backend
from autotune.errors import InputError, InvalidConfigError
from autotune.measure.measurement import Measurement
from autotune_fake import ENTRY
from autotune_fake.backend import FakeBackend

TINY = """
import numpy as np
from autotune_fake.clock import SimulatedClock
from autotune.backends.contracts.runtime import DeviceReport
from autotune.backends.protocol import Backend
from autotune.backends.registry import BackendEntry
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import TensorSpec

ENTRY = BackendEntry(
    backend="tiny_backend:TinyBackend", distribution=None, oldest="0", install="pip install tiny",
    untuned={"speed": "slow"}, preload=None, compiled={"speed": "fast"},
)


class TinyBackend(Backend):
    warmup_calls = 1
    evaluation_call = "nothing"
    clock = SimulatedClock()  # What is measured does not depend on what else the machine does.

    def find(self):
        return DeviceReport(version="0", devices={"cpu": "cpu"}, compilers={})

    def prepare(self, device, seed):
        np.random.seed(seed)

    def device_name(self):
        return "cpu"

    def check_model(self, model):
        return None if callable(model) else "no function"

    def compile(self, model, config, changes):
        wait_s = {"slow": 0.008, "fast": 0.002}[config["speed"]]

        def step(x):
            self.clock.sleep(wait_s)
            return model(x)

        return step

    def diagnose(self, model, config):
        compiled = config["speed"] == "fast"
        return Diagnosis(
            compiled=compiled, num_graphs=int(compiled), graph_breaks=(), recompiles=(), cache_hits=0
        )

    def to_array(self, value):
        return value if isinstance(value, np.ndarray) else None

    def like(self, array, original):
        return array.astype(original.dtype)

    def spec(self, value):
        return TensorSpec(shape=value.shape, dtype=str(value.dtype)) if isinstance(value, np.ndarray) else None

    def widen(self, value, dtype):
        return value.astype(dtype) if isinstance(value, np.ndarray) else value
"""

TINY_SPACE = """
schema: 1
framework: tiny
knobs:
  speed: {doc: "https://example.org/x", values: [slow, fast], untuned: slow, default: fast}
"""

DECLARING_MODEL = """
import numpy as np

def tiny(seed=0):
    return {"model": lambda x: x + 1, "inputs": np.ones((4, 8)), "regions": ["blocks.*"],
            "variants": {"kind": {"plain": None, "other": print}}}
"""

TRAINED_MODEL = """
import numpy as np

def tiny(seed=0):
    return {"model": lambda x: x + 1, "inputs": np.ones((4, 8)), "targets": np.ones((4, 8)),
            "loss": lambda model, x, y: (model(x) - y).mean(), "optimizer": object()}
"""


def test_a_backend_of_another_package_tunes(install_backend, cli, model_file, budget_file, tmp_path):
    """A package of one module with the core methods is enough to tune a model with the command line, and to export."""
    quick = 'preload="numpy", holds_fresh=False'  # Trials are forks, which changes nothing of what the package has.
    install_backend("tiny", "tiny_backend", TINY.replace("preload=None", quick))
    space = tmp_path / "tiny.yaml"
    space.write_text(TINY_SPACE)
    result = cli(
        "tune", "--model", f"{model_file}:tiny", "--framework", "tiny", "--device", "cpu", "--space", str(space),
        "--study", "s", "--budget", str(budget_file), "--trials", "2", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["framework"] == "tiny"
    assert [each["state"] for each in document["trials"]] == ["measured"] * 2
    assert document["best"]["config"] == {"speed": "fast"}


def test_a_package_brings_its_own_space(install_backend, tmp_path):
    """Its entry may name a space file, which stands in for `--space`."""
    from autotune.planning.spaces import bundled_space

    install_backend("tiny", "tiny_backend", TINY.replace("preload=None", "preload=None, search_space='/t/tiny.yaml'"))
    assert bundled_space("tiny") == "/t/tiny.yaml"


class TestNames:
    """Which frameworks there are."""

    def test_installed_ones_stand_behind_the_bundled(self, install_backend):
        """They can be chosen by name, and a model is found to be theirs if its framework is imported."""
        install_backend("tiny", "tiny_backend", TINY.replace("preload=None", 'preload="numpy"'))
        assert set(framework_names()[2:]) == {"fake", "tiny"}
        assert framework_names()[:2] == ("torch", "mindspore")
        assert entry_of("tiny").install == "pip install tiny"
        assert type(load_backend("tiny")).__name__ == "TinyBackend"
        assert framework_of(lambda x: x) == "tiny"

    def test_two_of_one_name(self, install_backend):
        """Neither is taken: the message names both packages."""
        install_backend("tiny", "tiny_backend", TINY)
        install_backend("tiny", "other_backend", TINY)
        with pytest.raises(InputError, match=r"the backend 'tiny' is of two packages: .*tiny_backend") as caught:
            entry_of("tiny")
        assert "other_backend" in str(caught.value)

    def test_a_bundled_name_is_taken(self, install_backend):
        """A package cannot stand in for a bundled framework."""
        install_backend("torch", "other_torch", TINY)
        with pytest.raises(InputError, match="a package adds a backend 'torch', which is autotune's own"):
            framework_names()
        assert entry_of("torch") is BACKENDS["torch"]
        assert framework_of(object()) is None, "a job goes on"

    @pytest.mark.parametrize(
        ("source", "words"),
        [("import no_such_module", "cannot be loaded: .*No module named"), ("ENTRY = 3", "is no BackendEntry")],
    )
    def test_a_package_that_is_broken(self, install_backend, source, words):
        """One sentence where it is asked for, and nothing where another framework is."""
        install_backend("tiny", "tiny_backend", source)
        with pytest.raises(InputError, match=f"the backend 'tiny' of tiny_backend.* {words}"):
            entry_of("tiny")
        assert entry_of("fake") is ENTRY
        assert framework_of(object()) is None

    def test_nothing_is_looked_up_for_a_bundled_one(self, monkeypatch):
        """Looking for entry points takes as long as there are packages: a trial or a job does not pay for it."""
        doors.forget()
        monkeypatch.setattr(doors.metadata, "entry_points", lambda **_: pytest.fail("looked up"))
        assert entry_of("torch") is BACKENDS["torch"]


def without(monkeypatch, capability):
    """The fake backend that lacks something."""
    made = FakeBackend.__init__

    def bare(self):
        made(self)
        setattr(self, capability, None)

    monkeypatch.setattr(FakeBackend, "__init__", bare)


class TestMissingCapabilities:
    """What a backend does not offer."""

    def test_a_sentence(self):
        """It says what it was needed for."""
        with pytest.raises(InvalidConfigError, match="knob shapes: this framework's backend does not offer it"):
            require(None, "knob shapes")

    def test_a_backend_without_regions_gets_no_such_knobs(self, install_backend, tmp_path, workload):
        """What the model's author declared about modules is dropped: the space has no knob for it."""
        from autotune.bench.probe import read_declaration

        install_backend("tiny", "tiny_backend", TINY)
        model = tmp_path / "declaring.py"
        model.write_text(DECLARING_MODEL)
        reference = f"{model}:tiny"
        declared = read_declaration(
            workload.model_copy(update={"framework": "tiny", "model": reference, "reference": reference}), {}
        )
        assert (declared.regions, declared.repeated, declared.variants) == (None, None, {})

    def test_training(self, install_backend, tmp_path, workload):
        """A trial of the task `train` is invalid, and the sentence says why."""
        from autotune.trial.worker.subjects import build_subject

        install_backend("tiny", "tiny_backend", TINY)
        model = tmp_path / "trained.py"
        model.write_text(TRAINED_MODEL)
        trained = {"framework": "tiny", "task": "train", "model": f"{model}:tiny", "reference": f"{model}:tiny"}
        with pytest.raises(InvalidConfigError, match="task='train': this framework's backend does not offer it"):
            build_subject(workload.model_copy(update=trained), load_backend("tiny"))

    @pytest.mark.parametrize(
        ("capability", "knobs"), [("shapes", {"shapes": "marked"}), ("regions", {"region": "blocks.*"})]
    )
    def test_a_config_that_needs_it_is_invalid(self, monkeypatch, capability, knobs):
        """The model is not touched, and the sentence names the knob."""
        from autotune.apply.compile_model import compile_under
        from autotune.backends.undo import UndoLog
        from autotune.config import Config

        without(monkeypatch, capability)
        with pytest.raises(InvalidConfigError, match=r"knobs? .*: this framework's backend does not offer it"):
            compile_under(load_backend("fake"), lambda x: x, Config({"execution": "compile", **knobs}), [], UndoLog())


def test_the_core_alone_measures(install_backend, tmp_path, make_request, workload):
    """A trial of a backend that offers the core alone: timed, checked, no digest, no device memory."""
    from autotune.bench.local import LocalBench
    from autotune.trial.folder import TrialFolder

    install_backend("tiny", "tiny_backend", TINY)
    request = make_request({"speed": "slow"}, untuned=True, workload=workload.model_copy(update={"framework": "tiny"}))
    with LocalBench({}, preload=False, log=tmp_path / "log") as runner:
        outcome = runner.run(TrialFolder(tmp_path / "untuned"), request)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.program is None
