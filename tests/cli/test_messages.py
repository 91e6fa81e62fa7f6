"""What the command line says of itself and of mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import autotune
from autotune.errors import InputError
from tests.conftest import cli_environment

PROGRAM = [sys.executable, "-P", "-m", "autotune"]


def test_python_m_autotune_names_itself(tmp_path):
    """`python -m autotune` works from anywhere, and names itself in its help and in its tips."""
    environment = {**cli_environment(), "PYTHONPATH": ":".join(path for path in sys.path if path)}

    def call(*arguments):
        return subprocess.run(
            [*PROGRAM, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert call("-h").stdout.startswith("Usage: python -m autotune ")
    assert "start with `python -m autotune tune --model vit`" in call("show", "nope").stderr


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
    (("studies", "--no-such-flag"), "No such option", 2),
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


NEAR = [
    (("tune", "--model", "resnet8", "--device", "cpu"), "did you mean resnet18?"),
    (("tune", "--model", "vit", "--device", "cpu", "--preset", "quik"), "did you mean quick?"),
    (("tune", "--model", "vit", "--device", "cpu", "--sampler", "tpee"), "did you mean tpe?"),
    (("shwo", "s"), "Did you mean 'show'?"),
]


@pytest.mark.parametrize(("arguments", "words"), NEAR)
def test_a_name_that_is_nearly_right_is_suggested(cli, arguments, words):
    """Of models, presets and commands."""
    assert words in cli(*arguments).stderr


def test_a_study_that_is_nearly_right_is_suggested(tune_fake, cli):
    """The names that there are follow."""
    tune_fake("--trials", "1", "--study", "my-vit")
    assert "did you mean my-vit? there are: my-vit" in cli("show", "my-vti").stderr


def test_the_folder_of_studies_can_be_set_for_a_team(cli, monkeypatch):
    """`AUTOTUNE_STUDIES_DIR`; the option counts more."""
    monkeypatch.setenv("AUTOTUNE_STUDIES_DIR", "of-the-team")
    assert "no studies in of-the-team/" in cli("studies").stdout
    assert "no studies in mine/" in cli("studies", "--studies-dir", "mine").stdout


@pytest.mark.parametrize(("flags", "named"), [(("--profile",), "--profile"), (("--deadline", "50ms"), "--deadline")])
def test_what_runs_on_this_machine_alone_is_refused_with_a_cluster(cli, flags, named):
    """One sentence, which the API says with its own names of arguments."""
    told = "that part runs on this machine alone"
    assert f"{named} and --on: {told}" in cli("tune", "--model", "vit", "--on", "ray", *flags).stderr
    if named == "--profile":
        with pytest.raises(InputError, match=f"profile and on: {told}"):
            autotune.tune("vit", on="ray", profile=True)
