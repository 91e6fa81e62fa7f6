"""The HTML report: of a recorded study, of one with hostile names, and in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.answer.result import StudyResult
from autotune.api.result import TuneResult
from autotune.config import Config
from autotune.measure.diagnosis import BreakKind, Diagnosis, GraphBreak
from autotune.measure.findings import Finding
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.statistics import Speedup, Verdict
from autotune.plugins.diagnose.command import Diagnosis as Diagnosed
from autotune.render.html import drawing
from autotune.render.html import page as pages
from autotune.render.html.page import page
from autotune.space.load import Circumstances, load_space
from autotune.study.folder import FolderStudies
from autotune.study.records import Confirmation, DriftCheck, NoiseFloor
from tests.asking import ask
from tests.conftest import REPOSITORY, with_latency

RECORDED = REPOSITORY / "tests" / "study" / "recorded" / "studies"
FIGURES = ("finalists", "break-even", "search", "processes")
"""Of any study that was confirmed."""
SECTIONS = ("failures", "trials", "environment")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
HOSTILE = "<script>alert(1)</script>\"'\x1b]0;t\x07$\\frac&amp;{{ 7*7 }}\n</td><img src=x onerror=alert(1)>"
CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture
def recorded(tmp_path):
    """A copy: opening a database writes beside it."""
    shutil.copytree(RECORDED, tmp_path / "studies")
    opened = FolderStudies(tmp_path / "studies").open("earlier")
    yield opened
    opened.close()


@pytest.fixture
def hostile(make_study, tmp_path, measurement):
    """A study whose knob, errors, graph breaks, place of a model and variables are an attack on the page."""
    file = tmp_path / "hostile.yaml"
    file.write_text(
        "schema: 1\nframework: fake\nknobs:\n"
        "  latency_ms: {doc: 'https://example.org/x', values: [8, 6, 4, 2], untuned: 8, default: 6}\n"
        "  text: {doc: 'https://example.org/x', values: [plain, \"<b onclick='x'>$\\\\frac</b> & \\\"q\\\"\"], "
        "untuned: plain, default: plain}\n"
    )
    space = load_space(file, framework="fake", circumstances=Circumstances(version="0", device="cpu"))
    study = make_study("hostile", space=space, variables={"X": HOSTILE})
    broken = GraphBreak(reason=HOSTILE, location=f"{HOSTILE}.py:3", hint=HOSTILE, ailment=BreakKind.OTHER)

    def outcome_of(config: Config):
        if config["latency_ms"] == 4:
            return Failure(reason=Reason.COMPILE_ERROR, stage=Stage.COMPILE, error=HOSTILE)
        diagnosis = Diagnosis(compiled=True, num_graphs=2, graph_breaks=(broken,))
        environment = measurement.environment.model_copy(update={"processor": HOSTILE, "variables": {"X": HOSTILE}})
        more = {"diagnosis": diagnosis, "environment": environment, "peak_memory_bytes": 10**6 // config["latency_ms"]}
        return with_latency(measurement, config["latency_ms"] / 1e3, **more)

    while (asked := ask(study)) is not None:
        study.tell(asked, outcome_of(asked.config))
    best, other = [each.number for each in study.records() if each.config["latency_ms"] == 2]
    untuned = study.untuned_record().number
    study.noise_floor = NoiseFloor(pairs=((0.008, 0.00804),), spread=0.005, relative_error=0.0)
    study.drift_checks = [*study.drift_checks, DriftCheck(after=2, latency_s=0.0081)]
    study.confirmation = Confirmation(
        verdict=Verdict.FASTER, candidate=best, contestants=(untuned, best, other), num_trials=8, compile_warm_s=0.5,
        blocks=tuple((0.008 * x, 0.002 * x, 0.0021 * x) for x in (1.0, 1.01, 0.99, 1.0)),
        speedups=(Speedup(median=4.0, low=3.9, high=4.1), Speedup(median=3.8, low=3.7, high=3.9)),
    )  # fmt: skip
    yield study
    study.close()


@pytest.fixture
def hostile_results(measurement):
    """What `diagnose` returns, of a model and a config whose names and errors are an attack."""
    environment = measurement.environment.model_copy(update={"processor": HOSTILE, "variables": {"X": HOSTILE}})
    config = Config({"latency_ms": 2, "text": HOSTILE})
    given = {"location": HOSTILE, "source": HOSTILE, "reason": HOSTILE, "hint": HOSTILE, "count": 2, "gives_up": True}
    broken = (
        Finding(kind="graph_break", ailment=BreakKind.OTHER, **given),
        Finding(kind="recompile", ailment=BreakKind.CHANGING_SHAPE, **given),
    )
    return {
        "diagnosis": Diagnosed(
            model=HOSTILE, framework="torch", config=config, untuned_s=0.008, compiled_s=0.002, num_graphs=2,
            num_kernels=3, num_fused=4, fused={HOSTILE: 2}, unfused={HOSTILE: 1}, note=HOSTILE, findings=broken,
            environment=environment, command=HOSTILE,
        ),
        "refused": Diagnosed(
            model=HOSTILE, framework="torch", config=config, untuned_s=0.008, compiled_s=None, num_graphs=None,
            refusal=HOSTILE, findings=(),
        ),
    }  # fmt: skip


PARTS = {
    "diagnosis": {"breaks", "kernels", "environment"},
    "refused": {"breaks", "environment"},
}
"""Figures and sections of the page about each result."""


@pytest.mark.parametrize("name", PARTS)
def test_a_result_has_a_page_on_which_hostile_text_stays_text(hostile_results, tmp_path, name):
    """`report()` of a diagnosis: the same policy, the parts that it has data for."""
    html = hostile_results[name].report(tmp_path / "r.html").read_text()
    root = parsed(html)
    require_nothing_from_elsewhere(root)
    assert "\x1b" not in html
    assert not [each for each in root.iter() if each.tag in ("script", "img", "b")]
    assert "<script>alert(1)</script>\"'\\x1b]0;t\\x07$\\frac&amp;{{ 7*7 }}" in "".join(root.itertext())
    found = ids(root)
    assert max(Counter(found).values(), default=1) == 1
    shown = [*root.iter("figure"), *root.iter("section")]
    assert {each.attrib["id"] for each in shown} == PARTS[name]
    assert all(len(each.findall("details//tbody/tr")) > 0 for each in root.iter("figure"))


_PAGES: dict[str, str] = {}


@pytest.fixture
def hostile_page(request):
    """Drawn once for all tests."""
    if "hostile" not in _PAGES:
        _PAGES["hostile"] = page(request.getfixturevalue("hostile"))
    return _PAGES["hostile"]


def parsed(html):
    """The page as XML: it is written so that it is both. Raises where it is not well-formed."""
    return ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))


def ids(root):
    return [each.attrib["id"] for each in root.iter() if "id" in each.attrib]


def test_the_report_of_a_recorded_study_has_every_part(recorded):
    """The verdict, each figure with its table, each section, the command of each trial; an id is there once; nothing
    comes from elsewhere."""
    html = page(recorded)
    root = parsed(html)
    require_nothing_from_elsewhere(root)
    assert "faster: " in root.find(".//p[@class='verdict wins']").text
    found = ids(root)
    assert set(FIGURES) | set(SECTIONS) <= set(found)
    assert max(Counter(found).values()) == 1
    for figure in root.iter("figure"):
        svg = figure.find("svg")
        assert svg.attrib["role"] == "img"
        assert all(name in found for name in svg.attrib["aria-labelledby"].split())
        assert svg.find("title").text
        assert len(figure.findall("details//tbody/tr")) > 0
    for number in range(len(recorded.records())):
        assert StudyResult(recorded).command("run", str(number)) in html
    assert len(html.encode()) < 300_000


def require_nothing_from_elsewhere(root):
    """No script, no address, no file: only references within the page; and a policy that would refuse them."""
    assert root.find("head/meta[@http-equiv='Content-Security-Policy']").attrib["content"] == POLICY
    assert not {each.tag for each in root.iter()} & {"script", "img", "iframe", "object"}
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), element.tag
            if name in ("src", "href"):
                assert re.match(r"#|data:,$", value)
            assert all(each.startswith("#") for each in re.findall(r"url\(([^)]*)", value))
    assert not re.search(r"https?:|@import|url\(", root.find("head/style").text)


def test_every_reference_in_a_drawing_is_to_itself(hostile_page):
    """Two drawings in one page do not take each other's marks."""
    root = parsed(hostile_page)
    for figure in root.iter("figure"):
        own = set(ids(figure))
        for element in figure.iter():
            for value in element.attrib.values():
                assert set(re.findall(r"url\(#([^)]+)\)", value)) <= own
            if "href" in element.attrib:
                assert element.attrib["href"][1:] in own


