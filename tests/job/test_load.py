"""What a job meets: every fault leaves it with its untuned model and one line, or raises where it asked for that."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import autotune
from autotune import environment
from autotune.backends.call_state import CallState, UncomparableError
from autotune.backends.protocol import Backend
from autotune.backends.registry import CheapSettings
from autotune.backends.undo import UndoLog
from autotune.errors import AutotuneError, InputError
from autotune.job import fallback as fallback_of_jobs
from autotune.job import latency_check
from autotune.job.fallback import Fallback, MismatchError
from autotune.job.latency_check import NUM_TIMED
from autotune.job.output_check import OutputCheck
from autotune.job.stats import TIMED_EVERY, CallTimes, StatsRecorder
from autotune.job.uses import use
from autotune_fake import ENTRY
from autotune_fake.backend import FakeBackend
from autotune_fake.behaviours import FakeOutOfMemoryError
from tests.conftest import REPOSITORY

INPUT = np.ones((4, 8))
RETUNE = "to tune here: python -m autotune tune --model tiny_model.py:tiny --framework fake --device cpu"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time passes while somebody sleeps, and a microsecond a look: the machine may be as slow as it likes."""
    now_s = 0.0

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    def perf_counter():
        sleep(1e-6)
        return now_s

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", perf_counter)


@pytest.fixture(scope="module")
def exported() -> dict[str, object]:
    """A real export, recorded from a study of the fake framework; the machine is this one."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["config"] = {"execution": "compile", "latency_ms": 1}
    content["environment"]["device"] = "fake"
    return content


class Model:
    """A callable that counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.num_calls += 1
        return x * 2


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def of(behaviour: str):
    """A change of the export: the config misbehaves."""
    return lambda content: content["config"].update(behaviour=behaviour)


def of_a_slow_model(content):
    """Recorded with a second a call: no machine that runs the tests is so disturbed that this one is slower."""
    content["evidence"]["best"]["latency_s"].update(p50=1.0)


def test_two_lines(write, caplog):
    """The model comes back tuned, gives what it gave, and nothing is said."""
    model = autotune.load(write(of_a_slow_model)).apply(Model())
    for _ in range(30):
        assert (model(INPUT) == INPUT * 2).all()
    assert autotune.stats(model).state == "tuned"
    assert lines(caplog) == []


