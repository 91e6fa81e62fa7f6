"""The artifact from `export --with-cache` to a first call: with real processes and the fake framework's cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import autotune
from autotune.answer.export import ConfirmedCaches, prewarm, slower_calls
from autotune.apply.warm_start import key_here
from autotune.backends.undo import UndoLog
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import InputError
from autotune.job import guard
from autotune.job.stats import recorder_of
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.trial.folder import KEPT_CACHES, KEY_FILE, TrialFolder
from autotune.trial.request import ShippedCache
from autotune.tuned.cache_file import Artifact, CacheFile, Key, pack, unpack
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.traffic import parse_shapes
from autotune_fake.backend import FakeBackend, FakeShapes
from tests.conftest import REPOSITORY, OneByOne, ScriptedLive
from tests.tuned.test_cache_file import KEY

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


class Compiles(OneByOne):
    """Trials whose first call compiles for so many seconds, cold and with an artifact, whose calls then take so many
    times as long, a pair of processes each."""

    def __init__(self, measurement, cold_s, shipped_s, *, slower=(1.0,), **changes):
        self.measurement = measurement.model_copy(update=changes)
        self.seconds = {"cold": cold_s, "again": shipped_s, "shipped": shipped_s}
        self.slower = list(slower)

    def hold(self, folder, request, **_):
        measured = self.run(folder, request)
        if folder.path.name == "shipped":
            latency_s = tuple(self.slower[0] * each for each in measured.samples.latency_s)
            samples = measured.samples.model_copy(update={"latency_s": latency_s})
            measured, self.slower = measured.model_copy(update={"samples": samples}), self.slower[1:]
        return ScriptedLive(measured)

    def run(self, folder, request, *, fresh=False, on_stage=None):
        if request.keep_cache_in is not None:
            kept = Path(request.keep_cache_in)
            (kept / KEPT_CACHES).mkdir(parents=True, exist_ok=True)
            (kept / KEY_FILE).write_text(KEY.model_dump_json())
        return self.measurement.model_copy(update={"compile_s": self.seconds[folder.path.name]})


REFUSED = [
    (10.0, 6.0, {}, "it would save too little, 6 s of compiling instead of 10 s"),
    (0.08, 0.001, {}, "it would save too little"),
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
    assert made.calls_ratio == pytest.approx(1)
    assert not made.is_slower
    assert slower_calls(made) is None


SLOWER = [((1.3, 1.25, 1.28), True), ((1.07, 1.08, 1.06), True), ((1.12, 0.96, 1.01), False), ((1.02,), False)]


@pytest.mark.parametrize(("slower", "is_slower"), SLOWER)
def test_calls_from_an_artifact_that_are_slower(tmp_path, make_request, measurement, slower, is_slower):
    """What looks slower is looked at again, in three pairs of processes; it is said where that is beyond the noise."""
    trials = Compiles(measurement, 10.0, 2.0, slower=slower)
    made = prewarm(make_request({}), tmp_path / "work", tmp_path / "best.cache", trials)
    assert trials.slower == []
    assert made.is_slower is is_slower
    if is_slower:
        assert "calls that start from best.cache take 1." in slower_calls(made)
        assert "as long as after a compile" in slower_calls(made)


@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_confirmed_is_what_is_exported(tmp_path, make_request, measurement, is_there):
    """A compile that picks kernels by timing them may come to others: the caches of the confirmation begin the artifact
    and the compile that filled them is its cold one; it is compiled anew where they are gone."""
    seen = []

    def copy_to(target):
        seen.append(target.exists())
        if is_there:
            target.mkdir(parents=True)
            (target / "kernel").write_text("confirmed")
        return is_there

    work, trials = tmp_path / "work", Compiles(measurement, 1.0 if is_there else 12.0, 0.5)
    confirmed = ConfirmedCaches(copy_to, 10.0)
    made = prewarm(make_request({}), work, tmp_path / "best.cache", trials, confirmed)
    assert seen == [False]
    assert (made.compile_cold_s, made.compile_s) == (10.0 if is_there else 12.0, 0.5)
    unpack((tmp_path / "best.cache").read_bytes(), tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "kernel").exists() is is_there


CONFIG = {"execution": "compile", "behaviour": "right", "latency_ms": 1, "compile_ms": 300}


@pytest.fixture
def trial(tmp_path, make_request):
    """Run the config in a new process with what is asked for; with an artifact, from empty caches."""
    with LocalBench({}, preload=True, log=tmp_path / "log") as runner:
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
    return ShippedCache(artifact=file, home=str(tmp_path))


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
        assert outcome.reason is Reason.SETUP
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


class Model:
    """What a job has: it counts its calls."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, x):
        self.num_calls += 1
        return x * 2


