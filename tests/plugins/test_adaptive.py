"""The adaptive runtime: when a shape is compiled, and what a job gets where that goes wrong."""

from __future__ import annotations

import random
import threading
from collections import Counter

import numpy as np
import pytest
import yaml

import autotune
from autotune import doors
from autotune.backends.undo import UndoLog
from autotune.errors import InputError, UnsuitableCallError
from autotune.job.fallback import Fallback, MismatchError
from autotune.job.output_check import OutputCheck
from autotune.job.stats import StatsRecorder
from autotune.plugins.serving.adaptive_model import AdaptiveModel
from autotune.plugins.serving.ledger import MAX_SHAPES, NUM_TIMED, Expected, Ledger
from autotune.plugins.serving.prometheus import expose
from autotune.tuned.tuned_config import AdaptivePolicy
from autotune.workload.traffic import Load, Traffic
from autotune_fake.backend import FakeBackend
from tests.conftest import REPOSITORY

HALF = Expected(compile_s=10.0, ratio=0.5)
"""Compiling takes ten seconds, and a compiled call half as long as an eager one."""


def ledger(limits: AdaptivePolicy | None = None, expected: Expected = HALF, **others) -> Ledger:
    return Ledger(limits or AdaptivePolicy(trust=1), expected, **others)


def pay(book: Ledger, key: str, seconds: float = 1.0):
    account = book.account_of(key, lambda: key)
    book.add_eager_call(account, seconds)
    return account


def compiled(book: Ledger, key: str, **figures):
    """An account that earned its version."""
    account = pay(book, key)
    book.start(account)
    return account, book.finish(account, **{"seconds": 10.0, **figures})


