"""A fleet: a night of three models twice on runners that vanish, the morning after an upgrade, and what CI reads of it.

Trials are scripted; models, studies, files and the command line are real. The records are in PostgreSQL, as where
machines come and go.
"""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from autotune import environment
from autotune.api import running, side_by_side
from autotune.api.studies import studies_at
from autotune.cli.team_defaults import flags_in
from autotune.errors import SetupError
from autotune.measure.measurement import Measurement
from autotune.plugins.fleet import command, row, shared_time
from autotune.plugins.fleet.spec import read_spec
from autotune.plugins.upgrade import command as upgrade_command
from autotune.plugins.upgrade.environment import OtherEnvironment
from autotune.study.budget import Budget
from autotune.study.storages import VARIABLE
from autotune.tuning.priors import priors_of
from autotune.verification.comparison import TooLittleTimeError
from autotune.verification.verify import Verification
from tests.conftest import MODEL_FILE, REPOSITORY, Cli, ScriptedTrials, with_latency
from tests.postgres import PASSWORD, Server
from tests.stand_ins.exports import RECORDED

NAMES = ("resnet", "bert", "encoder")
MS = 1e-3


@pytest.fixture
def shared(server: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a database, as on each runner of a CI."""
    monkeypatch.setenv(VARIABLE, server.url(database))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def spec(tmp_path: Path, space_file: Path, budget_file: Path) -> Path:
    """Three models, each in a file of its own."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(MODEL_FILE)
    content = {
        **{"framework": "fake", "device": "cpu", "space": str(space_file), "budget": str(budget_file), "trials": 2},
        "models": {name: f"{name}.py:tiny" for name in NAMES},
    }
    content["models"]["resnet"] = {"model": "resnet.py:tiny", "trials": 4}  # One that is no space's default wins.
    content["models"]["bert"] = {"model": "bert.py:tiny", "model-arg": "rows=2", "trials": 3}
    path = tmp_path / "night.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, measurement: Measurement) -> list[str]:
    """Trials cost nothing: a call takes what the config says. Returns the studies that were searched; the one that is
    written into it as `stop NAME` is interrupted."""
    searched: list[str] = []

    def outcome_of(name: str, block: int, config: Any) -> Measurement:
        latency_s = float(config.root.get("latency_ms", 8)) * MS * (1 + 0.001 * block)
        return with_latency(measurement, latency_s, relative_error=0.0)

    def bench_of(study: Any, _notify: object = None) -> Any:
        searched.append(study.name)
        if f"stop {study.name}" in searched:
            searched.remove(f"stop {study.name}")
            raise KeyboardInterrupt
        return nullcontext(ScriptedTrials(outcome_of))

    monkeypatch.setattr(running, "bench_here", bench_of)
    for module in (side_by_side, upgrade_command):
        monkeypatch.setattr(module, "bench_in", lambda *_: nullcontext(ScriptedTrials(outcome_of)))
    return searched


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """From now on this is a new machine of that name, and the one before is gone with its folder; returns what a
    command adds."""

    def begin(name: str) -> list[str]:
        for before in tmp_path.glob("runner-*"):
            shutil.rmtree(before)
        monkeypatch.setattr(environment, "hostname", lambda: name)
        return ["--studies-dir", name]

    return begin


def outcomes(done: Any) -> dict[str, tuple[str, int]]:
    return {each["name"]: (each["outcome"], each["exit_status"]) for each in json.loads(done.stdout)}


@pytest.mark.usefixtures("shared")
def test_two_nights_on_runners_that_vanish(
    spec: Path, scripted: list[str], runner: Callable[[str], list[str]], cli: Cli, tmp_path: Path
) -> None:
    """The first is interrupted and goes on, with a model that is broken; the second has the same names on another
    machine, and begins with what was best. The table has each name once, wherever it is read."""
    tune = ["fleet", "tune", str(spec), "-o", "tuned", "--quiet", "--json"]
    here = runner("runner-1")
    (tmp_path / "encoder.py").write_text("def tiny(:\n")
    scripted.append("stop bert")
    first = cli(*tune, *here)
    assert first.returncode == 130, first.stderr
    assert list(outcomes(first)) == ["resnet", "bert"]

    del scripted[:]
    night = cli(*tune, *here, "--junit", "night.xml", "--report", "night.html")
    assert night.returncode == 2, night.stderr
    assert scripted == ["bert"]
    assert outcomes(night) == {**dict.fromkeys(NAMES, ("faster", 0)), "encoder": ("failed", 2)}
    assert sorted(path.stem for path in (tmp_path / "tuned").iterdir()) == sorted(set(NAMES) - {"encoder"})
    suite = ET.parse(tmp_path / "night.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "0", "1")
    page = (tmp_path / "night.html").read_text()
    assert all(name in page for name in NAMES)
    assert "3 models: 2 faster, 1 failed" in page

    (tmp_path / "encoder.py").write_text(MODEL_FILE)
    there = runner("runner-2")
    refused = cli(*tune, *there)
    assert refused.returncode == 2
    assert refused.stderr.count("is one of host runner-1") == 2
    assert "--anew begins it anew" in refused.stderr
    del scripted[:]
    second = cli(*tune, *there, "--anew")
    assert second.returncode == 0, second.stderr
    assert scripted == list(NAMES[:-1])  # The last one is of this machine already.
    assert outcomes(second) == dict.fromkeys(NAMES, ("faster", 0))
    studies = studies_at(tmp_path / "runner-2")
    assert studies.names() == sorted(NAMES)
    opened = studies.open("resnet")
    assert [(prior.name, len(prior.configs) > 0) for prior in priors_of(opened)] == [("resnet", True)]
    assert opened.folder == tmp_path / "runner-2" / "resnet"
    opened.close()
    for where in (there, runner("laptop")):
        shown = cli("fleet", "show", *where)
        assert shown.returncode == 0, shown.stderr
        _, *lines, counted = shown.stdout.splitlines()
        assert [line.split()[0] for line in lines] == sorted(NAMES)
        assert all(line.split()[-1] == "today" and " faster " in line for line in lines)
        assert counted == "3 models: 3 faster"


def test_the_morning_after(
    spec: Path, scripted: list[str], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Studies and files in one table; after an upgrade each of that framework is to be tuned again, and one that cannot
    be read hides no other. The files are verified here and under the other release."""
    assert cli("fleet", "tune", str(spec), "-o", "tuned", "--quiet").returncode == 0
    shown = cli("fleet", "show")
    assert shown.returncode == 0, shown.stdout
    header, *lines, counted = shown.stdout.splitlines()
    assert header.split() == ["name", "model", "device", "release", "outcome", "untuned", "tuned", "gain", "age"]
    assert counted == "3 models: 3 faster"
    bert = next(line for line in lines if line.startswith("bert "))
    assert bert.split()[1:6] == ["bert.py:tiny", "cpu", "fake", "0", "faster"]
    (tmp_path / "notes.yaml").write_text("mine: 1\n")
    files = [str(path) for path in sorted((tmp_path / "tuned").iterdir())]

    monkeypatch.setattr(row, "framework_version", lambda _: "1")
    row._installed.cache_clear()
    after = cli("fleet", "show", *files, "notes.yaml", "--json", "--junit", "show.xml")
    row._installed.cache_clear()
    assert after.returncode == 1
    found = json.loads(after.stdout)
    assert [each["why"] for each in found[:3]] == ["tune again: fake is 1 here"] * 3
    assert (found[3]["name"], found[3]["exit_status"]) == ("notes.yaml", 2)
    suite = ET.parse(tmp_path / "show.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("3", "1")

    held = cli("fleet", "verify", *files, "--budget", "10m", "--json")
    assert held.returncode == 0, held.stderr
    assert set(outcomes(held).values()) == {("holds", 0)}
    assert all(each["speedups"]["today"]["low"] > 1 for each in json.loads(held.stdout))
    assert cli("fleet", "verify", "notes.yaml", files[0], "--quiet").returncode == 2
    with monkeypatch.context() as patched:
        patched.setattr(command, "verify", Mock(side_effect=SetupError("too short")))
        short = json.loads(cli("fleet", "verify", files[0], "--json").stdout)[0]
    assert (short["outcome"], short["model"], short["speedups"]) == ("failed", "bert.py:tiny", {})
    monkeypatch.setattr(OtherEnvironment, "of", lambda *_: OtherEnvironment(Path("python"), "1", "3.11"))
    against = cli("fleet", "verify", files[0], "notes.yaml", "--against", "other")
    assert against.returncode == 2, against.stderr
    assert "gain there" in against.stdout.splitlines()[0]
    assert "fake 0, there 1  holds" in against.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"models": None}, "key models: is missing"),
        ({"models": {"a": {"task": "infer"}}}, "key models.a.model: is missing"),
        ({"models": {"a": {"model": "vit", "trails": 3}}}, "key models.a.trails: no such flag"),
        ({"models": {"a": {"model": "vit", "study": "b"}}}, "key models.a.study: is not one model's"),
        ({"models": {"a": 5}}, "key models.a: is neither a model nor flags of tune"),
        ({"report": "x.html"}, "key report: is not one model's"),
        ({"storage": "postgresql://me@127.0.0.1/x"}, "key storage: no file names a server"),
        ({"models": {"a b": "resnet.py:tiny"}}, "key models.a b: --study 'a b': not usable as a folder's name"),
        ({"budget": "5 minutes"}, "key budget: --budget '5 minutes': neither a time nor a file"),
    ],
)
def test_a_wrong_spec(change: dict[str, Any], said: str, spec: Path, cli: Cli) -> None:
    """Before anything is tuned, with file and key."""
    spec.write_text(yaml.safe_dump({**yaml.safe_load(spec.read_text()), **change}))
    done = cli("fleet", "tune", str(spec))
    assert done.returncode == 2
    assert f"{spec}: {said}" in done.stderr


def test_a_dry_run_says_what_would_be_tuned(spec: Path, scripted: list[str], cli: Cli, tmp_path: Path) -> None:
    """In which order, with which time, and which study stays, goes on or cannot; nothing is written. A typed time takes
    the place of the file's."""
    content = yaml.safe_load(spec.read_text())
    content["models"]["encoder"] = {"model": "nowhere.py:tiny"}
    content["models"]["bert"]["budget"] = "90s"
    spec.write_text(yaml.safe_dump(content, sort_keys=False))
    one = {**content, "models": {"resnet": content["models"]["resnet"]}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
    assert cli("fleet", "tune", "one.yaml", "--quiet").returncode == 0
    del scripted[:]
    written = sorted(tmp_path.rglob("*"))
    dry = ["fleet", "tune", str(spec), "-o", "out", "--dry-run"]
    planned = cli(*dry, "--budget", "1h", "--json")
    assert [(each["name"], each["outcome"], each["why"][:12]) for each in json.loads(planned.stdout)] == [
        ("resnet", "stays", "it has an an"),
        ("bert", "begins", "90 s"),
        ("encoder", "failed", "--model nowh"),
    ]
    assert (planned.returncode, scripted) == (2, [])
    (tmp_path / "resnet.py").write_text(MODEL_FILE.replace("seed=0", "seed=1"))
    changed = cli(*dry)
    assert re.search(r"resnet: it cannot go on here: the model's source .* \(--anew begins it anew\)", changed.stdout)
    assert re.search(r"resnet +resnet.py:tiny +cpu +fake 0 +begins anew", cli(*dry, "--anew").stdout)
    assert sorted(tmp_path.rglob("*")) == written


def test_the_file_of_the_page(tmp_path: Path) -> None:
    """docs/fleet.md has one that is read, in which one model has a time of its own."""
    found = re.search(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "fleet.md").read_text(), re.DOTALL)
    assert found is not None
    path = tmp_path / "night.yaml"
    path.write_text(found[1])
    members = read_spec(path, partial(flags_in, path))
    assert [(one.study, one.question.build, one.shares_time) for one in members] == [
        ("vit", "vit", True),
        ("ranker", "ranker.py:build", False),
    ]
    assert [one.question.budget for one in members] == ["6h", "30m"]


def test_the_time_of_all_is_shared(spec: Path, scripted: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left, evenly among those to come; a model's own time is its own, and after the end none begins."""
    given: dict[str, float | None] = {}
    search = running.search

    def note(study: Any, terms: Any, *more: Any, **rest: Any) -> None:
        given[study.name] = terms.budget.wall_s
        search(study, terms, *more, **rest)

    monkeypatch.setattr(running, "search", note)
    content = yaml.safe_load(spec.read_text())
    del content["trials"]
    budget = spec.with_name("quick_budget.yaml")
    budget.write_text(yaml.safe_dump({**yaml.safe_load(budget.read_text()), "wall_s": 600.0, "num_trials": 4}))
    content["models"]["bert"] = {"model": "bert.py:tiny", "trials": 3, "budget": "90s"}
    spec.write_text(yaml.safe_dump(content, sort_keys=False))
    assert cli("fleet", "tune", str(spec), "--quiet").returncode == 0
    assert given.pop("bert") == 90.0
    assert list(given) == [name for name in NAMES if name != "bert"]
    shares = [value or 0.0 for value in given.values()]
    assert all(value <= 600.0 / left for value, left in zip(shares[:1], (2,), strict=True))
    assert shares[-1] > shares[0]  # What the others left over.


@pytest.mark.parametrize(
    ("budget", "shares", "outcomes"),
    [
        ("60s", "first 20, second 20, third 35, first 30", "holds holds holds"),
        ("39s", "first 13, second 13, third 21, first 16", "failed holds holds"),
        ("3s", "first 1", "failed not-begun not-begun"),
    ],
)
def test_the_time_of_all_files_is_shared(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, shares: str, outcomes: str
) -> None:
    """Evenly; what is left in the end goes to those whose share was too short. After the end none is begun."""
    needed_s, now, given = {"first": 30.0, "second": 5.0, "third": 5.0}, [0.0], list[str]()

    def verify(path: Path, *, budget: Budget, **_: object) -> Verification:
        share_s = budget.wall_s or 0.0
        given.append(f"{path.stem} {int(share_s)}")
        now[0] += min(needed_s[path.stem], max(share_s, 4.0))  # The model cannot be built in less.
        if share_s < needed_s[path.stem]:
            raise TooLittleTimeError(budget)
        return Verification("holds", "", None, None)

    monkeypatch.setattr(command, "verify", verify)
    monkeypatch.setattr(shared_time, "time", SimpleNamespace(monotonic=lambda: now[0]))
    files = [f"{name}.yaml" for name in needed_s]
    for file in files:
        shutil.copyfile(RECORDED, tmp_path / file)
    done = cli("fleet", "verify", *files, "--budget", budget, "--json")
    assert ", ".join(given) == shares
    assert " ".join(each["outcome"].replace(" ", "-") for each in json.loads(done.stdout)) == outcomes
    assert cli("fleet", "verify", *files, "--junit", "none/x.xml").returncode == 2
    assert ", ".join(given) == shares