INPUT = np.ones((4, 8))
FAKE_CONFIG = {"execution": "compile", "latency_ms": 1, "compile_ms": 20}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A YAML with an artifact for this process, as a file that a change may be made to first; loaded and applied."""
    monkeypatch.delenv("FAKE_CACHE", raising=False)
    backend, config = FakeBackend(), Config(FAKE_CONFIG)
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["config"], content["environment"]["device"] = FAKE_CONFIG, "fake"
    structure = content["workload"]["signature"]["structure_sha256"]
    key = key_here("fake", backend, config, structure, [INPUT])
    (tmp_path / "made").mkdir()
    with backend.compile_cache.use(tmp_path / "made", key.sha256):
        backend.compile(Model(), config, UndoLog())(INPUT)
    packed = pack(tmp_path / "made")
    home = tmp_path / "home"
    home.mkdir()
    (home / "best.cache").write_bytes(packed)
    artifact = Artifact(
        file="best.cache", sha256=hashlib.sha256(packed).hexdigest(), num_bytes=len(packed), key=key,
        check_first_call=False, compile_s=0, compile_cold_s=1,
    )  # fmt: skip
    content["artifact"] = artifact.model_dump(mode="json")

    def apply(change=lambda artifact, home: None, **changes):
        change(content["artifact"], home)
        (home / "best.yaml").write_text(yaml.safe_dump(content | changes))
        model = Model()
        return model, autotune.load(home / "best.yaml").apply(model, margin=None)

    return apply


def num_hits(model):
    """Of the fake compiler's cache, in the first call of a loaded model."""
    return recorder_of(model).diagnose().cache_hits


class TestTheJob:
    """`autotune.load(...).apply(model)` of a YAML with an artifact."""

    def test_the_first_call_starts_from_it(self, job, caplog):
        """Nothing is compiled, nothing is said, and the process's own caches are in force again afterwards."""
        _, tuned = job()
        assert (tuned(INPUT) == INPUT * 2).all()
        assert num_hits(tuned) == 1
        assert caplog.text == ""
        assert "FAKE_CACHE" not in os.environ

    FAULTS = {
        "truncated": (lambda a, home: truncate(home / "best.cache"), "bytes, the YAML says"),
        "swapped": (lambda a, home: swap(home / "best.cache"), "its checksum differs"),
        "missing": (lambda a, home: (home / "best.cache").unlink(), "cannot be read"),
        "a link": (lambda a, home: link(home / "best.cache"), "is a symbolic link"),
        "a path": (lambda a, home: a.update(file="../best.cache"), "it must be a file beside the YAML"),
        "huge": (lambda a, home: a.update(num_bytes=10**12), "more than an artifact may have"),
        "another release": (lambda a, home: a["key"].update(framework_version="9"), "framework version 9, here 0"),
        "another processor": (lambda a, home: a["key"].update(cpu_flags_sha256="x"), "cpu flags sha256 x, here"),
        "another config": (lambda a, home: a["key"].update(config="x"), "config x, here"),
        "another model": (lambda a, home: a["key"].update(structure_sha256="x"), "structure sha256 x, here"),
        "other inputs": (
            lambda a, home: (a["key"]["inputs"][0].update(shape=[9]), a.update(check_first_call=True)),
            "inputs float64[9], here float64[4, 8]",
        ),
    }

    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_job_goes_on_without_it(self, job, caplog, fault):
        """Whatever is wrong with the file or its key: one line that says so, and the tuned model compiles itself."""
        change, words = self.FAULTS[fault]
        _, tuned = job(change)
        assert (tuned(INPUT) == INPUT * 2).all()
        stats = autotune.stats(tuned)
        assert stats.state == "tuned"
        assert [event.kind for event in stats.events] == ["artifact"]
        assert words in stats.events[0].message
        assert stats.events[0].message.endswith("the first call compiles")
        assert len(caplog.records) == 1
        assert num_hits(tuned) == 0

    def test_calls_of_many_shapes_start_from_it(self, job, monkeypatch):
        """Each new shape may be compiled: the caches are in force up to the second call in a row that compiles nothing,
        and not after it, whatever comes then."""
        compiled = [1, 0, 1, 0, 0, 1, 0]
        seen, where = [], []

        def call(model, x):
            seen.append(compiled[len(seen)])
            where.append(os.environ.get("FAKE_CACHE"))
            return x * 2

        monkeypatch.setattr(Model, "__call__", call)
        monkeypatch.setattr(guard, "STREAM_CALLS", 2)
        monkeypatch.setattr(FakeShapes, "compilations", lambda self, model, config: sum(seen))
        traffic = parse_shapes(["rows=1..9"]).model_dump(mode="json")
        axis = {"dimension": "rows", "leaf": 0, "axis": 0}
        _, tuned = job(shapes={"traffic": traffic, "inputs": [axis], "outputs": [], "padding": {}})
        for rows in range(1, 8):
            tuned(np.ones((rows, 8)))
        assert [place is not None for place in where] == [True] * 5 + [False] * 2
        assert "FAKE_CACHE" not in os.environ

    @pytest.mark.parametrize("check", [False, True])
    def test_outputs_are_checked_if_the_framework_does_not_look(self, job, check):
        """The untuned model is called once beside the first call, though the job did not ask for a check."""
        model, tuned = job(lambda artifact, home: artifact.update(check_first_call=check))
        tuned(INPUT)
        assert num_hits(tuned) == 1
        assert model.num_calls == 1 + check


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def swap(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def test_the_unpacked_caches_go_with_the_process(tmp_path):
    """The private folder is removed when the process that made it ends, and not when a fork of it does."""
    script = """
import os, sys
from autotune.apply.warm_start import _private_folder
folder = _private_folder()
assert folder.stat().st_mode & 0o777 == 0o700
if os.fork() == 0:
    sys.exit()
os.wait()
assert folder.exists()
print(folder)
"""
    child = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert Path(child.stdout.strip()).parent == tmp_path
    assert not Path(child.stdout.strip()).exists()
