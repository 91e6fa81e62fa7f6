"""The command line as a user meets it: real processes, exit statuses, sentences, documents for scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
import yaml

from tests.conftest import cli_command, cli_environment


def document_of(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def refused(result, *words, code=2):
    """A mistake: the exit status, one sentence with these words on stderr, nothing on stdout, no traceback."""
    assert result.returncode == code, result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


class TestTheMainJob:
    """One study from tune to export; the commands that read it."""

    @pytest.fixture
    def tuned(self, tune_fake):
        return tune_fake("--trials", "5", "--json")

    def test_reading_commands(self, tuned, cli, tmp_path):
        """`tune --json` and `show --json` print the same one document, and `show`, `studies`, `export` and `run` speak
        of the same study."""
        document = document_of(tuned)
        assert document == document_of(cli("show", "s", "--json"))
        assert document["verdict"] == "faster"
        assert 5 <= len(document["trials"]) <= 7, "two more may tell which settings of the winner do nothing"
        shown = cli("show", "s", "--why")
        assert "faster: " in shown.stdout
        assert "python -m autotune export s" in shown.stdout
        assert "two processes of the untuned model differ by" in shown.stdout
        assert "s  " in cli("studies").stdout
        assert json.loads(cli("studies", "--json").stdout)[0]["verdict"] == "faster"
        exported = cli("export", "s", "-o", "best.yaml")
        assert exported.returncode == 0
        assert yaml.safe_load((tmp_path / "best.yaml").read_text())["verdict"] == "faster"
        refused(cli("export", "s", "-o", "no/such/folder/best.yaml"), "cannot write", "-o")
        refused(cli("export", "s", "--trial", "99"), "no trial 99")
        refused(cli("run", "s", "99"), "no trial 99")
        before = cli("show", "s", "--json").stdout
        again = cli("run", "s", "0")
        assert again.returncode == 0
        assert "median" in again.stdout
        command = next(line for line in again.stdout.splitlines() if "worker/main.py" in line).partition(": ")[2]
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        assert cli("show", "s", "--json").stdout == before

    @pytest.mark.slow
    def test_run_shows_the_trials_output_and_its_failure(self, tuned, cli_process):
        """Running a failed trial again shows the child's own traceback and exits 1."""
        failed = next(each for each in json.loads(tuned.stdout)["trials"] if each["state"] == "failed")
        result = cli_process("run", "s", str(failed["number"]))
        assert result.returncode == 1
        assert failed["outcome"]["reason"] in result.stdout
        assert "Traceback" in result.stderr  # The child's, shown on purpose.

    @pytest.mark.slow
    def test_same_name_goes_on(self, tuned, tune_fake, cli):
        """The same command with more trials adds to the study; `resume` needs the name alone."""
        assert len(document_of(tune_fake("--trials", "6", "--json"))["trials"]) == 6
        assert len(document_of(cli("resume", "s", "--trials", "7", "--json"))["trials"]) == 7
        assert len(document_of(cli("resume", "s", "--json"))["trials"]) == 7

    def test_a_log_has_a_line_for_each_trial(self, tune_fake):
        """Not on a terminal: a line for each event on stderr, without colour codes or a line that changes; the summary
        alone on stdout. The time since the start stands first. A config is shown as what differs from the untuned
        model."""
        result = tune_fake("--trials", "4")
        said = [re.sub(r"^ *\d+:\d\d  ", "", line) for line in result.stderr.splitlines()]
        of_trials = [line for line in said if line.startswith("trial ")]
        assert sorted(line.split()[1] for line in of_trials[:4]) == ["0", "1", "2", "3"]
        assert of_trials[0].endswith("  untuned")
        assert all("execution=eager" not in line for line in of_trials)
        assert "the search ends: " in result.stderr
        assert re.search(r"^ *\d+:\d\d  block   1 .* untuned; trial \d ", result.stderr, re.MULTILINE)
        assert "the run goes on, Ctrl-C keeps it" in result.stderr
        assert "\x1b" not in result.stdout + result.stderr
        assert "\r" not in result.stderr
        assert result.stdout.startswith("faster: ")

    @pytest.mark.slow
    def test_quiet(self, tuned, tune_fake):
        """`--quiet` leaves the summary alone."""
        result = tune_fake("--trials", "5", "--quiet")
        assert result.stderr == ""
        assert result.stdout.startswith("faster: ")


