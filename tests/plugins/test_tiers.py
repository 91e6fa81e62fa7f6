"""Tiers under a deadline: tuned one by one, written in one file, and taken by a job as its time allows."""

from __future__ import annotations

import copy
import json
import logging
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml

import autotune
from autotune.bench.probe import read_declaration
from autotune.errors import InputError, NoUsableTrialError
from autotune.measure.measurement import Failure, Reason, Samples, Stage
from autotune.measure.statistics import Verdict
from autotune.planning.manifest import make_manifest, tier_questions
from autotune.planning.models import make_workload
from autotune.plugins.serving.tail_latency import confirm_tail
from autotune.plugins.serving.tier_file import TIERS, Tail, Tier, Tiers, read_tiers
from autotune.plugins.serving.tiers import TAIL_SHARE, deadline_s, share_of
from autotune.question.question import Question
from autotune.study.budget import Budget
from autotune.trial.deadline import Deadline
from autotune.tuning.session import Session
from tests.asking import ask
from tests.conftest import QUICK_BUDGET, REPOSITORY, ScriptedTrials
from tests.stand_ins.exports import export

INPUT = np.ones((4, 8))
MODEL = """
import time
import numpy as np


class Net:
    def __init__(self, wait_ms):
        self.wait_s = wait_ms / 1e3

    def __call__(self, x):
        time.sleep(self.wait_s)
        return x * 2


def tiered(rows=4, wait_ms=2, seed=0):
    return {"model": Net(wait_ms), "inputs": np.ones((rows, 8)),
            "tiers": {"full": {}, "exact": {"arguments": {}, "tolerance": 1e-6}, "small": {"wait_ms": 1}}}


def plain(seed=0):
    return Net(1), np.ones((4, 8))
"""


def tail(*p99_s: float) -> Tail:
    return Tail(trial=2, num_samples=1000, p50_s=min(p99_s), p99_s=max(p99_s), process_p99_s=p99_s)


def tier(name: str, p99_s: float, **arguments: int) -> Tier:
    return Tier(
        name=name, arguments=arguments, file=f"{name}.yaml", verdict=Verdict.FASTER, p99_s=p99_s, evidence=tail(p99_s)
    )


def tiers(*content: Tier, deadline: float = 0.05) -> Tiers:
    return Tiers(schema=TIERS.schema, model="m", framework="fake", device="cpu", deadline_s=deadline, tiers=content)


class TestTheFile:
    def test_comes_back_as_it_was_written(self, tmp_path):
        """Names, promises and evidence; the heading says which tiers keep the deadline."""
        written = tiers(tier("full", 0.06), tier("small", 0.0401, depth=2))
        written.write(tmp_path / "tiers.yaml")
        assert read_tiers(tmp_path / "tiers.yaml") == written
        text = (tmp_path / "tiers.yaml").read_text()
        assert "#   full: p99 60 ms, MISSES IT\n" in text
        assert "#   small: p99 40.1 ms, keeps it\n" in text
        assert [written.fits(each) for each in written.tiers] == [False, True]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"schema": 9}, "key schema: 9 is newer than 1"),
            ({"deadline_s": 0}, "key deadline_s: "),
            ({"tiers": []}, "key tiers: "),
            ({"best": 1}, "key best: unknown key"),
        ],
    )
    def test_a_broken_one_is_a_sentence(self, tmp_path, change, words):
        """File and key are named."""
        path = tmp_path / "tiers.yaml"
        path.write_text(yaml.safe_dump(tiers(tier("full", 0.06)).model_dump(mode="json", by_alias=True) | change))
        with pytest.raises(InputError, match=rf"tiers\.yaml: {words}"):
            read_tiers(path)

    def test_two_tiers_of_one_name(self):
        """A job names its models as the tiers."""
        with pytest.raises(ValueError, match="the same name"):
            tiers(tier("full", 0.06), tier("full", 0.05))

    def test_a_promise_is_the_worst_process(self):
        """Not the percentile of all samples together, which is that of no process."""
        assert tail(0.010, 0.013, 0.011).promise_s == 0.013


