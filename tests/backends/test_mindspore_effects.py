"""What calls of Cells leave behind: in their inputs, attributes, containers and objects. And numbers as arguments.

One process has all Cells, each for each way of compiling. Beside each a Cell of the same kind is never tuned.
"""

from __future__ import annotations

import pytest

from tests.stand_ins.child import said_by

pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

JOB = """
import collections, json, os, sys
import mindspore as ms, numpy as np
from mindspore import nn, ops
from autotune.backends.call_state import CallState
from autotune.backends.mindspore.backend import MindSporeBackend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import UnsuitableCallError
from autotune.job.fallback import Fallback
from autotune.job.admission import Admission
from autotune.job.guard import Guard, GuardTerms
from autotune.job.stats import StatsRecorder

class Base(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def body(self, x):
        return ops.tanh(self.fc(x))

class Quiet(Base):
    def construct(self, x):
        return self.body(x)

class Counter(Base):
    def __init__(self):
        super().__init__()
        self.num = 0

    def construct(self, x):
        self.num = self.num + 1
        return self.body(x)

class LastMap(Base):
    def __init__(self):
        super().__init__()
        self.last = None

    def construct(self, x):
        self.last = self.body(x)
        return self.last * 2

class New(Base):
    def construct(self, x):
        y = self.body(x)
        setattr(self, "fresh", y)
        return y

class List(Base):
    def __init__(self):
        super().__init__()
        self.history = []

    def construct(self, x):
        y = self.body(x)
        self.history.append(y.mean())
        return y

class Dict(Base):
    def __init__(self):
        super().__init__()
        self.maps = {"last": 0}

    def construct(self, x):
        y = self.body(x)
        self.maps["last"] = y
        return y

class Deque(Base):
    def __init__(self):
        super().__init__()
        self.latest = collections.deque(maxlen=3)

    def construct(self, x):
        self.latest.append(1)
        return self.body(x)

class Notes:
    def __init__(self):
        self.num = 0
        self.lines = []

    def note(self, line):
        self.num += 1
        self.lines.append(line)

class Object(Base):
    def __init__(self):
        super().__init__()
        self.notes = Notes()

    def construct(self, x):
        self.notes.note("called")
        return self.body(x)

class OfClass(Base):
    calls = []

    def construct(self, x):
        self.calls.append(1)
        return self.body(x)

class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Counter()

    def construct(self, x):
        return self.inner(x)

class All(Base):
    def __init__(self):
        super().__init__()
        self.history = []
        self.num = 0
        self.mean = ms.Parameter(ms.Tensor(np.zeros(4, np.float32)), name="mean", requires_grad=False)

    def construct(self, x):
        y = self.body(x)
        self.history.append(y.mean())
        self.num = self.num + 1
        self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
        return y

class Assigned(Base):
    def __init__(self):
        super().__init__()
        self.mean = ms.Parameter(ms.Tensor(np.zeros(4, np.float32)), name="mean", requires_grad=False)

    def construct(self, x):
        y = self.body(x)
        ops.assign(self.mean, y.mean(0))
        return y

class Item(Base):
    def construct(self, x):
        x[0] = 1.0
        return self.body(x)

class View(Base):
    def construct(self, x):
        part = x[0]
        part[1] = x.sum()
        return self.body(x)

class Table(Base):  # Filled once.
    def __init__(self):
        super().__init__()
        self.table = None

    def construct(self, x):
        if self.table is None:
            self.table = ops.ones((4,), ms.float32) * 2
        return self.body(x) * self.table

def shown(value):
    if isinstance(value, ms.Tensor):
        return value.asnumpy().round(4).tolist()
    if isinstance(value, nn.Cell):
        return "a Cell"
    if isinstance(value, dict):
        return {str(name): shown(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, collections.deque)):
        return [shown(each) for each in value]
    return shown(vars(value)) if isinstance(value, Notes) else value

def left(cell, x):
    held = {path: shown({**backend.attributes(each)}) for path, each in cell.cells_and_names() if type(each) in KINDS}
    return [held, x.asnumpy().round(4).tolist()]

def batch(n):
    return ms.Tensor(np.linspace(-1, 1 + n, 12, dtype=np.float32).reshape(3, 4))

def pair(kind):
    cells = kind().set_train(False), kind().set_train(False)
    for one, other in zip(cells[0].get_parameters(), cells[1].get_parameters()):
        one.set_data(ms.Tensor(other.asnumpy()))
    return cells

def guarded(cell, config, **terms):
    config, recorder = Config(config), StatsRecorder()
    compiled = backend.compile(cell, config, UndoLog())
    fallback = Fallback(lambda *args: type(cell).__call__(cell, *args), UndoLog(), recorder)
    terms = {"promise": None, "effects": backend.effects(cell, config), **terms}
    guard = Guard(backend, compiled, fallback, GuardTerms(
        admission=Admission(lambda _: None), hint_of_misfits="", check=None, num_compiled=None, **terms), recorder)
    return guard, compiled, recorder

def in_a_job(kind, config):
    cell, untuned = pair(kind)
    call, compiled, recorder = guarded(cell, config)
    wrong, own = [], getattr(cell, "history", None)
    for n in range(5):
        x, y = batch(n), batch(n)
        error = float(np.abs(call(x).asnumpy() - untuned(y).asnumpy()).max())
        of_tuned, of_untuned = left(cell, x), left(untuned, y)
        if error > 1e-5 or of_tuned != of_untuned:
            wrong.append([n, error, of_tuned[0], of_untuned[0], of_tuned[1] == of_untuned[1]])
    num_made = getattr(compiled, "_num_made", 0)
    is_own = getattr(cell, "history", None) is own
    return {"wrong": wrong, "state": recorder.state, "events": [each.message for each in recorder.events],
            "is_own": is_own, "num_made": num_made, "num_listed": len(OfClass.calls)}

def alone(kind, config):
    # As a trial calls it: without what a job's guard looks at.
    cell, _ = pair(kind)
    call = backend.compile(cell, Config(config), UndoLog())
    for n in range(4):
        try:
            call(batch(n))
        except UnsuitableCallError as error:
            return [n, str(error), error.lasting]
    return None

def differs(kind):
    cell, other = kind().set_train(False), Quiet().set_train(False)
    x = batch(0)
    before = CallState(backend, {"cell": cell, "x": x})
    same = CallState(backend, {"cell": cell, "x": x}) == before
    other(x)
    cell(x)
    return [same, CallState(backend, {"cell": cell, "x": x}) != before]

class Scaled(Base):
    def construct(self, x, step, sigma=1.0):
        return self.body(x * sigma) / (step + 1)

class Outer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Scaled()

    def construct(self, x, step):
        return self.inner(x, step)

def others(config, kind, made, num_calls=20):
    return numbers(config, (made(n) for n in range(num_calls)), kind)

def numbers(config, values, kind=Scaled):
    cell, untuned = pair(kind)
    call, compiled, recorder = guarded(cell, config)
    worst, graphs = 0.0, len(ms.graph.api.ms_compile_cache)
    for each in values:
        x = batch(0)
        worst = max(worst, float(np.abs((call(x, each) - untuned(x, each)).asnumpy()).max()))
    made = len(compiled.cell.compile_cache) if config["execution"] == "graph" else (
        len(ms.graph.api.ms_compile_cache) - graphs)
    return {"worst": worst, "state": recorder.state, "graphs": made,
            "events": [each.message for each in recorder.events]}

class Several(Base):
    def construct(self, x, others):
        y = self.body(x)
        for each in others:
            y = y + each
        return y

class Named(Base):
    def construct(self, x, others):
        return self.body(x) + others["one"]["two"]

class Array(Base):
    def construct(self, x, array):
        return self.body(x) + ms.Tensor(array)

class Setting:
    def __init__(self):
        self.scale = 0

class Settled(Base):
    def construct(self, x, setting):
        return self.body(x) * setting.scale

def grown(array):
    array += 1
    return array

def increased(setting):
    setting.scale += 1
    return setting

def filled(tensor, n):
    tensor[0] = float(n)
    return tensor

array, setting, tensor = np.zeros((3, 4), np.float32), Setting(), batch(1)
OTHERS = {
    "list": (Several, lambda n: [batch(n), batch(n + 1)]),
    "tuple": (Several, lambda n: (batch(n), batch(n + 1))),
    "dict": (Named, lambda n: {"one": {"two": batch(n)}}),
    "numbers": (Several, lambda n: [n, 1.0]),
    "mixed": (Several, lambda n: (filled(tensor, n), 1.0)),
    "array": (Array, lambda n: grown(array)),
    "object": (Settled, lambda n: increased(setting)),
    "constants": (Several, lambda n: (2.0, 1.0)),
}
ms.set_context(runtime_num_threads=1)
ms.set_context(mode=ms.PYNATIVE_MODE)
backend = MindSporeBackend()
Quiet()(batch(0)).asnumpy()
NOT_LEAVING = (Base, Scaled, Outer, Several, Named, Array, Settled)
KINDS = [each for each in list(globals().values())
         if isinstance(each, type) and issubclass(each, nn.Cell) and each not in NOT_LEAVING]
WAYS = {
    "jit": {"execution": "jit", "capture": "ast", "jit_level": "O0"},
    "graph": {"execution": "graph", "jit_level": "O0"},
    "region": {"execution": "jit", "capture": "ast", "jit_level": "O0", "region": "fc"},
}
found = {"differs": {}, "alone": {}}
ways, names = sys.argv[1].split(","), sys.argv[2].split(",")
for kind in KINDS:
    if names != [""] and kind.__name__ not in names:
        continue
    found["differs"][kind.__name__] = differs(kind)
    for way in ways:
        if kind is not Inner or way != "region":
            del OfClass.calls[:]
            found[f"{way} {kind.__name__}"] = in_a_job(kind, WAYS[way])
    found["alone"][kind.__name__] = alone(kind, WAYS["jit"])
for way in ways:
    region = {**WAYS[way], "region": "inner"} if way == "region" else WAYS[way]
    kind = Outer if way == "region" else Scaled
    found[f"{way} each"] = numbers(region, range(20), kind)
    if names == [""]:
        found[f"{way} epochs"] = numbers(region, [n // 5 for n in range(40)], kind)
        found[f"{way} mutable"] = numbers(region, map(ms.mutable, range(1, 20)), kind)
        for name, (taking, made) in OTHERS.items():
            if way != "region":
                found[f"{way} {name}"] = others(WAYS[way], taking, made)
        found[f"{way} turns"] = numbers(region, [True, 1, 1.0, 2, 3] * 5, kind)
print("\\n" + json.dumps(found), flush=True)
os._exit(0)
"""