def test_resume_refuses_a_changed_model_too(tune_fake, cli, model_file):
    """`resume` reads everything from the study, and checks that it still holds."""
    assert tune_fake("--trials", "2").returncode == 0
    model_file.write_text(model_file.read_text().replace("x @ weight", "x @ weight * 2"))
    refused(cli("resume", "s"), "was created with different settings")


MISTAKES = [
    (["tune", "--model", "nope"], ["--model nope", "bundled: vit"]),
    (["tune", "--model", "nope.py:f"], ["nope.py", "No such file"]),
    (["tune", "--model", "a b:c d"], ["--model 'a b:c d'"]),
    (["tune", "--model", "vit", "--framework", "jax"], ["--framework jax", "torch, mindspore"]),
    (["tune", "--model", "vit", "--objective", "beauty"], ["--objective beauty", "throughput"]),
    (["tune", "--model", "vit", "--objective", "total"], ["--objective total", "total:10000"]),
    (["tune", "--model", "vit", "--constraint", "throughput <= 3"], ["wanted large", "throughput >= NUMBER"]),
    (["tune", "--model", "vit", "--space", "nope.yaml"], ["nope.yaml", "No such file"]),
    (["tune", "--model", "vit", "--study", "../x"], ["--study '../x'"]),
    (["tune", "--model", "vit", "--model-arg", "depth"], ["--model-arg depth", "NAME=VALUE"]),
    (["tune", "--model", "vit", "--constraint", "beauty <= 3"], ["beauty", "peak_memory"]),
    (["tune", "--model", "vit", "--constraint", "latency <= 3GiB"], ["GiB", "ms"]),
    (["resume", "nope"], ["no study 'nope'"]),
    (["export", "nope"], ["no study 'nope'"]),
    (["run", "nope", "1"], ["no study 'nope'"]),
    (["compare", "nope", "0", "1"], ["no study 'nope'"]),
    (["tune", "--model", "vit", "--reference", "float16"], ["--reference float16", "model, float32 or float64"]),
    (["tune", "--model", "vit", "--no-such-flag"], ["no such option"]),
    (["no-such-command"], ["no such command"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[" ".join(each) for each, _ in MISTAKES])
def test_a_mistake_is_a_sentence_and_exit_status_2(cli, arguments, words):
    """Unknown names, values and files: what, where, what to do; no traceback."""
    device = ["--device", "cpu"] if arguments[0] == "tune" and "--device" not in arguments else []
    refused(cli(*arguments, *device), *words)


def test_the_largest_timeouts_work(tune_fake):
    """A limit of days does not overflow the system call that waits for it."""
    assert tune_fake("--trials", "1", "--compile-timeout", "1e6", "--trial-timeout", "1e6").returncode == 0


@pytest.mark.slow
def test_a_space_file_may_move(tune_fake, space_file, tmp_path):
    """The space is known by its content: the same file at another place asks the same question."""
    assert tune_fake("--trials", "1").returncode == 0
    moved = space_file.rename(tmp_path / "moved.yaml")
    assert tune_fake("--trials", "2", "--space", str(moved)).returncode == 0


@pytest.mark.slow
def test_a_model_file_of_any_name(cli, space_file, tmp_path):
    """Spaces and accents in a path end in a study whose name is a folder's."""
    path = tmp_path / "mon modèle.py"
    path.write_text("import numpy as np\ndef f():\n    return (lambda x: x), np.ones((2, 2))\n")
    result = cli(
        "tune", "--model", f"{path}:f", "--framework", "fake", "--device", "cpu", "--space", str(space_file),
        "--trials", "1", "--json",
    )  # fmt: skip
    assert document_of(result)["study"] == "mon-mod-le-f-fake-cpu"


@pytest.mark.slow
def test_a_moved_study_runs_again(tune_fake, cli, tmp_path):
    """A study can be copied to another place as it is."""
    assert tune_fake("--trials", "2").returncode == 0
    (tmp_path / "studies").rename(tmp_path / "moved to")
    again = cli("run", "s", "1", "--studies-dir", "moved to")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "--studies-dir 'moved to'" in cli("show", "s", "--studies-dir", "moved to").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "how", "status", "said"),
    [
        (["show", "s"], ">&-", 0, ""),
        (["show", "s"], "<&- >&- 2>&-", 0, ""),
        (["studies", "rm", "s"], "<&-", 2, "no terminal to ask on"),
        (["show", "s"], "| true; exit ${PIPESTATUS[0]}", 0, ""),
        (["studies"], "", 0, ""),
    ],
    ids=["stdout closed", "all closed", "stdin closed", "a reader that is gone", "another encoding"],
)
def test_streams_of_any_kind(tune_fake, cli, tmp_path, arguments, how, status, said):
    """A command does its work and ends well whatever it was started with."""
    model = tmp_path / "modèle.py"
    (tmp_path / "tiny_model.py").rename(model)
    assert tune_fake("--trials", "1", model=f"{model}:tiny").returncode == 0
    environment = cli_environment() | ({"PYTHONIOENCODING": "ascii"} if arguments == ["studies"] else {})
    child = subprocess.run(
        ["bash", "-c", f"{' '.join(cli_command(*arguments))} {how}"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == status, child.stderr
    assert said in child.stderr
    assert "Traceback" not in child.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [True, False], ids=["full", "a reader that is gone"])
def test_progress_that_nobody_can_read_ends_no_run(model_file, space_file, budget_file, tmp_path, is_full):
    """The study comes to its end, and its verdict stands on stdout."""
    reading, writing = os.pipe()
    os.close(reading)
    if is_full:
        os.close(writing)
    with open("/dev/full" if is_full else writing, "w") as stderr:
        ended = subprocess.run(
            cli_command("tune", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu", "--space",
                        str(space_file), "--budget", str(budget_file), "--trials", "3"),
            cwd=tmp_path, env=cli_environment(), stdout=subprocess.PIPE, stderr=stderr, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 0
    assert "faster" in ended.stdout


def test_json_of_a_study_that_failed_is_still_a_document(tune_fake, model_file):
    """A script gets the failures even when the untuned model does not work."""
    model_file.write_text("import numpy as np\ndef tiny():\n    return (lambda x: x @ 0), np.ones(2)\n")
    result = tune_fake("--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["failures"] == {"run_error": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def other():\n    return 1\n", "has no function tiny"),
        ("def tiny():\n    return {'model': len, 'input': 1}\n", "returned a mapping with 'input'"),
    ],
)
def test_a_wrong_function_leaves_no_study(tune_fake, model_file, tmp_path, content, words):
    """What a function is and returns is checked in a child before a study is made; the sentence is said once."""
    model_file.write_text(content)
    result = tune_fake()
    refused(result, words)
    assert result.stderr.count(words) == 1
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_infeasible_is_a_verdict_and_exit_status_1(tune_fake, cli):
    """No config keeps the constraint: verdict, closest miss, exit 1; and nothing to export."""
    result = tune_fake("--trials", "3", "--constraint", "latency <= 1us", "--json")
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert (document["verdict"], document["best"]) == ("infeasible", None)
    assert document["closest_miss"]["misses"][0]["constraint"] == "latency <= 1us"
    assert document["excluded_by"] == {"latency <= 1us": sum(t["state"] == "infeasible" for t in document["trials"])}
    refused(cli("export", "s"), "infeasible")


