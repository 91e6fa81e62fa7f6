"""`launch`: the job's process has what the study's had, is the job's own in all else, and `apply` looks at what is."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autotune.answer.export import _without_start
from autotune.config import Config
from autotune.job.launch import CannotStartError, Launch, lacks, lacks_around, surroundings
from autotune.measure.measurement import Measurement
from autotune.tuned.tuned_config import load_tuned
from autotune.workload import process_start
from autotune.workload.process_start import ProcessStart, may_be_set
from tests.conformance.test_fake import FakeKit, Model
from tests.conftest import REPOSITORY, Cli
from tests.stand_ins.exports import RECORDED, export

Run = Callable[..., subprocess.CompletedProcess[str]]
JEMALLOC = {"execution": "eager", "allocator": "jemalloc", "cores": 1}
FOUND = """
import json, os, subprocess, sys
def found(pid):
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return {
        "preloaded": "libjemalloc" in open(f"/proc/{pid}/maps").read(),
        "cores": status["Cpus_allowed_list"].strip(),
        "ignored": status["SigIgn"].strip(),
    }
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(json.dumps([found("self"), found(child.pid)]))
child.communicate(b"\\n")
"""


@pytest.fixture
def answer(tmp_path: Path) -> Callable[..., Path]:
    """Write an export with this config, whose processes had these declared and these inherited variables."""

    def make(config: dict[str, Any], declared: dict[str, str] | None = None, **inherited: str) -> Path:
        content = yaml.safe_load(RECORDED.read_text())
        content["config"] = config
        content["environment"].update(variables=declared or {}, inherited=inherited)
        path = tmp_path / "best.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return make


@pytest.fixture
def launch() -> Run:
    """Run `launch` with these arguments."""

    def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(REPOSITORY / "cli.py"), "launch", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)

    return run


class TestTheProcess:
    def test_has_the_library_and_the_cores(self, answer: Callable[..., Path], launch: Run, jemalloc: Path) -> None:
        """By what the kernel says of it, and so has a process that it starts. Signals are as without `launch`, and no
        variable of this tool's own is left."""
        plain = subprocess.run([sys.executable, "-c", FOUND], capture_output=True, text=True, check=True)
        result = launch(answer(JEMALLOC), "--", sys.executable, "-c", FOUND)
        assert result.returncode == 0, result.stderr
        (itself, child), (without, _) = json.loads(result.stdout), json.loads(plain.stdout)
        assert itself["preloaded"]
        assert not without["preloaded"]
        assert itself["cores"].isdecimal(), "one core"
        assert itself["ignored"] == without["ignored"]
        assert (child["preloaded"], child["cores"]) == (True, itself["cores"])
        assert "started with jemalloc preloaded, 1 core, and so is all that it starts" in result.stderr

    def test_is_the_jobs_own(self, answer: Callable[..., Path], launch: Run) -> None:
        """Standard input, output, arguments that look like flags, and the exit status go through."""
        code = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(7)"
        path = answer({"execution": "eager"})
        for command in (["--"], []):
            result = launch(path, *command, sys.executable, "-c", code, "--port", "-h", input="given")
            assert (result.returncode, result.stdout) == (7, "['--port', '-h'] given\n")
            assert "the config asks for nothing at the start of a process" in result.stderr

    def test_has_nothing_of_pythons(self, answer: Callable[..., Path], launch: Run) -> None:
        """Which ignores two signals, and sets a locale where there is none."""
        shell = ["sh", "-c", "grep SigIgn /proc/self/status; env | grep -v ^_="]
        bare = {"PATH": os.environ["PATH"]}
        plain = subprocess.run(shell, env=bare, capture_output=True, text=True, check=True)
        assert launch(answer({"execution": "eager"}), "--", *shell, env=bare).stdout == plain.stdout

    def test_gets_its_signals(self, answer: Callable[..., Path]) -> None:
        """It has the number of the process that was started, so that whoever started it can stop it."""
        code = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(9)); print(1, flush=True); signal.pause()"
        command = [sys.executable, str(REPOSITORY / "cli.py"), "launch", str(answer({"execution": "eager"})), "--"]
        with subprocess.Popen([*command, sys.executable, "-c", code], stdout=subprocess.PIPE) as job:
            assert job.stdout is not None
            job.stdout.readline()
            job.send_signal(signal.SIGTERM)
            assert job.wait(30) == 9

    def test_that_cannot_be_started(self, answer: Callable[..., Path], launch: Run, tmp_path: Path) -> None:
        """The exit status is a shell's."""
        plain = tmp_path / "plain.txt"
        plain.touch()
        path = answer(JEMALLOC | {"allocator": None})
        assert launch(path, "--", "no-such-program").returncode == 127
        result = launch(path, "--", plain)
        assert result.returncode == 126
        assert f"cannot start {plain}: Permission denied" in result.stderr

    @pytest.mark.parametrize(
        ("program", "status", "why"),
        [
            ("", 127, "cannot start '': the command is empty"),
            ("{folder}", 126, "{folder}: it is a folder"),
            (
                "{folder}/script",
                126,
                "{folder}/script: the interpreter that its first line names, or its loader, is not",
            ),
            ("{folder}/nothing", 126, "{folder}/nothing: Exec format error"),
        ],
    )
    def test_whose_command_is_none(self, tmp_path: Path, program: str, status: int, why: str) -> None:
        """One sentence, whatever the system says; and this process is as it was before."""
        for name, content in {"script": "#!/no/such/interpreter\n", "nothing": ""}.items():
            (tmp_path / name).write_bytes(content.encode() or b"\x00\x01")
            (tmp_path / name).chmod(0o755)
        cores = os.sched_getaffinity(0)
        with pytest.raises(CannotStartError) as caught:
            Launch({}, frozenset([min(cores)]), (), ()).execute([program.format(folder=tmp_path)], os.environ)
        assert why.format(folder=tmp_path) in str(caught.value)
        assert caught.value.exit_code == status
        assert os.sched_getaffinity(0) == cores

    def test_keeps_the_users_own_settings_of_an_allocator(self, answer: Callable[..., Path]) -> None:
        """A config that asks for one of several settings leaves the others, and says which it replaces."""
        tuned = load_tuned(answer({"execution": "eager", "allocator": "huge_pages"}))
        name, own = "GLIBC_TUNABLES", "glibc.malloc.arena_max=2"
        for given, expected, told in (
            ("", "glibc.malloc.hugetlb=1", ()),
            (own, f"{own}:glibc.malloc.hugetlb=1", ()),
            (f"glibc.malloc.hugetlb=2:{own}", f"glibc.malloc.hugetlb=1:{own}", ("glibc.malloc.hugetlb=2 of your",)),
            (f"glibc.malloc.hugetlb=1:{own}", None, ()),
        ):
            launch = Launch.of(tuned, {name: given})
            assert launch.variables.get(name) == expected
            assert all(word in remark for word, remark in zip(told, launch.remarks, strict=True))

    def test_a_process_with_further_settings_lacks_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`apply` looks for the one that the config asks for."""
        start = ProcessStart({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
        monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1")
        assert start.lacking() == []
        monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=0")
        assert len(start.lacking()) == 1

    @pytest.mark.parametrize(
        ("name", "refused", "taken"),
        [
            ("OMP_NUM_THREADS", ("2147483647", "5000", "0", "-1", "1e3", "٣", ""), ("1", "64")),
            ("MKL_NUM_THREADS", ("1000000",), ("4",)),
            ("OPENBLAS_NUM_THREADS", ("100000",), ("4",)),
            ("MALLOC_MMAP_THRESHOLD_", ("0", "1", "9" * 5000), ("131072",)),
            ("MALLOC_ARENA_MAX", ("2147483647",), ("2",)),
            ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", ("2147483647",), ("1024",)),
            ("CUDA_DEVICE_MAX_CONNECTIONS", ("0", "33"), ("1", "32")),
            ("OMP_WAIT_POLICY", ("1", "ACTIVE"), ("active",)),
            ("LD_PRELOAD", ("libm.so.6", ""), ()),
            ("GLIBC_TUNABLES", ("glibc.malloc.hugetlb=1",), ()),
        ],
    )
    def test_numbers_with_sense(self, name: str, refused: tuple[str, ...], taken: tuple[str, ...]) -> None:
        """A file sets no number that takes the machine's memory or processes, whoever wrote it."""
        assert [value for value in refused if may_be_set(name, value)] == []
        assert [value for value in taken if not may_be_set(name, value)] == []

    def test_has_what_the_study_declared(self, answer: Callable[..., Path], launch: Run) -> None:
        """And what its user had set, as far as a file may set it. The rest is said."""
        path = answer(
            {"execution": "eager", "env.OMP_WAIT_POLICY": "passive"}, {"OMP_NUM_THREADS": "3", "PYTHONSTARTUP": "x.py"},
            MALLOC_ARENA_MAX="2", LD_PRELOAD="./evil.so", OMP_DISPLAY_ENV="true",
        )  # fmt: skip
        names = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "PYTHONSTARTUP", "LD_PRELOAD")
        code = f"import os; print([os.environ.get(name) for name in {names}])"
        without = {name: value for name, value in os.environ.items() if name not in names}
        result = launch(path, "--", sys.executable, "-c", code, env=without)
        assert result.stdout == "['passive', '3', '2', None, None]\n"
        for name in ("PYTHONSTARTUP=x.py", "LD_PRELOAD=./evil.so", "OMP_DISPLAY_ENV=true"):
            assert f"{name}, which no file may set" in result.stderr

    @pytest.mark.parametrize("config", [{"env.LD_PRELOAD": "./evil.so"}, {"cores": "0; id"}], ids=str)
    def test_of_a_file_that_asks_for_more(self, answer: Callable[..., Path], cli: Cli, config: dict[str, str]) -> None:
        """Nothing is started."""
        result = cli("launch", str(answer({"execution": "eager", **config})), "--", "echo", "started")
        assert (result.returncode, result.stdout) == (2, "")
        assert "Traceback" not in result.stderr

    def test_of_an_untuned_answer(self, answer: Callable[..., Path]) -> None:
        """Nothing is asked for by a config that is not used."""
        path = answer(JEMALLOC)
        path.write_text(path.read_text().replace("verdict: faster", "verdict: tie"))
        start = Launch.of(load_tuned(path), {})
        assert (start.variables, start.cores) == ({}, None)