class TestLedger:
    """The rule, with seconds made up."""

    def test_a_shape_is_compiled_once_it_has_cost_that_much(self):
        """Ten seconds of compiling are due after twenty calls that would have been half a second shorter."""
        book = ledger()
        for _ in range(19):
            account = pay(book, "a")
        assert not book.is_due(account)
        pay(book, "a")
        assert book.is_due(account)

    def test_what_is_spent_once_is_earned_by_all(self):
        """Of ten seconds eight are spent once in a process: the first version waits until all shapes together have cost
        ten, any other until its own have cost two."""
        book = ledger(expected=Expected(compile_s=10.0, ratio=0.5, fixed_s=8.0))
        for _ in range(9):
            first, second = pay(book, "a"), pay(book, "b")
        assert not book.is_due(first)
        pay(book, "a")
        pay(book, "a")
        assert book.is_due(first)
        book.finish(first, 2.0, fixed_s=8.0)
        assert book.is_due(second)
        assert not book.is_due(pay(book, "c"))

    def test_a_run_of_calls_puts_break_even_in_sight(self):
        """After a hundred calls of others a shape that comes each time is compiled before it has cost its price; one
        that comes every fiftieth time is not."""

        def calls_until_due(every: int) -> int:
            book = ledger(AdaptivePolicy(trust=0.5))
            for _ in range(100):
                pay(book, "other", seconds=1e-9)
            for number in range(1, 100):
                for _ in range(every - 1):
                    pay(book, "other", seconds=1e-9)
                if book.is_due(pay(book, "a")):
                    return number
            raise AssertionError("never due")

        assert 10 <= calls_until_due(1) < 20
        assert calls_until_due(50) == 20

    def test_what_is_not_expected_to_be_faster_is_never_compiled(self):
        """Evidence of a slower config compiles nothing, and says so."""
        book = ledger(expected=Expected(compile_s=0.0, ratio=1.0))
        assert not book.is_due(pay(book, "a"))
        assert book.stats().shapes[0].why == "compiled versions are not expected to be faster"

    def test_what_was_measured_here_replaces_the_evidence(self):
        """Compile seconds and speed-up of versions made here are what later shapes go by."""
        book = ledger()
        account, _ = compiled(book, "a", seconds=2.0)
        for _ in range(NUM_TIMED):
            assert book.add_compiled_time(account, 0.2)
        assert (book.compile_s, book.ratio) == (2.0, 0.2)
        for _ in range(3):
            other = pay(book, "b")
        assert book.is_due(other)  # 3 calls, 0.8 s each, for 2 s.

    def test_a_version_that_is_no_faster_goes_for_good(self):
        """Timed after its warm-up against the eager calls of the same shape; the shape is not compiled again."""
        book = ledger(warmup_calls=2)
        account, _ = compiled(book, "a")
        for seconds in (9.0, 9.0, *[1.1] * (NUM_TIMED - 1)):
            assert book.add_compiled_time(account, seconds)
        assert not book.add_compiled_time(account, 1.1)
        for _ in range(1000):
            pay(book, "a")
        assert not book.is_due(account)
        stats = book.stats()
        assert (stats.num_slower, stats.num_versions) == (1, 0)
        assert stats.shapes[0].why == "eager for good: compiled a call took 1.1 s, eager 1"

    def test_the_warm_up_is_not_held_against_a_version(self):
        """Slow first calls are the framework's, not the version's."""
        book = ledger(warmup_calls=2)
        account, _ = compiled(book, "a")
        assert all(book.add_compiled_time(account, seconds) for seconds in (9.0, 9.0, *[0.5] * NUM_TIMED))
        assert not book.is_timed(account)

    def test_the_longest_not_called_is_evicted_and_must_earn_it_again(self):
        """With room for two, the third takes the place of the one whose last call is the longest ago."""
        book = ledger(AdaptivePolicy(max_versions=2, trust=1))
        first, _ = compiled(book, "a")
        second, _ = compiled(book, "b")
        book.add_compiled_call(first)
        third, evicted = compiled(book, "c")
        assert evicted is second
        assert [each.standing for each in (first, second, third)] == ["compiled", "eager", "compiled"]
        for _ in range(19):
            pay(book, "b")
        assert not book.is_due(second)
        pay(book, "b")
        assert book.is_due(second)
        assert "evicted for c" in next(each.why for each in book.stats().shapes if each.shape == "b")

    def test_where_nothing_can_be_dropped_the_bound_is_for_all(self):
        """A framework that keeps what it compiled: after `max_versions` no shape is compiled any more."""
        book = ledger(AdaptivePolicy(max_versions=1, trust=1), evicts=False)
        compiled(book, "a")
        for _ in range(100):
            account = pay(book, "b")
        assert not book.is_due(account)
        assert "lets go of none" in book.stats().stopped

    def test_the_memory_bound(self):
        """Another version as large as the largest must still fit; one that went gives its memory back."""
        book = ledger(AdaptivePolicy(max_memory_bytes=250, trust=1))
        compiled(book, "a", grown_bytes=100)
        assert book.stopped is None
        compiled(book, "b", grown_bytes=100)
        assert book.stopped == "compiled versions hold 200 bytes, another one does not fit into 250"
        book.subtract_memory(100)
        assert book.stopped is None
        book.subtract_memory(-30)
        assert book.stats().grown_bytes == 100

    def test_failures_in_a_row_end_it(self):
        """A success in between starts the count anew; a shape that failed is not tried again."""
        book = ledger(AdaptivePolicy(max_failures=2, trust=1))
        book.fail(pay(book, "a"), "no such operator", seconds=3.0)
        compiled(book, "b")
        book.fail(pay(book, "c"), "no such operator")
        assert not book.is_given_up
        book.fail(pay(book, "d"), "no such operator")
        assert book.is_given_up
        for _ in range(100):
            account = pay(book, "e")
        assert not book.is_due(account)
        assert not book.is_due(book.account_of("a", str))
        assert book.stats().compiling_s == 13.0

    def test_shapes_are_forgotten(self):
        """Traffic that never repeats itself takes no memory without end, and all calls stay counted."""
        book = ledger()
        compiled(book, "kept")
        for index in range(2 * MAX_SHAPES):
            pay(book, str(index))
        stats = book.stats()
        assert len(stats.shapes) <= MAX_SHAPES
        assert stats.num_eager_calls == 2 * MAX_SHAPES + 1
        assert stats.num_versions == 1

    def test_eager_calls_that_get_faster(self):
        """The first calls of a process are slow: one call in eight is timed later on, and the latest five count."""
        book = ledger()
        for number in range(60):
            account = book.account_of("a", str)
            book.add_eager_call(account, (1.0 if number < 8 else 0.1) if book.is_timed(account) else None)
        assert len(account.eager_times_s) == NUM_TIMED
        assert account.eager_s == 0.1

    def test_seconds_saved(self):
        """Compiled calls, times what one takes less."""
        book = ledger()
        account, _ = compiled(book, "a")
        for _ in range(NUM_TIMED):
            book.add_compiled_call(account)
            book.add_compiled_time(account, 0.25)
        assert book.stats().saved_s == pytest.approx(NUM_TIMED * 0.75)

    @pytest.mark.parametrize("wrong", [{"max_versions": 0}, {"trust": 0}, {"trust": 2}, {"max_failures": 0}, {"x": 1}])
    def test_bounds_that_mean_nothing(self, wrong):
        """Are refused where they are given."""
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AdaptivePolicy(**wrong)


