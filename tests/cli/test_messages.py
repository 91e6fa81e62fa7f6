"""What the command line says of itself and of mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from autotune.cli import flags, running
from autotune.cli.app import begun, program_begun
from autotune.measure.statistics import Speedup, Verdict
from autotune.study.records import Confirmation
from tests.asking import ask
from tests.conftest import cli_environment, with_latency

PROGRAM = [sys.executable, "-P", "-m", "autotune"]


def test_python_m_autotune_names_itself(tmp_path):
    """`python -m autotune` works from anywhere, and names itself in its help and in its tips."""
    environment = {**cli_environment(), "PYTHONPATH": ":".join(path for path in sys.path if path)}

    def call(*arguments):
        return subprocess.run(
            [*PROGRAM, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert call("-h").stdout.startswith("Usage: python -m autotune ")
    assert "start with `python -m autotune tune --model resnet18`" in call("show", "nope").stderr


def test_version_names_the_releases_and_imports_none_of_them(cli):
    """`--version`: the release of the tool first, then those of the frameworks and of the search engine."""
    imported = {"torch", "mindspore", "optuna"} & set(sys.modules)
    lines = cli("--version").stdout.splitlines()
    assert lines[0].startswith("autotune ")
    assert {line.split()[0] for line in lines[1:]} == {"torch", "mindspore", "optuna"}
    assert {"torch", "mindspore", "optuna"} & set(sys.modules) == imported


MISTAKES = [
    (("show", "nope"), "no study 'nope'", 2),
    (("verify", "nope.yaml"), "No such file", 2),
    (("compare", "nope"), "compare nope", 2),
    (("tune", "--model", "vit", "--device", "tpu"), "--device tpu", 2),
    (("spaces", "--device", "tpu"), "--device tpu", 2),
    (("tune",), "--model", 2),
    (("studies", "--no-such-flag"), "no such option", 2),
]


@pytest.mark.parametrize(("arguments", "words", "code"), MISTAKES)
def test_a_mistake_with_json_is_a_document(cli, arguments, words, code):
    """With `--json` stdout holds a document for a mistake too; sentence and exit status are the same as without."""
    plain, result = cli(*arguments), cli(*arguments, "--json")
    assert (plain.returncode, plain.stdout) == (code, "")
    assert (result.returncode, result.stderr) == (code, plain.stderr)
    (error,) = json.loads(result.stdout).values()
    assert words in error["message"]
    assert error["exit_status"] == code
    assert f"tip: {error['tip']}" in result.stderr or error["tip"] is None


MEANT = [
    (("tune", "vit", "--device", "cuda"), "--device gpu"),
    (("tune", "vit", "--device", "npu", "--framework", "torch"), "--device ascend"),
    (("tune", "vitt", "--device", "cpu"), "did you mean vit?"),
    (
        ("tune", "--model", "vit", "--constraint", "memory < 2GB", "--device", "cpu"),
        "what can be bounded: latency, p90",
    ),
]


@pytest.mark.parametrize(("arguments", "words"), MEANT)
def test_what_was_meant_is_understood(cli, arguments, words):
    """PyTorch's names of devices, a model without its flag, and which quantities there are."""
    assert words in cli(*arguments).stderr


def test_a_mistake_is_said_before_devices_are_looked_for(cli, monkeypatch):
    """Each framework takes seconds to say what it finds."""
    monkeypatch.delattr("autotune.planning.manifest.choose_target")
    assert "--model vitt: unknown" in cli("tune", "vitt").stderr
    assert "--constraint 'latency <= 5'" in cli("tune", "vit", "--constraint", "latency <= 5").stderr
    assert "there is no module vit" in cli("tune", "vit:build").stderr


def test_a_file_without_a_function_is_answered_with_those_that_it_has(cli, tmp_path):
    """`build` is suggested first; a file that is broken or has none says how it goes on."""
    (tmp_path / "mine.py").write_text("def helper(): ...\ndef build(): ...\ndef _own(): ...\n")
    told = cli("tune", "mine.py").stderr
    assert "--model mine.py: names no function" in told
    assert "write --model mine.py:build; its functions: helper, build" in told
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert "it has none" in cli("tune", "mine.py").stderr
    (tmp_path / "mine.py").write_text("def (")
    assert "write --model mine.py:FUNCTION" in cli("tune", "mine.py").stderr


