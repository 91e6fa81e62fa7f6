"""`watch` and `tune FOLDER`: real jobs of small models, and the questions that watched ones make."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import autotune
from autotune.backends.registry import framework_version
from autotune.bench import probe
from autotune.errors import InputError
from autotune.plugins.watch.command import _shared, chosen
from autotune.plugins.watch.folder import read
from autotune.plugins.watch.question import question_of
from tests.conftest import REPOSITORY, cli_command, cli_environment
from tests.plugins.test_try import NET
from tests.stand_ins.exports import export
from tests.test_documentation import blocks, name_of

JOB = """
import multiprocessing, os, signal, sys, threading, time
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 4))).eval()
x = torch.randn(2, 16)
graphs = []

def backend(graph, inputs):
    graphs.append([node.name for node in graph.graph.nodes])
    return graph

def broken(x):
    x = net(x)
    torch._dynamo.graph_break()
    return net(x.new_ones(2, 16))

def call(times):
    with torch.no_grad():
        for _ in range(times):
            net(x)

def forked(run):
    child = os.fork()
    if child == 0:
        run()
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

if __name__ == "__main__":
    if sys.argv[1:] == ["again"]:
        call(3)
        print("executed", sys.modules["sitecustomize"].MINE, os.path.basename(sys.path[0]))
        sys.exit(3)
    call(2)
    threads = [threading.Thread(target=call, args=(3,)) for _ in range(3)]
    [each.start() for each in threads], [each.join() for each in threads]
    print(forked(lambda: call(4)))
    worker = multiprocessing.get_context("fork").Process(target=call, args=(5,))
    worker.start(), worker.join()
    print(forked(lambda: os.execv(sys.executable, [sys.executable, __file__, "again"])))
    with torch.no_grad():
        for function in (torch.compile(net, backend=backend, fullgraph=True), torch.compile(broken, backend=backend)):
            print([round(float(function(x).sum()), 4) for _ in range(3)])
    print(graphs, dict(torch._dynamo.utils.counters["stats"]))
    print(len(torch.fx.symbolic_trace(net).graph.nodes), torch.jit.trace(net, x)(x).shape)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def run(command, folder):
    variables = cli_environment()
    variables["PYTHONPATH"] = os.pathsep.join([str(folder / "own"), variables["PYTHONPATH"]])
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.torch
def test_a_job_is_its_own(tmp_path):
    """Forks, threads, a worker of multiprocessing, another program, compiled code and the signal that ends it are as
    without; each process has its document, the killed one that of its latest calls."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("MINE = 5")
    job = [sys.executable, str(tmp_path / "job.py")]
    plain, watched = run(job, tmp_path), run(cli_command("watch", "-o", "seen", "--", *job), tmp_path)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout), watched.stderr
    assert plain.returncode == -signal.SIGTERM
    assert watched.stderr.splitlines()[1:] == plain.stderr.splitlines()
    (each,) = chosen(str(tmp_path / "seen"))
    calls = {model.calls for model in each.models}
    assert {3, 4, 5} < calls  # The program, the child and the worker.
    assert max(calls) == 11
    assert len(each.workers) == 4
    assert each.saved() is not None


@pytest.mark.torch
def test_the_page(tmp_path, cli, monkeypatch):
    """The job of docs/watch.md is watched and tuned as its question is printed; a flag overrides it; its block runs."""
    serve, block = (
        each.text for each in blocks() if name_of(each.page) == "docs/watch.md" and each.language == "python"
    )
    (tmp_path / "serve.py").write_text(serve)
    watched = run(cli_command("watch", "-o", "seen", "--", sys.executable, "serve.py"), tmp_path)
    assert (watched.returncode, watched.stdout) == (0, "(4, 8)\n"), watched.stderr
    planned = cli("tune", "seen", "--objective", "latency", "--trials", "3", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    for words in ("shapes     4: batch from 1 to 4", "infer: no call was differentiated", "tune " + str(tmp_path)):
        assert words in planned.stderr
    assert "build-traffic-torch-cpu" in planned.stdout
    assert "trials: 3 at most" in planned.stdout
    script = "from serve import *\n" + block.replace('"seen"', '"noted"') + "\nprint(Module.__call__.__name__)\n"
    (tmp_path / "note.py").write_text(script)
    noted = run([sys.executable, "note.py"], tmp_path)
    assert noted.stdout == "(4, 8)\n_wrapped_call_impl\n", noted.stderr
    asked = question_of(*chosen(str(tmp_path / "noted")))
    assert asked.counted == [{"batch": 2, "count": 1}, {"batch": 3, "count": 1}]


@pytest.mark.torch
def test_texts_that_are_written(tmp_path):
    """Texts after the first are calls of their own, with prompts and lengths; an argument that cannot be kept is named
    where the model is called otherwise, too."""
    torch = pytest.importorskip("torch")

    class Writer(torch.nn.Linear):
        def forward(self, x, cache=None):
            return super().forward(x)

        def generate(self, ids, more=2):
            for _ in range(more):
                self(torch.ones(1, 4), cache=object())
            return torch.cat([ids, ids[:, :more]], 1)

    writer, other = Writer(4, 4), Writer(4, 3)
    with autotune.watch(tmp_path):
        assert [writer.generate(torch.arange(n)[None], more=3).shape[1] for n in (4, 5, 6, 5)] == [7, 8, 9, 8]
        other(torch.ones(2, 4), cache=object())
    assert "__call__" not in vars(Writer)
    assert "__wrapped__" not in vars(Writer.generate)
    models = {each.is_text: each for each in (each.models[0] for each in read(tmp_path))}
    assert [(len(each.ids), each.new_tokens, each.batch) for each in models[True].prompts] == [
        (5, 3, 1), (6, 3, 1), (5, 3, 1),
    ]  # fmt: skip
    assert models[True].calls == 3
    assert any("argument ['cache'] is a object" in note for note in models[False].notes)
    assert not any("argument" in note for note in models[True].notes)


LAYOUT = {
    "count": 40, "signature": "float32[2]", "sizes": [[4, 8]], "grad": False, "training": False, "autocast": None,
}  # fmt: skip
MODEL = {
    "name": "Net", "structure": "a1", "is_text": False, "calls": 40, "seconds": 9.0, "first_s": 0.1, "p50_s": 0.001,
    "p99_s": 0.002, "backward": 0, "shapes": [LAYOUT], "kept": [{"signature": "float32[2]", "sizes": [[4, 8]]}],
    "files": {"model": "Net_1.pt", "calls": "Net_1-5.calls.pt"}, "notes": [],
}  # fmt: skip


def folder(path, *processes, gap_s=0.0, **process):
    """A watched folder with these models of each process, which has a core of its own; one begins so long after the
    other."""
    (path / "processes").mkdir(exist_ok=True)
    release = framework_version("torch").partition("+")[0]
    for pid, models in enumerate(processes):
        document = {
            "schema": 2, "host": "here", "pid": pid, "seconds": 10.0, "cores": [pid], "variables": {}, "notes": [],
            "first_at": pid * gap_s, "last_at": pid * gap_s + 10.0,
            "framework": "torch", "release": release, "threads": 1, "device": "cpu", "models": models,
            "unrecorded": "make them under torch.no_grad()", **process,
        }  # fmt: skip
        (path / "processes" / f"here-{pid}.json").write_text(json.dumps(document))
    return str(path)


TRAINED = {**LAYOUT, "grad": True, "training": True, "autocast": ["cpu", "bfloat16"]}
PROMPT = {"ids": [1, 2, 3], "batch": 2, "new_tokens": 5}


VARIED = {"seconds": 2.0, "shapes": [LAYOUT, {**LAYOUT, "count": 10, "sizes": [[8, 8]]}]}


@pytest.mark.parametrize(
    ("processes", "values", "remark"),
    [
        ([{}], {"task": "infer"}, None),
        ([{"shapes": [{**LAYOUT, "grad": True}]}], {"task": "infer"}, "torch.no_grad()"),
        ([{}, {"calls": 39}], {"task": "infer", "objective": "throughput", "instances": "2"}, None),
        ([VARIED, {**VARIED, "calls": 39}], {"task": "infer", "objective": "p99", "instances": "2"}, None),
        (
            [{"backward": 40, "shapes": [TRAINED]}],
            {"task": "train", "tolerance": 0.03, "fixed_precision": True},
            None,
        ),
        ([{"is_text": True, "prompts": [PROMPT]}], {"task": "generate"}, None),
        ([{"shapes": [LAYOUT, {**LAYOUT, "count": 10, "signature": "int64[1]"}]}], {"task": "infer"}, "20% of the"),
    ],
    ids=["one shape", "recorded", "two workers", "two workers, shapes", "trained", "text", "other arguments"],
)
def test_the_question(tmp_path, monkeypatch, processes, values, remark):
    """What was seen decides the fields of the question, each with its reason, and what is not in it is said."""
    monkeypatch.setattr("autotune.plugins.watch.question.num_usable_cores", lambda: len(processes))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(len(processes))})
    asked = question_of(*chosen(folder(tmp_path, *([{**MODEL, **changes}] for changes in processes))))
    rest = {"device": "cpu", "framework": "torch", "build": asked.values["build"]}
    if any(changes.get("shapes") == VARIED["shapes"] for changes in processes):
        rest["traffic"] = asked.values["build"].replace(".py:build", ".jsonl")
    assert asked.values == {**rest, **values}
    assert {"objective", "instances", "task"} & asked.reasons.keys() >= {"objective", "instances"} & values.keys()
    assert [remark in each for each in asked.remarks] == ([] if remark is None else [True])
    written = (tmp_path / os.path.basename(asked.values["build"].partition(":")[0])).read_text()
    assert f"'task': '{values['task']}'" in written


@pytest.mark.parametrize(("is_elsewhere", "num"), [(False, 1), (True, 0)])
def test_a_job_of_another_release(tmp_path, is_elsewhere, num):
    """Is said to be one, where the study runs here."""
    watched = chosen(folder(tmp_path, [MODEL], release="2.0.0"))
    remarks = question_of(*watched, is_elsewhere=is_elsewhere).remarks
    assert ["the job ran torch 2.0.0, and the study is about 2." in each for each in remarks].count(True) == num


@pytest.mark.parametrize(
    ("num_cores", "gap_s", "on", "remark"),
    [
        (8, 0.0, (), "tune on 2 cores"),
        (1, 0.0, (), "there is 1 core"),
        (2, 100.0, (), None),
        (8, 0.0, ("--on", "ray"), "but --on measures one on each machine: one of them is measured"),
    ],
)
def test_processes_that_are_no_workers_of_here(tmp_path, monkeypatch, cli, num_cores, gap_s, on, remark):
    """Two runs are no two workers; more workers than cores, or on another machine, are not measured, and threads that
    differ are said."""
    monkeypatch.setattr("autotune.plugins.watch.question.num_usable_cores", lambda: num_cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    place = folder(tmp_path, [{**MODEL, **VARIED}], [{**MODEL, **VARIED}], gap_s=gap_s)
    asked = question_of(*chosen(place), is_elsewhere=bool(on))
    assert asked.values.get("instances") == ("2" if num_cores == 8 and not on else None)
    assert [remark in each for each in asked.remarks] == ([] if remark is None else [True])
    (typed,) = [line for line in cli("tune", place, *on, "--dry-run").stderr.splitlines() if line.startswith("asked ")]
    assert ("--instances" in typed) == ("instances" in asked.values)


def test_what_is_typed_takes_the_place_of_what_was_seen(tmp_path, cli):
    """Also of what cannot be asked beside it; the question is printed as it is asked."""
    place = folder(tmp_path, [{**MODEL, **VARIED}])
    told = cli("tune", place, "--shapes", "batch=1..4", "--objective", "latency", "--dry-run").stderr
    (asked,) = [line for line in told.splitlines() if line.startswith("asked ")]
    assert asked.endswith(" --shapes batch=1..4 --objective latency --dry-run")
    assert asked.count("--objective") == 1
    assert "--traffic" not in asked
    assert "give one of them" not in told


def test_a_folder_that_cannot_be_written(tmp_path, cli_process):
    """Has its sentence, before the job runs."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", "/proc/seen"):
        refused = cli_process("watch", "-o", str(place), "--", "true")
        assert refused.returncode == 2
        assert f"error: {place}: no folder can be made there: " in refused.stderr


