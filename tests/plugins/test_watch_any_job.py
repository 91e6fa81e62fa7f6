"""`watch` in whichever order its hooks are put in and taken out, and jobs that nobody designed it for: a job's result
is its own."""

from __future__ import annotations

import copy
import importlib.util
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import SimpleNamespace

import pytest

import autotune
from autotune.plugins.watch import injected, recorder, saving
from autotune.plugins.watch.applying import AppliedFiles
from autotune.plugins.watch.folder import read
from autotune.plugins.watch.question import question_of

torch = pytest.importorskip("torch")
nn = torch.nn


class Framework:
    """One that nobody has imported yet, with a part that is imported by itself, and what becomes of it."""

    def __init__(self):
        self.noted = []
        self.during = []
        """Called while it is imported."""

    def watch(self, name):
        return injected.watch({"name": name})

    def hook(self, wanted):
        self.noted.append(wanted["name"])

    def unhook(self):
        self.noted.append("end")

    @contextmanager
    def unhooked(self):
        self.noted.append("around")
        yield

    AROUND = ("made_up.part",)


@pytest.fixture
def framework(tmp_path, monkeypatch):
    made = Framework()
    monkeypatch.setattr(injected, "FRAMEWORKS", ("made_up",))
    monkeypatch.setattr(injected._Current, "one", None)
    monkeypatch.setitem(sys.modules, "autotune.plugins.watch.made_up.calls", made)
    monkeypatch.setitem(sys.modules, "made_up_during", SimpleNamespace(todo=made.during))
    (tmp_path / "made_up").mkdir()
    source = "import made_up_during\nfor each in made_up_during.todo:\n    each()\n"
    (tmp_path / "made_up" / "__init__.py").write_text(source)
    (tmp_path / "made_up" / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield made
    for name in ("made_up", "made_up.part"):
        sys.modules.pop(name, None)


def one_after_the_other(framework):
    framework.watch("a")()
    end = framework.watch("b")
    import_module("made_up.part")
    end()
    end()


def again_after_the_import(framework):
    end = framework.watch("a")
    import_module("made_up")
    end()
    end = framework.watch("b")
    import_module("made_up.part")
    end()


def looked_for_before(framework):
    end = framework.watch("a")
    assert importlib.util.find_spec("made_up").origin.endswith("__init__.py")
    assert importlib.util.find_spec("made_up.part") is not None
    end()


def one_within_the_other(framework):
    end = framework.watch("a")
    assert framework.watch("b") is None
    import_module("made_up")
    assert framework.watch("c") is None
    end()


def ended_while_it_is_imported(framework):
    framework.during.append(framework.watch("a"))
    import_module("made_up")


def failed_at_first(framework):
    end = framework.watch("a")
    framework.during.append(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        import_module("made_up")
    framework.during.clear()
    import_module("made_up")
    end()


def imported_lazily(framework):
    end = framework.watch("a")
    spec = importlib.util.find_spec("made_up")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules["made_up"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert framework.noted == []
    assert module.each is None
    end()


def ended_in_another_thread(framework):
    """While this one goes through the finders."""
    end = framework.watch("a")

    class Ends:
        def find_spec(self, name, path=None, target=None):
            if name == "made_up":
                (thread := threading.Thread(target=end)).start()
                thread.join()

    sys.meta_path.insert(0, finder := Ends())
    try:
        import_module("made_up")
    finally:
        sys.meta_path.remove(finder)


@pytest.mark.parametrize(
    ("job", "noted"),
    [
        (one_after_the_other, ["b", "around", "end"]),
        (again_after_the_import, ["a", "end", "b", "around", "end"]),
        (looked_for_before, ["a", "end"]),
        (one_within_the_other, ["a", "end"]),
        (ended_while_it_is_imported, []),
        (failed_at_first, ["a", "end"]),
        (imported_lazily, ["a", "end"]),
        (ended_in_another_thread, []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_hooks_of_an_import_in_any_order(framework, job, noted):
    """A watching sees what is imported between its begin and its end, and no other does; what finds and loads modules
    is as it was, in the module, too."""
    before, own = list(sys.meta_path), dict(vars(SourceFileLoader))
    framework.during.append(lambda: setattr(sys.modules["made_up"], "each", None))
    job(framework)
    import_module("made_up.part")
    assert framework.noted == noted
    assert sys.meta_path == before
    assert dict(vars(SourceFileLoader)) == own
    for module in (sys.modules["made_up"], sys.modules["made_up.part"]):
        assert type(module.__loader__) is SourceFileLoader
        assert module.__spec__.loader is module.__loader__
        assert "exec_module" not in vars(module.__loader__)


@pytest.mark.parametrize(("what", "said"), [(injected.WATCHING, "are not seen"), (injected.APPLYING, "stay untuned")])
def test_a_job_whose_python_lacks_what_is_needed(framework, monkeypatch, caplog, what, said):
    """Imports its framework as ever, and one sentence says what it does not get."""
    monkeypatch.setitem(sys.modules, f"autotune.plugins.watch.made_up.{what}", None)
    end = injected.watch({}, what)
    import_module("made_up")
    end()
    (message,) = [each.getMessage() for each in caplog.records]
    assert f"autotune: calls of made_up {said} in this process: import of" in message
    assert message.endswith("; its Python needs the packages that a serving image needs")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x, labels=None):
        y = self.body(x)
        return y if labels is None else Output(nn.functional.mse_loss(y, labels), y)


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


X = torch.linspace(-1, 1, 24).reshape(4, 6)


def calls_in_place_of_pytorchs(net):
    """A profiler of the job's, put around `Module.__call__` and left there."""
    counted, before = [], nn.Module.__call__

    def counting(self, *args, **kwargs):
        counted.append(type(self).__name__)
        return before(self, *args, **kwargs)

    nn.Module.__call__ = counting
    try:
        values = [net(X) for _ in range(3)]
    finally:
        nn.Module.__call__ = before
    return [*values, net(X), counted]


def a_call_that_fails(net):
    found = []
    for width in (5, 6, 5, 6, 6):
        try:
            found.append(net(torch.ones(3, width)))
        except RuntimeError as error:
            found.append(type(error))
    return found


def a_loss_that_is_made_in_each_step(net):
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(100):
        nn.MSELoss()(net(X), torch.ones(4, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(net.parameters())


def copies(net):
    with torch.no_grad():
        other = copy.deepcopy(net)
        return [model(torch.ones(size, 6)) for size in (1, 2) for model in (net, other)] + [other(X)]


def backward_calls_it_anew(net):
    y = torch.utils.checkpoint.checkpoint_sequential(net.body, 3, X.clone().requires_grad_(), use_reentrant=False)
    y.sum().backward()
    return [weight.grad for weight in net.parameters()]


def within_transforms(net):
    weights = dict(net.named_parameters())

    def call(weights, x):
        return torch.func.functional_call(net, weights, (x,)).sum()

    return [torch.vmap(torch.func.grad(call), (None, 0))(weights, X), net(X), net(X)]


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen.append(str(operator))
        return operator(*args, **kwargs or {})


class Functions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", ""))
        return function(*args, **kwargs or {})


def modes_that_see_all(net):
    with Operators() as operators:
        net(X)
    with Functions() as functions:
        values = [net(X) for _ in range(3)]
    return [operators.seen, functions.seen, values]


def outputs_of_a_dataclass(net):
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(X, labels=torch.ones(4, 2)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(net.parameters())


def a_folder_that_is_gone(net):
    before = os.getcwd()
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(os.getcwd())
    try:
        return [net(X) for _ in range(4)]
    finally:
        os.chdir(before)


def long_texts(net):
    class Words(nn.Module):
        def forward(self, texts):
            return torch.tensor([len(text) for text in texts])

    words = Words()
    return [words(["x" * 10_000 + str(number)] * 1000) for number in range(100)]


def threads_at_once(net):
    at_once, found = threading.Barrier(4), []

    def call():
        at_once.wait()
        with torch.no_grad():
            found.extend(net(X) for _ in range(3))

    threads = [threading.Thread(target=call) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    return found


def states_within_each_other(net):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = [net(X)]
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            found += [net(x=X), net(x=X)]
    return [each.float() for each in found]


def compiled_by_the_job(net):
    @torch.compile(backend="eager")
    def function(x):
        return net(x) + 1

    with torch.no_grad():
        return [function(X) for _ in range(3)] + [net(X), net(X)]


def tensors_of_other_kinds(net):
    nested = torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)], layout=torch.jagged)
    with torch.no_grad():
        return [net(nested).values(), net(X), net(X[:1].expand(4000, 6).to_sparse().to_dense()), net(X)]


def replaced(net):
    with torch.no_grad():
        found = [net(X), net(X)]
        net.body[2] = nn.Linear(8, 3)
        nn.init.ones_(net.body[2].weight)
        nn.init.ones_(net.body[2].bias)
        return [*found, net(X), net.double()(X.double())]


def shared(net):
    other = nn.Sequential(net.body, nn.Softmax(1))
    with torch.no_grad():
        return [each(X) for _ in range(3) for each in (net, other)]


def modules_within_each_other(net):
    for _ in range(240):  # As many as Python allows, nearly.
        net = nn.Sequential(net)
    found = []

    def call():
        with torch.no_grad():
            found.extend(net(X) for _ in range(3))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(found) == 3
    return found


JOBS = [
    (calls_in_place_of_pytorchs, {"Net": 4}),
    (a_call_that_fails, {"Net": 3}),
    (a_loss_that_is_made_in_each_step, {"Net": 100, "MSELoss": 100}),
    (copies, {"Net": 5}),
    (backward_calls_it_anew, {"Linear": 1, "Tanh": 1}),
    (within_transforms, {"Net": 2}),
    (modes_that_see_all, {"Net": 3}),
    (outputs_of_a_dataclass, {"Net": 4}),
    (a_folder_that_is_gone, {"Net": 4}),
    (long_texts, {"Words": 100}),
    (threads_at_once, {"Net": 12}),
    (states_within_each_other, {"Net": 3}),
    (compiled_by_the_job, {"Net": 2}),
    (tensors_of_other_kinds, {"Net": 4}),
    (replaced, {"Net": 4}),
    (shared, {"Net": 3, "Sequential": 3}),
    (modules_within_each_other, {"Sequential": 3}),
]


@pytest.mark.torch
@pytest.mark.parametrize(("job", "calls"), JOBS, ids=lambda value: getattr(value, "__name__", None))
def test_a_job_of_any_kind_is_its_own(tmp_path, monkeypatch, job, calls):
    """What it returns is the same to the bit, its calls are counted where they are calls of a model by themselves, what
    is kept of them are calls that did not fail, and afterwards all is as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recorder, "_LEAST_SHARE", 0.0)  # Which of two models takes the time is for the machine to say.
    torch._dynamo.reset()
    places = (nn.Module.__call__, os._exit, list(sys.meta_path), torch.nn.utils.clip_grad_norm_)
    want = plain(job(Net().eval()))
    torch._dynamo.reset()
    with autotune.watch(tmp_path / "seen"):
        found = plain(job(Net().eval()))
    assert (nn.Module.__call__, os._exit, list(sys.meta_path), torch.nn.utils.clip_grad_norm_) == places
    assert "__call__" not in vars(Net)
    assert found == want
    watched = read(tmp_path / "seen")
    assert {each.name: each.calls for each in watched} == calls
    assert len(list((tmp_path / "seen" / "processes").iterdir())) == 1
    assert sum(path.stat().st_size for path in (tmp_path / "seen").rglob("*")) < 1 << 18
    for each in watched:
        for model in (model for model in each.models if "calls" in model.files):
            kept = torch.load(tmp_path / "seen" / model.files["calls"])
            sizes = [[list(leaf.shape) for leaf in (*args, *named.values())] for args, named in kept]
            assert [[list(size) for size in call.sizes] for call in model.kept] == sizes
            assert {tuple(map(tuple, call)) for call in sizes} <= {layout.sizes for layout in model.shapes}
    for net in (each for each in watched if each.name == "Net"):
        assert question_of(net).values["task"] == ("train" if job in TRAINED else "infer")


def plain(value):
    """All that it holds, to compare."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


TRAINED = (a_loss_that_is_made_in_each_step, outputs_of_a_dataclass)


class TooLongError(Exception):
    pass


@pytest.mark.torch
def test_a_time_limit_of_the_jobs_ends_what_is_written(tmp_path, monkeypatch):
    """An error that a signal's handler raises is the job's, wherever it comes; it is seen by no other."""

    monkeypatch.setattr(saving, "save", lambda *_: time.sleep(30))
    net = Net()
    with autotune.watch(tmp_path):
        net(X)
        with time_limit():
            net(X)
        monkeypatch.undo()
        assert net(X).shape == (4, 2)
    assert read(tmp_path)[0].calls == 3


def test_a_time_limit_of_the_jobs_ends_what_is_applied(monkeypatch):
    """The model is looked at again at its next call."""
    files, net = AppliedFiles("torch", ()), Net()
    monkeypatch.setattr(files, "_applied", lambda _: time.sleep(30))
    with time_limit():
        files.instead_of(net)
    monkeypatch.setattr(files, "_applied", lambda _: X)
    assert files.instead_of(net) is X


@contextmanager
def time_limit():
    """Of a job, which is over soon and ends what is done in it."""

    def too_long(*_):
        raise TooLongError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TooLongError):
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.torch
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("odd")], ids=["full", "odd"])
def test_what_cannot_be_written_is_said(tmp_path, monkeypatch, error):
    """A disk that is full, and whatever else a model's file raises, costs the file; the reason stands in the question's
    place."""

    def write_model(*_):
        raise error

    monkeypatch.setattr("autotune.plugins.watch.torch.kept.write_model", write_model)
    net = Net()
    with autotune.watch(tmp_path):
        assert [net(X).shape for _ in range(3)] == [(4, 2)] * 3
    (watched,) = read(tmp_path)
    assert any(f"it cannot be kept: {type(error).__name__}: " in note for note in watched.notes())


@pytest.mark.torch
def test_a_folder_that_is_full_keeps_no_calls(tmp_path, monkeypatch):
    """The model that was kept before stays, the reason stands in the question's place, and a process that kept calls is
    taken before one that did not."""
    nets, room = [Net(), Net()], [1 << 20, 1 << 20, 1 << 20, 0]
    monkeypatch.setattr(recorder.Recorder, "room_bytes", lambda _: room.pop(0) if room else 0)
    for net in nets:
        with autotune.watch(tmp_path):
            for _ in range(2 if net is nets[0] else 4):
                net(X)
    (watched,) = read(tmp_path)
    assert [sorted(model.files) for model in watched.models] == [["model"], ["calls", "model"]]
    assert "calls" in watched.saved().files
    assert watched.notes()[0].startswith("calls cannot be kept: the folder holds as much as it may; ")


@pytest.mark.torch
def test_a_model_of_a_module_that_is_not_here(tmp_path, monkeypatch):
    """What to do is said, where a folder was copied without the job."""
    sys.modules["of_the_job"] = SimpleNamespace(Net=type("Net", (Net,), {"__module__": "of_the_job"}))
    with autotune.watch(tmp_path):
        net = sys.modules["of_the_job"].Net()
        assert [net(X).shape for _ in range(2)] == [(4, 2)] * 2
    del sys.modules["of_the_job"]
    question = import_module("runpy").run_path(question_of(*read(tmp_path)).values["build"].partition(":")[0])
    with pytest.raises(ModuleNotFoundError, match="run this command where the job runs, or name that in PYTHONPATH"):
        question["build"]()


@pytest.mark.torch
def test_a_block_in_a_job_that_is_watched_costs_a_warning(tmp_path, monkeypatch, caplog):
    """The job's own block goes on in a job that was started to be watched or tuned."""
    monkeypatch.setenv(injected.VARIABLE, "{}")
    with autotune.watch(tmp_path / "all") as is_watched, autotune.watch(tmp_path / "own") as is_watched_again:
        Net()(X)
    assert (is_watched, is_watched_again) == (True, False)
    assert ["the whole job was started" in each.message for each in caplog.records] == [True]


@pytest.mark.torch
def test_a_function_of_the_jobs_that_clips_stays(tmp_path, monkeypatch):
    """In place of PyTorch's before, or put there meanwhile."""
    clipped = []
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: clipped.append("before"))
    with autotune.watch(tmp_path):
        torch.nn.utils.clip_grad_norm_([], 1.0)
        torch.nn.utils.clip_grad_value_ = meanwhile = lambda *_: clipped.append("meanwhile")
    torch.nn.utils.clip_grad_norm_([], 1.0)
    assert torch.nn.utils.clip_grad_value_ is meanwhile
    torch.nn.utils.clip_grad_value_ = torch.nn.utils.clip_grad.clip_grad_value_
    assert clipped == ["before", "before"]