def replayed_s(stream, eager_s, compiled_s, compile_s, limits) -> float:
    """Seconds of a stream under the ledger, with costs that are known."""
    book = Ledger(limits, Expected(compile_s, compiled_s / eager_s))
    total_s = 0.0
    for shape in stream:
        account = book.account_of(shape, lambda: "")
        if account.standing == "compiled":
            book.add_compiled_call(account)
            total_s += compiled_s
        elif book.is_due(account):
            book.start(account)
            book.finish(account, compile_s)
            total_s += compile_s + compiled_s
            book.add_compiled_call(account)
        else:
            book.add_eager_call(account, eager_s)
            total_s += eager_s
    return total_s


class TestBounds:
    """Over traffics drawn at random, against what foresight would have paid."""

    @pytest.mark.parametrize("trust", [1.0, 0.5, 0.25])
    def test_never_more_than_the_bound(self, trust):
        """With room for all and true expectations: at most 1 + 1/trust times the cost of knowing the stream."""
        worst = 0.0
        for seed in range(120):
            draw = random.Random(seed)
            num_shapes = draw.randint(1, 12)
            weights = [draw.random() ** 4 + 1e-6 for _ in range(num_shapes)]
            phase = draw.choice([1, 1, 30, 200])
            stream = [
                shape
                for _ in range(draw.randint(1, 400) // phase + 1)
                for shape in [draw.choices(range(num_shapes), weights)[0]] * phase
            ]
            compiled_s, compile_s = draw.random(), draw.uniform(1, 60)
            paid_s = replayed_s(stream, 1.0, compiled_s, compile_s, AdaptivePolicy(trust=trust, max_versions=16))
            counts = Counter(stream).values()
            foreseen_s = sum(min(n * 1.0, compile_s + n * compiled_s) for n in counts)
            # One call is paid before it is known what a call takes.
            assert paid_s <= (1 + 1 / trust) * foreseen_s + num_shapes
            worst = max(worst, paid_s / foreseen_s)
        assert worst > 1.2  # The traffics are hard enough to tell.

    def test_the_long_tail(self):
        """A few shapes often, most once or twice: cheaper than always eager, and than always compiled."""
        shares = [1 / rank**1.5 for rank in range(1, 61)]
        loads = [Load(sizes={"n": n}, share=share / sum(shares)) for n, share in enumerate(shares, 1)]
        stream = Traffic(loads=loads).stream(1000, seed=0)
        paid_s = replayed_s(stream, 1.0, 0.4, 20.0, AdaptivePolicy())
        assert paid_s < len(stream)
        assert paid_s < len(set(stream)) * 20.0 + 0.4 * len(stream)


class Machine:
    """A clock, and a model whose calls take what is written here. Stands in for `Versions`."""

    gives_back = True

    def __init__(self, compile_s=10.0, eager_s=1.0, compiled_s=0.25) -> None:
        self.now_s = 0.0
        self.compile_s, self.eager_s, self.compiled_s = compile_s, eager_s, compiled_s
        self.made: list[tuple] = []
        """What happened, in order: ("eager" | "compile" | "compiled" | "drop", shape)."""
        self.failing: dict[str, Exception] = {}
        """What a kind of call raises."""
        self.held_bytes = 0
        self.versions: dict = {}

    def _do(self, kind: str, x, seconds: float):
        self.made.append((kind, x.shape))
        self.now_s += seconds
        if kind in self.failing:
            raise self.failing[kind]
        return x * 2

    def eager(self, x):
        return self._do("eager", x, self.eager_s)

    def key(self, args, kwargs):
        return args[0].shape

    def new(self):
        def version(x):
            if version not in self.versions:
                self.versions[version] = x.shape
                self.held_bytes += 100
                return self._do("compile", x, self.compile_s)
            return self._do("compiled", x, self.compiled_s)

        return version

    def warm(self):
        pass

    def drop(self, version):
        self.made.append(("drop", self.versions.pop(version)))
        self.held_bytes -= 100

    def memory_bytes(self):
        return self.held_bytes

    def untuned(self, x):
        return self._do("untuned", x, self.eager_s)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.made]


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def adapt(machine):
    """The machine, each shape decided on its own: `adapt(limits, ...)`."""

    def adapt(limits=None, *, raises=False, **others):
        book, recorder = Ledger(limits or AdaptivePolicy(trust=1), HALF), StatsRecorder()
        fallback = Fallback(machine.untuned, UndoLog(), recorder, raises=raises)
        return AdaptiveModel(FakeBackend(), machine, book, fallback, recorder, clock=lambda: machine.now_s, **others)

    return adapt