def test_what_is_not_kept_is_said(tmp_path, cli):
    """A model of which there is no file has its reason; a name, a document and a folder that are of no use, too."""
    place = folder(
        tmp_path, [{**MODEL, "files": {}, "notes": ["it cannot be kept: too large"]}, {**MODEL, "name": "B"}]
    )
    with pytest.raises(InputError, match="no model C"):
        chosen(f"{place}/C")
    both = cli("tune", place, "--dry-run", "--budget", "30s")
    assert both.returncode == 2
    assert "model 2 of 2" in both.stderr
    assert "Net: was not kept: it cannot be kept: too large" in both.stderr
    (tmp_path / "processes" / "here-0.json").write_text('{"schema": 2, "models": [{"name": "../x"}]}')
    with pytest.raises(InputError, match="no document of `watch`"):
        chosen(place)
    (tmp_path / "processes" / "here-0.json").unlink()
    with pytest.raises(InputError, match="no call of a model was seen"):
        chosen(place)
    (tmp_path / "processes" / "here-0.partial").touch()
    with pytest.raises(InputError, match="could not be written: is the disk full"):
        chosen(place)
    with pytest.raises(InputError, match="Net: was not kept: what was seen could not be written: is the disk full"):
        question_of(*chosen(folder(tmp_path, [{**MODEL, "files": {}}])))