def test_a_device_that_is_not_there(tune_fake):
    """The fake framework has no GPU: one sentence says what was found."""
    refused(tune_fake("--device", "gpu"), "finds only cpu")


def test_an_unwritable_studies_folder(cli, model_file, space_file, tmp_path):
    """A studies folder that cannot be created is named."""
    (tmp_path / "file").write_text("")
    result = cli(
        "tune", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu", "--space", str(space_file),
        "--studies-dir", str(tmp_path / "file" / "studies"),
    )  # fmt: skip
    refused(result, "cannot create", "--studies-dir")


def test_lists_need_no_study(cli):
    """`models`, `spaces`, `studies` and `doctor` answer on a fresh machine."""
    assert "vit" in cli("models").stdout
    assert set(json.loads(cli("models", "--json").stdout)["vit"]["frameworks"]) == {"torch", "mindspore"}
    assert "execution" in cli("spaces").stdout
    assert "no studies" in cli("studies").stdout
    findings = json.loads(cli("doctor", "--json").stdout)
    assert {"torch", "mindspore", "numpy", "cores"} <= {each["what"] for each in findings}


def test_output_into_a_closed_pipe(cli, tmp_path):
    """`... | head -1` ends quietly."""
    command = " ".join(cli_command("models")) + " | true"
    child = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=os.environ.copy(), check=False
    )
    assert "Traceback" not in child.stderr