def of(num_rows: int) -> np.ndarray:
    return np.ones((num_rows, 2))


class TestAdaptation:
    """What the job's calls go to."""

    def test_eager_then_compiled(self, adapt, machine):
        """Twenty calls pay the compilation, which the twenty-first call makes; the results are the model's."""
        model = adapt()
        for _ in range(30):
            assert (model(of(1)) == 2).all()
        assert machine.kinds() == ["eager"] * 20 + ["compile"] + ["compiled"] * 9
        stats = model.stats()
        assert (stats.num_eager_calls, stats.num_compiled_calls, stats.compiling_s) == (20, 10, 10.0)
        assert stats.shapes[0].shape == "float64[1, 2]"
        assert stats.shapes[0].why.startswith("compiled after 20 eager calls that would have saved 10 s")
        assert stats.shapes[0].why.endswith("compiling took 10 s; 4 times as fast")

    def test_eviction(self, adapt, machine):
        """The bound on versions holds, and what is evicted is dropped."""
        model = adapt(AdaptivePolicy(max_versions=2, trust=1))
        for num_rows in (1, 2, 3):
            for _ in range(25):
                model(of(num_rows))
        assert machine.made.count(("drop", (1, 2))) == 1
        assert len(machine.versions) == model.stats().num_versions == 2
        assert model.stats().grown_bytes == 200

    def test_a_compilation_that_fails(self, adapt, machine, caplog):
        """The call is answered eagerly; one line, and the shape is left alone."""
        machine.failing["compile"] = RuntimeError("no such operator")
        model = adapt()
        for _ in range(60):
            assert (model(of(1)) == 2).all()
        assert machine.kinds() == ["eager"] * 20 + ["compile", "eager", "drop"] + ["eager"] * 39
        assert (
            "float64[1, 2], compiled for itself: RuntimeError: no such operator; this shape stays eager" in caplog.text
        )
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("step", ["new", "warm"])
    def test_a_compiler_that_cannot_even_start(self, adapt, machine, caplog, step):
        """No C++ compiler, for example: a failure like any other, and every call is answered."""

        def refuse():
            raise RuntimeError("no compiler here")

        setattr(machine, step, refuse)
        machine.drop = lambda version: None
        model = adapt()
        for _ in range(30):
            assert (model(of(1)) == 2).all()
        assert machine.kinds() == ["eager"] * 30
        assert "RuntimeError: no compiler here; this shape stays eager" in caplog.text

    def test_inputs_without_a_key(self, adapt, machine):
        """What cannot be told from other inputs is called eagerly, and no account is kept."""

        def refuse(args, kwargs):
            raise RuntimeError("no strides")

        model = adapt()
        model._key = refuse
        assert (model(of(1)) == 2).all()
        assert machine.kinds() == ["eager"]

    def test_a_version_that_fails_later(self, adapt, machine, caplog):
        """Its call is made once more, eagerly, and it goes."""
        model = adapt()
        for _ in range(30):
            model(of(1))
        machine.failing["compiled"] = RuntimeError("lost the device")
        assert (model(of(1)) == 2).all()
        model(of(1))
        assert machine.kinds()[-4:] == ["compiled", "eager", "drop", "eager"]
        assert "lost the device" in caplog.text

    def test_the_jobs_own_error(self, adapt, machine, caplog):
        """What fails eagerly and untuned too is raised as it is, and the version stays."""
        model = adapt()
        for _ in range(30):
            model(of(1))
        machine.failing.update(dict.fromkeys(("compiled", "eager", "untuned"), ValueError("nothing to see")))
        with pytest.raises(ValueError, match="nothing to see"):
            model(of(1))
        machine.failing.clear()
        model(of(1))
        assert machine.kinds()[-1] == "compiled"
        assert model.stats().num_failures == 0
        assert not caplog.records

    def test_the_jobs_own_error_while_compiling(self, adapt, machine):
        """No failure of the shape: what was compiled for it is dropped, and its next call compiles."""
        model = adapt()
        for _ in range(20):
            model(of(1))
        machine.failing.update(dict.fromkeys(("compile", "eager", "untuned"), ValueError("nothing to see")))
        for _ in range(3):
            with pytest.raises(ValueError, match="nothing to see"):
                model(of(1))
        assert not machine.versions
        machine.failing.clear()
        model(of(1))
        assert model.stats().num_failures == 0
        assert model.stats().num_versions == 1

    def test_a_config_that_fails_eagerly(self, adapt, machine, caplog):
        """Where only the untuned model works, it stays, for all shapes."""
        model = adapt()
        for _ in range(25):
            model(of(1))
        machine.failing["eager"] = RuntimeError("no bfloat16 here")
        assert (model(of(2)) == 2).all()
        model(of(1))
        assert machine.kinds()[-1] == "untuned"
        assert not machine.versions
        assert "the model under its config failed: RuntimeError: no bfloat16 here" in caplog.text

    def test_wrong_outputs(self, adapt, machine):
        """With a tolerance the version's first outputs are compared; a wrong one is a failure."""
        make = machine.new

        def new_and_wrong():
            version = make()
            return lambda x: version(x) + 1

        machine.new = new_and_wrong
        machine.drop = lambda version: machine.made.append(("drop", None))
        model = adapt(check=OutputCheck(FakeBackend(), machine, 1e-3))
        for _ in range(25):
            assert (model(of(1)) == 2).all()
        assert "wrong outputs: output: relative error 0.5" in model.stats().shapes[0].why
        # The call is answered with what it was compared with.
        assert machine.kinds() == ["eager"] * 20 + ["compile", "eager", "drop"] + ["eager"] * 4

    def test_weights_that_change_while_a_version_is_compared(self, adapt, machine, caplog):
        """The version is not to blame: it goes, and the shape is compiled at a later call."""
        weight, make = "_parameters['weight']", machine.new
        setattr(machine, weight, np.array(2.0))

        def new():
            version = make()

            def swapped(x):
                result = version(x) * getattr(machine, weight) / 2
                setattr(machine, weight, np.array(4.0))
                return result

            made.append(version)
            machine.drop = lambda _: machine.made.append(("drop", None))
            return swapped

        made, eager = [], machine.eager
        machine.new, machine.eager = new, lambda x: eager(x) * getattr(machine, weight) / 2
        model = adapt(check=OutputCheck(FakeBackend(), machine, 1e-3))
        assert [model(of(1))[0, 0] for _ in range(25)] == [2.0] * 20 + [4.0] * 5
        assert machine.kinds()[20:] == ["compile", "eager", "drop", "compile", "eager", *["compiled"] * 3]

    def test_a_call_that_writes_to_its_inputs_is_made_once(self, adapt, machine, caplog):
        """Also the one that a shape is compiled with: a second one would start from what the first left behind."""
        model, x = adapt(check=OutputCheck(FakeBackend(), machine, 1e-3)), of(1)
        do = machine._do

        def write(kind, x, seconds):
            x += 1
            return do(kind, x, seconds)

        machine._do = write
        assert [model(x)[0, 0] for _ in range(25)] == [2.0 * (2 + number) for number in range(25)]
        assert machine.kinds() == ["eager"] * 20 + ["compile"] + ["compiled"] * 4
        assert [each.getMessage() for each in caplog.records] == [
            "autotune: a call changes the model's inputs or its state: the first outputs of what is compiled cannot be "
            "checked"
        ]

    def test_what_cannot_be_described_or_freed(self, adapt, machine, caplog, monkeypatch):
        """An error of the bookkeeping reaches no call of the job."""

        def fail(*_):
            raise RuntimeError("this has no sizes")

        monkeypatch.setattr(FakeBackend, "spec", fail)
        machine.drop = fail
        model = adapt()
        for _ in range(25):
            assert (model(of(1)) == 2).all()
        assert model.stats().shapes[0].shape == "inputs that cannot be described"
        machine.failing["compiled"] = RuntimeError("no more memory")
        assert (model(of(1)) == 2).all()
        assert "a compiled version could not be freed: RuntimeError: this has no sizes" in caplog.text

    def test_raised(self, adapt, machine):
        """Where the job wants exceptions, it gets the compiler's."""
        machine.failing["compile"] = RuntimeError("no such operator")
        model = adapt(raises=True)
        for _ in range(20):
            model(of(1))
        with pytest.raises(RuntimeError, match="no such operator"):
            model(of(1))

    def test_a_version_that_refuses_its_call(self, adapt, machine, caplog):
        """The call is made untuned, nothing of the version is kept, and the shape has to earn the next one again."""
        machine.failing["compile"] = UnsuitableCallError("the call records gradients")
        model = adapt()
        for _ in range(41):
            assert (model(of(1)) == 2).all()
        assert machine.kinds() == ["eager"] * 20 + ["compile", "untuned", "drop"] + ["eager"] * 20
        assert not machine.versions
        assert len(caplog.records) == 1
        assert "the call records gradients: such calls are made untuned" in caplog.text
        machine.failing.clear()
        model(of(1))
        assert model.stats().num_versions == 1

    def test_refused_for_good(self, adapt, machine, caplog):
        """Where all later calls would be refused too, the untuned model stays, with one line."""
        model = adapt()
        for _ in range(25):
            model(of(1))
        machine.failing["compiled"] = UnsuitableCallError("the weights changed", tip="apply again", lasting=True)
        assert (model(of(1)) == 2).all()
        machine.failing.clear()
        model(of(1))
        assert machine.kinds()[-4:] == ["compiled", "drop", "untuned", "untuned"]
        assert [each.getMessage() for each in caplog.records] == [
            "autotune: the weights changed; apply again; back to the untuned model"
        ]

    def test_a_refusal_raised(self, adapt, machine):
        """Where the job wants exceptions, a refusal is a MismatchError, as it is without `adaptive`."""
        model = adapt(raises=True)
        for _ in range(25):
            model(of(1))
        machine.failing["compiled"] = UnsuitableCallError("the weights changed", tip="apply again", lasting=True)
        with pytest.raises(MismatchError, match="the weights changed") as caught:
            model(of(1))
        assert caught.value.tip == "apply again"

    def test_many_threads(self, adapt, machine):
        """All calls are answered rightly, and one version is made for each shape."""
        model, wrong = adapt(), []

        def job(num_rows):
            for _ in range(200):
                if not (model(of(num_rows)) == 2).all():
                    wrong.append(num_rows)

        threads = [threading.Thread(target=job, args=(1 + number % 2,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not wrong
        assert machine.kinds().count("compile") == len(machine.versions) <= 2


@pytest.fixture(scope="module")
def exported() -> dict[str, object]:
    """A real export whose config is slow to compile and then fast, by the fake framework's clock."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["config"] = {"execution": "compile", "latency_ms": 0.01, "eager_ms": 10, "version_bytes": 100}
    content["environment"]["device"] = "fake"
    content["evidence"]["best"]["compile_cold_s"] = 0.02
    return content


def double(x):
    return x * 2


class TestLoaded:
    """Through `autotune.load`."""

    def test_off_unless_asked_for(self, write):
        """Without a word in the file and from the caller nothing is different."""
        model = autotune.load(write()).apply(lambda x: x * 2)
        model(np.ones((4, 8)))
        assert autotune.stats(model).adaptive is None

    @pytest.mark.parametrize("asked", [True, AdaptivePolicy(max_versions=2)])
    def test_asked_for_by_the_caller(self, write, asked):
        """Shapes that the study never saw are compiled too, once they have earned it."""
        model = autotune.load(write()).apply(lambda x: x * 2, adaptive=asked)
        for num_rows in (1, 2, 3):
            for _ in range(12):
                assert (model(np.ones((num_rows, 8))) == 2).all()
        stats = autotune.stats(model)
        assert stats.state == "adaptive"
        assert stats.adaptive.num_compiled == 3
        assert stats.adaptive.num_evicted == (0 if asked is True else 1)
        assert stats.adaptive.saved_s > 0

    def test_asked_for_by_something_else(self, write):
        """A dict is refused at once, as any other policy that means nothing."""
        with pytest.raises(InputError, match="neither a truth value nor an AdaptivePolicy"):
            autotune.load(write()).apply(double, adaptive={"max_versions": 2})

    def test_asked_for_by_the_file(self, write):
        """A user writes `adaptive:` into the YAML by hand; the caller's word counts more."""
        path = write(lambda content: content.update(adaptive={"max_versions": 3}))
        assert autotune.stats(autotune.load(path).apply(lambda x: x * 2)).state == "adaptive"
        assert autotune.stats(autotune.load(path).apply(lambda x: x * 2, adaptive=False)).state == "settling"

    def test_an_untuned_verdict(self, write, caplog):
        """Nothing is compiled, which one line says."""
        path = write(lambda content: content.update(verdict="tie"))
        assert autotune.load(path).apply(double, adaptive=True) is double
        assert [each.getMessage() for each in caplog.records] == [
            f"autotune: {path}: the verdict is tie: nothing is compiled, adaptive or not"
        ]

    def test_a_config_that_cannot_be_kept_apart(self, write, caplog):
        """Is applied as it always was, which one line says."""
        path = write(lambda content: content["config"].update(region="blocks.*"))
        model = autotune.load(path).apply(lambda x: x * 2, adaptive=True)
        assert autotune.stats(model).state == "settling"
        assert "cannot be kept apart by shape: applied to all calls, not adaptive" in caplog.text

    def test_a_copy_of_the_package_that_is_not_installed(self, write, monkeypatch, caplog):
        """Its own entry points are not there: the config is applied to all calls, which one line says."""
        found = doors.metadata.entry_points
        none_of_uses = lambda group: [] if group == doors.USES.group else found(group=group)  # noqa: E731
        monkeypatch.setattr(doors.metadata, "entry_points", none_of_uses)
        doors.forget()
        model = autotune.load(write()).apply(lambda x: x * 2, adaptive=True)
        doors.forget()
        assert autotune.stats(model).state == "settling"
        assert "'adaptive_model' is not installed: applied to all calls, not adaptive" in caplog.text

    def test_for_prometheus(self, write):
        """Versions, decisions and seconds are counted under the model's name."""
        from prometheus_client import CollectorRegistry, generate_latest

        model = autotune.load(write()).apply(lambda x: x * 2, adaptive=True)
        for _ in range(12):
            model(np.ones((4, 8)))
        registry = CollectorRegistry()
        expose(model, "m", registry)
        text = generate_latest(registry).decode()
        assert 'autotune_versions{model="m"} 1.0' in text
        assert 'autotune_versions_evicted_total{model="m"} 0.0' in text
        assert 'autotune_state{model="m",state="adaptive"} 1.0' in text
