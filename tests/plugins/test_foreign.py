"""Packages of somebody else: a hub and a bench, installed as pip leaves them; docs/architecture.md shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autotune.bench.elsewhere import BENCHES
from autotune.workload.hubs import HUBS

FOREIGN = Path(__file__).with_name("foreign")


@pytest.fixture
def tune(cli, space_file, budget_file):
    """A short study of the fake framework: its document."""

    def run(*arguments):
        done = cli(
            "tune", *arguments, "--framework", "fake", "--device", "cpu", "--space", str(space_file), "--study", "s",
            "--budget", str(budget_file), "--trials", "2", "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_hub_of_another_package(install_backend, cli, tune):
    """Its models are listed, tuned by name, and refused in its own words."""
    install_backend("shelf", "shelf", (FOREIGN / "shelf.py").read_text(), HUBS.group)
    assert "shelf:NAME" in cli("models").stdout
    document = tune("shelf:small")
    assert document["model"] == "shelf:small"
    assert [trial["state"] for trial in document["trials"]] == ["measured"] * 2
    refused = cli("tune", "shelf:huge", "--framework", "fake", "--device", "cpu")
    assert refused.returncode == 2
    assert "shelf:huge: the shelf has no 'huge'" in refused.stderr


def test_a_hub_that_is_broken_hides_no_other(install_backend, cli):
    """It is listed with what is wrong, and its models are refused in the same sentence."""
    install_backend("shelf", "shelf", "import no_such_module", HUBS.group)
    listed = cli("models")
    assert listed.returncode == 0
    (line,) = (line for line in listed.stdout.splitlines() if line.startswith("shelf:NAME "))
    assert "the hub 'shelf' of shelf cannot be loaded" in line
    assert "hf:NAME" in listed.stdout
    assert "the hub 'shelf' of shelf cannot be loaded" in cli("tune", "shelf:small").stderr


def test_a_bench_of_another_package(install_backend, cli, tune, model_file):
    """`--on NAME` runs the trials there, and `doctor --on NAME` says what is there."""
    install_backend("sandbox", "sandbox", (FOREIGN / "sandbox.py").read_text(), BENCHES.group)
    document = tune("--model", f"{model_file}:tiny", "--on", "sandbox")
    assert [trial["state"] for trial in document["trials"]] == ["measured"] * 2
    assert cli("doctor", "--on", "sandbox").stdout == "ok      sandbox: empty\n"
    refused = cli("doctor", "--on", "sandbox://elsewhere")
    assert (refused.returncode, "there is one sandbox alone" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("given", "words", "tip"),
    [
        (("tune", "tiny_model.py:tiny", "--on", "nowhere"), "--on nowhere: unknown", "choose one of: .*ray"),
        (("tune", "hff:bert"), "there is no module hff, and no package adds a hub", "did you mean hf.*choose one of"),
    ],
)
def test_what_no_package_adds(cli, model_file, tmp_path, given, words, tip):
    """It is refused with what there is, before anything is made."""
    refused = cli(*given, "--framework", "fake", "--device", "cpu")
    assert refused.returncode == 2
    assert re.search(f"{words}.*\\n.*{tip}", refused.stderr), refused.stderr
    assert not list(tmp_path.glob("studies/*"))
