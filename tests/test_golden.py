"""What a user is shown of a result, to the letter: `--json` of each command that reads studies, their texts, the
exported YAML and the words of the HTML report. A change that is meant is written by

    GOLDEN=write .venv/bin/pytest tests/test_golden.py

and read in the diff of `tests/golden/`. What differs from run to run stands there as a word in capitals.
"""

from __future__ import annotations

import html
import json
import os
import re

import pytest

from autotune.api import side_by_side
from autotune.config import Config
from autotune.measure.blocks import Blocks
from autotune.measure.findings import findings_of
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.proof import Proof
from autotune.measure.scatter import ProcessState
from autotune.plugins.diagnose import command as diagnosing
from autotune.plugins.diagnose.command import Diagnosis
from autotune.verification.comparison import ComparisonResult
from tests import golden_studies
from tests.conftest import REPOSITORY, run_here

GOLDEN = REPOSITORY / "tests" / "golden"
STUDIES = ("earlier", "rich", "shapes", "infeasible", "noisy")
COMMANDS = {
    **{f"{name}.json": ("show", name, "--json") for name in STUDIES},
    **{f"{name}.txt": ("show", name, "--why") for name in STUDIES},
    **{f"{name}.yaml": ("export", name, "-o", f"{name}.yaml") for name in ("earlier", "rich", "shapes")},
    **{f"{name}.html": ("report", name, "-o", f"{name}.html") for name in ("rich", "shapes")},
    "rich.short": ("show", "rich"),
    "other.yaml": ("export", "rich", "--trial", "12", "-o", "other.yaml"),
    "explain.txt": ("explain", "rich"),
    "explain.json": ("explain", "rich", "--json"),
    "studies.txt": ("studies",),
    "studies.json": ("studies", "--json"),
    "compare.txt": ("compare", "rich", "0", "3"),
    "compare.json": ("compare", "rich", "0", "3", "--json"),
    "failed.txt": ("compare", "rich", "0", "1"),
    "failed.json": ("compare", "rich", "0", "1", "--json"),
    "diagnose.txt": ("diagnose", "--model", "tiny", "--report", "diagnose.html"),
    "diagnose.html": ("diagnose", "--model", "tiny", "--report", "diagnose.html"),
    "diagnose.json": ("diagnose", "--model", "tiny", "--json"),
}  # fmt: skip
"""Golden file -> the command line whose file of this name, or else whose output, it holds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the studies. Made once: no command changes one."""
    made = tmp_path_factory.mktemp("golden")
    golden_studies.make_all(made)
    return made


@pytest.fixture(autouse=True)
def measured(folder, monkeypatch):
    """What the commands that measure something would find."""
    failure = Failure(reason=Reason.CRASH, stage=Stage.RUN, error="killed by SIGSEGV", evidence="stderr.txt")

    def compared(pair, *_):
        if pair.second.config["execution"] == "compile" and pair.second.config.get("mode") == "default":
            return ComparisonResult(None, failure, "second")
        blocks = Proof(Blocks(tuple((0.01 * x, 0.005 * x) for x in (1.0, 1.01, 0.99, 1.0))))
        return ComparisonResult(blocks, second=golden_studies.MEASURED)

    def examined(*_):
        measured = golden_studies.outcome_of(Config({"execution": "compile", "mode": "most", "freezing": True}))
        return Diagnosis(
            model="tiny", framework="torch", config=Config({"execution": "compile"}), untuned_s=0.01, compiled_s=0.004,
            num_graphs=2, num_kernels=12, num_fused=7, fused={"add_relu": 2}, unfused={"matmul": 1}, note="a note",
            states={
                "untuned": ProcessState(
                    latency_s=0.01, page_faults=2500, switches=4, cores=1, others=0.5, stolen=0
                ),
                "compiled": ProcessState(latency_s=0.004, page_faults=10, switches=4, cores=1),
            },
            findings=tuple(findings_of(measured.diagnosis)), environment=measured.environment, command="COMMAND",
        )  # fmt: skip

    monkeypatch.setattr(side_by_side, "measure", compared)
    monkeypatch.setattr(diagnosing, "examine", examined)


@pytest.mark.parametrize("name", COMMANDS)
def test_golden(name, folder):
    """A golden file holds what its command shows, and nothing stands beside the files."""
    result = run_here(folder, *COMMANDS[name])
    assert result.returncode in (0, 1), result.stderr
    written = folder / name
    said = written.read_text() if written.is_file() else result.stdout
    said = {".html": page_words, ".json": outlined}.get(written.suffix, str)(said)
    said = "".join(f"{line.rstrip()}\n" for line in steady(said, folder).splitlines())
    if os.environ.get("GOLDEN") == "write":
        (GOLDEN / name).write_text(said)
    assert said == (GOLDEN / name).read_text()
    assert {path.name for path in GOLDEN.iterdir()} <= set(COMMANDS)


def page_words(page):
    """The text of a page, an element a line; styles and what is drawn are left out."""
    page = re.sub(r"<(style|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"</t[dh]><t[dh][^>]*>", " | ", page)
    words = (line.strip() for line in html.unescape(re.sub(r"<[^>]*>", "", page)).splitlines())
    return "\n".join(line for line in words if line)


def outlined(text):
    """A document with a line for each key, and one for each item of a list."""
    document = json.loads(text)
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    lines = []
    for key, value in pairs:
        items = value if isinstance(value, list) else [value]
        lines += [f"{key}: {json.dumps(item)}" for item in items] or [f"{key}: []"]
    return "\n".join(lines)


def steady(text, folder):
    """The text without what differs between two runs: the folder, times and sizes."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]+(\+00:00)?", "TIME", text)
    return re.sub(r'("size_bytes": |2026-01-01 +\d+ +)[\d.]+( [KM]iB)?', r"\1SIZE", text)