class TestTheQuestion:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("50ms", 0.05), ("0.2 s", 0.2), ("800us", 0.0008), (".5ms", 0.0005), ("1min", 60.0)]
    )
    def test_a_deadline(self, text, seconds):
        """A time with its unit."""
        assert deadline_s(text) == pytest.approx(seconds)

    @pytest.mark.parametrize("text", ["50", "ms", "0ms", "-1ms", "50 parsecs", "", "1e999s", "nan"])
    def test_no_deadline(self, text):
        """A number without a unit could be of anything."""
        with pytest.raises(InputError, match=r"deadline=.*not a duration"):
            deadline_s(text)

    @pytest.fixture
    def here(self, tmp_path, monkeypatch, space_file):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "net.py").write_text(MODEL)
        return lambda **more: Question(
            **{"build": ("net.py:tiered",), "framework": "fake", "device": "cpu", "space": (space_file,), **more}
        )

    def test_a_study_for_each_tier(self, here):
        """Named after the tier, with its arguments before the user's, its tolerance, and the 99th percentile."""
        wishes = tier_questions(here(study="s", arguments=("rows=2", "wait_ms=9"), tolerance=0.1))
        manifests = {name: make_manifest(each) for name, each in wishes.items()}
        assert [(name, each.name) for name, each in manifests.items()] == [
            ("full", "s-full"), ("exact", "s-exact"), ("small", "s-small"),
        ]  # fmt: skip
        assert manifests["full"].workload.arguments == {"rows": 2, "wait_ms": 9}
        assert manifests["small"].workload.arguments == {"rows": 2, "wait_ms": 1}
        assert [each.tolerance for each in manifests.values()] == [0.1, 1e-6, 0.1]
        assert {each.objective.name for each in manifests.values()} == {"p99"}
        assert tier_questions(here(objective="memory"))["small"].objective == "memory"

    def test_a_model_without_tiers_is_one(self, here):
        """The model itself, under a name made as usual."""
        (named,) = tier_questions(here(build=("net.py:plain",))).items()
        assert (named[0], named[1].study) == ("full", "net-plain-fake-cpu-full")

    def test_an_example_declares_tiers(self):
        """The demonstration that exists in both frameworks does."""
        pytest.importorskip("torch")
        wishes = tier_questions(
            Question(build=(f"{REPOSITORY}/examples/models/swiglu_torch.py:swiglu",), framework="torch", device="cpu")
        )
        assert {name: each.arguments for name, each in wishes.items()} == {
            "full": {}, "half_depth": {"depth": 2}, "one_block": {"depth": 1},
        }  # fmt: skip


@pytest.mark.torch
def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    """The file that docs/deadlines.md shows declares what the text says."""
    pytest.importorskip("torch")
    page = (REPOSITORY / "docs" / "deadlines.md").read_text()
    (tmp_path / "ranker.py").write_text(page.partition("```python\n# ranker.py\n")[2].partition("```")[0])
    monkeypatch.chdir(tmp_path)
    said = read_declaration(make_workload("ranker:build", {}, "torch", "cpu", 0), {})
    assert list(said.tiers) == ["full", "full_inexact", "half_depth", "one_layer"]
    assert said.tiers["full_inexact"].tolerance == 0.03
    assert said.tiers["half_depth"].arguments == {"depth": 6}


class TestTime:
    def test_is_shared_evenly(self):
        """Each tier has its share of what is left, less what its confirmation needs."""
        deadline = Deadline(ends=100.0, clock=lambda: 40.0)
        budget, study, everything = share_of(Budget(wall_s=90.0), deadline, 3)
        assert budget.wall_s == study.left_s() == pytest.approx(20 * (1 - TAIL_SHARE))
        assert everything.left_s() == pytest.approx(20)

    def test_without_a_time(self):
        """Everything takes as long as it takes."""
        deadline = Deadline()
        assert share_of(Budget(), deadline, 3) == (Budget(), deadline, deadline)