def test_a_shell_completes_models_and_studies(tmp_path, monkeypatch):
    """Bundled models, and what lies in the folder of studies."""
    monkeypatch.setenv("AUTOTUNE_STUDIES_DIR", str(tmp_path))
    for name in ("mine", "minor", "other"):
        (tmp_path / name).mkdir()
    assert flags._studies("min") == ["mine", "minor"]
    assert flags._models("res") == ["resnet18"]
    monkeypatch.setenv("AUTOTUNE_STUDIES_DIR", str(tmp_path / "nowhere"))
    assert flags._studies("") == []


NEAR = [
    (("tune", "--model", "resnet8", "--device", "cpu"), "did you mean resnet18?"),
    (("tune", "--model", "vit", "--device", "cpu", "--effort", "quik"), "did you mean quick?"),
    (("shwo", "s"), "Did you mean 'show'?"),
    (("tune", "vit", "--trails", "3"), "did you mean --trials?"),
    (("tune", "vit", "--framework", "pytorch"), "did you mean torch?"),
    (("tune", "resnet18", "--budget", "5", "m"), "models are named, resnet18 and m"),
    (("tune", "vit", "--device", "mps"), "Apple's GPU is not supported"),
    (("tune", "vit", "--thorough"), "--effort: quick"),
    (("tune", "vit", "--ranks", "2"), "a study measures one rank"),
    (("tune", "vit", "--objective", "p99", "--objective=memory"), "--objective is given twice"),
    (("show", "x", "--csv"), "`show STUDY --json` has every setting"),
    (("studies", "prune"), "`studies rm NAME...` removes"),
    (("verify", "x.yaml", "--report", "x.html"), "`fleet verify FILE... --report PAGE` write pages"),
    (("show", "studies/x"), "without its folder"),
    (("verify", "my-study"), "`export STUDY -o FILE` wrote"),
    (("launch", "x.yaml", "--apply", "python", "job.py"), "cannot read x.yaml"),
    (("launch", "x.yaml", "--apply"), "write it behind two dashes"),
]


@pytest.mark.parametrize(("arguments", "words"), NEAR)
def test_a_name_that_is_nearly_right_is_suggested(cli, arguments, words):
    """Of models, presets and commands."""
    assert words in cli(*arguments).stderr


def test_two_dashes_make_no_flags_alike(cli):
    """What is as far from all flags as from no flag is not suggested."""
    told = cli("tune", "vit", "--gpu").stderr
    assert "no such option: --gpu" in told
    assert "did you mean" not in told


def test_a_study_that_is_nearly_right_is_suggested(make_study, cli):
    """The names that there are follow."""
    make_study("my-vit").close()
    assert "did you mean my-vit? there are: my-vit" in cli("show", "my-vti").stderr


def test_a_model_with_a_flag_and_another_without_one_are_refused(cli):
    ended = cli("tune", "vit", "--model", "resnet18")
    assert ended.returncode == 2
    assert "the model vit is named without a flag, and --model names another" in ended.stderr


def test_the_folder_of_studies_can_be_set_for_a_team(cli, monkeypatch):
    """`AUTOTUNE_STUDIES_DIR`; the option counts more."""
    monkeypatch.setenv("AUTOTUNE_STUDIES_DIR", "of-the-team")
    assert "no studies in of-the-team/" in cli("studies").stdout
    assert "no studies in mine/" in cli("studies", "--studies-dir", "mine").stdout


def test_ctrl_c_names_what_goes_on_and_the_answer_so_far(make_study, measurement, monkeypatch, capsys):
    """Before anything is proven the study alone is kept; after it, the answer can be exported at once."""
    monkeypatch.setattr(running.signal, "signal", lambda *_: None)
    study = make_study()
    with study.writing():
        for latency_s in (0.008, 0.004):
            study.tell(ask(study, 1), with_latency(measurement, latency_s))
        assert running._interrupted_in(study) == 130
        assert "export" not in capsys.readouterr().err
        gain = Speedup(median=2.0, low=1.9, high=2.1)
        study.confirmation = Confirmation(
            verdict=Verdict.FASTER, candidate=1, contestants=(0, 1), num_trials=2, blocks=((8.0, 4.0),) * 2,
            speedups=(gain,),
        )  # fmt: skip
        assert running._interrupted_in(study) == 130
    said = capsys.readouterr().err
    assert "the answer so far is kept: trial 1, faster: 2.00x (98 % interval 1.90x to 2.10x)" in said
    assert f"  {study.command('export')}\n" in said
    assert f"  {study.command('resume')}\n" in said
    study.close()


def test_the_time_of_a_command_begins_with_its_program():
    """With the first line of the program, imports included; without a program, with the command."""
    before = time.monotonic()
    assert begun() >= before
    program_begun.append(before - 60.0)
    try:
        assert begun() == before - 60.0
    finally:
        program_begun.clear()
