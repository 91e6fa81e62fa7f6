"""What an adopter reads and copies is true: the pages of advice, the packaging, the recipes for an image and for CI."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from typing import get_args

import pytest
import yaml

from autotune.job.stats import EventKind
from autotune.measure.measurement import Reason
from autotune.measure.statistics import Verdict
from tests.conftest import REPOSITORY
from tests.test_documentation import problem_of

DOCS = REPOSITORY / "docs"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_A_JOB = ("numpy", "packaging", "psutil", "pydantic", "pyyaml")
"""What `autotune.load` needs beside the framework."""


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def error_classes() -> set[str]:
    """All classes of the package that are errors for the operator."""
    bases = {"AutotuneError"}
    classes = [
        (node.name, {ast.unparse(base) for base in node.bases})
        for path in (REPOSITORY / "autotune").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    while more := {name for name, its in classes if its & bases} - bases:
        bases |= more
    return bases - {"AutotuneError"}


def test_troubleshooting_has_everything_that_can_go_wrong():
    """A row for each verdict, reason of a failure, event of a job and class of errors; and no other rows."""
    rows = set(re.findall(r"^\| `(\w+)` \|", page("troubleshooting.md"), re.MULTILINE))
    expected = {*Verdict, *Reason, *get_args(EventKind), *error_classes()}
    assert rows == {str(each) for each in expected}


@pytest.mark.parametrize("name", sorted(each.name for each in DOCS.glob("*.md")))
def test_a_page_begins_with_what_it_does(name):
    """Its first sentence is about the page or the tool, and not about who reads it."""
    text = " ".join(re.sub(r"```.*?```|^#.*$", "", page(name), flags=re.DOTALL | re.MULTILINE).split())
    assert not re.match(r"For (?!example)[a-z]+|Those who", text), text[:100]


def test_figures_are_those_of_the_benchmarks():
    """Each figure with a decimal point, or followed by a unit, stands in docs/benchmarks.md too."""
    figures = re.findall(r"(?<![\w.,`=])(\d+\.\d+|\d+(?= (?:s|ms|µs|%|trials)\b))", page("what-it-costs.md"))
    measured = page("benchmarks.md")
    rules = {"1.01", "98", "1", "2", "2.0"}  # Of the method, and a release of another tool.
    missing = [
        each for each in figures if each not in rules and not re.search(rf"(?<![\d.]){each}(?![\d.]*\d)", measured)
    ]
    assert len(figures) > 5
    assert not missing


OF_A_SEARCH = ("optuna", "sqlalchemy", "alembic", "scipy", "rich", "typer", "click", "matplotlib")


def without(packages):
    """The begin of a program in which these cannot be imported."""
    return f"import sys\nsys.modules.update(dict.fromkeys({packages}))\n"


def test_a_job_needs_no_search_engine():
    """A config is loaded and applied where only what the distribution requires is importable."""
    script = f"""{without(OF_A_SEARCH)}
import numpy as np
import autotune
loaded = autotune.load({str(REPOSITORY / "tests" / "best.yaml")!r})
model = loaded.apply(lambda x: x * 2, on_mismatch="apply", monitor=True)
assert (model(np.ones((4, 8))) == 2).all()
assert autotune.stats(model).num_calls == 1
try:
    autotune.tune
except autotune.AutotuneError as error:
    assert "optuna is not installed" in str(error) and "[tune]" in error.tip
"""
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)
    assert {re.split(r"[<>=\[]", each)[0] for each in PROJECT["dependencies"]} == set(OF_A_JOB)


@pytest.mark.parametrize("there", [(), ("typer", "click", "rich")])
def test_the_command_line_says_what_it_needs(there):
    """Without typer, and where a job has that for itself, a command that searches has a sentence."""
    arguments = ["tune", "--model", "resnet18", "--studies-dir", "nowhere"]
    main = f"from autotune.__main__ import main\nsys.argv[1:] = {arguments}\nmain()"
    program = without([name for name in OF_A_SEARCH if name not in there]) + main
    ran = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    error, tip = ran.stderr.splitlines()
    assert re.match(r"error: \w+ is not installed: tuning needs more packages than a job", error)
    assert re.match(r"tip: pip install .*\[tune\]", tip)


def test_every_package_of_the_development_set_is_pinned():
    """`constraints.txt` has each requirement of each extra, so that `make setup` gives one known-good set."""
    pins = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    wanted = {
        re.split(r"[<>=\[;]", each)[0].lower().replace("_", "-")
        for each in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    }
    assert not wanted - pins - {"autotune-compile"}


def test_the_image_takes_what_is_there():
    """What examples/Dockerfile copies exists, its extras exist, and its job gets the packages of a job."""
    text = (REPOSITORY / "examples" / "Dockerfile").read_text().replace("\\\n", " ")
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {"autotune", "search_spaces", "LICENSE", "README.md"} <= set(copied)
    assert all((REPOSITORY / each).exists() for each in copied)
    assert not {name for names in re.findall(r"\[([\w,]+)\]\"", text) for name in names.split(",")} - set(
        PROJECT["optional-dependencies"]
    )
    assert "torch /wheels/*.whl" in " ".join(text.partition(" AS job")[2].split())


def test_the_workflow_verifies():
    """examples/ci-verify.yml is YAML, and its commands have options that exist."""
    workflow = yaml.safe_load((REPOSITORY / "examples" / "ci-verify.yml").read_text())
    steps = workflow["jobs"]["verify"]["steps"]
    script = next(each["run"] for each in steps if "verify" in each.get("name", ""))
    (command,) = re.findall(r"autotune verify [^|]+", script)
    assert problem_of(command) is None
    assert "--max-loss" in command


@pytest.mark.parametrize(
    ("statuses", "expected", "attempts"),
    [("0", 0, 1), ("1", 1, 1), ("2", 2, 1), ("3 0", 0, 2), ("3 1", 1, 2), ("3 3", 0, 2)],
)
def test_the_plain_recipe_repeats_noise_only(tmp_path, statuses, expected, attempts):
    """examples/ci-verify.sh returns the status of `verify`; noise is asked twice, and passes with a warning."""
    (tmp_path / "statuses").write_text("\n".join(statuses.split()) + "\n")
    stand_in = tmp_path / "autotune"
    stand_in.write_text(
        '#!/bin/sh\necho "autotune $*" >> calls\nstatus=$(head -n 1 statuses)\nsed -i 1d statuses\nexit "$status"\n'
    )
    stand_in.chmod(0o755)
    script = REPOSITORY / "examples" / "ci-verify.sh"
    ran = subprocess.run(
        ["sh", str(script), "my.yaml"],
        cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    calls = (tmp_path / "calls").read_text().splitlines()
    assert (ran.returncode, len(calls)) == (expected, attempts)
    assert problem_of(calls[0]) is None
    assert ("too noisy" in ran.stderr) == (statuses == "3 3")