def test_hostile_text_stays_text(hostile_page):
    """Markup, quotes, templates, formulas and escape sequences in names, errors and variables are shown as written."""
    html = hostile_page
    assert "\x1b" not in html
    assert "\x07" not in html
    assert "{{ 7*7 }}" in html
    root = parsed(html)
    require_nothing_from_elsewhere(root)
    assert not [each for each in root.iter() if each.tag in ("script", "img", "b")]
    text = "".join(root.itertext())
    assert "<script>alert(1)</script>\"'\\x1b]0;t\\x07$\\frac&amp;{{ 7*7 }}" in text
    assert "<b onclick='x'>$\\frac</b> & \"q\"" in text
    assert {*FIGURES, *SECTIONS, "breaks"} <= set(ids(root))


def test_a_study_without_results_has_a_page(make_study):
    """No figure has data, and the page says that there is no verdict."""
    study = make_study()
    root = parsed(page(study))
    study.close()
    assert root.find(".//p[@class='verdict']").text.startswith("no verdict yet")
    assert not list(root.iter("figure"))


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_it_says_how_to_get_it(cli, recorded, monkeypatch, package):
    """One sentence and the command, before anything is written or measured."""
    monkeypatch.setitem(sys.modules, package, None)
    shown = cli("report", "earlier")
    assert shown.returncode == 2
    assert f"a report needs the package {package}" in shown.stderr
    assert "[report]'" in shown.stderr
    for measuring in (("tune", "--model", "vit"), ("diagnose", "--model", "vit")):
        refused = cli(*measuring, "--report", "x.html")
        assert refused.returncode == 2
        assert "a report needs" in refused.stderr