WAYS = ("jit", "graph", "region")
LEAVING = (
    "Counter", "LastMap", "New", "List", "Dict", "Deque", "Object", "OfClass", "Inner", "All", "Item", "View",
)  # fmt: skip
QUIET = ("Quiet", "Assigned", "Table")


SOME = ("Quiet", "List", "Item", "All")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All of it."""
    return said_by(tmp_path_factory.mktemp("effects"), JOB, ",".join(WAYS), "")


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """The Cells of `SOME` under ms.jit."""
    return said_by(tmp_path_factory.mktemp("some"), JOB, "jit", ",".join(SOME))


def test_some_of_it(some):
    """One Cell of each sort: what the slow tests below ask of all of them."""
    assert {name: differs for name, (_, differs) in some["differs"].items()} == {
        "Quiet": False, "List": True, "Item": True, "All": True
    }  # fmt: skip
    assert {name: some[f"jit {name}"]["wrong"] for name in SOME} == {name: [] for name in SOME}
    states = {name: some[f"jit {name}"]["state"] for name in SOME}
    assert states == {"Quiet": "tuned", "List": "untuned", "Item": "untuned", "All": "untuned"}
    assert "each call sets" in some["alone"]["All"][1]
    require_given_up(some["jit each"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEAVING)
def test_an_untuned_call_shows(found, kind):
    """The state of a call, as trials and jobs compare it, is another one after a call that leaves something behind."""
    assert found["differs"][kind] == [True, True]


@pytest.mark.slow
def test_a_quiet_call_leaves_the_state_alone(found):
    """What MindSpore notes in a Cell is no change of it."""
    assert found["differs"]["Quiet"] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEAVING)
@pytest.mark.parametrize("way", ["jit", "graph"])
def test_a_job_finds_what_untuned_calls_leave(found, way, kind):
    """After each call inputs, attributes, containers and objects are what an untuned Cell's are; such a model is not
    compiled, and one warning says so."""
    job = found[f"{way} {kind}"]
    assert job["wrong"] == []
    assert job["state"] == "untuned"
    assert len(job["events"]) == 1
    assert job["is_own"]
    assert job["num_listed"] == (10 if kind == "OfClass" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [each for each in LEAVING if each not in ("Inner", "OfClass", "All")])
def test_cells_outside_of_a_region_run_in_python(found, kind):
    """What they set is set in the job's own, in its own containers, while inner Cells stay compiled."""
    job = found[f"region {kind}"]
    assert job["wrong"] == []
    assert (job["state"], job["events"], job["num_made"]) == ("tuned", [], 1)
    assert job["is_own"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUIET)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_graph_does_itself_is_tuned(found, way, kind):
    """Parameters are assigned by graphs, and a table that one call fills is there for all."""
    job = found[f"{way} {kind}"]
    assert job["wrong"] == []
    assert (job["state"], job["events"]) == ("tuned", [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Counter", "LastMap", "New", "Dict", "Object", "Inner", "All"])
def test_a_compiled_cell_that_sets_something_refuses(found, kind):
    """Without a guard in front of it, as in a trial: after two calls that set something it refuses all further ones."""
    number, why, is_lasting = found["alone"][kind]
    assert number == 2
    assert "each call sets" in why
    assert is_lasting


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUIET)
def test_a_compiled_cell_that_sets_nothing_does_not(found, kind):
    """It is called as long as one likes; a table that is filled once is no reason."""
    assert found["alone"][kind] is None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jit", "graph"])
def test_a_number_that_changes_at_each_call_gives_the_config_up(found, way):
    """Eight values are compiled for. Calls with eight further ones are untuned, then all are."""
    require_given_up(found[f"{way} each"])


@pytest.mark.slow
def test_a_number_that_changes_within_a_region(found):
    """The Cell that is compiled runs in Python for values beyond the eighth; the others stay compiled."""
    job = found["region each"]
    assert job["worst"] < 1e-5
    assert job["state"] == "tuned"
    assert 0 < job["graphs"] <= 8


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", ["epochs", "turns", "mutable"])
def test_few_values_stay_compiled(found, way, values):
    """An epoch of eight, five values in turns; one that is `mutable` is no constant at all."""
    job = found[f"{way} {values}"]
    assert job["worst"] < 1e-5
    assert (job["state"], job["events"]) == ("tuned", [])
    assert 0 < job["graphs"] <= {"epochs": 8, "turns": 5, "mutable": 1}[values]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jit", "graph"])
@pytest.mark.parametrize("name", ["list", "tuple", "dict", "constants"])
def test_containers_of_tensors_have_one_graph(found, way, name):
    """By itself MindSpore compiles for each of them."""
    job = found[f"{way} {name}"]
    assert job["worst"] < 1e-5
    assert (job["state"], job["events"]) == ("tuned", [])
    assert job["graphs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jit", "graph"])
@pytest.mark.parametrize("name", ["mixed", "array", "object"])
def test_what_a_graph_has_as_a_constant_is_not_stale(found, way, name):
    """A tensor beside numbers, an array or an object, which is changed between calls: such calls are untuned."""
    job = found[f"{way} {name}"]
    assert job["worst"] < 1e-5
    assert job["graphs"] <= 8
    assert len(job["events"]) in (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jit", "graph"])
def test_a_list_of_numbers_gives_the_config_up(found, way):
    """MindSpore compiles for each list, at each call."""
    job = found[f"{way} numbers"]
    assert job["worst"] < 1e-5
    assert job["state"] == "untuned"
    assert job["graphs"] <= 8


def require_given_up(job):
    """Its outputs are right, and two warnings name the argument: for the ninth value, and for the end."""
    assert job["worst"] < 1e-5
    assert job["state"] == "untuned"
    assert 0 < job["graphs"] <= 8
    assert len(job["events"]) == 2
    assert all("argument 'step'" in each and "mindspore.mutable(step)" in each for each in job["events"])