TUNED_JOB = """
import logging, os, sys
import torch
from net import Net

logging.basicConfig(format="%(message)s", stream=sys.stdout)
torch.manual_seed(0)
net = Net(*map(int, sys.argv[1:])).eval()
whole = torch.nn.Sequential(torch.nn.Identity(), net)
x = torch.ones(2, 16)

def calls():
    with torch.no_grad():
        print([float(whole(x).sum()) for _ in range(3)], type(whole[1]).__name__, flush=True)
    graphs = "torch._dynamo.utils" in sys.modules and torch._dynamo.utils.counters["stats"]["unique_graphs"]
    print("graphs", graphs, torch.nn.Module.__call__.__name__, flush=True)

if os.fork() == 0:
    calls()
    os._exit(0)
os.wait()
calls()
sys.exit(5)
"""


@pytest.mark.torch
def test_a_job_is_tuned_without_a_line_of_code(tmp_path):
    """In a worker and in its parent, with the untuned outputs, by a file of as many processes; a job without the model
    says that it ran untuned."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, width))

        def forward(self, x):
            return self.body(x)

    source = textwrap.dedent(inspect.getsource(Net))
    (tmp_path / "net.py").write_text(f"import torch\n{source}")
    (tmp_path / "job.py").write_text(TUNED_JOB)
    config = {"execution": "compile", "backend": "eager", "instances": "2x1"}
    path = export(tmp_path / "best.yaml", "torch", config, Net().eval(), [torch.ones(2, 16)])
    path.write_text(path.read_text().replace("model_class: builtins.function", "model_class: mine.Net"))
    job = [sys.executable, "job.py"]
    plain, tuned, other = (
        run([*before, *job, *width], tmp_path)
        for before, width in (
            ([], []),
            (cli_command("launch", "best.yaml", "--apply", "--"), []),
            (cli_command("launch", "best.yaml", "best.yaml", "--apply", "--"), ["5"]),
        )
    )
    assert plain.returncode == tuned.returncode == other.returncode == 5, tuned.stderr
    assert plain.stdout.count("graphs False _wrapped_call_impl") == 2
    assert tuned.stdout == plain.stdout.replace("graphs False", "graphs 1")
    assert "is for 2 processes side by side: the job is taken to start them" in tuned.stderr
    assert "no Net with the parameters that it was tuned with was called: the job ran untuned" in other.stdout
    assert "graphs False" in other.stdout


ODD_JOB = """
import logging, sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.body = nn.Sequential(*parts)

    def forward(self, x):
        return self.body(x)

