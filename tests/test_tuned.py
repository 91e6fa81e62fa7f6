"""The exported YAML and its loader: what a job meets."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys

import jsonschema
import pytest
import yaml

import autotune
from autotune.errors import InputError
from autotune.tuned import TunedConfig
from tests.conftest import REPOSITORY

SCHEMA_FILE = REPOSITORY / "docs" / "best.schema.json"


@pytest.fixture(scope="module")
def exported() -> dict[str, object]:
    """A real export, recorded from a study of the fake framework."""
    return yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())


@pytest.fixture
def write(tmp_path, exported):
    """Write the export with changes applied by a function, and return its path."""

    def write(change=lambda content: None):
        content = copy.deepcopy(exported)
        change(content)
        path = tmp_path / "best.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def test_the_published_schema_is_the_models_own():
    """docs/best.schema.json is what `python -m autotune.tuned` prints: it cannot drift from the code."""
    printed = subprocess.run(
        [sys.executable, "-m", "autotune.tuned"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(SCHEMA_FILE.read_text()) == json.loads(printed)


def test_a_real_export_keeps_the_schema(tune_fake, cli, tmp_path):
    """What `export` writes, for each verdict that can be exported, is valid by the published schema."""
    schema = json.loads(SCHEMA_FILE.read_text())
    assert tune_fake("--trials", "6").returncode == 0
    assert cli("export", "s", "-o", "faster.yaml").returncode == 0
    faster = yaml.safe_load((tmp_path / "faster.yaml").read_text())
    jsonschema.validate(faster, schema)
    assert set(faster) == {
        "schema", "framework", "verdict", "config", "untuned", "variants", "baseline", "workload", "environment",
        "evidence",
    }  # fmt: skip
    assert (tmp_path / "faster.yaml").read_text().startswith("# ")
    keep = {**faster, "verdict": "keep_untuned", "evidence": {**faster["evidence"], "speedup": None}}
    jsonschema.validate(keep, schema)


def test_load_and_apply(write):
    """Two lines: the model comes back compiled, and gives what it gave."""
    model = autotune.load(write()).apply(lambda x: x + 1)
    assert model(1) == 2


def test_unless_faster_the_model_comes_back_untouched(write):
    """`apply` of any other verdict returns the same object, and needs no framework."""
    path = write(lambda content: content.update(verdict="tie", framework="torch"))
    script = (
        f"import sys, autotune\nmodel = object()\nassert autotune.load({str(path)!r}).apply(model) is model\n"
        "assert not {'torch', 'mindspore', 'optuna'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)


def test_another_release_is_noted(write, caplog):
    """Tuned under another release: the config is applied, with one line that says so."""
    path = write(lambda content: content["environment"].update(framework_version="99"))
    with caplog.at_level(logging.WARNING, logger="autotune"):
        autotune.load(path).apply(lambda x: x)
    assert len(caplog.records) == 1
    assert "tuned with fake 99, running 0" in caplog.text


MISTAKES = [
    (lambda c: c.update(schema=99), "key schema: 99 is newer than 1"),
    (lambda c: c.pop("verdict"), "key verdict: is missing"),
    (lambda c: c.update(surprise=1), "key surprise: unknown key"),
    (lambda c: c.update(verdict="great"), "key verdict"),
    (lambda c: c["evidence"]["speedup"].update(low="much"), "key evidence.speedup.low"),
    (lambda c: c["config"].update(mode={"a": 1}), "key config.mode"),
]


@pytest.mark.parametrize(("change", "words"), MISTAKES)
def test_a_broken_file_names_file_and_key(write, change, words):
    """A hand-edited or damaged file is refused with a sentence, before anything is compiled."""
    path = write(change)
    with pytest.raises(InputError) as caught:
        autotune.load(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "a: [", "!!python/object/apply:os.system ['true']", "\x00"])
def test_what_is_no_tuned_config(tmp_path, content):
    """Empty, another shape, broken or hostile YAML: a sentence, and nothing is executed."""
    path = tmp_path / "best.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"best\.yaml"):
        autotune.load(path)


def test_a_missing_file(tmp_path):
    """The path is in the sentence."""
    with pytest.raises(InputError, match=r"nope\.yaml"):
        autotune.load(tmp_path / "nope.yaml")


def test_round_trip(exported, tmp_path):
    """Reading and writing again changes nothing."""
    tuned = TunedConfig.model_validate(exported)
    tuned.write(tmp_path / "again.yaml")
    assert autotune.load(tmp_path / "again.yaml") == tuned