class TestWithoutACommand:
    def test_a_line_for_a_shell_does_the_same(self, answer: Callable[..., Path], launch: Run, jemalloc: Path) -> None:
        """For a unit file or a container without this package."""
        result = launch(answer(JEMALLOC))
        assert result.stdout.endswith(" COMMAND\n")
        command = shlex.split(result.stdout)[:-1]
        done = subprocess.run([*command, sys.executable, "-c", FOUND], capture_output=True, text=True, check=True)
        (itself, _) = json.loads(done.stdout)
        assert itself["preloaded"]
        assert itself["cores"].isdecimal()


class TestWhatIsNotHere:
    def test_the_job_starts_without_it(
        self, answer: Callable[..., Path], launch: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And a sentence says so: a job's result comes first."""
        result = launch(answer({"execution": "eager", "cores": 4096}), "--", "echo", "started")
        assert (result.returncode, result.stdout) == (0, "started\n")
        assert "a set of 4096 cores cannot be had here" in result.stderr
        assert "apply() leaves its model untuned" in result.stderr
        monkeypatch.setattr(process_start, "_folders", lambda: iter([]))
        remarks = Launch.of(load_tuned(answer(JEMALLOC)), {}).remarks
        assert remarks[0].startswith("jemalloc is not installed here")

    def test_a_process_says_what_it_lacks(self, answer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        """And what that costs: the speed-up, and what the same config took without, if a trial was made of it."""
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        path = answer({"execution": "eager", "cores": 4096}, OMP_NUM_THREADS="77")
        content = yaml.safe_load(path.read_text())
        best = content["evidence"]["best"]
        without = {**best, "latency_s": {name: 1.5 * value for name, value in best["latency_s"].items()}}
        content["evidence"]["without_start"] = without
        path.write_text(yaml.safe_dump(content))
        tuned = load_tuned(path)
        said = lacks("best.yaml", tuned)
        assert said is not None
        assert "started with cores: 4096 (here " in said
        assert "its speed-up of " in said
        assert "without that a call took 1.50 times as long" in said
        around = lacks_around("best.yaml", tuned)
        assert around is not None
        assert "OMP_NUM_THREADS=77 (here it is not set): what that costs was not measured" in around
        monkeypatch.setenv("OMP_NUM_THREADS", "77")
        assert lacks_around("best.yaml", tuned) is None
        assert surroundings(tuned).variables == {"OMP_NUM_THREADS": "77"}


TWO = {"execution": "eager", "instances": "2x1"}
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="instances have a core each")


@needs_two_cores
class TestInstances:
    """A file that is for two processes of a core each."""

    def test_have_a_core_and_a_thread_each(self, answer: Callable[..., Path], launch: Run) -> None:
        """By what the kernel says of them. The flag stands behind the file, or in front of it."""
        path, code = answer(TWO), "import os; print(*os.sched_getaffinity(0), os.environ['OMP_NUM_THREADS'])"
        job = ("--", sys.executable, "-c", code)
        results = [
            launch(path, "--instance", "0", *job), launch(path, "--instance=1", *job),
            launch("--instance", "1", path, *job),
        ]  # fmt: skip
        first, second = sorted(os.sched_getaffinity(0))[:2]
        assert [result.stdout for result in results] == [f"{first} 1\n", f"{second} 1\n", f"{second} 1\n"]
        assert "started with OMP_NUM_THREADS=1, 1 core, as instance 1 of 2" in results[1].stderr

    def test_a_flag_of_the_job_is_its_own(self, answer: Callable[..., Path], launch: Run) -> None:
        """Also one of the same name."""
        code = "import sys; print(sys.argv[1:])"
        result = launch(answer(TWO), "--instance", "1", "--", sys.executable, "-c", code, "--instance", "7")
        assert result.stdout == "['--instance', '7']\n"

    def test_each_has_a_line_for_a_shell(self, answer: Callable[..., Path], launch: Run) -> None:
        """All of them, or the one that is named."""
        path = answer(TWO)
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        first, second = sorted(os.sched_getaffinity(0))[:2]
        lines = launch(path, env=environment).stdout.splitlines()
        assert lines == [f"env OMP_NUM_THREADS=1 taskset -c {cpu} COMMAND" for cpu in (first, second)]
        assert launch(path, "--instance", "1", env=environment).stdout.splitlines() == lines[1:]

    def test_which_one_has_to_be_said(self, answer: Callable[..., Path], cli: Cli) -> None:
        """Nothing is started without, nor as one that the file does not have."""
        result = cli("launch", str(answer(TWO)), "--", "echo", "started")
        assert (result.returncode, result.stdout) == (2, "")
        assert "is for 2 processes side by side" in result.stderr
        assert "start the job 2 times, I from 0 to 1: " in result.stderr
        for config, number in ((TWO, "2"), (TWO, "-1"), ({"execution": "eager"}, "1")):
            result = cli("launch", str(answer(config)), "--instance", number, "--", "echo", "started")
            assert (result.returncode, result.stdout) == (2, "")
            assert f"--instance {number}: the file is for " in result.stderr

    def test_more_than_fit_here(self, answer: Callable[..., Path], launch: Run) -> None:
        """The job starts with what there is, as it does without a library that is not installed."""
        result = launch(answer(TWO | {"instances": "512x512"}), "--instance", "3", "--", "echo", "started")
        assert (result.returncode, result.stdout) == (0, "started\n")
        assert "512 sets of 512 cores cannot be had here" in result.stderr

    def test_a_process_that_is_none_says_so(self, answer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
        """With what it lacks. What a trial without instances took is no matter: a call of one is slower by design."""
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        path = answer(TWO)
        content = yaml.safe_load(path.read_text())
        content["evidence"]["without_start"] = content["evidence"]["best"]
        path.write_text(yaml.safe_dump(content))
        said = lacks("best.yaml", load_tuned(path))
        assert said is not None
        assert said.startswith("best.yaml was measured as 2 processes side by side, each of them started with OMP_NUM")
        assert "times as long" not in said


@needs_two_cores
def test_instances_from_a_study_to_a_job(tmp_path: Path, tune_fake: Cli, cli: Cli, launch: Run) -> None:
    """They have twice the throughput of a model whose calls take as long on one core as on two; the export says how to
    start them."""
    space, path = tmp_path / "one.yaml", tmp_path / "exported.yaml"
    space.write_text(SPACE.replace("[8, 2]", "[8]").partition("  allocator")[0])
    found = tune_fake("--space", str(space), "--objective", "throughput", "--instances", "auto")
    num = len(os.sched_getaffinity(0))
    assert "faster: " in found.stdout, found.stderr
    assert f"instances={num}x1" in found.stdout
    assert "processes of 1 core each call at the same time" in found.stdout
    assert f"start the job {num} times" in found.stdout
    exported = cli("export", "s", "-o", str(path)).stdout
    lines = [f"launch {path} --instance {number} -- COMMAND" for number in range(num)]
    assert all(line in exported for line in lines)
    speedup = load_tuned(path).evidence.speedup
    assert speedup is not None
    assert speedup.median == pytest.approx(num, rel=0.05)
    result = launch(path, "--instance", num - 1, "--", sys.executable, "-c", FOUND)
    assert json.loads(result.stdout)[0]["cores"] == str(max(os.sched_getaffinity(0)))


SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager], untuned: eager, default: eager}
  latency_ms: {doc: "https://example.org/x", values: [8, 2], default: 8, untuned: 8}
  allocator: {doc: "https://e.org/x", when: {latency_ms: 2}, values: [jemalloc], default: jemalloc, start: jemalloc}
  cores: {doc: "https://example.org/x", when: {latency_ms: 2}, values: [1], default: 1, start: cores}