class TestTheConfirmedPercentile:
    @pytest.fixture
    def bench(self, make_study, measurement):
        """`bench(outcomes)`: a workbench whose processes end as scripted, and a record to confirm."""

        def bench(*outcomes, deadline=None):
            left = list(outcomes)
            trials = ScriptedTrials(lambda *_: left.pop(0))
            study = make_study()
            asked = ask(study, 1.0)
            with study.writing():
                study.tell(asked, measurement)
            bench = Session(study, QUICK_BUDGET, trials, lambda _: None, deadline or Deadline())
            return bench, study.record(asked.number), left

        return bench

    def of(self, measurement, *latencies_s):
        samples = Samples(latency_s=latencies_s, steady=True, ended_by="num_samples")
        return measurement.model_copy(update={"samples": samples})

    def test_of_fresh_processes(self, bench, measurement):
        """Each process has its own percentile; it is remembered, and not measured again for the same answer."""
        num = QUICK_BUDGET.tail.num_processes
        made, answer, left = bench(*(self.of(measurement, 0.01, 0.01 + n / 1e3) for n in range(num)))
        found = confirm_tail(made, answer)
        assert found.num_samples == 2 * num
        assert len(found.process_p99_s) == num
        assert found.promise_s == max(found.process_p99_s) == pytest.approx(0.01 + (num - 1) / 1e3, rel=1e-2)
        assert left == []
        assert confirm_tail(made, answer) == found

    def test_of_a_noisy_machine(self, bench, measurement):
        """Processes that disagree by half serve for once: the next run measures again."""
        made, answer, _ = bench(self.of(measurement, 0.01), self.of(measurement, 0.02))
        assert confirm_tail(made, answer).spread == pytest.approx(1.0)
        assert made.study.read_attribute("tail") is None

    def test_a_process_that_fails(self, bench, measurement):
        """Nothing is promised of an answer that does not run."""
        failure = Failure(reason=Reason.RUN_ERROR, stage=Stage.RUN, error="gone")
        made, answer, _ = bench(self.of(measurement, 0.01), failure)
        with pytest.raises(NoUsableTrialError, match=r"could not be confirmed \(run_error at run\): gone"):
            confirm_tail(made, answer)

    def test_no_time(self, bench, measurement):
        """Without a single process there is no promise."""
        made, answer, _ = bench(deadline=Deadline(ends=1.0, clock=lambda: 2.0))
        with pytest.raises(NoUsableTrialError, match="no time is left"):
            confirm_tail(made, answer)

    def test_little_time(self, bench, measurement):
        """Fewer processes have to do; they are not remembered, so that the next run measures more."""
        clock = iter([0.0] * 3 + [9.0] * 99)
        deadline = Deadline(ends=5.0, clock=lambda: next(clock))
        made, answer, _ = bench(*[self.of(measurement, 0.01)] * 2, deadline=deadline)
        assert len(confirm_tail(made, answer).process_p99_s) == 1 < QUICK_BUDGET.tail.num_processes
        assert made.study.read_attribute("tail") is None


@pytest.mark.slow
def test_the_whole_way(cli, tmp_path, space_file, budget_file):
    """Each tier is tuned and confirmed, all are written, the same command goes on, and a job takes what fits."""
    (tmp_path / "net.py").write_text(MODEL.replace('"exact": {"arguments": {}, "tolerance": 1e-6}, ', ""))

    def tune(deadline, *more):
        return cli(
            "tune", "--model", "net.py:tiered", "--framework", "fake", "--device", "cpu", "--space", str(space_file),
            "--study", "s", "--budget", str(budget_file), "--trials", "2", "--deadline", deadline, *more, timeout=300,
        )  # fmt: skip

    first = tune("10s")
    assert first.returncode == 0, first.stderr
    assert "tier full (1 of 2): study s-full" in first.stderr
    assert "deadline 10 s" in first.stdout
    assert "written: studies/s.tiers/tiers.yaml" in first.stdout
    assert "next:" not in first.stdout
    folder = tmp_path / "studies" / "s.tiers"
    written = read_tiers(folder / "tiers.yaml")
    assert [(each.name, written.fits(each)) for each in written.tiers] == [("full", True), ("small", True)]
    for each in written.tiers:
        tuned = yaml.safe_load((folder / each.file).read_text())
        assert tuned["workload"]["arguments"] == each.arguments
        assert tuned["evidence"]["study"] == f"s-{each.name}"
        assert tuned["workload"]["objective"] == "p99"
        assert each.p99_s == each.evidence.promise_s
        assert each.evidence.num_samples == 20

    again = tune("1us", "--json")
    assert again.returncode == 1
    document = json.loads(again.stdout)
    assert [each["fits"] for each in document["tiers"]] == [False, False]
    assert document["left_out"] == {}
    assert len(json.loads(cli("show", "s-full", "--json").stdout)["trials"]) == 2
    assert "no tier keeps 1 us: the fastest, " in again.stderr