def test_the_command_and_the_api_write_the_same_page(cli, recorded, tmp_path, monkeypatch):
    """`report STUDY -o FILE`, and `TuneResult.report(path)`."""
    monkeypatch.setattr(drawing, "draw", lambda figure: "")
    shown = cli("report", "earlier", "-o", "out.html")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("out.html: ")
    assert TuneResult(recorded).report(tmp_path / "api.html") == tmp_path / "api.html"
    first, second = ((tmp_path / name).read_text() for name in ("out.html", "api.html"))
    assert first.replace(" --studies-dir studies", "") == second.replace(f" --studies-dir {tmp_path / 'studies'}", "")


def test_a_place_that_cannot_be_written_is_a_sentence(cli, recorded, tmp_path):
    """Found before `tune` measures anything."""
    assert "no file can be written there" in cli("report", "earlier", "-o", str(tmp_path / "none" / "x.html")).stderr
    refused = cli("tune", "--model", "vit", "--report", "none/x.html")
    assert refused.returncode == 2
    assert "no file can be written there" in refused.stderr


@pytest.mark.slow
def test_tune_writes_a_report_at_its_end(tune_fake, tmp_path):
    """The page lies there when the command is done; its name goes to stderr, stdout is for the result."""
    result = tune_fake("--trials", "2", "--report", str(tmp_path / "r.html"))
    assert result.returncode == 0, result.stderr
    assert "report: " in result.stderr
    parsed((tmp_path / "r.html").read_text())


def test_the_template_is_part_of_the_package():
    """The wheel has every file of the package, and the build leaves none out."""
    assert Path(pages.__file__).with_name("template.html.j2").is_file()
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["packages"] == ["autotune"]
    assert not {"exclude", "only-include"} & set(build)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_has_nothing_to_complain_about(recorded, hostile, hostile_results, tmp_path, width):
    """It opens the pages, draws them, and says nothing on its console; no hostile text has run."""
    for name, result in zip(
        ("earlier", "hostile", "diagnosed"),
        (TuneResult(recorded), TuneResult(hostile), hostile_results["diagnosis"]),
        strict=True,
    ):
        file, picture = result.report(tmp_path / f"{name}.html"), tmp_path / f"{name}.png"
        shown = subprocess.run(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / f'browser-{name}'}",
                "--enable-logging=stderr", f"--screenshot={picture}", f"--window-size={width},2000", file.as_uri(),
            ],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert "CONSOLE" not in shown.stderr
        assert picture.stat().st_size > 20_000