"""


def test_from_a_study_to_a_process(tmp_path: Path, tune_fake: Cli, cli: Cli, launch: Run, jemalloc: Path) -> None:
    """What the winner was started with, in search and blocks, is in the export, and the job's process has it."""
    space, path = tmp_path / "starts.yaml", tmp_path / "exported.yaml"
    space.write_text(SPACE)
    found = tune_fake("--space", str(space), "--process-settings")
    assert "latency_ms=2" in found.stdout, found.stderr
    assert "launch best.yaml -- COMMAND" in found.stdout
    assert f"launch {path} -- COMMAND" in cli("export", "s", "-o", str(path)).stdout
    assert load_tuned(path).environment.num_cores == 1
    (itself, _) = json.loads(launch(path, "--", sys.executable, "-c", FOUND).stdout)
    assert (itself["preloaded"], itself["cores"].isdecimal()) == (True, True)


def test_the_export_has_the_trial_without_the_start(measurement: Measurement) -> None:
    """That of the same config in all else; none for a config that asks for no start."""
    configs = [{"a": 1}, {"a": 2}, {"a": 2, "allocator": "jemalloc"}, {"a": 2, "allocator": None, "cores": 1}]
    records = [
        SimpleNamespace(number=number, config=Config(config), measurement=measurement)
        for number, config in enumerate(configs)
    ]
    answer: Any = SimpleNamespace(measured=records)
    found = [_without_start(answer, record.config) for record in records]
    assert [figures and figures.trial for figures in found] == [None, None, 1, 1]