def test_unless_faster_the_model_comes_back_untouched(write):
    """`apply` of any other verdict returns the same object, says so in the log, and needs no framework."""
    path = write(lambda content: content.update(verdict="tie", framework="torch"))
    script = (
        "import sys, logging, autotune\nlogging.basicConfig(level=20)\nmodel = object()\n"
        f"assert autotune.load({str(path)!r}).apply(model) is model\n"
        "assert not {'torch', 'mindspore', 'optuna'} & set(sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert f"INFO:autotune:autotune: {path} says tie: the model runs as it is\n" == said.stderr


FILES = {
    "empty": ("", "is empty"),
    "a list": ("- a\n- b\n", "best.yaml"),
    "broken": ("a: [", "best.yaml"),
    "hostile": ("!!python/object/apply:os.system ['touch hacked']", "best.yaml"),
    "binary": ("\x00", "best.yaml"),
    "newer": ("schema: 99", "key schema: 99 is newer than"),
    "another file": ("schema: 1\nknobs: {}", "key framework: is missing"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none(tmp_path, monkeypatch, caplog, name):
    """Broken, hostile or newer: nothing is executed, the model stays as it is, one line names the file and the key."""
    content, words = FILES[name]
    path = tmp_path / "best.yaml"
    path.write_text(content)
    monkeypatch.chdir(tmp_path)
    model = Model()
    assert autotune.load(path).apply(model) is model
    assert len(lines(caplog)) == 1
    assert words in caplog.text
    assert "the model stays untuned" in caplog.text
    assert not (tmp_path / "hacked").exists()
    with pytest.raises(InputError, match=r"best\.yaml"):
        autotune.load(path).apply(model, on_mismatch="raise")


def test_a_missing_file(tmp_path, caplog):
    """The first run of a job, before anything was tuned: it runs."""
    model = Model()
    assert autotune.load(tmp_path / "nope.yaml").apply(model) is model
    assert len(lines(caplog)) == 1
    assert "nope.yaml" in caplog.text


def of_another_processor(content):
    content["environment"].update(device="cpu", processor="Abacus", num_cores=99, vector_instructions="bead")


MISMATCHES = {
    "release": (lambda c: c["environment"].update(framework_version="99"), "fake 99, here 0"),
    "device": (lambda c: c["environment"].update(device="Ascend910B4"), "the device Ascend910B4, here fake"),
    "packages": (lambda c: c["environment"]["packages"].update(triton="1.0"), "triton 1.0, here"),
    "model": (lambda c: c["workload"]["signature"].update(structure_sha256="0"), "with other parameters than this"),
}


@pytest.mark.parametrize("name", MISMATCHES)
class TestMismatch:
    """The evidence is from elsewhere."""

    @pytest.fixture
    def path(self, write, name):
        return write(MISMATCHES[name][0])

    def test_by_default_the_model_stays_untuned(self, path, name, caplog):
        """One line says what differs, and how to tune here."""
        model = Model()
        assert autotune.load(path).apply(model) is model
        assert lines(caplog)[0].endswith(f"; the model stays untuned; {RETUNE}")
        assert MISMATCHES[name][1] in caplog.text
        assert len(lines(caplog)) == 1
        assert [each.kind for each in autotune.stats(model).events] == ["mismatch"]

    def test_without_advice(self, path, name, caplog):
        """`untuned` says the same, but for the command."""
        model = Model()
        assert autotune.load(path).apply(model, on_mismatch="untuned") is model
        assert RETUNE not in caplog.text
        assert MISMATCHES[name][1] in caplog.text

    def test_applied_all_the_same(self, path, name, caplog):
        """`apply` compiles, and says that nothing is proven here."""
        model = autotune.load(path).apply(Model(), on_mismatch="apply")
        assert (model(INPUT) == INPUT * 2).all()
        assert autotune.stats(model).state == "tuned"
        assert len(lines(caplog)) == 1
        assert "the speed-up is not proven here" in caplog.text

    def test_raised(self, path, name):
        """`raise` tells by an exception, with the advice as its tip."""
        with pytest.raises(MismatchError, match=MISMATCHES[name][1].split(",")[0]) as caught:
            autotune.load(path).apply(Model(), on_mismatch="raise")
        assert caught.value.tip == RETUNE


def test_another_processor(write, caplog, monkeypatch):
    """On a CPU it is the processor and its cores that count."""
    monkeypatch.setattr(FakeBackend, "device_name", lambda self: "cpu")
    autotune.load(write(of_another_processor)).apply(Model())
    here = environment.describe(device="cpu", variables={})
    instructions = f"vector instructions bead, here {here.vector_instructions}; " if here.vector_instructions else ""
    assert f"a Abacus, here {here.processor}; {instructions}cores: 99, here {here.num_cores}" in caplog.text


@pytest.mark.parametrize(
    ("then", "here", "is_tuned"),
    [
        ((1, None), (2, "1"), True),
        ((2, "1"), (1, None), True),
        ((4, "2"), (2, None), True),
        ((1, None), (2, None), False),
        ((2, None), (1, "2"), False),
        ((4, None), (2, "4"), False),
    ],
)
def test_threads_that_compute_count(write, caplog, monkeypatch, then, here, is_tuned):
    """A file of one core is for a worker that is pinned to one, and for one of a single thread on a node with more; not
    for threads that share a core."""
    monkeypatch.setattr(FakeBackend, "device_name", lambda self: "cpu")

    def of_threads(content):
        inherited = {} if then[1] is None else {"OMP_NUM_THREADS": then[1]}
        found = environment.describe(device="cpu", variables={}).model_dump(mode="json")
        content["environment"].update({name: found[name] for name in ("processor", "vector_instructions", "device")})
        content["environment"].update(num_cores=then[0], inherited=inherited)

    path = write(of_threads)
    monkeypatch.setattr(environment, "usable_cores", lambda: here[0])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if here[1] is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", here[1])
    model = Model()
    assert (autotune.load(path).apply(model) is not model) == is_tuned
    assert (f"cores: {then[0]}, here {here[0]}" in caplog.text) == (not is_tuned)


def test_less_memory_than_was_needed(write, caplog, monkeypatch):
    """A container with such a limit would have the kernel kill the job."""
    monkeypatch.setattr(FakeBackend, "device_name", lambda self: "cpu")
    monkeypatch.setattr(environment, "usable_memory_bytes", lambda: 2**30)
    model = Model()
    path = write(lambda content: content["evidence"]["best"].update(peak_memory_bytes=3 * 2**30))
    assert autotune.load(path).apply(model) is model
    assert "up to 3,072 MiB of memory, here 1,024 MiB" in caplog.text
    caplog.clear()
    content = yaml.safe_load(path.read_text())
    content["config"]["instances"] = "4x1"
    path.write_text(yaml.safe_dump(content))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    autotune.load(path).apply(model, on_mismatch="apply")
    assert "4 processes side by side" in caplog.text
    assert "of memory" not in caplog.text, "each of four processes takes a fourth of it"


def test_another_framework(write, caplog):
    """A config for a framework that is not here, or a model of another one: the model stays."""
    pytest.importorskip("torch")
    model = Model()
    assert autotune.load(write(lambda c: c.update(framework="torch"))).apply(model) is model
    assert "this config was tuned for torch; it was to be applied to a Model" in caplog.text
    assert len(lines(caplog)) == 1


def test_a_framework_that_is_not_installed(write, caplog, monkeypatch):
    """One line that says what to install, and the job goes on."""
    monkeypatch.setattr("autotune.backends.registry.package_version", lambda _: None)
    model = Model()
    assert autotune.load(write(lambda c: c.update(framework="mindspore"))).apply(model) is model
    assert "mindspore is not installed" in caplog.text
    assert "pip install" in caplog.text


def test_a_setting_that_is_not_known(write, caplog):
    """An older or newer release may not take a knob: refused before anything was changed."""
    model = Model()
    assert autotune.load(write(of("unheard of"))).apply(model) is model
    assert "behaviour 'unheard of' is unknown to the fake framework; the model stays untuned" in caplog.text


def test_other_inputs_stay_untuned(write, caplog):
    """A call with another batch is never tuned, before the first that fits and after it; one line says so."""
    inner = Model()
    model = autotune.load(write(of_a_slow_model)).apply(inner, monitor=True)
    for _ in range(3):
        assert model(np.ones((2, 8))).shape == (2, 8)
    assert autotune.stats(model).state == "settling"
    said = f"inputs float64[4, 8], here float64[2, 8]: such calls stay untuned; {RETUNE}, with shapes="
    assert [said in line for line in lines(caplog)] == [True]
    for _ in range(30):
        model(INPUT)
    assert autotune.stats(model).state == "tuned"
    assert model(np.ones((2, 8))).shape == (2, 8)
    assert model(np.ones((4, 8), dtype=np.float32)).dtype == np.float32
    assert len(lines(caplog)) == 1


def test_a_number_that_comes_along_is_no_other_input(write, caplog):
    """Trainers pass counts as tensors of no dimension: such a call fits."""
    model = autotune.load(write()).apply(lambda x, count: x * 2)
    model(INPUT, np.array(3))
    assert lines(caplog) == []


def under_traffic(content):
    """The export of a study with batches of 1 to 8, padded to 3 and 8."""
    axis = {"dimension": "batch", "leaf": 0, "axis": 0}
    loads = [{"sizes": {"batch": batch}, "share": share} for batch, share in ((1, 0.2), (3, 0.5), (8, 0.3))]
    content["shapes"] = {
        "traffic": {"loads": loads}, "inputs": [axis], "outputs": [axis], "padding": {"batch": 0.0},
    }  # fmt: skip
    content["config"] |= {"shapes": "bucketed", "num_buckets": 2, "latency_ms": 30}


class Noting(Model):
    """Notes the shapes that it is called with."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __call__(self, x):
        self.shapes.append(x.shape)
        return super().__call__(x)


def test_a_jobs_calls_go_by_the_strategy(write, caplog):
    """Calls of all sizes between those of the traffic are its calls, and the recorded latency, which is that of a
    mixture, is compared with none of them."""
    inner = Noting()
    model = autotune.load(write(under_traffic)).apply(inner)
    for batch in (1, 3, 5, 8, 2):
        assert (model(np.ones((batch, 8))) == np.full((batch, 8), 2.0)).all()
    assert inner.shapes == [(3, 8), (3, 8), (8, 8), (8, 8), (3, 8)]
    assert autotune.stats(model).state == "tuned"
    assert not lines(caplog)


@pytest.mark.parametrize("order", [("x", "weight"), ("weight", "x")])
def test_a_jobs_calls_give_their_arguments_in_any_order(write, caplog, order):
    """The argument that was measured in many sizes is the one that is padded, and all sizes of it are the traffic's."""

    def named(content):
        under_traffic(content)
        content["shapes"]["inputs"][0]["name"] = "x"
        content["workload"]["signature"]["inputs"] = [{"shape": [8, 8], "dtype": "float64"}] * 2

    seen = []
    model = autotune.load(write(named)).apply(lambda x, weight: seen.append((x.shape, weight.shape)) or x @ weight)
    for batch in (8, 2):
        given = {"x": np.ones((batch, 8)), "weight": np.eye(8)}
        np.testing.assert_array_equal(model(**{name: given[name] for name in order}), given["x"])
    assert seen == [((8, 8), (8, 8)), ((3, 8), (8, 8))]
    assert not lines(caplog)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((9, 8), "was tuned for calls with batch from 1 to 8, here 9"),
        ((4, 7), "was tuned for inputs float64[4, 8], here float64[4, 7]"),
        ((4, 8, 1), "was tuned for inputs float64[4, 8], here float64[4, 8, 1]"),
    ],
)
def test_calls_outside_the_traffic(write, caplog, shape, words):
    """What no call of the traffic was like is a mismatch, as other inputs are."""
    inner = Noting()
    model = autotune.load(write(under_traffic)).apply(inner)
    model(np.ones(shape))
    assert words in caplog.text
    assert inner.shapes == [shape]
    model(np.ones((2, 8)))
    assert inner.shapes == [shape, (3, 8)]


def test_a_strategy_that_nothing_is_known_for(write, caplog):
    """A file without its traffic is of no use: the model stays untuned, with one line."""
    model = Model()
    path = write(lambda content: content["config"].update(shapes="marked"))
    assert (autotune.load(path).apply(model)(INPUT) == INPUT * 2).all()
    assert "goes by the traffic, and none is known" in caplog.text


def test_other_inputs_and_the_policies(write):
    """`raise` raises at the call; `apply` compiles for what comes."""
    with pytest.raises(MismatchError, match=r"here float64\[2, 8\]"):
        autotune.load(write()).apply(Model(), on_mismatch="raise")(np.ones((2, 8)))
    model = autotune.load(write()).apply(Model(), on_mismatch="apply")
    model(np.ones((2, 8)))
    assert autotune.stats(model).state == "tuned"


@pytest.mark.parametrize("behaviour", ["compile_error", "out_of_memory"])
def test_a_compile_error(write, caplog, behaviour):
    """Injected at the first call: the call is answered by the untuned model, and all that follow."""
    inner = Model()
    model = autotune.load(write(of(behaviour))).apply(inner)
    for _ in range(3):
        assert (model(INPUT) == INPUT * 2).all()
    stats = autotune.stats(model)
    assert (stats.state, stats.num_fallbacks) == ("untuned", 1)
    assert len(lines(caplog)) == 1
    assert "the tuned model failed: " in lines(caplog)[0]
    assert lines(caplog)[0].endswith("; back to the untuned model")
    with pytest.raises(Exception, match=r"fake compiler|1 TiB"):
        autotune.load(write(of(behaviour))).apply(inner, on_mismatch="raise")(INPUT)


@pytest.mark.parametrize("behaviour", ["wrong", "nan"])
def test_a_wrong_result(write, caplog, behaviour):
    """Injected: the optional check finds it at the first call, which is answered rightly."""
    model = autotune.load(write(of(behaviour))).apply(Model(), check=True)
    for _ in range(3):
        assert (model(INPUT) == INPUT * 2).all()
    assert autotune.stats(model).state == "untuned"
    assert len(lines(caplog)) == 1
    assert "the first outputs are wrong: output: " in caplog.text
    with pytest.raises(MismatchError, match="the first outputs are wrong"):
        autotune.load(write(of(behaviour))).apply(Model(), check=True, on_mismatch="raise")(INPUT)


def test_a_right_result_is_checked_once(write, caplog):
    """The check calls the untuned model once; without it no call is made that the job did not ask for."""
    for check, num_calls in ((True, 2), (False, 1)):
        inner = Model()
        autotune.load(write()).apply(inner, check=check)(INPUT)
        assert inner.num_calls == num_calls
    assert lines(caplog) == []


class Loading(Model):
    """Other weights are loaded while it is called, so many times; the weight stands where a framework has one."""

    WEIGHT = "_parameters['weight']"

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        setattr(self, self.WEIGHT, np.array(2.0))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        weight = getattr(self, self.WEIGHT)
        if self.times > 0:
            self.times -= 1
            setattr(self, self.WEIGHT, np.array(weight * 3))
        return x * weight


@pytest.mark.parametrize(("behaviour", "times", "said"), [
    ("right", 1, None),
    ("right", 5, None),
    ("right", 100, "the weights were changed during each of 9 calls"),
    ("wrong", 3, "the first outputs are wrong"),
])  # fmt: skip
def test_weights_that_change_while_two_calls_are_compared(write, caplog, behaviour, times, said):
    """They differ then, which says nothing of the config: the next call is compared, and nothing wrong gets out."""
    inner = Loading(times)
    model = autotune.load(write(of(behaviour))).apply(inner, check=True)
    for _ in range(12):
        before = getattr(inner, Loading.WEIGHT)
        result = model(INPUT)
        assert (result >= INPUT * before).all()
        assert (result <= INPUT * getattr(inner, Loading.WEIGHT)).all()
    assert [said is not None and said in line for line in lines(caplog)] == [True] * (said is not None)


def test_a_model_that_draws_random_numbers_is_not_checked(write, caplog):
    """Its outputs differ from call to call: one line says that they were not compared."""
    model = autotune.load(write()).apply(lambda x: x + np.random.rand(), check=True)
    model(INPUT)
    assert "the model draws random numbers: the first outputs cannot be checked" in caplog.text
    assert autotune.stats(model).num_fallbacks == 0


def slower_than_recorded(content):
    """The config sleeps 20 ms, and is on record with 2."""
    content["config"].update(latency_ms=20)


def test_a_regression(write, caplog):
    """Injected: slower than recorded, and slower than the untuned model, is given up after the first calls."""
    inner = Model()
    model = autotune.load(write(slower_than_recorded)).apply(inner)
    num_calls = 3 * (FakeBackend.warmup_calls + NUM_TIMED) + 5
    for _ in range(num_calls):
        assert (model(INPUT) == INPUT * 2).all()
    assert inner.num_calls == num_calls
    assert autotune.stats(model).state == "untuned"
    assert len(lines(caplog)) == 1
    assert "the tuned model is slower: " in caplog.text


def test_a_slower_machine_is_no_regression(write, caplog):
    """Slower than recorded, but the untuned model is slower still: the tuned one stays."""

    def slow(x):
        time.sleep(0.03 if asleep else 0)
        return x * 2

    asleep = False
    model = autotune.load(write(slower_than_recorded)).apply(slow)
    for number in range(40):
        # The untuned model's turn comes after the tuned one's.
        asleep = number > FakeBackend.warmup_calls + NUM_TIMED
        model(INPUT)
    stats = autotune.stats(model)
    assert stats.state == "tuned"
    assert [each.kind for each in stats.events] == ["slow"]
    assert lines(caplog) == []


def counting(monkeypatch, faults):
    """So many page faults come with each call, by the system's count."""
    counts = itertools.count()
    monkeypatch.setattr(latency_check, "used", lambda: (0.0, faults * next(counts), 0))


def test_page_faults_that_make_it_slower_are_told_with_the_remedy(write, caplog, monkeypatch):
    """20 ms for 2 that are on record without a fault: the warning names the cause. A framework says how to end it."""
    cheap = CheapSettings({"allocator": "keep"}, "keeping memory", "KEEP=1")
    monkeypatch.setattr(use, "entry_of", lambda _: replace(ENTRY, cheap=cheap))
    counting(monkeypatch, 18000)

    def faulting(content):
        slower_than_recorded(content)
        content["evidence"]["best"]["page_faults"] = 12.0

    model = autotune.load(write(faulting)).apply(Model())
    for _ in range(3 * (FakeBackend.warmup_calls + NUM_TIMED) + 5):
        model(INPUT)
    (line,) = lines(caplog)
    assert "18,000 page faults a call, recorded 12: the C library gives memory back to the system" in line
    assert "which KEEP=1 ends" in line


def test_page_faults_within_the_margin_are_an_event(write, caplog, monkeypatch):
    """A fifth slower than promised is no reason to go back, and nobody is woken."""
    counting(monkeypatch, 18000)

    def faulting(content):
        content["config"].update(latency_ms=20)
        content["evidence"]["best"]["page_faults"] = 0.0
        content["evidence"]["best"]["latency_s"].update(p50=0.016)

    model = autotune.load(write(faulting)).apply(Model())
    for _ in range(30):
        model(INPUT)
    stats = autotune.stats(model)
    assert stats.state == "tuned"
    assert ["18,000 page faults a call" in event.message for event in stats.events] == [True]
    assert lines(caplog) == []


def test_a_file_without_page_faults_blames_nothing(write, caplog, monkeypatch):
    """One that was written before they were kept, or on a device."""
    counting(monkeypatch, 18000)
    model = autotune.load(write(slower_than_recorded)).apply(Model())
    for _ in range(3 * (FakeBackend.warmup_calls + NUM_TIMED) + 5):
        model(INPUT)
    (line,) = lines(caplog)
    assert "page faults" not in line


def test_a_disturbance_of_the_first_turn_is_no_regression(write, caplog, monkeypatch):
    """Slower than recorded and than the untuned model at first, as fast as recorded when looked at again: it stays."""
    turn = FakeBackend.warmup_calls + NUM_TIMED
    model = autotune.load(write(slower_than_recorded)).apply(lambda x: x * 2)
    sleep = time.sleep
    for number in range(3 * turn + 5):
        monkeypatch.setattr(time, "sleep", sleep if number <= turn else lambda _: None)
        model(INPUT)
    assert autotune.stats(model).state == "tuned"
    assert autotune.stats(model).num_fallbacks == 0
    assert lines(caplog) == []


def test_margin_none_does_not_look(write):
    """A job that knows better may turn it off."""
    model = autotune.load(write(slower_than_recorded)).apply(Model(), margin=None)
    model(INPUT)
    assert autotune.stats(model).state == "tuned"


def test_an_unknown_policy(write):
    """A mistake in the job's own code is told at once."""
    with pytest.raises(InputError, match="on_mismatch='ignore': unknown"):
        autotune.load(write()).apply(Model(), on_mismatch="ignore")


def test_statistics(write):
    """Off by default; asked for, calls are counted and timed, whatever became of the config."""
    silent = autotune.load(write()).apply(Model())
    silent(INPUT)
    assert (autotune.stats(silent).num_calls, autotune.stats(silent).latency_s) == (None, None)
    for change in (lambda c: None, of("compile_error"), lambda c: c.update(verdict="tie")):
        model = autotune.load(write(change)).apply(Model(), monitor=True)
        for _ in range(TIMED_EVERY):
            model(INPUT)
        stats = autotune.stats(model)
        assert stats.num_calls == TIMED_EVERY
        assert 0 < stats.latency_s.p50 <= stats.latency_s.p99
        assert stats.peak_memory_bytes > 0
    assert autotune.stats(model).num_fallbacks == 0
    assert autotune.stats(object()) is None


@pytest.mark.parametrize(("synchronise", "num_timed"), [(None, 40), (lambda: None, 2)], ids=["cpu", "device"])
def test_call_times(synchronise, num_timed):
    """Where a call returns with its result each is timed; a device is only waited for now and then."""
    calls = CallTimes(synchronise)
    counted = calls.around(lambda x, *, y: x + y)
    assert calls.latency() is None
    assert [counted(1, y=2) for _ in range(40)] == [3] * 40
    assert (calls.num_calls, len(calls._latest_s)) == (40, num_timed)


def test_statistics_say_what_was_compiled(write):
    """Compiles, recompiles and breaks are the framework's own counts."""
    model = autotune.load(write(of("breaks"))).apply(Model())
    model(INPUT)
    stats = autotune.stats(model)
    assert (stats.num_compiles, stats.num_recompiles, stats.num_graph_breaks) == (2, 0, 1)


def scraped(model) -> str:
    """What Prometheus reads of a model."""
    from prometheus_client import CollectorRegistry, generate_latest

    from autotune.plugins.prometheus.collector import expose

    registry = CollectorRegistry()
    expose(model, "tiny", registry)
    return generate_latest(registry).decode()


def test_prometheus(write):
    """Whoever scrapes gets what `stats` says, in the units that Prometheus wants."""
    pytest.importorskip("prometheus_client")
    model = autotune.load(write()).apply(Model(), monitor=True)
    for _ in range(TIMED_EVERY):
        model(INPUT)
    text = scraped(model)
    assert f'autotune_calls_total{{model="tiny"}} {TIMED_EVERY}.0' in text
    seconds = float(text.split('autotune_latency_seconds{model="tiny",quantile="0.99"} ')[1].split()[0])
    assert seconds == autotune.stats(model).latency_s.p99
    assert 'autotune_state{model="tiny",state="tuned"} 1.0' in text
    assert 'autotune_compiles_total{model="tiny"} 1.0' in text
    assert 'autotune_fallbacks_total{model="tiny"} 0.0' in text


def test_prometheus_of_several_models(write):
    """Each metric once, with the samples of all models that have it; a name is one model's, until that is gone."""
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    from autotune.plugins.prometheus.collector import expose

    registry, models = CollectorRegistry(), {}
    for name in ("one", "two", "three"):
        models[name] = autotune.load(write()).apply(Model(), monitor=name != "three")
        models[name](INPUT)
        expose(models[name], name, registry)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len({each.name for each in families}) == len(families)
    samples = {each.name: [sample.labels["model"] for sample in each.samples] for each in families}
    assert samples["autotune_calls"] == ["one", "two"]
    assert samples["autotune_fallbacks"] == ["one", "three", "two"]
    for name, model in (("two", models["one"]), ("two", models["two"])):
        with pytest.raises(InputError, match="two: a model is exposed under this name already"):
            expose(model, name, registry)
    model = models.pop("two")
    del model
    expose(models["one"], "two", registry)


def test_prometheus_without_calls(write):
    """What is not counted is absent, not zero."""
    pytest.importorskip("prometheus_client")
    text = scraped(autotune.load(write(of("compile_error"))).apply(Model()))
    assert "autotune_calls" not in text
    assert 'autotune_state{model="tiny",state="settling"} 1.0' in text


def test_prometheus_and_what_it_cannot_show(monkeypatch):
    """A model of somebody else's, or no client: a sentence."""
    pytest.importorskip("prometheus_client")
    with pytest.raises(InputError, match="a Model that autotune's apply"):
        autotune.expose(Model(), "tiny")
    monkeypatch.setitem(sys.modules, "autotune.plugins.prometheus.collector", None)
    with pytest.raises(InputError, match="needs the package prometheus-client"):
        autotune.expose(Model(), "tiny")


def test_never_an_exception(write, monkeypatch, caplog):
    """Even a bug of the loader's own costs the job nothing but the speed-up."""
    monkeypatch.setattr("autotune.job.apply.differences", lambda *_: 1 / 0)
    model = Model()
    assert autotune.load(write()).apply(model) is model
    assert "ZeroDivisionError" in caplog.text
    assert not isinstance(ZeroDivisionError(), AutotuneError)


@pytest.mark.parametrize(
    ("policy", "error"), [("retune-hint", RuntimeError), ("raise", RuntimeError), ("retune-hint", KeyboardInterrupt)]
)
def test_nothing_stays_set_where_applying_fails(write, monkeypatch, policy, error):
    """Also where the job gets the exception."""
    held = []

    def compile_in_part(_, model, settings, changes):
        changes.make(lambda: held.append("set"), held.clear)
        raise error("no more")

    monkeypatch.setattr(FakeBackend, "compile", compile_in_part)
    model = Model()
    with nullcontext() if (policy, error) == ("retune-hint", RuntimeError) else pytest.raises(error):
        assert autotune.load(write()).apply(model, on_mismatch=policy) is model
    assert held == []


def test_what_cannot_be_put_back_at_once(write, monkeypatch, caplog):
    """The job gets its untuned model all the same."""

    def compile_in_part(_, model, settings, changes):
        changes.make(lambda: None, lambda: 1 / 0)
        raise RuntimeError("no kernel")

    monkeypatch.setattr(FakeBackend, "compile", compile_in_part)
    model = Model()
    assert autotune.load(write()).apply(model) is model
    assert "could be put back: ZeroDivisionError" in caplog.text
    assert "no kernel; the model stays untuned" in caplog.text


@pytest.mark.parametrize("is_held", [True, False])
def test_a_process_forked_during_a_first_call(is_held, caplog):
    """Nobody in the child gives back the lock of that call: the child's calls are untuned, and do not wait for it."""
    fallback = Fallback(lambda x: x, UndoLog(), StatsRecorder(state="settling"))
    held, ends = threading.Event(), threading.Event()

    def first_call():
        with fallback.lock if is_held else nullcontext():
            held.set()
            ends.wait()

    thread = threading.Thread(target=first_call)
    thread.start()
    held.wait()
    fallback.after_fork()
    try:
        with fallback.lock:
            assert fallback.is_over is is_held
    finally:
        ends.set()
        thread.join()
    said = "autotune: the process was forked during a first call; back to the untuned model"
    assert lines(caplog) == [said] * is_held


@pytest.mark.parametrize(("threads", "is_called"), [("1", True), ("2", True), ("2", False)])
def test_a_process_forked_after_calls_of_several_threads(write, caplog, monkeypatch, threads, is_called):
    """The child may hang in its next call, which says so first, once; of one thread there is nothing to say."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    model = autotune.load(write(of_a_slow_model)).apply(Model())
    if is_called:
        model(INPUT)
    fallback_of_jobs._after_fork()
    caplog.clear()
    for _ in range(2):
        assert (model(INPUT) == INPUT * 2).all()
    said = [line for line in lines(caplog) if "was forked from one whose model had computed" in line]
    assert len(said) == (threads == "2" and is_called)


class Cached(Model):
    """Writes to its second input, as to a cache of keys and values."""

    def __call__(self, x, cache):
        cache += 1
        return super().__call__(x) * cache.sum()


class TestChecks:
    """`check=True`, and what cannot be compared."""

    def test_a_tuned_call_that_leaves_out_a_change(self):
        """Its outputs are right, the next ones would not be: wrong, and what the untuned call gave is the result."""
        cache = np.zeros(2)
        call = OutputCheck(FakeBackend(), Model(), 1e-3).begin((INPUT, cache), {})
        finding = call.finding(INPUT * 4, lambda: Cached()(INPUT, cache))
        assert finding.wrong == "the untuned model changes its inputs or its state, and the tuned call did not"
        assert (finding.result == INPUT * 4).all()
        assert (cache == 1).all()

    def test_outputs_that_cannot_be_compared(self, write, caplog, monkeypatch):
        """One warning, and the result of the call."""
        array_of = FakeBackend.to_array

        def to_array(self, value):
            if isinstance(value, np.ndarray) and (value == 2).all():
                raise TypeError("Got unsupported ScalarType Float8_e4m3fn")
            return array_of(self, value)

        monkeypatch.setattr(FakeBackend, "to_array", to_array)
        inner = Model()
        model = autotune.load(write()).apply(inner, check=True, margin=None)
        for _ in range(3):
            assert (model(INPUT) == 2).all()
        assert inner.num_calls == 3
        assert len(lines(caplog)) == 1
        assert "cannot be compared (TypeError: Got unsupported ScalarType Float8_e4m3fn)" in caplog.text

    def test_no_memory_for_the_untuned_call(self, write, caplog):
        """The job did not ask for the second call: its result is that of the first."""

        class Large(Model):
            def __call__(self, x):
                if self.num_calls:
                    raise FakeOutOfMemoryError("tried to allocate 1 TiB")
                return super().__call__(x)

        model = autotune.load(write()).apply(Large(), check=True)
        assert (model(INPUT) == INPUT * 2).all()
        assert "the untuned call failed (FakeOutOfMemoryError: tried to allocate 1 TiB)" in caplog.text

    def test_inputs_that_cannot_be_described(self, write, caplog, monkeypatch):
        """Such calls are untuned, with one warning."""

        def no_sizes(self, value):
            raise RuntimeError("NestedTensorImpl doesn't support sizes")

        model = autotune.load(write(of("wrong"))).apply(Model())
        monkeypatch.setattr(FakeBackend, "spec", no_sizes)
        for _ in range(3):
            assert (model(INPUT) == INPUT * 2).all()
        assert len(lines(caplog)) == 1
        assert "inputs that cannot be described (RuntimeError: NestedTensorImpl" in caplog.text


@dataclass
class Fields:
    part: object


def counting_closure(value):
    def hook():
        return value

    return hook


HOLDERS = {
    "list": lambda value: [1, value],
    "dict": lambda value: {"key": value},
    "dataclass": Fields,
    "namespace": lambda value: SimpleNamespace(part=value),
    "closure": counting_closure,
    "partial": lambda value: partial(print, value),
    "deque": lambda value: deque([value]),
}


class TestCallState:
    """What a call may change, wherever it is held."""

    @pytest.mark.parametrize("holder", HOLDERS)
    def test_a_change_is_seen_where_it_is_held(self, holder):
        """Content counts, not identity."""
        array, items = np.zeros(2), [1.0]
        held = [HOLDERS[holder](array), HOLDERS[holder](items), HOLDERS[holder](INPUT), np.float64(3.0)]
        held.append(held)
        backend = WithAttributes()
        before = CallState(backend, {"held": held})
        items[0] = 1.0
        assert CallState(backend, {"held": held}) == before
        array += 1
        assert CallState(backend, {"held": held}) != before
        array -= 1
        assert CallState(backend, {"held": held}) == before
        items.append(2)
        assert CallState(backend, {"held": held}) != before

    def test_what_was_changed_is_named(self):
        """Attributes, what is in containers and in classes, and what is new or gone, each with its value."""

        class Counting:
            seen: list[int] = []

        thing = Counting()
        thing.buffer, thing.count, thing.seconds, thing.old = np.zeros(2), 0, 0.5, 1
        backend = WithAttributes()
        before = CallState(backend, {"model": thing})
        thing.buffer += 1
        thing.count, thing.seconds, thing.new = 1, 0.7, "x"
        del thing.old
        Counting.seen.append(3)
        found = CallState(backend, {"model": thing}).changed_since(before)
        assert {part.name: (part.form, part.array.tolist()) for part in found} == {
            "model.buffer": ("float64", [1.0, 1.0]),
            "model.count": ("int", 1),
            "model.seconds": ("float", 0.7),
            "model.new": ("str", "x"),
            "model.old": ("gone", ""),
            "model.seen[0]": ("int", 3),
        }
        assert CallState(backend, {"model": thing}).changed_since(CallState(backend, {"model": thing})) == []

    def test_an_iterator_cannot_be_compared(self):
        """A call reads on, and nothing tells."""
        with pytest.raises(UncomparableError, match="an iterator"):
            CallState(FakeBackend(), {"argument": iter([1])})


class WithAttributes(FakeBackend):
    """Looks at all attributes, as backends do by default."""

    def attributes(self, value):
        return Backend.attributes(self, value)


def test_what_cannot_be_put_back_stops_nothing(caplog):
    """A config is given up all the same: the call is answered, and all else is put back."""
    changes, put_back = UndoLog(), []
    changes.make(lambda: None, lambda: put_back.append("first"))
    changes.make(lambda: None, lambda: 1 / 0)
    fallback = Fallback(lambda x: x, changes, StatsRecorder(state="settling"))
    assert fallback.result_after(RuntimeError("no kernel"), "the tuned model", (3,), {}) == 3
    assert (put_back, fallback.is_over) == (["first"], True)
    assert "not all that the config set could be put back: ZeroDivisionError" in caplog.text
    assert "the tuned model failed: RuntimeError: no kernel; back to the untuned model" in caplog.text