@pytest.mark.slow
def test_a_tier_that_fails_costs_no_other(cli, tmp_path, space_file, budget_file, monkeypatch):
    """It is left out and said why; a model that cannot be built at all is the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # The logs of models that cannot be built stay.
    text = MODEL.replace('{"full": {}, "exact": {"arguments": {}, "tolerance": 1e-6}', '{"full": {"wait_ms": "x"}')
    (tmp_path / "net.py").write_text(text.replace("self.wait_s = wait_ms / 1e3", "self.wait_s = int(wait_ms) / 1e3"))
    common = (
        "tune", "--model", "net.py:tiered", "--framework", "fake", "--device", "cpu", "--space", str(space_file),
        "--budget", str(budget_file), "--trials", "2", "--deadline", "1s",
    )  # fmt: skip
    done = cli(*common, "--json", timeout=300)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [each["name"] for each in document["tiers"]] == ["small"]
    assert "invalid literal for int()" in document["left_out"]["full"]
    none = cli(*common, "--study", "t", "--model-arg", "rows=x", timeout=300)
    assert none.returncode == 2
    assert "net.py:tiered could not be built" in none.stderr
    assert "Traceback" not in none.stderr


class Model:
    """A callable that says who it is."""

    def __init__(self, name: str = "m") -> None:
        self.name = name

    def __call__(self, x: np.ndarray, **more: object) -> tuple[str, np.ndarray]:
        return self.name, x * 2


@pytest.fixture
def exported() -> dict[str, object]:
    """A recorded export of the fake framework, as if it was made here."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["environment"]["device"] = "fake"
    return content


@pytest.fixture
def write_tiers(tmp_path, exported):
    """Write tiers of the fake framework, `write_tiers(name=(milliseconds of a call, promised), ...)`; the path."""

    def write(**of: tuple[int, float]) -> Path:
        for name, (latency_ms, _) in of.items():
            content = copy.deepcopy(exported)
            content["config"] = {"execution": "compile", "latency_ms": latency_ms}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
        tiers(*(tier(name, p99_s) for name, (_, p99_s) in of.items())).write(tmp_path / "tiers.yaml")
        return tmp_path / "tiers.yaml"

    return write


def models(*names: str) -> dict[str, Model]:
    return {name: Model(name) for name in names}


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class TestInTheJob:
    def test_the_best_that_fits(self, write_tiers, caplog):
        """A call has the file's deadline, or what it is given; arguments go to the model as they are."""
        path = write_tiers(full=(1, 0.04), small=(1, 0.01))
        model = autotune.load_tiers(path).apply(models("full", "small"), margin=None)
        model.warm_up(INPUT)
        assert model(INPUT)[0] == "full"
        name, result = model.within(0.03)(INPUT, budget_s=0.5)
        assert name == "small"
        assert (result == INPUT * 2).all()
        found = autotune.stats(model)
        assert [(each.name, each.state, each.num_calls) for each in found.tiers] == [
            ("full", "tuned", 1), ("small", "tuned", 1),
        ]  # fmt: skip
        assert found.num_calls == 2
        assert lines(caplog) == []

    def test_warm_up_is_not_counted(self, write_tiers):
        """Every tier has compiled and settled after it, and no call is on record."""
        path = write_tiers(full=(1, 0.04), small=(1, 0.01))
        model = autotune.load_tiers(path).apply(models("full", "small"))
        assert [each.state for each in autotune.stats(model).tiers] == ["settling", "settling"]
        model.warm_up(INPUT)
        found = autotune.stats(model)
        assert "settling" not in [each.state for each in found.tiers]
        assert (found.num_calls, [each.num_calls for each in found.tiers]) == (0, [0, 0])

    def test_what_is_left_out(self, write_tiers, caplog):
        """A tier without a model, and a model without a tier: one warning; the others serve."""
        path = write_tiers(full=(1, 0.04), small=(1, 0.01))
        model = autotune.load_tiers(path).apply(models("small", "tiny"), margin=None)
        assert list(model.tiers) == ["small"]
        assert model(INPUT)[0] == "small"
        (line,) = lines(caplog)
        assert "left out: tier full, which has no model; the model tiny, which is no tier there" in line

    def test_without_a_usable_file(self, write_tiers, tmp_path, caplog):
        """The job runs all the same: untuned, the given order, no deadline; or it is told, if it asked for that."""
        (tmp_path / "broken.yaml").write_text("schema: 1")
        for path, names, words in (
            (tmp_path / "nope.yaml", ("a", "b"), "cannot read"),
            (tmp_path / "broken.yaml", ("a", "b"), "key model: is missing"),
            (write_tiers(full=(1, 0.04)), ("a", "b"), "has the tiers full, and models were given for a, b"),
        ):
            caplog.clear()
            loaded, given = autotune.load_tiers(path), models(*names)
            model = loaded.apply(given)
            assert model(INPUT)[0] == "a"
            assert model.tiers["a"] is given["a"]
            (line,) = lines(caplog)
            assert words in line
            assert "the tiers stay untuned" in line
            with pytest.raises(InputError, match=words):
                loaded.apply(given, on_mismatch="raise")

    def test_a_tier_whose_config_cannot_be_used(self, write_tiers, tmp_path, caplog):
        """It stays untuned, as `Loaded.apply` has it; its promise is then corrected by what is seen."""
        path = write_tiers(full=(1, 0.04), small=(1, 0.01))
        (tmp_path / "full.yaml").unlink()
        model = autotune.load_tiers(path).apply(models("full", "small"), margin=None)
        assert model(INPUT)[0] == "full"
        assert autotune.stats(model).tiers[0].state == "untuned"
        assert any("full.yaml" in line and "the model stays untuned" in line for line in lines(caplog))

    def test_what_is_no_model(self, write_tiers):
        """No model at all, or one object for two tiers, whose configs would change each other's weights."""
        loaded, shared = autotune.load_tiers(write_tiers(full=(1, 0.04), small=(1, 0.01))), Model()
        with pytest.raises(InputError, match="was given no model"):
            loaded.apply({})
        with pytest.raises(InputError, match="one model for several tiers"):
            loaded.apply({"full": shared, "small": shared})

    def test_an_error_of_the_model_is_the_jobs(self, write_tiers):
        """It comes through, and is no latency."""
        model = autotune.load_tiers(write_tiers(full=(1, 0.04))).apply(models("full"), margin=None)
        model.warm_up(INPUT)
        with pytest.raises(TypeError):
            model()
        assert autotune.stats(model).tiers[0].latency_s is None

    def test_prometheus(self, write_tiers):
        """Calls, misses and percentiles by tier; degraded and hopeless calls of the model."""
        pytest.importorskip("prometheus_client")
        from prometheus_client import CollectorRegistry, generate_latest

        from autotune.plugins.serving.prometheus import expose

        model = autotune.load_tiers(write_tiers(full=(1, 40.0), small=(1, 10.0))).apply(models("full", "small"))
        model.warm_up(INPUT)
        for budget_s in (50.0, 20.0, 0.0):
            model.within(budget_s)(INPUT)
        registry = CollectorRegistry()
        expose(model, "m", registry)
        text = generate_latest(registry).decode()
        assert 'autotune_calls_total{model="m",tier="full"} 1.0' in text
        assert 'autotune_missed_calls_total{model="m",tier="small"} 1.0' in text
        assert 'autotune_hopeless_calls_total{model="m"} 1.0' in text
        assert 'autotune_degraded_calls_total{model="m"} 0.0' in text
        assert 'autotune_promised_p99_seconds{model="m",tier="small"} 10.0' in text
        assert 'autotune_p99_seconds{model="m",tier="full"}' in text