@needs_two_cores
@pytest.mark.parametrize("launched", [True, False])
def test_a_job_as_an_instance(tmp_path: Path, launch: Run, launched: bool) -> None:
    """Launched, its model is tuned without a word, and so in a worker with as many threads that nobody pinned. Else it
    stays untuned, with one line."""
    path = export(tmp_path / "best.yaml", "fake", TWO, Model(), [FakeKit.x])
    content = yaml.safe_load(path.read_text())
    content["environment"]["num_cores"] = 1
    path.write_text(yaml.safe_dump(content))
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB.format(repository=str(REPOSITORY))))
    job = [sys.executable, str(script), str(path), "retune-hint"]
    if launched:
        result = launch(path, "--instance", "1", "--", *job)
        assert (result.returncode, result.stdout) == (0, "tuned\n"), result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return
    threads = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = subprocess.run(job, capture_output=True, text=True, check=True, env=threads)
    assert result.stdout == "untuned\n"
    (line,) = result.stderr.splitlines()
    assert "was measured as 2 processes side by side, each of them started with OMP_NUM_THREADS=1 (here" in line
    assert f"{path} --instance I -- COMMAND" in line
    result = subprocess.run(job, capture_output=True, text=True, check=True, env={**threads, "OMP_NUM_THREADS": "1"})
    assert (result.stdout, result.stderr) == ("tuned\n", "")


