"""The artifact from `export --with-cache` to a first call: with real processes and the fake framework's cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from autotune.artifact import Artifact, CacheFile, Key, pack
from autotune.errors import InputError
from autotune.measurement import Diagnosis, Failure, Measurement, Reason
from autotune.prewarm import prewarm
from autotune.runner import Runner
from autotune.trial import KEPT_CACHES, KEY_FILE, Shipped, TrialFolder
from autotune.tuned import load_tuned
from tests.test_artifact import KEY

SLOW_TO_COMPILE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  latency_ms: {doc: "https://example.org/x", values: [8, 2], default: 2, untuned: 8}
  compile_ms: {doc: "https://example.org/x", when: {execution: compile}, values: [400], default: 400}
"""


@pytest.fixture
def tune(tune_fake, tmp_path):
    """Tune a fake model whose compile takes 400 ms."""
    path = tmp_path / "slow_space.yaml"
    path.write_text(SLOW_TO_COMPILE)
    result = tune_fake("--trials", "2", "--space", str(path))
    assert result.returncode == 0, result.stderr


def test_the_export(tune, tmp_path, cli, model_file):
    """The YAML names the file with its checksum and both compile times; `show` gives the third one. Where no artifact
    can be made, there is a sentence, exit status 1, and a YAML without one."""
    exported = cli("export", "s", "--with-cache")
    assert exported.returncode == 0, exported.stderr
    tuned = load_tuned(tmp_path / "best.yaml")
    found = tuned.artifact
    assert (tmp_path / found.file).stat().st_size == found.num_bytes
    assert found.key.config == tuned.config.fingerprint
    assert found.key.structure_sha256 == tuned.workload.signature.structure_sha256
    assert found.key.inputs == tuned.workload.signature.inputs
    assert found.compile_cold_s >= 0.4  # A sleep never ends early.
    assert found.compile_s < found.compile_cold_s / 2
    assert "best.cache" in exported.stdout
    assert "with the exported artifact" in cli("show", "s").stdout
    document = json.loads(cli("show", "s", "--json").stdout)
    assert Artifact.model_validate(document["artifact"]) == found

    model_file.write_text("def tiny():\n    raise RuntimeError('the weights are gone')\n")
    refused = cli("export", "s", "--with-cache")
    assert refused.returncode == 1
    assert "no artifact: compiling the config failed: RuntimeError: the weights are gone" in refused.stderr
    assert "stderr.txt" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert load_tuned(tmp_path / "best.yaml").artifact is None


class Compiles:
    """Trials whose first call compiles for so many seconds, cold and with an artifact."""

    def __init__(self, measurement, cold_s, shipped_s, **changes):
        self.measurement = measurement.model_copy(update=changes)
        self.seconds = {"cold": cold_s, "again": shipped_s, "shipped": shipped_s}

    def run(self, folder, request, *, fresh=False, on_stage=None):
        assert fresh
        if request.keep_cache_in is not None:
            kept = Path(request.keep_cache_in)
            (kept / KEPT_CACHES).mkdir(parents=True, exist_ok=True)
            (kept / KEY_FILE).write_text(KEY.model_dump_json())
        return self.measurement.model_copy(update={"compile_s": self.seconds[folder.path.name]})


REFUSED = [
    (10.0, 6.0, {}, "it would spare too little, 6 s of compiling in place of 10 s"),
    (0.08, 0.001, {}, "it would spare too little"),
    (10.0, 1.0, {"diagnosis": Diagnosis(compiled=False)}, "nothing is compiled"),
]


@pytest.mark.parametrize(("cold_s", "shipped_s", "changes", "words"), REFUSED)
def test_an_artifact_that_nobody_needs(tmp_path, make_request, measurement, cold_s, shipped_s, changes, words):
    """It must spare half the compile at least, and some seconds worth the trust: else a sentence, and no file."""
    trials = Compiles(measurement, cold_s, shipped_s, **changes)
    with pytest.raises(InputError, match=words):
        prewarm(make_request({}), tmp_path / "work", tmp_path / "best.cache", trials)
    assert not (tmp_path / "best.cache").exists()