def write_real(folder: Path, framework: str, built: dict[str, object], config) -> Path:
    """Tiers of real models, one export for each, as if they had been tuned here."""
    inputs = [{"shape": [2, 8, 32], "dtype": "float32" if framework == "torch" else "Float32"}]
    for name, model in built.items():
        export(folder / f"{name}.yaml", framework, config, model, inputs)
    tiers(tier("full", 20.0), tier("one_block", 10.0), deadline=30.0).write(folder / "tiers.yaml")
    return folder / "tiers.yaml"


SMALL = {"length": 8, "dim": 32, "heads": 2, "hidden": 48}


@pytest.mark.torch
@pytest.mark.slow
def test_with_torch(tmp_path):
    """Encoders of two depths, both captured: each call's result is that of the tier that was taken."""
    torch = pytest.importorskip("torch")
    from examples.models.swiglu_torch import swiglu

    made = {name: swiglu(depth=depth, **SMALL) for name, depth in (("full", 2), ("one_block", 1))}
    built = {name: each["model"] for name, each in made.items()}
    (inputs,) = made["full"]["inputs"]
    for each in built.values():
        each.requires_grad_(False)
    expected = {name: model(inputs) for name, model in built.items()}
    config = {"execution": "compile", "backend": "aot_eager"}
    path = write_real(tmp_path, "torch", built, config)
    model = autotune.load_tiers(path).apply(built, check=True)
    model.warm_up(inputs)
    torch.testing.assert_close(model(inputs), expected["full"])
    torch.testing.assert_close(model.within(15.0)(inputs), expected["one_block"])
    assert isinstance(model.tiers["full"], type(built["full"]))
    assert [each.state for each in autotune.stats(model).tiers] == ["tuned", "tuned"]