JOB = """
import logging, sys
sys.path.insert(0, {repository!r})
import autotune
from tests.conformance.test_fake import FakeKit, Model
model = Model()
tuned = autotune.load(sys.argv[1]).apply(model, on_mismatch=sys.argv[2])
assert (tuned(FakeKit.x) == Model()(FakeKit.x)).all()
print('untuned' if tuned is model else 'tuned')
"""


@pytest.mark.parametrize(("launched", "policy"), [(True, "raise"), (False, "retune-hint"), (False, "apply")])
def test_a_job_from_end_to_end(tmp_path: Path, launch: Run, jemalloc: Path, launched: bool, policy: str) -> None:
    """Launched, its model is tuned without a word. Else it stays untuned, or is tuned where the job insists; one line
    says what the process lacks, what that costs, and how to start it."""
    path = export(tmp_path / "best.yaml", "fake", JEMALLOC, Model(), [FakeKit.x])
    content = yaml.safe_load(path.read_text())
    content["environment"]["num_cores"] = 1
    best = content["evidence"]["best"]
    plain = {**best, "latency_s": {name: 1.5 * value for name, value in best["latency_s"].items()}}
    content["evidence"]["without_start"] = plain
    path.write_text(yaml.safe_dump(content))
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB.format(repository=str(REPOSITORY))))
    job = [sys.executable, str(script), str(path), policy]
    if launched:
        result = launch(path, "--", *job)
        assert (result.returncode, result.stdout) == (0, "tuned\n"), result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return
    result = subprocess.run(job, capture_output=True, text=True, check=True)
    assert result.stdout == ("tuned\n" if policy == "apply" else "untuned\n")
    first = result.stderr.splitlines()[0]
    assert "started with jemalloc preloaded (here libc.so.6 is); cores: 1 (here " in first
    assert "on which its speed-up of " in first
    assert "without that a call took 1.50 times as long in a trial of the study" in first
    assert ("applied anyway" if policy == "apply" else "launch") in first