class Odd(Net):
    def named_parameters(self, *args, **kwargs):
        raise RuntimeError("no parameters here")

Odd.__name__ = "Net"
logging.basicConfig(format="%(message)s", stream=sys.stdout)
before = nn.Module.__call__
nn.Module.__call__ = lambda self, *args, **kwargs: before(self, *args, **kwargs)  # As a profiler of the job's.
lazy = [nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 4)]
with torch.no_grad():
    for net in (Odd(nn.Linear(16, 4)), Odd(nn.Linear(16, 4)), Net(nn.Linear(16, 3)), Net(*lazy)):
        for _ in range(2):
            print(tuple(net(torch.ones(2, 16)).shape), torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.torch
def test_no_call_fails_because_its_module_is_looked_at(tmp_path):
    """A module of the class that cannot be looked at stays as it is, with one warning, and so does one of another
    structure; a lazy one is tuned once it has its shapes. So it is where the job has put its own call around all."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    same = nn.ModuleDict({"body": nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))})
    path = export(
        tmp_path / "best.yaml", "torch", {"execution": "compile", "backend": "eager"}, same, [torch.ones(2, 16)]
    )
    path.write_text(path.read_text().replace("model_class: builtins.function", "model_class: mine.Net"))
    (tmp_path / "job.py").write_text(ODD_JOB)
    done = run(cli_command("launch", "best.yaml", "--apply", "--", sys.executable, "job.py"), tmp_path)
    assert done.stdout.splitlines() == [
        "autotune: a Net stays untuned, since it cannot be looked at: RuntimeError: no parameters here",
        *["(2, 4) 0"] * 4, *["(2, 3) 0"] * 2, "(2, 4) 0", "(2, 4) 1",
    ], done.stderr  # fmt: skip


OWN_JOB = """
import logging, sys
import torch
import autotune
from net import Net

logging.basicConfig(format="%(message)s", stream=sys.stdout)
seen = []

def backend(graph, inputs):
    seen.append("compiled")
    return graph

torch.manual_seed(0)
x, how = torch.ones(2, 16), sys.argv[1:]
with torch.no_grad():
    if "another" in how:
        Net().eval()(x)
    net = Net().eval()
    net = torch.compile(net, backend=backend) if "compiled" in how else autotune.load("best.yaml").apply(net)
    print([round(float(net(x).sum()), 4) for _ in range(3)], seen)
"""


@pytest.mark.torch
@pytest.mark.fast_cases("how1")
@pytest.mark.parametrize("how", [("compiled",), ("compiled", "another"), ("line", "another")])
def test_a_model_that_the_job_compiles_or_has_a_line_for(tmp_path, how):
    """Is left to that, also where another of its class is tuned; where it alone is there, the log says so."""
    torch = pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(NET)
    body = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    config = {"execution": "compile", "backend": "eager"}
    path = export(tmp_path / "best.yaml", "torch", config, torch.nn.ModuleDict({"body": body}), [torch.ones(2, 16)])
    path.write_text(path.read_text().replace("model_class: builtins.function", "model_class: mine.Net"))
    (tmp_path / "job.py").write_text(OWN_JOB)
    job = [sys.executable, "job.py", *how]
    plain, done = run(job, tmp_path), run([*cli_command("launch", "best.yaml", "--apply", "--"), *job], tmp_path)
    own, *said = done.stdout.splitlines()
    (expected,) = plain.stdout.splitlines()
    assert own == expected, done.stderr
    assert len(said) == ("another" not in how), said
    assert all("the job compiles its Net by itself, and the config is not used" in line for line in said)


GENERAL_JOB = """
import logging, sys, types
import torch
from tests.generating import NEW, llama, prompt
from tests.stand_ins import pipelines

logging.basicConfig(format="%(message)s", stream=sys.stdout)
ids, times = prompt(1, 5), range(int(sys.argv[1]))
with torch.no_grad():
    pipe = types.SimpleNamespace(**pipelines.modules())
    pictures = [pipelines.call(pipe, torch.arange(8).reshape(2, 4)).flatten().tolist() for _ in times]
    print("picture", {str([round(each, 6) for each in picture]) for picture in pictures})
    pipe = llama()
    texts = [pipe.generate(ids, max_new_tokens=NEW, do_sample=False).tolist() for _ in times]
    print("text", {str(text) for text in texts}, llama().generate.__qualname__)
graphs = "torch._dynamo.utils" in sys.modules and torch._dynamo.utils.counters["stats"]["unique_graphs"]
print("graphs", graphs, torch.nn.Module.__call__.__name__, flush=True)
"""


@pytest.mark.torch
def test_a_pipeline_and_a_text_are_tuned_without_a_line_of_code(tmp_path, workload, program):
    """The components of a pipeline's file, and `generate` from its first call on: equal pictures and tokens, also where
    they take turns."""
    pytest.importorskip("transformers")
    from tests.generating import NEW, llama, prompt

    model = "tests.stand_ins.pipelines:build"
    place = {"framework": "torch", "model": "build", "reference": model}
    components = probe._declared(workload.model_copy(update=place).model_dump_json())["components"]
    config = {"execution": "compile", "backend": "eager", "region": "denoiser, vae.decoder"}
    export(tmp_path / "pipe.yaml", "torch", config, llama(), [], components=components)
    path = export(
        tmp_path / "text.yaml", "torch", {"execution": "compile", "backend": "eager", "cache": "static"}, llama(),
        [prompt(1, 5)], task="generate", texts={"lengths": [5], "new_tokens": NEW, "batch": 1},
    )  # fmt: skip
    path.write_text(path.read_text().replace("model_class: builtins.function", "model_class: m.LlamaForCausalLM"))
    (tmp_path / "job.py").write_text(GENERAL_JOB)
    job, files = [sys.executable, "job.py"], ["pipe.yaml", "text.yaml"]
    with (tmp_path / "plain").open("w") as stdout:
        assert program(GENERAL_JOB, "1", stdout=stdout.fileno()).wait() == 0
    plain = (tmp_path / "plain").read_text()
    tuned = run([*cli_command("launch", *files, "--apply", "--"), *job, "1"], tmp_path)
    tried = run([*cli_command("try", *files, "--json", "--"), *job, "30"], tmp_path)
    assert tuned.returncode == tried.returncode == 0, tuned.stderr + tried.stderr
    assert "graphs 0 _wrapped_call_impl" in plain
    assert tuned.stdout == plain.replace("graphs 0", "graphs 3")
    own, document = tried.stdout.rsplit("\n", 2)[:2]
    assert own == tuned.stdout.strip()
    models = {each["name"]: each for each in json.loads(document)["models"]}
    assert [each["unit"] for each in models.values()].count("call") == len(models) - 1 == 2
    text = models["LlamaForCausalLM"]
    assert (text["unit"], text["num"]) == ("text", 30)
    assert text["untuned"]["num"] > 0 < text["tuned"]["num"]


def test_what_is_not_applied_by_itself(tmp_path, cli):
    """Files of another framework, and a command that is missing, have their sentence."""
    refused = cli("launch", str(REPOSITORY / "tests" / "best.yaml"), "--apply", "--", "true")
    assert refused.returncode == 2
    assert "only models of torch and mindspore" in refused.stderr
    assert "no command" in cli("launch", str(REPOSITORY / "tests" / "best.yaml"), "--apply", "--").stderr


def test_each_model_has_its_share():
    """Of the time that is given, and a study of its own."""
    typed = ["seen", "--budget", "60s", "--study=mine", "--budget=2m", "--trials", "3"]
    assert _shared(typed, 0.25, "Net") == [
        "seen", "--budget", "15s", "--study=mine-Net", "--budget=30s", "--trials", "3",
    ]  # fmt: skip


def test_a_job_that_is_not_there(cli_process):
    """The exit status is a shell's."""
    assert cli_process("watch", "--", "no-such-program").returncode == 127
    assert (REPOSITORY / "autotune" / "plugins" / "watch" / "inject" / "sitecustomize.py").is_file()
