"""The exported YAML and its loader: what a job meets."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
import yaml

from autotune.errors import InputError
from autotune.tuned.tuned_config import TunedConfig, load_tuned
from tests.conftest import REPOSITORY

SCHEMA_FILE = REPOSITORY / "docs" / "best.schema.json"


@pytest.fixture(scope="module")
def exported() -> dict[str, object]:
    """A real export, recorded from a study of the fake framework."""
    return yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())


def test_the_published_schema_is_the_models_own():
    """docs/best.schema.json is what `python -m autotune.tuned.tuned_config` prints: it cannot drift from the code."""
    printed = subprocess.run(
        [sys.executable, "-m", "autotune.tuned.tuned_config"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(SCHEMA_FILE.read_text()) == json.loads(printed)


def test_a_real_export_keeps_the_schema(tune_fake, cli, tmp_path):
    """What `export` writes, for each verdict that can be exported, is valid by the published schema."""
    schema = json.loads(SCHEMA_FILE.read_text())
    assert tune_fake("--trials", "3").returncode == 0
    assert cli("export", "s", "-o", "faster.yaml").returncode == 0
    faster = yaml.safe_load((tmp_path / "faster.yaml").read_text())
    jsonschema.validate(faster, schema)
    assert set(faster) == {
        "schema", "framework", "verdict", "config", "untuned", "variants", "workload", "environment",
        "search", "evidence", "artifact", "shapes", "texts", "components",
    }  # fmt: skip
    assert (tmp_path / "faster.yaml").read_text().startswith("# ")
    keep = {**faster, "verdict": "keep_untuned", "evidence": {**faster["evidence"], "speedup": None}}
    jsonschema.validate(keep, schema)


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
        load_tuned(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_round_trip(exported, tmp_path):
    """Reading and writing again changes nothing."""
    tuned = TunedConfig.model_validate(exported)
    tuned.write(tmp_path / "again.yaml")
    assert load_tuned(tmp_path / "again.yaml") == tuned


def test_limits_of_inputs_are_written_and_read_and_may_lack(write, exported):
    """A file of an earlier release names no limits, and is read; what is written without any has no key of that."""
    assert load_tuned(write()).limits is None
    limits = [{"name": "ids", "axis": None, "spans": [{"lowest": 0, "highest": 999, "also": [-100]}]}]
    path = write(lambda content: content.update(limits=limits))
    tuned = load_tuned(path)
    assert tuned.limits is not None
    assert tuned.limits[0].spans[0].also == (-100,)
    tuned.write(path)
    assert yaml.safe_load(path.read_text())["limits"] == limits
    tuned.model_copy(update={"limits": None}).write(path)
    assert "limits" not in yaml.safe_load(path.read_text())