def test_an_artifact_that_is_worth_it(tmp_path, make_request, measurement):
    """What was measured is what is written down."""
    trials = Compiles(measurement, 10.0, 2.0)
    made = prewarm(make_request({}), tmp_path / "work", tmp_path / "best.cache", trials)
    assert (made.compile_cold_s, made.compile_s, made.key) == (10.0, 2.0, KEY)
    assert made.sha256 == hashlib.sha256((tmp_path / "best.cache").read_bytes()).hexdigest()


CONFIG = {"execution": "compile", "behaviour": "right", "latency_ms": 1, "compile_ms": 300}


@pytest.fixture
def trial(tmp_path, make_request):
    """Run the config in a new process with what is asked for; with an artifact, from empty caches."""
    with Runner("fake", {}, preload=True, log=tmp_path / "log") as runner:
        runner.run(TrialFolder(tmp_path / "untuned"), make_request())

        def run(name, settings=CONFIG, **asked):
            asked.setdefault("cache", str(tmp_path / name / "cache"))
            return runner.run(TrialFolder(tmp_path / name), make_request(settings, **asked))

        yield run


@pytest.fixture
def shipped(trial, tmp_path):
    """An artifact of the config, made as `export --with-cache` makes it, as a request names it."""
    assert isinstance(trial("kept", keep_cache_in=str(tmp_path / "kept")), Measurement)
    content = pack(tmp_path / "kept" / KEPT_CACHES)
    (tmp_path / "best.cache").write_bytes(content)
    file = CacheFile(
        file="best.cache",
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        key=Key.model_validate_json((tmp_path / "kept" / KEY_FILE).read_text()),
        check_first_call=False,
    )
    return Shipped(artifact=file, home=str(tmp_path))


class TestAProcess:
    """A trial that starts from the artifact, by the same function as a job."""

    def test_it_starts_from_the_artifact(self, trial, shipped):
        """The compiler's own book says that nothing was compiled."""
        outcome = trial("from-artifact", shipped=shipped)
        assert isinstance(outcome, Measurement), outcome
        assert outcome.diagnosis.cache_hits == 1

    FAULTS = {
        "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, the YAML says"),
        "missing": (lambda path: path.unlink(), "cannot be read"),
    }

    @pytest.mark.parametrize("fault", FAULTS)
    def test_it_says_what_is_wrong_with_the_file(self, trial, shipped, tmp_path, fault):
        """Measuring an artifact that is not used would be measuring something else: the trial fails and says why."""
        change, words = self.FAULTS[fault]
        change(tmp_path / "best.cache")
        outcome = trial("from-artifact", shipped=shipped)
        assert isinstance(outcome, Failure)
        assert outcome.reason is Reason.HARNESS
        assert words in outcome.error

    def test_it_says_that_the_artifact_is_for_something_else(self, trial, shipped):
        """Another config: both fingerprints are told."""
        outcome = trial("from-artifact", CONFIG | {"latency_ms": 2}, shipped=shipped)
        assert isinstance(outcome, Failure)
        assert "best.cache is not used: it was made for config" in outcome.error

    def test_shapes_matter_if_the_framework_does_not_look(self, trial, shipped):
        """An artifact that asks for a check of the first call is for its own shapes only."""
        key = shipped.artifact.key
        other = key.model_copy(update={"inputs": (key.inputs[0].model_copy(update={"shape": (9, 8)}),)})
        for check, kind in ((False, Measurement), (True, Failure)):
            file = shipped.artifact.model_copy(update={"key": other, "check_first_call": check})
            asked = shipped.model_copy(update={"artifact": file})
            outcome = trial(f"check-{check}", shipped=asked)
            assert isinstance(outcome, kind)
        assert "float64[9, 8], here float64[4, 8]" in outcome.error
