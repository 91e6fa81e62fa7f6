"""The benchmark of classes: it finds the digest that leaves something out, and nothing where there is nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.space.load import Circumstances, load_space
from benchmarks import classes
from benchmarks.program_classes import Repeats

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [a, b, c, d, e, f], default: a}
  idle: {doc: "https://e.org", when: {execution: compile}, values: [a, b, c, d, e, f], default: a}
  threads: {doc: "https://e.org", when: {execution: compile}, values: [1, 2], default: 1, runtime: true}
"""
SD = 0.01


@pytest.fixture
def content(tmp_path):
    """A table: a program for each mode and number of threads; `latency_s(config, drawn)` says how fast each is."""
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    space = load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))

    def make(latency_s=lambda config, drawn: drawn):
        generator = np.random.default_rng(0)
        rows = []
        for config in space.configs():
            drawn = float(np.exp(generator.normal(0, SD)))
            row = {
                "config": config.root,
                "latency_s": latency_s(config, drawn),
                "program": f"{config.get('mode')} {config.get('threads')}",
            }
            rows.append(row)
        rows.append({"config": {}, "latency_s": None, "program": None})
        return {"rows": rows, "space": space.model_dump()}

    return make


@pytest.fixture
def repeats():
    """Eight processes of one config that scatter as the table's do."""
    latencies_s = np.exp(np.random.default_rng(1).normal(0, SD, 8))
    return Repeats(config="any", latencies_s=tuple(float(each) for each in latencies_s))


def test_classes_that_hold(content, repeats):
    """One config under six names: the scatter within classes is that of one config, and nothing is named."""
    found = classes.findings_of("t", content(), repeats)
    assert (found.num_configs, found.num_programs) == (73, 13)
    assert found.class_sd == pytest.approx(SD, rel=0.3)
    assert not any(each.offends for each in found.widths)
    assert not any(each.is_real for each in found.shifts)
    assert all(goal.met for goal in classes.judge([found]))


def test_a_knob_that_the_digest_leaves_out_is_named(content, repeats):
    """`idle: f` is 5 % slower under the same program: the classes are too wide, and the knob is named with how much."""
    found = classes.findings_of("t", content(lambda c, drawn: drawn * (1.05 if c.get("idle") == "f" else 1)), repeats)
    real = [each for each in found.shifts if each.is_real]
    assert {each.knob for each in real} == {"idle"}
    assert all("f" in each.values for each in real)
    assert {each.values for each in real} == {(other, "f") for other in "abcde"}
    assert all(each.mean == pytest.approx(-math.log(1.05), abs=0.02) for each in real)
    assert not all(goal.met for goal in classes.judge([found]))
    assert "idle=a over idle=f" in classes.section([found])


@pytest.mark.slow
def test_one_wild_member_makes_a_class_too_wide(content, repeats):
    """And the sentence says in which knobs the two ends differ."""
    wild = {"mode": "b", "idle": "c", "threads": 2}
    found = classes.findings_of("t", content(lambda c, drawn: drawn * (1.3 if c.matches(wild) else 1)), repeats)
    offending = [each for each in found.widths if each.offends]
    assert [each.slowest.get("idle") for each in offending] == ["c"]
    assert "differ in: idle" in classes.section([found])


def test_configs_without_a_program_are_classes_of_their_own(content, repeats):
    """Where a framework does not tell, nothing is compared."""
    unknown = content()
    for row in unknown["rows"]:
        row["program"] = None
    found = classes.findings_of("t", unknown, repeats)
    assert (found.num_programs, found.class_sd, found.widths) == (73, None, ())
